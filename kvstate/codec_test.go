package kvstate_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// full is a record with every field set.
func full() *kvstate.Record {
	at := time.Unix(1785500000, 123456789)
	cmd := command.Command{ID: "img 7", Kind: "resize", Queue: "slow", ContentType: "application/json", Payload: []byte(`{"w":80}`), NotAfter: at}
	return &kvstate.Record{
		ID: "img 7", Kind: "resize", Queue: "slow", Digest: "0123456789abcdef0123456789abcdef",
		State: kvstate.Parked, Token: 1 << 40, Attempt: 3, Owner: "worker-1", Seqs: []uint64{1, 300, math.MaxUint64},
		Offset: 70_000, Checkpoint: []byte("checkpoint"), Intent: []byte("intent"),
		Result: []byte("result"), ContentType: "text/plain", ResolvedBy: "ann",
		FollowUps: []command.Command{cmd, {ID: "b", Kind: "k", Queue: "q", Payload: []byte{}}},
		Error:     "it broke", Reason: kvstate.ReasonExhausted, NextAt: at, Command: &cmd,
		Trail: []kvstate.Step{{At: at, State: kvstate.Claimed, Owner: "worker-1", Token: 5}, {At: at.Add(time.Second), State: kvstate.Parked, Owner: "op", Token: 5, Note: "why"}},
		Extra: []kvstate.Field{{Name: "shade", Value: msgpack.RawMessage{0x92, 0x01, 0xa1, 'x'}}, {Name: "later", Value: msgpack.RawMessage{0xc0}}},
	}
}

func encode(t testing.TB, r *kvstate.Record) []byte {
	t.Helper()
	data, err := kvstate.Encode(r)
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	return data
}

// normal returns a copy of r whose times are in UTC, since the zone is not
// stored, and whose commands have an empty payload rather than none.
func normal(r *kvstate.Record) *kvstate.Record {
	c := *r
	c.NextAt = c.NextAt.UTC()
	c.Trail = slices.Clone(c.Trail)
	for i := range c.Trail {
		c.Trail[i].At = c.Trail[i].At.UTC()
	}
	c.FollowUps = slices.Clone(c.FollowUps)
	for i := range c.FollowUps {
		c.FollowUps[i] = normalCommand(c.FollowUps[i])
	}
	if c.Command != nil {
		inner := normalCommand(*c.Command)
		c.Command = &inner
	}
	return &c
}

func normalCommand(c command.Command) command.Command {
	c.NotAfter = c.NotAfter.UTC()
	c.Payload = append([]byte{}, c.Payload...)
	return c
}

func wantEqual(t testing.TB, got, want *kvstate.Record) {
	t.Helper()
	if got, want := normal(got), normal(want); !reflect.DeepEqual(got, want) {
		t.Fatalf("got  %+v\nwant %+v", got, want)
	}
}

func TestDecode_GivesBackWhatEncodeTook(t *testing.T) {
	t.Parallel()
	t.Run("with every field set", func(t *testing.T) {
		t.Parallel()
		got, err := kvstate.Decode(encode(t, full()))
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, full())
	})
	t.Run("with any field left out", func(t *testing.T) {
		t.Parallel()
		fields := reflect.TypeFor[kvstate.Record]()
		for i := range fields.NumField() {
			name := fields.Field(i).Name
			if name == "ID" || name == "State" {
				continue
			}
			want := full()
			reflect.ValueOf(want).Elem().Field(i).SetZero()
			got, err := kvstate.Decode(encode(t, want))
			if err != nil {
				t.Fatalf("without %s: %v", name, err)
			}
			wantEqual(t, got, want)
		}
	})
	t.Run("with bytes that are empty rather than absent", func(t *testing.T) {
		t.Parallel()
		want := &kvstate.Record{ID: "a", State: kvstate.Claimed, Checkpoint: []byte{}, Intent: []byte{}, Result: []byte{}}
		got, err := kvstate.Decode(encode(t, want))
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, got, want)
	})
	t.Run("at random", func(t *testing.T) {
		t.Parallel()
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 0))
		for range 2000 {
			want := randomRecord(rng)
			got, err := kvstate.Decode(encode(t, want))
			if err != nil {
				t.Fatalf("%+v: %v", want, err)
			}
			wantEqual(t, got, want)
		}
	})
	t.Run("without the revision, which is the bucket's", func(t *testing.T) {
		t.Parallel()
		r := full()
		r.Revision, r.StoredAt = 77, time.Unix(1, 0)
		if !bytes.Equal(encode(t, r), encode(t, full())) {
			t.Error("revision or time of storage take part in the stored bytes")
		}
	})
}

