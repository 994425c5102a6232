package facts

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/embedded"
)

const headPending = "Nats-Pending-Messages"

// wantStatus checks a status and the words and count that come with it.
func (f *fact) wantStatus(m *nats.Msg, status, words, pending string) {
	f.Helper()
	h := m.Header
	if h.Get("Status") != status || h.Get("Description") != words || h.Get(headPending) != pending {
		f.Errorf("status: got %v, want %s %s with %s %q", h, status, words, headPending, pending)
	}
}

// TestPull covers the raw pull protocol, which our own loop speaks since
// Consume stalls (fact 4).
func TestPull_StatusesOfTheRawProtocol(t *testing.T) {
	t.Parallel()
	for where, on := range map[string]func(testing.TB, string) *fact{"one replica": onServer, "three replicas": onCluster} {
		t.Run("an expired pull says on its own inbox how many it still wanted, with "+where, func(t *testing.T) {
			t.Parallel()
			f := on(t, "the loop counts what is outstanding by pull, from the pending header of the 408")
			s := f.commands(nil)
			c := f.durable(s, longLease, nil)
			f.stored(s.CachedInfo().Config.Name + ".a")
			f.stored(s.CachedInfo().Config.Name + ".b")
			// On replicas the consumer learns of a message after its publisher.
			f.eventually("the consumer sees both", func() bool {
				info, err := c.Info(f.ctx)
				return err == nil && info.NumPending == 2
			})
			two := f.pull(s, 5, 2*shortLease)
			two.message()
			two.message()
			none := f.pull(s, 7, shortLease)
			m := two.status()
			f.wantStatus(m, "408", "Request Timeout", "3")
			if m.Subject != two.sub.Subject || m.Reply != "" {
				f.Errorf("408: came on %q with reply %q, want the pull's inbox %q and no reply", m.Subject, m.Reply, two.sub.Subject)
			}
			f.wantStatus(none.status(), "408", "Request Timeout", "7")
		})
	}
	t.Run("a pull that was served in full ends without a status", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "the loop takes the last message of a batch for its end and waits for nothing more")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		full := f.pull(s, 1, shortLease)
		full.message()
		f.pull(s, 1, 2*shortLease).status() // expires later than the first would
		if n, _, err := full.sub.Pending(); err != nil || n != 0 {
			f.Errorf("after a full batch: got %d more, %v, want none", n, err)
		}
	})
	t.Run("no_wait ends an empty pull at once, and without a count", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a missing count means that all that was wanted is outstanding no more")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		m, err := f.nc.RequestWithContext(f.ctx, nextSubject(s.CachedInfo().Config.Name, "c"), []byte(`{"batch":3,"no_wait":true}`))
		f.must(err)
		f.wantStatus(m, "404", "No Messages", "")
	})
	t.Run("pulls are served first in, first out", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a new pull never overtakes one that waits, so a busy worker does not starve an idle one")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		first, second := f.pull(s, 2, patience), f.pull(s, 1, patience)
		for _, id := range []string{".a", ".b", ".c"} {
			f.stored(s.CachedInfo().Config.Name + id)
		}
		// Turns are taken per message, not per pull: the first is served, then
		// waits behind the second for its next one.
		first.message().want(1, 1)
		second.message().want(2, 1)
		first.message().want(3, 1)
	})
	t.Run("waiting pulls are told when their consumer is deleted", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a worker whose consumer is deleted says so at once instead of waiting for ever")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		waiting := f.pull(s, 5, patience)
		f.eventually("the pull waits", func() bool {
			c, err := s.Consumer(f.ctx, "c")
			f.must(err)
			return c.CachedInfo().NumWaiting == 1
		})
		f.must(s.DeleteConsumer(f.ctx, "c"))
		f.wantStatus(waiting.status(), "409", "Consumer Deleted", "")
	})
	t.Run("a consumer that does not exist has no responders", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a worker tells a missing queue from an empty one")
		s := f.commands(nil)
		// A synchronous subscription hides the status behind an error of its own.
		got := make(chan *nats.Msg, 1)
		sub, err := f.nc.ChanSubscribe(f.nc.NewInbox(), got)
		f.must(err)
		f.must(f.nc.PublishRequest(nextSubject(s.CachedInfo().Config.Name, "c"), sub.Subject, []byte(`{"batch":1}`)))
		select {
		case m := <-got:
			f.wantStatus(m, "503", "", "")
		case <-f.ctx.Done():
			f.Fatalf("pull: no answer")
		}
		f.must(sub.Unsubscribe())
	})
	t.Run("a server without JetStream has no responders", func(t *testing.T) {
		t.Parallel()
		f, _ := onOwnServer(t, "a worker that gets no responders asks for the consumer, and reports which of the two is missing", embedded.Config{
			ConfigFile: writeFile(t, "accounts { A { users: [ { user: a, password: a } ] } }"),
		}, nats.UserInfo("a", "a"))
		if _, err := f.nc.RequestWithContext(f.ctx, nextSubject("s", "c"), []byte(`{"batch":1}`)); !errors.Is(err, nats.ErrNoResponders) {
			f.Errorf("pull: got %v, want %v", err, nats.ErrNoResponders)
		}
	})
	t.Run("a pull of a paused consumer gets its 408", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "the watchdog of the loop does not take a pause for a stall")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		_, err := s.PauseConsumer(f.ctx, "c", time.Now().Add(time.Hour))
		f.must(err)
		f.wantStatus(f.pull(s, 4, shortLease).status(), "408", "Request Timeout", "4")
	})
	t.Run("waiting pulls are told when the server shuts down, not when it is killed", func(t *testing.T) {
		t.Parallel()
		const decision = "the watchdog of the loop sends a new pull when neither a message nor a status came in time"
		f, srv := onOwnServer(t, decision, embedded.Config{})
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		// What has reached the server may not have reached its consumer yet.
		waits := func() bool {
			c, err := s.Consumer(f.ctx, "c")
			f.must(err)
			return c.CachedInfo().NumWaiting == 1
		}
		waiting := f.pull(s, 5, patience)
		f.eventually("the pull waits", waits)
		before := f.nc.Stats().Reconnects
		f.must(srv.Restart())
		f.wantStatus(waiting.status(), "409", "Server Shutdown", "5")
		f.reconnected(before)
		f.eventually("the server answers", func() bool { _, err := s.Info(f.ctx); return err == nil })

		lost := f.pull(s, 5, patience)
		f.eventually("the pull waits", waits)
		f.bounce(srv)
		// A pull sent after the restart is served; the one before is forgotten.
		f.eventually("the server answers", func() bool { _, err := s.Info(f.ctx); return err == nil })
		f.stored(s.CachedInfo().Config.Name + ".a")
		f.one(s).want(1, 1)
		if n, _, err := lost.sub.Pending(); err != nil || n != 0 {
			f.Errorf("pull that waited at the kill: got %d answers, %v, want none", n, err)
		}
	})
}

