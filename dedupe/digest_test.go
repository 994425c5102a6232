package dedupe_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

func TestDigest(t *testing.T) {
	t.Parallel()
	t.Run("is the hash that the documentation states, at every length", func(t *testing.T) {
		t.Parallel()
		payload := bytes.Repeat([]byte("0123456789abcdef"), 80)
		for n := range len(payload) {
			sum := sha256.Sum256(append([]byte("resize\x00"), payload[:n]...))
			want := hex.EncodeToString(sum[:16])
			if got := string(dedupe.Digest("resize", payload[:n])); got != want {
				t.Fatalf("Digest of %d bytes = %s, want %s", n, got, want)
			}
		}
	})
	t.Run("never changes", func(t *testing.T) {
		t.Parallel()
		// printf 'resize\0{"w":80}' | sha256sum | cut -c1-32
		const want = "bd1051ee43a161c4e57b6b9850a94199"
		if got := string(dedupe.Digest("resize", []byte(`{"w":80}`))); got != want {
			t.Errorf("Digest = %s, want %s", got, want)
		}
	})
	t.Run("tells kind from payload", func(t *testing.T) {
		t.Parallel()
		seen := make(map[command.Digest]string)
		for _, c := range [][2]string{{"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"ab", "C"}, {"", "abc"}, {"ab", "c\x00"}, {"ab", ""}} {
			d := dedupe.Digest(c[0], []byte(c[1]))
			name := fmt.Sprintf("%q %q", c[0], c[1])
			if other, ok := seen[d]; ok {
				t.Errorf("%s and %s share the digest %s", name, other, d)
			}
			seen[d] = name
		}
	})
	t.Run("takes an absent payload for an empty one", func(t *testing.T) {
		t.Parallel()
		if got, want := dedupe.Digest("k", nil), dedupe.Digest("k", []byte{}); got != want {
			t.Errorf("Digest(nil) = %s, Digest(empty) = %s", got, want)
		}
	})
	t.Run("is safe for concurrent use", func(t *testing.T) {
		t.Parallel()
		for i := range 8 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				payload := bytes.Repeat([]byte{byte(i)}, 4096)
				sum := sha256.Sum256(append([]byte("k\x00"), payload...))
				want := hex.EncodeToString(sum[:16])
				for range 500 {
					if got := string(dedupe.Digest("k", payload)); got != want {
						t.Fatalf("Digest = %s, want %s", got, want)
					}
				}
			})
		}
	})
}

func TestDigest_Allocates(t *testing.T) {
	for _, c := range []struct {
		size int
		most float64
	}{
		{0, 1}, {100, 1}, {505, 1},
		// A pool may be emptied at any time, and the race detector does so often.
		{506, 3}, {100_000, 3},
	} {
		payload := make([]byte, c.size)
		got := testing.AllocsPerRun(200, func() { dedupe.Digest("resize", payload) })
		if got > c.most {
			t.Errorf("Digest of %d bytes allocates %v times, want at most %v", c.size, got, c.most)
		}
	}
}

func TestIdentify(t *testing.T) {
	t.Parallel()
	t.Run("fills in the queue, the token and the digest", func(t *testing.T) {
		t.Parallel()
		in := command.Command{ID: "img 7", Kind: "resize", ContentType: "application/json", Payload: []byte(`{"w":80}`)}
		got, err := dedupe.Identify(in)
		if err != nil {
			t.Fatal(err)
		}
		if got.Queue != command.DefaultQueue || got.Token != "img=207" || got.Digest != dedupe.Digest("resize", in.Payload) {
			t.Errorf("Identify = %+v", got)
		}
		if got.ID != in.ID || got.Kind != in.Kind || got.ContentType != in.ContentType || !bytes.Equal(got.Payload, in.Payload) {
			t.Errorf("Identify changed the command: %+v", got.Command)
		}
		if in.Queue != "" {
			t.Errorf("Identify wrote to its argument: queue %q", in.Queue)
		}
	})
	t.Run("keeps content type, queue and deadline out of the digest", func(t *testing.T) {
		t.Parallel()
		a, errA := dedupe.Identify(command.Command{ID: "x", Kind: "k", Payload: []byte("p")})
		b, errB := dedupe.Identify(command.Command{ID: "y", Kind: "k", Queue: "q", ContentType: "c", Payload: []byte("p")})
		if errA != nil || errB != nil || a.Digest != b.Digest {
			t.Errorf("digests %s (%v) and %s (%v), want equal", a.Digest, errA, b.Digest, errB)
		}
	})
	t.Run("refuses invalid names", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			cmd  command.Command
			want error
		}{
			{command.Command{Kind: "k"}, command.ErrInvalidID},
			{command.Command{ID: strings.Repeat("x", 257), Kind: "k"}, command.ErrInvalidID},
			{command.Command{ID: "a"}, command.ErrInvalidName},
			{command.Command{ID: "a", Kind: "a.b"}, command.ErrInvalidName},
			{command.Command{ID: "a", Kind: "k", Queue: ">"}, command.ErrInvalidName},
		} {
			if got, err := dedupe.Identify(c.cmd); !errors.Is(err, c.want) {
				t.Errorf("Identify(%.40q) = %+v, %v, want %v", c.cmd.ID, got, err, c.want)
			}
		}
	})
}

func BenchmarkDigest(b *testing.B) {
	for _, size := range []int{32, 400, 4096, 65536} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			payload := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				dedupe.Digest("resize", payload)
			}
		})
	}
}

func BenchmarkIdentify(b *testing.B) {
	c := command.Command{ID: "order-20260731-000042", Kind: "resize", Payload: []byte(`{"w":80}`)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := dedupe.Identify(c); err != nil {
			b.Fatal(err)
		}
	}
}
