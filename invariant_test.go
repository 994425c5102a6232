package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
)

// warned passes on the texts of warnings.
type warned chan string

func (w warned) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (w warned) Handle(_ context.Context, r slog.Record) error {
	select {
	case w <- r.Message:
	default:
	}
	return nil
}
func (w warned) WithAttrs([]slog.Attr) slog.Handler { return w }
func (w warned) WithGroup(string) slog.Handler      { return w }

func TestInvariant_I2_NoAckWithoutARecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	js, err := jetstream.New(r.nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(r.ctx, "KV_main")
	if err != nil {
		t.Fatal(err)
	}
	open := s.CachedInfo().Config
	full := open
	full.MaxMsgs = int64(s.CachedInfo().State.Msgs) // no room for a record
	if _, err := js.UpdateStream(r.ctx, full); err != nil {
		t.Fatal(err)
	}
	j := &journal{}
	warnings := make(warned, 100)
	start(t, r.Pool, tallyman.WorkerConfig{Observe: j.observe, Logger: slog.New(warnings), Mux: handle("echo", echo)})
	r.submit(t, tallyman.Command{ID: "a", Kind: "echo"})
	if got, want := <-warnings, "record not written yet"; got != want {
		t.Errorf("warned of %q, want %q", got, want)
	}
	if st, err := r.Commands().State(r.ctx); err != nil || st.Messages != 1 {
		t.Errorf("%d commands in the stream, %v; want 1: nothing was acked", st.Messages, err)
	}
	if n := j.count(tallyman.EventCompleted, "a"); n != 0 {
		t.Errorf("completed %d times without a record", n)
	}
	if _, err := js.UpdateStream(r.ctx, open); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Fatal(err)
	}
	r.emptied(t)
}

func TestInvariant_I3_EverySequenceIsAccountedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	no := errors.New("no")
	mux := route(
		tallyman.Route{Kind: "echo", Handler: tallyman.HandlerFunc(echo)},
		tallyman.Route{Kind: "never", Handler: tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, tallyman.Reject(no)
		})},
	)
	const n = 30
	for i := range n {
		kind := []string{"echo", "echo", "never"}[i%3]
		r.submit(t, tallyman.Command{ID: fmt.Sprint("c-", i), Kind: kind})
	}
	start(t, r.Pool, tallyman.WorkerConfig{Mux: mux})
	r.emptied(t)
	// Another copy of what is done, one that contradicts it, and one that is no command.
	r.publish(t, "main.commands.default.echo.c-0", "")
	r.publish(t, "main.commands.default.echo.c-1", "something else")
	r.publish(t, "main.commands.default.echo.=zz", "")
	r.emptied(t)
	books, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !books.Balanced || books.LastSeq != n+3 || books.Completed != n/3*2 || books.Parked != n/3+2 || books.Absorbed != 1 || books.Pending != 0 {
		t.Errorf("got %+v", books)
	}
}
