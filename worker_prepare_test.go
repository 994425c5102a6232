package tallyman_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/audit"
	"github.com/tallyman-go/tallyman/kvstate"
)

// payments is an outside system: it counts what was done to it.
type payments struct {
	mu   sync.Mutex
	made map[string]int
}

func (p *payments) pay(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.made == nil {
		p.made = map[string]int{}
	}
	p.made[id]++
}

func (p *payments) count(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made[id]
}

// doomed runs a worker on a connection of its own until die is called: from
// then on nothing that it does reaches the server any more, as if it had been
// killed.
func doomed(t testing.TB, r *rig, cfg tallyman.WorkerConfig) (die func()) {
	t.Helper()
	nc := connect(t, r.server.URL())
	cfg.Logger = silent
	w, err := open(t, nc).NewWorker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = w.Run(ctx) // fails, since its connection is closed
	}()
	t.Cleanup(func() { cancel(); <-done })
	return nc.Close
}

func TestInvariant_I9_NothingIsGuessed(t *testing.T) {
	t.Parallel()
	unavailable := errors.New("the bank does not answer")
	for _, tt := range []struct {
		name    string
		paid    bool // whether the effect happened before the worker died
		confirm func(asked int) (tallyman.Finding, tallyman.Result, error)
		state   tallyman.State
		result  string
		reason  kvstate.Reason
		paidIn  int // payments in the end
	}{
		{name: "done completes with the result of Confirm", paid: true, state: tallyman.Completed, result: "found", paidIn: 1,
			confirm: func(int) (tallyman.Finding, tallyman.Result, error) {
				return tallyman.Done, tallyman.Result{Body: []byte("found")}, nil
			}},
		{name: "not done runs the handler again", state: tallyman.Completed, result: "paid", paidIn: 1,
			confirm: func(int) (tallyman.Finding, tallyman.Result, error) {
				return tallyman.NotDone, tallyman.Result{}, nil
			}},
		{name: "unknown parks", paid: true, state: tallyman.Parked, reason: kvstate.ReasonUncertain, paidIn: 1,
			confirm: func(int) (tallyman.Finding, tallyman.Result, error) {
				return tallyman.Unknown, tallyman.Result{}, nil
			}},
		{name: "an error asks again, and the answer counts", paid: true, state: tallyman.Completed, result: "found", paidIn: 1,
			confirm: func(asked int) (tallyman.Finding, tallyman.Result, error) {
				if asked == 1 {
					return tallyman.NotDone, tallyman.Result{}, unavailable
				}
				return tallyman.Done, tallyman.Result{Body: []byte("found")}, nil
			}},
		{name: "errors until the attempts are used up park", paid: true, state: tallyman.Parked, reason: kvstate.ReasonUncertain, paidIn: 1,
			confirm: func(int) (tallyman.Finding, tallyman.Result, error) {
				return tallyman.NotDone, tallyman.Result{}, unavailable
			}},
		{name: "a panic of Confirm guesses nothing", paid: true, state: tallyman.Parked, reason: kvstate.ReasonUncertain, paidIn: 1,
			confirm: func(int) (tallyman.Finding, tallyman.Result, error) { panic("confirm") }},
		{name: "without Confirm it parks", paid: true, state: tallyman.Parked, reason: kvstate.ReasonUncertain, paidIn: 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, mortal(), tallyman.Topology{})
			var bank payments
			prepared, die := make(chan struct{}), make(chan struct{})
			routed := func(dying bool) *tallyman.Mux {
				var asked atomic.Int64
				route := tallyman.Route{Kind: "pay", Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
					if token, err := c.Prepare(ctx, []byte("pay 5 to anna")); err != nil || token == 0 {
						return tallyman.Result{}, errors.Join(errors.New("prepare"), err)
					}
					if dying {
						if tt.paid {
							bank.pay(c.ID())
						}
						close(prepared)
						<-die
						return tallyman.Result{Body: []byte("never to be seen")}, nil
					}
					bank.pay(c.ID())
					return tallyman.Result{Body: []byte("paid")}, nil
				})}
				if tt.confirm != nil {
					route.Confirm = func(_ context.Context, c *tallyman.Claim, intent []byte) (tallyman.Finding, tallyman.Result, error) {
						if string(intent) != "pay 5 to anna" || c.ID() != "p" || c.Token() == 0 {
							t.Errorf("confirm of %q with intent %q and token %d", c.ID(), intent, c.Token())
						}
						return tt.confirm(int(asked.Add(1)))
					}
				}
				mux := &tallyman.Mux{}
				if err := mux.Route(route); err != nil {
					t.Fatal(err)
				}
				return mux
			}
			kill := doomed(t, r, tallyman.WorkerConfig{Mux: routed(true)})
			r.submit(t, tallyman.Command{ID: "p", Kind: "pay", Payload: []byte("5")})
			<-prepared
			kill()
			close(die)
			start(t, r.Pool, tallyman.WorkerConfig{Mux: routed(false)})
			got, err := r.Wait(r.ctx, "p")
			if got.State != tt.state || string(got.Result) != tt.result || got.Reason != tt.reason {
				t.Fatalf("got %+v, %v", got, err)
			}
			if n := bank.count("p"); n != tt.paidIn {
				t.Errorf("paid %d times, want %d", n, tt.paidIn)
			}
			rec := r.entry(t, "p").Record
			if tt.state == tallyman.Parked && (string(rec.Intent) != "pay 5 to anna" || rec.Command == nil || rec.Error == "") {
				t.Errorf("the parked record holds intent %q, command %v, error %q", rec.Intent, rec.Command, rec.Error)
			}
			if tt.state == tallyman.Completed && rec.Intent != nil {
				t.Errorf("the receipt still has intent %q", rec.Intent)
			}
			r.emptied(t)
			if books, err := audit.Run(r.ctx, r.Commands(), r.Records(), audit.Options{}); err != nil || !books.Balanced {
				t.Errorf("got %+v, %v", books, err)
			}
		})
	}
}

