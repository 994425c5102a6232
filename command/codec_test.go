package command_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/tallyman-go/tallyman/command"
)

func repeat(b byte, n int, tail ...byte) []byte {
	return append(bytes.Repeat([]byte{b}, n), tail...)
}

// hostile holds inputs that promise more than they hold, nest too deeply, or
// are no single MessagePack value.
var hostile = map[string][]byte{
	"nothing":                            {},
	"array32 of 4 G elements":            {0xdd, 0xff, 0xff, 0xff, 0xff},
	"array32 of 4 G elements, one there": {0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0},
	"array16 of 64 K elements":           {0xdc, 0xff, 0xff},
	"map32 of 4 G entries":               {0xdf, 0xff, 0xff, 0xff, 0xff},
	"map32 of 2 G entries":               {0xdf, 0x80, 0x00, 0x00, 0x00, 0xc0, 0xc0},
	"map16 of 64 K entries":              {0xde, 0xff, 0xff, 0xa0, 0xc0},
	"bin32 of 4 GB":                      {0xc6, 0xff, 0xff, 0xff, 0xff},
	"bin16 of 64 KB":                     {0xc5, 0xff, 0xff, 0x00},
	"bin8 cut short":                     {0xc4, 0x02, 0x00},
	"str32 of 4 GB":                      {0xdb, 0xff, 0xff, 0xff, 0xff, 'a'},
	"str8 cut short":                     {0xd9, 0x05, 'a'},
	"fixstr cut short":                   {0xa2, 'a'},
	"ext32 of 4 GB":                      {0xc9, 0xff, 0xff, 0xff, 0xff, 0x01},
	"ext8 without its type":              {0xc7, 0x00},
	"fixext16 cut short":                 {0xd8, 0xff, 0x00},
	"uint64 cut short":                   {0xcf, 0x00, 0x00},
	"float64 cut short":                  {0xcb, 0x00},
	"length cut short":                   {0xdf, 0xff, 0xff},
	"fixmap without a value":             {0x81, 0xa1, 'a'},
	"fixarray cut short":                 {0x92, 0x01},
	"bombs within an array":              {0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff},
	"the code that is no type":           {0xc1},
	"a second value":                     {0xc0, 0xc0},
	"65 arrays around nothing":           repeat(0x91, 64, 0x90),
	"65 arrays around a number":          repeat(0x91, 65, 0x01),
	"65 maps":                            append(bytes.Repeat([]byte{0x81, 0xa1, 'k'}, 65), 0x01),
	"65 maps as keys":                    append(repeat(0x81, 64, 0x80), repeat(0xc0, 64)...),
	"a million arrays":                   repeat(0x91, 1_000_000, 0x01),
	"a million arrays, all cut short":    repeat(0x9f, 1_000_000),
}

func TestCheckShape(t *testing.T) {
	t.Parallel()
	t.Run("refuses hostile input", func(t *testing.T) {
		t.Parallel()
		for name, data := range hostile {
			if err := command.CheckShape(data); !errors.Is(err, command.ErrMalformed) {
				t.Errorf("%s: %v, want ErrMalformed", name, err)
			}
		}
	})
	t.Run("takes every type, whole, and no prefix of it", func(t *testing.T) {
		t.Parallel()
		for name, data := range map[string][]byte{
			"fixint": {0x7f}, "negative fixint": {0xff}, "nil": {0xc0}, "false": {0xc2}, "true": {0xc3},
			"uint8": {0xcc, 1}, "uint16": {0xcd, 1, 2}, "uint32": repeat(0xce, 1, 1, 2, 3, 4), "uint64": repeat(0xcf, 9),
			"int8": {0xd0, 1}, "int16": {0xd1, 1, 2}, "int32": repeat(0xd2, 5), "int64": repeat(0xd3, 9),
			"float32": repeat(0xca, 5), "float64": repeat(0xcb, 9),
			"fixext1": repeat(0xd4, 3), "fixext2": repeat(0xd5, 4), "fixext4": repeat(0xd6, 6), "fixext8": repeat(0xd7, 10), "fixext16": repeat(0xd8, 18),
			"ext8": {0xc7, 1, 9, 0}, "ext16": {0xc8, 0, 1, 9, 0}, "ext32": {0xc9, 0, 0, 0, 1, 9, 0},
			"fixstr": {0xa1, 'a'}, "str8": {0xd9, 1, 'a'}, "str16": {0xda, 0, 1, 'a'}, "str32": {0xdb, 0, 0, 0, 1, 'a'},
			"bin8": {0xc4, 1, 0}, "bin16": {0xc5, 0, 1, 0}, "bin32": {0xc6, 0, 0, 0, 1, 0},
			"fixarray": {0x92, 1, 2}, "array16": {0xdc, 0, 1, 1}, "array32": {0xdd, 0, 0, 0, 1, 1},
			"fixmap": {0x81, 1, 2}, "map16": {0xde, 0, 1, 1, 2}, "map32": {0xdf, 0, 0, 0, 1, 1, 2},
			"64 arrays around a number": repeat(0x91, 64, 0x01), "64 arrays around nothing": repeat(0x91, 63, 0x90),
		} {
			if err := command.CheckShape(data); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for n := range data {
				if err := command.CheckShape(data[:n]); !errors.Is(err, command.ErrMalformed) {
					t.Errorf("%s cut to %d bytes: %v, want ErrMalformed", name, n, err)
				}
			}
		}
	})
}