func randomRecord(rng *rand.Rand) *kvstate.Record {
	text := func() string { return strings.Repeat("é", rng.IntN(2)*rng.IntN(40)) + fmt.Sprint(rng.IntN(1000)) }
	data := func() []byte {
		if rng.IntN(2) == 0 {
			return nil
		}
		return bytes.Repeat([]byte{byte(rng.Uint32())}, rng.IntN(2)*rng.IntN(70_000))
	}
	number := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	moment := func() time.Time {
		if rng.IntN(3) == 0 {
			return time.Time{}
		}
		return time.Unix(rng.Int64N(1<<40)-1<<30, rng.Int64N(1e9))
	}
	cmd := func() command.Command {
		return command.Command{ID: text(), Kind: text(), Queue: text(), ContentType: text(), Payload: append([]byte{}, data()...), NotAfter: moment()}
	}
	r := &kvstate.Record{
		ID: text(), Kind: text(), Queue: text(), Digest: command.Digest(text()), State: kvstate.States()[rng.IntN(len(kvstate.States()))],
		Token: number(), Attempt: rng.IntN(1 << 30), Owner: text(), Offset: number(), Checkpoint: data(), Intent: data(), Result: data(),
		ContentType: text(), ResolvedBy: text(), Error: text(), Reason: kvstate.Reason(text()), NextAt: moment(),
	}
	for range rng.IntN(20) {
		r.Seqs = append(r.Seqs, number())
	}
	for range rng.IntN(3) {
		r.FollowUps = append(r.FollowUps, cmd())
	}
	for range rng.IntN(kvstate.MaxTrail + 2) {
		r.Trail = append(r.Trail, kvstate.Step{At: moment(), State: kvstate.Claimed, Owner: text(), Token: number(), Note: text()})
	}
	if rng.IntN(2) == 0 {
		c := cmd()
		r.Command = &c
	}
	return r
}

func TestDecode_NoticesEveryFlippedBit(t *testing.T) {
	t.Parallel()
	data := encode(t, full())
	for bit := range 8 * len(data) {
		damaged := slices.Clone(data)
		damaged[bit/8] ^= 1 << (bit % 8)
		if r, err := kvstate.Decode(damaged); !errors.Is(err, command.ErrMalformed) {
			t.Fatalf("bit %d of byte %d flipped: got %+v, %v, want ErrMalformed", bit%8, bit/8, r, err)
		}
	}
}

func TestDecode_RefusesGarbage(t *testing.T) {
	t.Parallel()
	data := encode(t, full())
	t.Run("every prefix and every tail", func(t *testing.T) {
		t.Parallel()
		for n := range data {
			if _, err := kvstate.Decode(data[:n]); !errors.Is(err, command.ErrMalformed) {
				t.Fatalf("the first %d of %d bytes: %v", n, len(data), err)
			}
			if _, err := kvstate.Decode(data[n+1:]); !errors.Is(err, command.ErrMalformed) {
				t.Fatalf("without the first %d bytes: %v", n+1, err)
			}
		}
	})
	t.Run("what is no record", func(t *testing.T) {
		t.Parallel()
		for name, garbage := range map[string][]byte{
			"nothing":         nil,
			"json":            []byte(`{"id":"a","state":"completed"}`),
			"text":            []byte("not a record"),
			"zeros":           make([]byte, 100),
			"ones":            bytes.Repeat([]byte{0xff}, 100),
			"a bomb":          {0xdf, 0xff, 0xff, 0xff, 0xff},
			"two records":     slices.Concat(data, data),
			"a trailing byte": slices.Concat(data, []byte{0}),
			"an array":        seal([]byte{0x92}, 2),
		} {
			if r, err := kvstate.Decode(garbage); !errors.Is(err, command.ErrMalformed) {
				t.Errorf("%s: got %+v, %v, want ErrMalformed", name, r, err)
			}
		}
	})
	t.Run("sealed content that is no record", func(t *testing.T) {
		t.Parallel()
		id, state := "\xa2id\xa1a", "\xa5state\xa9completed"
		for name, c := range map[string]struct {
			body string
			n    int
		}{
			"no id":                        {state, 1},
			"no state":                     {id, 1},
			"an empty id":                  {"\xa2id\xa0" + state, 2},
			"an unknown state":             {id + "\xa5state\xa6paused", 2},
			"a number for an id":           {"\xa2id\x07" + state, 2},
			"a number for a key":           {id + state + "\x07\x07", 3},
			"text for a sequence":          {id + state + "\xa4seqs\x91\xa1x", 3},
			"a map for a result":           {id + state + "\xa6result\x80", 3},
			"a step of four parts":         {id + state + "\xa5trail\x91\x94\xc0\xc0\xc0\xc0", 3},
			"a step that is none":          {id + state + "\xa5trail\x91\xc0", 3},
			"a follow-up that is none":     {id + state + "\xa9followups\x91\xc0", 3},
			"a follow-up without fields":   {id + state + "\xa9followups\x91\x80", 3},
			"a command that is none":       {id + state + "\xa7command\xc0", 3},
			"a checkpoint with no sum":     {id + state + "\xaacheckpoint\xc4\x01x", 3},
			"a sum before the end":         {id + "\xa3sum\xce\x00\x00\x00\x00" + state, 3},
			"a sum that is in the content": {id + state, 2 - 1}, // the announced map ends before the sum
		} {
			if r, err := kvstate.Decode(seal([]byte(c.body), c.n)); !errors.Is(err, command.ErrMalformed) {
				t.Errorf("%s: got %+v, %v, want ErrMalformed", name, r, err)
			}
		}
		// The checksum lies inside a value here; the map has no field "sum" of its own.
		hidden := []byte("\x83" + id + state + "\xa6result\xc4\x09\xa3sum\xce")
		hidden = binary.BigEndian.AppendUint32(hidden, crc32.Checksum(hidden, crc32.MakeTable(crc32.Castagnoli)))
		if r, err := kvstate.Decode(hidden); !errors.Is(err, command.ErrMalformed) {
			t.Errorf("a checksum inside the result: got %+v, %v, want ErrMalformed", r, err)
		}
	})
}

