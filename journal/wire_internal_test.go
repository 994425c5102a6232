package journal

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
)

func sample() *Entry {
	return &Entry{
		Run: "a b", ID: "c/1", Seq: 7, StreamSeq: 40, At: time.Unix(1785500000, 123).UTC(),
		Events:   []Event{{Kind: "opened", Data: []byte("x")}, {Kind: "noted"}},
		Commands: []command.Command{{ID: "a b/7/1", Kind: "step", Queue: "default", ContentType: "text/plain", Payload: []byte("p"), NotAfter: time.Unix(1785600000, 0).UTC()}},
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	token, err := tokenOf("a b")
	if err != nil {
		t.Fatal(err)
	}
	m, err := sample().message("main.journal." + string(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("gives back what was written", func(t *testing.T) {
		t.Parallel()
		got, err := decode(token, 40, m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		want := sample()
		if !sameContent(got, want) || !got.At.Equal(want.At) || got.StreamSeq != 40 || got.ID != want.ID {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
	t.Run("notices every flipped bit, and every cut", func(t *testing.T) {
		t.Parallel()
		for i := range m.Data {
			for bit := range 8 {
				bad := slices.Clone(m.Data)
				bad[i] ^= 1 << bit
				if _, err := decode(token, 40, m.Header, bad); !errors.Is(err, ErrDamaged) {
					t.Fatalf("bit %d of byte %d: %v, want ErrDamaged", bit, i, err)
				}
			}
			if _, err := decode(token, 40, m.Header, m.Data[:i]); !errors.Is(err, ErrDamaged) {
				t.Fatalf("cut to %d bytes: %v, want ErrDamaged", i, err)
			}
		}
		if _, err := decode(token, 40, nil, m.Data); !errors.Is(err, ErrDamaged) {
			t.Errorf("without headers: %v, want ErrDamaged", err)
		}
	})
	t.Run("refuses what lies under another run, or is of another version", func(t *testing.T) {
		t.Parallel()
		if _, err := decode("another", 40, m.Header, m.Data); !errors.Is(err, ErrDamaged) {
			t.Errorf("under another run: %v, want ErrDamaged", err)
		}
		for name, change := range map[string]func(*wire){
			"a newer version": func(w *wire) { w.Version++ },
			"no number":       func(w *wire) { w.Seq = 0 },
			"no commit id":    func(w *wire) { w.ID = "" },
		} {
			w := sample().wire()
			change(&w)
			body, err := command.Marshal(w)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decode(token, 40, nats.Header{headerSum: {sum(sumEntry, body)}}, body); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %v, want ErrDamaged", name, err)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	m, err := sample().message("main.journal.x")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m.Data)
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := decode("a=20b", 1, nats.Header{headerSum: {sum(sumEntry, body)}}, body)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("%v does not wrap ErrDamaged", err)
		}
		if err == nil && (e.Seq == 0 || e.ID == "" || e.Run != "a b") {
			t.Fatalf("took %+v", e)
		}
		if snap, err := parseSnapshot("a b", body); err == nil && snap.Run != "a b" {
			t.Fatalf("took %+v", snap)
		}
	})
}

func TestParseSnapshot(t *testing.T) {
	t.Parallel()
	snap := &snapshot{Version: "2", Run: "r", Seq: 100, At: 4000, Commit: "c", TakenAt: time.Unix(1785500000, 0), State: make([]byte, 300)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range snap.State {
		snap.State[i] = byte(random.Uint32())
	}
	raw, err := snap.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := parseSnapshot("r", raw); err != nil || got.Seq != 100 || !slices.Equal(got.State, snap.State) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i := range raw {
		for bit := range 8 {
			bad := slices.Clone(raw)
			bad[i] ^= 1 << bit
			if _, err := parseSnapshot("r", bad); !errors.Is(err, ErrDamaged) {
				t.Fatalf("bit %d of byte %d: %v, want ErrDamaged", bit, i, err)
			}
		}
		if _, err := parseSnapshot("r", raw[:i]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: %v, want ErrDamaged", i, err)
		}
	}
	if _, err := parseSnapshot("s", raw); !errors.Is(err, ErrDamaged) {
		t.Errorf("of another run: %v, want ErrDamaged", err)
	}
}

func TestHeads_AreBounded(t *testing.T) {
	t.Parallel()
	j := &Journal{heads: map[command.Token]head{}}
	for i := range uint64(3 * maxHeads) {
		j.remember(command.Token(rune(i+0x100)), head{seq: i})
	}
	if len(j.heads) > maxHeads {
		t.Errorf("%d heads are remembered, the limit is %d", len(j.heads), maxHeads)
	}
	j.remember("last", head{seq: 1})
	j.remember("last", head{seq: 2})
	if h, ok := j.remembered("last"); !ok || h.seq != 2 {
		t.Errorf("got %+v, %v", h, ok)
	}
}