func TestCheckShape_Allocates(t *testing.T) {
	data, err := command.Marshal(map[string]any{"a": []any{1, "two", 3.0, []byte("four")}, "b": map[string]any{"c": nil}})
	if err != nil {
		t.Fatal(err)
	}
	if got := testing.AllocsPerRun(100, func() { _ = command.CheckShape(data) }); got != 0 {
		t.Errorf("CheckShape allocates %v times, want 0", got)
	}
}

type args struct {
	Name  string
	Sizes []int
	Tags  map[string]int
	At    time.Time
	Inner *args
}

func TestUnmarshal(t *testing.T) {
	t.Parallel()
	t.Run("gives back what Marshal took", func(t *testing.T) {
		t.Parallel()
		in := args{
			Name: "caf\u00e9", Sizes: []int{-1, 0, 1 << 40}, Tags: map[string]int{"b": 2, "a": 1},
			At: time.Unix(1785500000, 123456789), Inner: &args{Name: "inner"},
		}
		data, err := command.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var got args
		if err := command.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if !got.At.Equal(in.At) || !reflect.DeepEqual(got.Inner, &args{Name: "inner"}) {
			t.Errorf("got %+v, want %+v", got, in)
		}
		got.At, got.Inner, in.At, in.Inner = time.Time{}, nil, time.Time{}, nil
		if !reflect.DeepEqual(got, in) {
			t.Errorf("got %+v, want %+v", got, in)
		}
	})
	t.Run("wraps ErrMalformed when the type does not fit", func(t *testing.T) {
		t.Parallel()
		var number int
		if err := command.Unmarshal([]byte{0xa1, 'a'}, &number); !errors.Is(err, command.ErrMalformed) {
			t.Errorf("a string into an int: %v, want ErrMalformed", err)
		}
		if err := command.Unmarshal([]byte{0xc7, 0x01, 0x63, 0x00}, new(any)); !errors.Is(err, command.ErrMalformed) {
			t.Errorf("an unknown extension: %v, want ErrMalformed", err)
		}
	})
	t.Run("survives a decoder that panics", func(t *testing.T) {
		t.Parallel()
		if err := command.Unmarshal([]byte{0x01}, new(grumpy)); !errors.Is(err, command.ErrMalformed) {
			t.Errorf("got %v, want ErrMalformed", err)
		}
		// What the panic left behind must not reach the next caller.
		var got string
		if err := command.Unmarshal([]byte{0xa1, 'a'}, &got); err != nil || got != "a" {
			t.Errorf("after the panic: %q, %v", got, err)
		}
	})
}

type grumpy struct{}

func (*grumpy) DecodeMsgpack(*msgpack.Decoder) error { panic("not today") }

// TestUnmarshal_Allocates must not run beside others: it reads the whole
// process's account of memory.
func TestUnmarshal_Allocates(t *testing.T) {
	const limit = 1 << 20 // generous; the bombs promise gigabytes
	for name, data := range hostile {
		for _, to := range []any{new(any), new([]int), new(map[string]int), new(string), new([]byte), new(args)} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := command.Unmarshal(data, to)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, command.ErrMalformed) {
				t.Errorf("%s into %T: %v, want ErrMalformed", name, to, err)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > limit {
				t.Errorf("%s into %T: %d bytes allocated for %d of input, want at most %d", name, to, got, len(data), limit)
			}
		}
	}
}