func TestClaim_Prepare(t *testing.T) {
	t.Parallel()
	t.Run("a failed attempt without Confirm parks at once", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("pay", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			if _, err := c.Prepare(ctx, nil); err != nil {
				return tallyman.Result{}, err
			}
			return tallyman.Result{}, errBroken
		})})
		r.submit(t, tallyman.Command{ID: "p", Kind: "pay"})
		got, err := r.Wait(r.ctx, "p")
		if got.Reason != kvstate.ReasonUncertain || got.Attempt != 1 || !strings.Contains(got.Error, errBroken.Error()) {
			t.Errorf("got %+v, %v; want it parked as uncertain after its first attempt", got, err)
		}
	})
	t.Run("a failed attempt with Confirm keeps its delay and asks then", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		var handled, asked atomic.Int64
		start(t, r.Pool, tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "pay",
			Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				handled.Add(1)
				if err := c.Progress(ctx, 7, []byte("half")); err != nil {
					return tallyman.Result{}, err
				}
				if _, err := c.Prepare(ctx, []byte("x")); err != nil {
					return tallyman.Result{}, err
				}
				return tallyman.Result{}, errBroken
			}),
			Confirm: func(_ context.Context, c *tallyman.Claim, _ []byte) (tallyman.Finding, tallyman.Result, error) {
				asked.Add(1)
				if c.Attempt() != 2 || c.Offset() != 7 || string(c.Checkpoint()) != "half" {
					t.Errorf("confirm in attempt %d at offset %d with %q, want 2, 7, half", c.Attempt(), c.Offset(), c.Checkpoint())
				}
				return tallyman.Done, tallyman.Result{}, nil
			},
		})})
		r.submit(t, tallyman.Command{ID: "p", Kind: "pay"})
		if _, err := r.Wait(r.ctx, "p"); err != nil {
			t.Error(err)
		}
		if handled.Load() != 1 || asked.Load() != 1 {
			t.Errorf("handled %d times, asked %d times; want once each", handled.Load(), asked.Load())
		}
	})
	t.Run("past its deadline it is asked what happened, but nothing starts", func(t *testing.T) {
		t.Parallel()
		for want, finding := range map[tallyman.State]tallyman.Finding{tallyman.Completed: tallyman.Done, tallyman.Parked: tallyman.NotDone} {
			r := newRig(t, brisk, tallyman.Topology{})
			deadline := time.Now().Add(4 * time.Second) // it is to begin before that
			var handled atomic.Int64
			start(t, r.Pool, tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "pay",
				Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
					handled.Add(1)
					if _, err := c.Prepare(ctx, []byte("x")); err != nil {
						return tallyman.Result{}, err
					}
					<-time.After(time.Until(deadline))
					return tallyman.Result{}, errBroken
				}),
				Confirm: func(context.Context, *tallyman.Claim, []byte) (tallyman.Finding, tallyman.Result, error) {
					return finding, tallyman.Result{}, nil
				},
			})})
			r.submit(t, tallyman.Command{ID: "p", Kind: "pay", NotAfter: deadline})
			got, _ := r.Wait(r.ctx, "p")
			if got.State != want || want == tallyman.Parked && got.Reason != kvstate.ReasonExpired {
				t.Errorf("got %v (%v), want %v", got.State, got.Reason, want)
			}
			if rec := r.entry(t, "p").Record; handled.Load() != 1 || rec.Intent != nil {
				t.Errorf("handled %d times, intent %q; want once, and none", handled.Load(), rec.Intent)
			}
		}
	})
	t.Run("the follow-ups that Confirm asks for are born if it says done, and only then", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		var handled atomic.Int64
		start(t, r.Pool, tallyman.WorkerConfig{Mux: route(
			tallyman.Route{Kind: "mail", Handler: tallyman.HandlerFunc(echo)},
			tallyman.Route{Kind: "pay",
				Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
					handled.Add(1)
					_, err := c.Prepare(ctx, []byte("x"))
					return tallyman.Result{}, errors.Join(errBroken, err)
				}),
				Confirm: func(_ context.Context, c *tallyman.Claim, _ []byte) (tallyman.Finding, tallyman.Result, error) {
					id := fmt.Sprint("mail-", c.Attempt())
					if err := c.FollowUp(tallyman.Command{ID: id, Kind: "mail"}); err != nil {
						return tallyman.Unknown, tallyman.Result{}, err
					}
					if c.Attempt() == 2 {
						return tallyman.NotDone, tallyman.Result{}, nil
					}
					return tallyman.Done, tallyman.Result{}, nil
				},
			})})
		r.submit(t, tallyman.Command{ID: "p", Kind: "pay"})
		if got, err := r.Wait(r.ctx, "p"); err != nil || got.State != tallyman.Completed {
			t.Fatalf("got %+v, %v", got, err)
		}
		if got, err := r.Wait(r.ctx, "mail-3"); err != nil || got.State != tallyman.Completed {
			t.Errorf("got %+v, %v", got, err)
		}
		r.emptied(t)
		if e := r.entry(t, "mail-2"); e.Record != nil || handled.Load() != 2 {
			t.Errorf("got %+v of a follow-up that was taken back, and the handler ran %d times, want 2", e.Record, handled.Load())
		}
	})
	t.Run("of a batch, Confirm saves what has happened and lets the rest go on", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		var bank payments
		start(t, r.Pool, tallyman.WorkerConfig{Mux: route(tallyman.Route{Kind: "pay",
			Handler: tallyman.HandlerFunc(func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
				return tallyman.Result{}, tallyman.Each(ctx, c, tallyman.Slice([]string{"a", "b", "c"}), 1, func(ctx context.Context, n uint64, item string) error {
					if _, err := c.Prepare(ctx, []byte(item)); err != nil {
						return err
					}
					if item == "c" && c.Attempt() == 2 {
						return errBroken // before the effect
					}
					bank.pay(item)
					if item == "b" {
						return errBroken // after it
					}
					return nil
				})
			}),
			Confirm: func(ctx context.Context, c *tallyman.Claim, intent []byte) (tallyman.Finding, tallyman.Result, error) {
				if bank.count(string(intent)) == 0 {
					return tallyman.NotDone, tallyman.Result{}, nil
				}
				return tallyman.NotDone, tallyman.Result{}, c.Progress(ctx, c.Offset()+1, nil)
			},
		})})
		r.submit(t, tallyman.Command{ID: "p", Kind: "pay"})
		if got, err := r.Wait(r.ctx, "p"); err != nil || got.State != tallyman.Completed || got.Attempt != 3 {
			t.Errorf("got %+v, %v; want it completed in the third attempt", got, err)
		}
		for _, item := range []string{"a", "b", "c"} {
			if n := bank.count(item); n != 1 {
				t.Errorf("paid %d times for %s, want once", n, item)
			}
		}
	})
	t.Run("what is withdrawn is an ordinary failure", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("pay", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			if _, err := c.Prepare(ctx, []byte("x")); err != nil {
				return tallyman.Result{}, err
			}
			if c.Attempt() == 1 {
				return tallyman.Result{}, errors.Join(errBroken, c.Withdraw(ctx))
			}
			return tallyman.Result{}, nil
		})})
		r.submit(t, tallyman.Command{ID: "p", Kind: "pay"})
		if got, err := r.Wait(r.ctx, "p"); err != nil || got.Attempt != 2 {
			t.Errorf("got %+v, %v; want it completed in the second attempt", got, err)
		}
	})
	t.Run("progress closes the intent", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, brisk, tallyman.Topology{})
		start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("pay", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			for n := c.Offset(); n < 3; n++ {
				if _, err := c.Prepare(ctx, []byte("x")); err != nil {
					return tallyman.Result{}, err
				}
				if err := c.Progress(ctx, n+1, nil); err != nil {
					return tallyman.Result{}, err
				}
				if n == 1 {
					return tallyman.Result{}, errBroken
				}
			}
			return tallyman.Result{}, nil
		})})
		r.submit(t, tallyman.Command{ID: "p", Kind: "pay"})
		if got, err := r.Wait(r.ctx, "p"); err != nil || got.Attempt != 2 {
			t.Errorf("got %+v, %v; want it completed in the second attempt", got, err)
		}
	})
	t.Run("only one of two holders gets to prepare", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, mortal(), tallyman.Topology{Queues: []string{"default", "side"}}) // the loser says nothing to the server
		var bank payments
		entered, goOn := make(chan struct{}, 2), make(chan struct{})
		prepared := make(chan error, 2)
		start(t, r.Pool, tallyman.WorkerConfig{Queues: []string{"default", "side"}, Mux: handle("pay", func(ctx context.Context, c *tallyman.Claim) (tallyman.Result, error) {
			entered <- struct{}{}
			<-goOn
			_, err := c.Prepare(context.WithoutCancel(ctx), []byte("x"))
			if err == nil {
				bank.pay(c.ID())
			}
			prepared <- err
			return tallyman.Result{}, err
		})})
		// Two copies, which is how two handlers can both begin without a record.
		r.publish(t, "main.commands.default.pay.p", "5")
		r.publish(t, "main.commands.side.pay.p", "5")
		<-entered
		<-entered
		close(goOn)
		one, two := <-prepared, <-prepared
		if (one == nil) == (two == nil) || !errors.Is(errors.Join(one, two), tallyman.ErrLeaseLost) {
			t.Errorf("the two prepared with %v and %v, want one success and one ErrLeaseLost", one, two)
		}
		if _, err := r.Wait(r.ctx, "p"); err != nil {
			t.Error(err)
		}
		r.emptied(t)
		if n := bank.count("p"); n != 1 {
			t.Errorf("paid %d times, want once", n)
		}
	})
}

