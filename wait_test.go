package tallyman_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/internal/pooltest"
)

func TestWait_AcrossRestart(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	nc := connect(t, r.server.URL())
	r.Pool = open(t, nc)
	short, cancel := context.WithTimeout(r.ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := r.Wait(short, "w"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("before the submission: %v, want the deadline", err)
	}
	type answer struct {
		receipt tallyman.Receipt
		err     error
	}
	answers := make(chan answer, 1)
	before := nc.NumSubscriptions()
	go func() {
		got, err := r.Wait(r.ctx, "w")
		answers <- answer{got, err}
	}()
	// It must be subscribed, and the server know it, before the server goes.
	eventually(t, r.ctx, "the subscription of Wait", func() bool { return nc.NumSubscriptions() > before })
	if err := nc.FlushWithContext(r.ctx); err != nil {
		t.Fatal(err)
	}
	r.submit(t, tallyman.Command{ID: "w", Kind: "echo", Payload: []byte("x")})
	if err := r.server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, r.ctx, "the connection", r.nc.IsConnected)
	start(t, open(t, connect(t, r.server.URL())), tallyman.WorkerConfig{Mux: handle("echo", echo)})
	if a := <-answers; a.err != nil || string(a.receipt.Result) != "x" {
		t.Errorf("across a restart: %+v, %v", a.receipt, a.err)
	}
}

func TestPool_DeniedWhileWorking(t *testing.T) {
	t.Parallel()
	_, as := guarded(t, `
		{user: op, password: pw}
		{user: weak, password: pw, permissions: {publish: {allow: ">", deny: ["main.commands.>", "$KV.main.>"]}}}`)
	ctx := pooltest.Context(t)
	if err := tallyman.Create(ctx, connect(t, as("op")), "main", brisk, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	p := open(t, connect(t, as("weak")))
	_, err := p.Submit(ctx, tallyman.Command{ID: "a", Kind: "echo"})
	if !errors.Is(err, tallyman.ErrDenied) {
		t.Errorf("submit: %v, want ErrDenied", err)
	}
	w, _ := start(t, p, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	eventually(t, ctx, "a refused write", func() bool { return errors.Is(w.Ready(ctx), tallyman.ErrDenied) })
}