func TestStoppedServer(t *testing.T) {
	t.Parallel()
	for what, ask := range map[string]func(f *fact, s string) error{
		"a sign of progress": func(f *fact, s string) error {
			_, err := f.nc.Request("$JS.ACK."+s+".c.1.1.1.1.0", []byte("+WPI"), shortLease)
			return err
		},
		"a record write": func(f *fact, _ string) error {
			m := message("$KV.records.k", headExpect, "0")
			_, err := f.nc.RequestMsg(m, shortLease)
			return err
		},
	} {
		t.Run(what+" times out, and is sent nevertheless when the server is back", func(t *testing.T) {
			t.Parallel()
			f, srv := onOwnServer(t, "a write with a timeout is re-read, never assumed, and connections do not buffer while they are away", embedded.Config{})
			srv.Kill()
			f.eventually("the connection notices", func() bool { return !f.nc.IsConnected() })
			if err := ask(f, "s"); !errors.Is(err, nats.ErrTimeout) {
				f.Errorf("error: got %v, want %v", err, nats.ErrTimeout)
			}
			buffered, err := f.nc.Buffered()
			if err != nil || buffered == 0 {
				f.Errorf("bytes kept for later: got %d, %v, want some", buffered, err)
			}
		})
		t.Run(what+" fails at once on a connection without a buffer", func(t *testing.T) {
			t.Parallel()
			f, srv := onOwnServer(t, "a connection without a buffer tells a heartbeat at once that it is away", embedded.Config{}, nats.ReconnectBufSize(-1))
			srv.Kill()
			f.eventually("the connection notices", func() bool { return !f.nc.IsConnected() })
			if err := ask(f, "s"); !errors.Is(err, nats.ErrReconnectBufExceeded) {
				f.Errorf("error: got %v, want %v", err, nats.ErrReconnectBufExceeded)
			}
		})
	}
	t.Run("an ack and a conditional write made while the server is away arrive after its return", func(t *testing.T) {
		t.Parallel()
		f, srv := onOwnServer(t, "connections of workers do not buffer: a late ack would remove what another worker holds by then", embedded.Config{})
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		kv, bucket := f.bucket(1, 0)
		f.stored(s.CachedInfo().Config.Name + ".a")
		d := f.one(s)
		srv.Kill()
		f.eventually("the connection notices", func() bool { return !f.nc.IsConnected() })
		d.say("+ACK") // nil, as if it were on its way
		if _, err := f.nc.RequestMsg(message(keySubject(bucket, "k"), headExpect, "0"), shortLease); !errors.Is(err, nats.ErrTimeout) {
			f.Errorf("conditional write: got %v, want %v", err, nats.ErrTimeout)
		}
		f.must(srv.Restart())
		f.eventually("the write that timed out is stored", func() bool {
			_, err := kv.Get(f.ctx, "k")
			return err == nil
		})
		f.eventually("the message is removed", func() bool { return f.held(s) == 0 })
	})
}

