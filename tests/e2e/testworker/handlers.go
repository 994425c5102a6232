package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman"
)

// world is what the handlers act upon.
type world struct {
	effects *os.File
	gates   string // directory whose files let handlers pass
	token   string // of this process
}

// write appends one line in a single call, which the kernel keeps whole.
func (w *world) write(what, id string, attempt int, token uint64, detail string) {
	line := fmt.Sprintf("%s %s %d %d %s %s\n", what, id, attempt, token, w.token, detail)
	if _, err := w.effects.WriteString(line); err != nil {
		panic(err)
	}
}

func (w *world) effect(c *tallyman.Claim, detail string) {
	w.write("effect", c.ID(), c.Attempt(), c.Token(), detail)
}

func (w *world) mux() *tallyman.Mux {
	mux := &tallyman.Mux{}
	confirms := map[string]tallyman.Confirm{"pay": w.confirmPay}
	for kind, h := range map[string]tallyman.HandlerFunc{
		"log": w.log, "slow": w.slow, "gate": w.gate, "zombie": w.zombie, "steps": w.steps,
		"poison": w.poison, "fail": w.fail, "parent": w.parent, "pay": w.pay, "unsure": w.pay,
	} {
		begin := tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			w.write("begin", c.ID(), c.Attempt(), c.Token(), kind)
			return h(ctx, c)
		})
		if err := mux.Route(tallyman.Route{Kind: kind, Handler: begin, Confirm: confirms[kind]}); err != nil {
			panic(err)
		}
	}
	return mux
}

func echo(c *tallyman.Claim) (tallyman.Result, error) {
	return tallyman.Result{Body: c.Payload()}, nil
}

// log has its effect at once.
func (w *world) log(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	w.effect(c, "-")
	return echo(c)
}

// slow works for the duration in its payload.
func (w *world) slow(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	d, err := time.ParseDuration(string(c.Payload()))
	if err != nil {
		return tallyman.Result{}, tallyman.Reject(err)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return tallyman.Result{}, context.Cause(ctx)
	}
	w.effect(c, "-")
	return echo(c)
}

// gate waits until the file that its payload names is there.
func (w *world) gate(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	if err := w.pass(ctx, string(c.Payload())); err != nil {
		return tallyman.Result{}, err
	}
	w.effect(c, "-")
	return echo(c)
}

func (w *world) pass(ctx context.Context, name string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(w.gates, name)); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// zombie is gate without an ear for its context, and with a gate for each
// attempt. Past it, it tries to save progress and says what came of it.
func (w *world) zombie(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	if err := w.pass(context.WithoutCancel(ctx), fmt.Sprintf("%s-%d", c.Payload(), c.Attempt())); err != nil {
		return tallyman.Result{}, err
	}
	switch err := c.Progress(context.WithoutCancel(ctx), 1, nil); {
	case errors.Is(err, tallyman.ErrLeaseLost):
		w.write("fenced", c.ID(), c.Attempt(), 0, "-")
	case err != nil:
		w.write("error", c.ID(), c.Attempt(), 0, strings.ReplaceAll(err.Error(), " ", "_"))
	default:
		w.effect(c, "-")
	}
	return echo(c)
}

// steps takes "<n> <pause>": n steps, each with an effect, then its progress.
func (w *world) steps(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	var n uint64
	var pause string
	if _, err := fmt.Sscan(string(c.Payload()), &n, &pause); err != nil {
		return tallyman.Result{}, tallyman.Reject(err)
	}
	d, err := time.ParseDuration(pause)
	if err != nil {
		return tallyman.Result{}, tallyman.Reject(err)
	}
	if got := string(c.Checkpoint()); c.Offset() > 0 && got != strconv.FormatUint(c.Offset(), 10) {
		return tallyman.Result{}, tallyman.Reject(fmt.Errorf("checkpoint %q at offset %d", got, c.Offset()))
	}
	for i := c.Offset() + 1; i <= n; i++ {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return tallyman.Result{}, context.Cause(ctx)
		}
		at := strconv.FormatUint(i, 10)
		w.write("step", c.ID(), c.Attempt(), c.Token(), at)
		if err := c.Progress(ctx, i, []byte(at)); err != nil {
			return tallyman.Result{}, err
		}
	}
	w.effect(c, "-")
	return echo(c)
}

// poison takes its process with it.
func (w *world) poison(context.Context, *tallyman.Claim) (tallyman.Result, error) {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		return tallyman.Result{}, err
	}
	select {} // dying
}

// fail fails as often as its payload says.
func (w *world) fail(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	n, err := strconv.Atoi(string(c.Payload()))
	if err != nil {
		return tallyman.Result{}, tallyman.Reject(err)
	}
	if c.Attempt() <= n {
		return tallyman.Result{}, fmt.Errorf("attempt %d of %s fails as asked", c.Attempt(), c.ID())
	}
	w.effect(c, "-")
	return echo(c)
}

// parent asks for two follow-ups.
func (w *world) parent(_ context.Context, c *tallyman.Claim) (tallyman.Result, error) {
	w.effect(c, "-")
	if err := c.FollowUp(
		tallyman.Command{Kind: "log", Payload: []byte("first")},
		tallyman.Command{Kind: "log", Payload: []byte("second")},
	); err != nil {
		return tallyman.Result{}, err
	}
	return echo(c)
}