func TestMarshal_EqualMapsGiveEqualBytes(t *testing.T) {
	t.Parallel()
	ints, anys, strs := map[string]int{}, map[string]any{}, map[string]string{}
	byInt, byStruct, nested := map[int]string{}, map[[2]int]bool{}, map[string]map[int]bool{}
	for i := range 40 {
		k := fmt.Sprint("key", i)
		ints[k], anys[k], strs[k] = i, i, k
		byInt[i-20], byStruct[[2]int{i, -i}] = k, true
		nested[k] = map[int]bool{1: true, 2: false, 300: true, -4: false, i: true}
	}
	for _, c := range []struct {
		name string
		copy func() any
	}{
		{"map[string]int", func() any { return maps.Clone(ints) }},
		{"map[string]any", func() any { return maps.Clone(anys) }},
		{"map[string]string", func() any { return maps.Clone(strs) }},
		{"map[int]string", func() any { return maps.Clone(byInt) }},
		{"map with array keys", func() any { return maps.Clone(byStruct) }},
		{"map of maps", func() any { return maps.Clone(nested) }},
		{"any in any", func() any { return map[string]any{"x": maps.Clone(ints), "a": []any{maps.Clone(byInt)}} }},
		{"struct with a map", func() any { return &args{Name: "n", Tags: maps.Clone(ints), Inner: &args{Tags: maps.Clone(ints)}} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			want, err := command.Marshal(c.copy())
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				got, err := command.Marshal(c.copy())
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("equal values gave different bytes (%v):\n%x\n%x", err, got, want)
				}
			}
		})
	}
}

func TestMarshal_SortsKeys(t *testing.T) {
	t.Parallel()
	data, err := command.Marshal(map[string]int{"b": 1, "aa": 2, "a": 3, "": 4})
	if err != nil {
		t.Fatal(err)
	}
	// Text order, as sorted() in other languages gives it: "", "a", "aa", "b".
	want := []byte{0x84, 0xa0, 4, 0xa1, 'a', 3, 0xa2, 'a', 'a', 2, 0xa1, 'b', 1}
	if !bytes.Equal(data, want) {
		t.Errorf("got % x, want % x", data, want)
	}
}

func TestMarshal_ReportsWhatItCannotEncode(t *testing.T) {
	t.Parallel()
	if _, err := command.Marshal(make(chan int)); err == nil {
		t.Error("a channel was encoded")
	}
}

func FuzzUnmarshal(f *testing.F) {
	for _, data := range hostile {
		if len(data) < 1000 {
			f.Add(data)
		}
	}
	seed, err := command.Marshal(args{Name: "n", Sizes: []int{1, 300}, Tags: map[string]int{"a": 1}, At: time.Unix(1, 2)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{0x82, 0x01, 0xc3, 0x91, 0x01, 0xd6, 0xff, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := slices.Clone(data)
		for _, to := range []any{new(any), new(args), new(map[string]any), new(command.Command)} {
			err := command.Unmarshal(data, to)
			if err != nil && !errors.Is(err, command.ErrMalformed) {
				t.Fatalf("into %T: %v does not wrap ErrMalformed", to, err)
			}
			if err != nil {
				continue
			}
			if err := command.CheckShape(data); err != nil {
				t.Fatalf("decoded into %T what CheckShape refuses: %v", to, err)
			}
			first, err := command.Marshal(to)
			if err != nil {
				continue // such as a time beyond what the format holds
			}
			if err := command.CheckShape(first); err != nil {
				t.Fatalf("Marshal of %T gave what CheckShape refuses: %v", to, err)
			}
		}
		if !bytes.Equal(in, data) {
			t.Fatal("the input was written to")
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	type resize struct {
		Bucket, Path string
		Width        int
		Height       int
		Formats      []string
	}
	in := resize{"images", "2026/07/31/cat.jpg", 80, 60, []string{"webp", "avif"}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := command.Marshal(in); err != nil {
			b.Fatal(err)
		}
	}
}
