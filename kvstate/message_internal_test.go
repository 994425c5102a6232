package kvstate

import (
	"testing"

	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// A message that is given back twice would be two writes at once.
func TestStore_GivesMessagesBackOnce(t *testing.T) {
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := server.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	pipe, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pipe.Close() })
	for name, group := range map[string]*pipeline.Group{"each": nil, "group": pipeline.NewGroup(pipe, pipeline.GroupConfig{})} {
		s := &Store{nc: nc, pipe: pipe, group: group, prefix: "$KV.none."}
		ctx := t.Context()
		for what, write := range map[string]func() error{
			"remove":  func() error { return s.Remove(ctx, "_probe/x", 0) },
			"note":    func() error { return s.Note(ctx, "a", "x", &Note{}) },
			"put":     func() error { return s.PutWait(ctx, "_probe/x", nil, 0) },
			"large":   func() error { return s.PutWait(ctx, "_probe/x", make([]byte, 2<<20), 0) },
			"a write": func() error { _, err := s.WriteWait(ctx, "a", &Record{ID: "a", State: Claimed}); return err },
		} {
			for range 20 {
				if err := write(); err == nil { // there is no bucket
					t.Fatalf("%s, %s: got no error", name, what)
				}
				a, b := messages.Get().(*message), messages.Get().(*message)
				if a == b {
					t.Fatalf("%s, %s: its message was given back twice", name, what)
				}
				a.recycle()
				b.recycle()
			}
		}
	}
}
