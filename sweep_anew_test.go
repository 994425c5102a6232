package tallyman_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
)

// A worker that had swept a queue up to some sequence believed the same of the stream
// that was made in the place of the first, and took out commands there that had no outcome.
func TestSweep_StreamMadeAnewUnderAWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, sweeping, tallyman.Topology{Queues: []string{"default", "other"}})
	r.many(t, "other", "o", 1) // sequence 1, which holds up the others
	log := &transcript{}
	pace := quick
	pace.Patient = time.Millisecond // what lies behind 2 to 6 goes one by one
	sweeper(t, r.Pool, pace, tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: slog.New(slog.NewTextHandler(log, nil))})
	r.settled(t, r.many(t, "", "a", 10)...) // 2 to 11
	r.holds(t, 1)

	str, err := r.js.Stream(r.ctx, "main_commands")
	if err != nil {
		t.Fatal(err)
	}
	cons, err := str.Consumer(r.ctx, "default")
	if err != nil {
		t.Fatal(err)
	}
	anew, paused := str.CachedInfo().Config, cons.CachedInfo().Config
	if err := r.js.DeleteStream(r.ctx, "main_commands"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.CreateStream(r.ctx, anew); err != nil {
		t.Fatal(err)
	}
	r.many(t, "other", "p", 1)
	r.many(t, "", "jumped", 5) // 2 to 6
	until := time.Now().Add(time.Hour)
	paused.PauseUntil = &until
	if _, err := r.js.CreateConsumer(r.ctx, "main_commands", paused); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.ResetConsumerToSequence(r.ctx, "main_commands", "default", 7); err != nil {
		t.Fatal(err)
	}
	if _, err := r.js.ResumeConsumer(r.ctx, "main_commands", "default"); err != nil {
		t.Fatal(err)
	}
	r.settled(t, r.many(t, "", "b", 20)...) // 7 to 26
	eventually(t, r.ctx, "a word about what nothing accounts for", func() bool { return log.has("nothing accounts for") })
	r.holds(t, 1, 2, 3, 4, 5, 6)
}