// seal wraps the encoded entries of a map, n of them, with a header and a
// checksum, as Encode does.
func seal(entries []byte, n int) []byte {
	data := append([]byte{0xde, byte((n + 1) >> 8), byte(n + 1)}, entries...)
	data = append(data, "\xa3sum\xce"...)
	return binary.BigEndian.AppendUint32(data, crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
}

func TestDecode_KeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	body := "\x81\xa1v\x63" + "\xa2id\xa1a" + "\xa6colour\x92\xa3red\xc4\x01\x00" + "\xa5state\xa7claimed" + "\xa5shape\x81\xa1x\xd6\x09abcd"
	newer := seal([]byte(body[1:]), 5)
	r, err := kvstate.Decode(newer)
	if err != nil {
		t.Fatal(err)
	}
	want := []kvstate.Field{
		{Name: "colour", Value: msgpack.RawMessage("\x92\xa3red\xc4\x01\x00")},
		{Name: "shape", Value: msgpack.RawMessage("\x81\xa1x\xd6\x09abcd")},
	}
	if r.ID != "a" || r.State != kvstate.Claimed || !reflect.DeepEqual(r.Extra, want) {
		t.Fatalf("got %+v", r)
	}
	next, err := r.Advance(kvstate.Completed, "w", "", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	again, err := kvstate.Decode(encode(t, next))
	if err != nil || !reflect.DeepEqual(again.Extra, want) {
		t.Errorf("after a transition: %+v, %v, want %+v", again.Extra, err, want)
	}
}

// TestDecode_Allocates must not run beside others: it reads the whole
// process's account of memory.
func TestDecode_Allocates(t *testing.T) {
	id, state := "\xa2id\xa1a", "\xa5state\xa9completed"
	many := func(key string, n int, element string) []byte {
		field := append([]byte{byte(0xa0 | len(key))}, key...)
		field = binary.BigEndian.AppendUint32(append(field, 0xdd), uint32(n))
		return seal([]byte(id+state+string(field)+strings.Repeat(element, n)), 3)
	}
	for name, data := range map[string][]byte{
		"sequences":     many("seqs", 100_000, "\x01"),
		"steps":         many("trail", 100_000, "\xc0"),
		"follow-ups":    many("followups", 100_000, "\x80"),
		"unknown parts": many("colours", 100_000, "\x80"),
		"unknown maps":  many("colours", 100_000, "\x81\xc0\xc0"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _ = kvstate.Decode(data)
		runtime.ReadMemStats(&after)
		if got, limit := after.TotalAlloc-before.TotalAlloc, 64*uint64(len(data)); got > limit {
			t.Errorf("100,000 %s: %d bytes allocated for %d of input, want at most %d", name, got, len(data), limit)
		}
	}
}

func TestEncode_IsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	want := encode(t, full())
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for range 200 {
				if got := encode(t, full()); !bytes.Equal(got, want) {
					t.Fatal("Encode gave different bytes for equal records")
				}
				if _, err := kvstate.Decode(want); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range []*kvstate.Record{full(), {ID: "a", State: kvstate.Claimed}, {ID: "a", State: kvstate.Completed, Result: []byte("r")}} {
		data := encode(f, r)
		f.Add(data[3:len(data)-9], uint8(30))
		f.Add(data[3:len(data)-9], uint8(3))
		f.Add(data, uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		// As it comes, and with a checksum that a damaged record would not have.
		for _, data := range [][]byte{data, seal(data, int(n))} {
			r, err := kvstate.Decode(data)
			if err != nil {
				if !errors.Is(err, command.ErrMalformed) {
					t.Fatalf("%v does not wrap ErrMalformed", err)
				}
				continue
			}
			if r.ID == "" || !r.State.Known() {
				t.Fatalf("accepted a record with id %q, state %q", r.ID, r.State)
			}
			again, err := kvstate.Decode(encode(t, r))
			if err != nil {
				t.Fatalf("what was decoded does not decode once it is encoded: %v", err)
			}
			wantEqual(t, again, r)
		}
	})
}