func TestKind_Confirm(t *testing.T) {
	t.Parallel()
	type in struct{ Cents int }
	type out struct{ Reference string }
	pay := tallyman.NewKind[in, out]("pay")
	asked := errors.New("the bank is closed")
	confirm := pay.Confirm(func(_ context.Context, c *tallyman.Claim, in in, intent []byte) (tallyman.Finding, out, error) {
		switch string(intent) {
		case "closed":
			return tallyman.Done, out{}, asked
		case "gone":
			return tallyman.NotDone, out{"ignored"}, nil
		}
		return tallyman.Done, out{fmt.Sprint(c.ID(), " ", in.Cents)}, nil
	})
	cmd, err := pay.Command("p", in{Cents: 5})
	if err != nil {
		t.Fatal(err)
	}
	claim := tallyman.Detached(tallyman.DetachedConfig{Command: cmd})
	finding, result, err := confirm(t.Context(), claim, []byte("made"))
	if err != nil || finding != tallyman.Done {
		t.Fatalf("got %v, %v; want Done", finding, err)
	}
	got, err := pay.Result(tallyman.Receipt{ID: "p", Kind: "pay", Result: result.Body})
	if err != nil || got.Reference != "p 5" {
		t.Errorf("got %+v, %v", got, err)
	}
	if finding, result, err := confirm(t.Context(), claim, []byte("gone")); finding != tallyman.NotDone || result.Body != nil || err != nil {
		t.Errorf("got %v, %q, %v; want NotDone and no result", finding, result.Body, err)
	}
	if _, _, err := confirm(t.Context(), claim, []byte("closed")); !errors.Is(err, asked) {
		t.Errorf("got %v, want what the bank said", err)
	}
	cmd.Payload = []byte("\xc1")
	_, _, err = confirm(t.Context(), tallyman.Detached(tallyman.DetachedConfig{Command: cmd}), nil)
	if v := tallyman.VerdictOf(err); v.Action != tallyman.ActPark || v.Reason != tallyman.ReasonMalformed {
		t.Errorf("a payload that does not decode: %+v, %v", v, err)
	}
}