func TestFact16_PermissionViolations(t *testing.T) {
	t.Parallel()
	const decision = "the connection's error handler says what was denied, since the caller sees a timeout alone"
	errs := make(chan error, 8)
	f, _ := onOwnServer(t, decision, embedded.Config{ConfigFile: writeFile(t,
		`authorization { users: [`,
		`  { user: all, password: x }`,
		`  { user: few, password: x, permissions: { publish: { allow: ["$JS.API.INFO"] }, subscribe: { allow: ["_INBOX.>"] } } }`,
		`] }`)}, nats.UserInfo("all", "x"))
	_, bucket := f.bucket(1, 0)
	few := f.dial(f.nc.ConnectedUrl(), nats.UserInfo("few", "x"),
		nats.PermissionErrOnSubscribe(true), // otherwise it waits for ever
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { errs <- err }))
	denied := func(what, subject string) {
		t.Helper()
		select {
		case err := <-errs:
			if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
				f.Errorf("error handler after %s: got %v, want a %v that names %s", what, err, nats.ErrPermissionViolation, subject)
			}
		case <-f.ctx.Done():
			f.Fatalf("error handler after %s: never called", what)
		}
	}
	subject := keySubject(bucket, "k")
	if _, err := few.Request(subject, nil, shortLease); !errors.Is(err, nats.ErrTimeout) {
		f.Errorf("denied publish: got %v, want %v", err, nats.ErrTimeout)
	}
	denied("a denied publish", subject)
	sub, err := few.SubscribeSync("denied.subject")
	f.must(err)
	denied("a denied subscribe", "denied.subject")
	if _, err := sub.NextMsgWithContext(f.ctx); !errors.Is(err, nats.ErrPermissionViolation) {
		f.Errorf("denied subscription: got %v, want %v", err, nats.ErrPermissionViolation)
	}
}
