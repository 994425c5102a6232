package facts

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
)

// shortLease is an ack wait that tests let run out; longLease is one they do not.
const (
	shortLease = 1500 * time.Millisecond
	longLease  = 5 * time.Minute
)

func TestFact01_AcksAreNotFenced(t *testing.T) {
	t.Parallel()
	const decision = "ownership is decided by compare-and-swap on the record alone, and a worker that lost it stays silent (I4)"

	for answer, how := range map[string]string{"+ACK": "an ack", "+TERM": "a term"} {
		t.Run(how+" of a superseded worker is confirmed and removes what its new owner holds", func(t *testing.T) {
			t.Parallel()
			f := onServer(t, decision)
			s := f.commands(nil)
			f.durable(s, shortLease, nil)
			f.stored(s.CachedInfo().Config.Name + ".a")
			superseded := f.one(s)
			superseded.want(1, 1)
			f.one(s).want(1, 2)
			if got := superseded.ask(answer); len(got.Data) != 0 {
				f.Errorf("confirmation: got %q, want it empty", got.Data)
			}
			f.eventually("the message is removed", func() bool { return f.held(s) == 0 })
		})
	}
	t.Run("a nak of a superseded worker causes an extra delivery at once", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, decision)
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		superseded := f.one(s)
		superseded.say("-NAK")
		f.one(s).want(1, 2) // now held by its new owner, and for long
		superseded.say("-NAK")
		f.one(s).want(1, 3)
	})
	t.Run("a sign of progress of a superseded worker prolongs the lease of its new owner", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, decision)
		s := f.commands(nil)
		f.durable(s, 2*shortLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		superseded := f.one(s)
		f.one(s).want(1, 2)
		f.stored(s.CachedInfo().Config.Name + ".b")
		f.one(s).want(2, 1)
		// The lease of the first ends before that of the second, unless prolonged.
		next := f.pull(s, 1, patience)
		f.eventually("something is delivered again", func() bool {
			superseded.say("+WPI")
			n, _, err := next.sub.Pending()
			f.must(err)
			return n > 0
		})
		next.message().want(2, 2)
	})
	t.Run("a sign of progress is confirmed with an empty reply, also to a worker that lost", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a heartbeat asks for confirmation to learn that the server lives, never that the lease does")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		first := f.one(s)
		check := func(who string) {
			t.Helper()
			if got := first.ask("+WPI"); len(got.Data) != 0 || len(got.Header) != 0 {
				f.Errorf("confirmation for %s: got data %q and header %v, want both empty", who, got.Data, got.Header)
			}
		}
		check("the owner")
		first.say("-NAK")
		second := f.one(s)
		check("a superseded worker")
		second.ask("+ACK")
		check("the holder of a message that is gone")
	})
	t.Run("a sign of progress to a deleted consumer finds no responders", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a heartbeat takes this for a lost lease at once")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		d := f.one(s)
		f.must(s.DeleteConsumer(f.ctx, "c"))
		if _, err := f.nc.RequestWithContext(f.ctx, d.reply, []byte("+WPI")); !errors.Is(err, nats.ErrNoResponders) {
			f.Errorf("+WPI: got %v, want %v", err, nats.ErrNoResponders)
		}
	})
}

func TestFact02_WhatCountsUp(t *testing.T) {
	t.Parallel()
	t.Run("revisions rise over delete, purge, expiry and restart", func(t *testing.T) {
		t.Parallel()
		f, s := onOwnServer(t, "the revision of a record is the fencing token", embedded.Config{})
		kv, bucket := f.bucket(2, 0)
		last := uint64(0)
		rises := func(what string, rev uint64, err error) {
			t.Helper()
			if err != nil || rev <= last {
				f.Fatalf("revision after %s: got %d, %v, want more than %d", what, rev, err, last)
			}
			last = rev
		}
		rev, err := kv.Create(f.ctx, "k", nil)
		rises("create", rev, err)
		f.must(kv.Delete(f.ctx, "k"))
		rev, err = kv.Create(f.ctx, "k", nil)
		rises("delete", rev, err)
		f.must(kv.Purge(f.ctx, "k"))
		rev, err = kv.Create(f.ctx, "k", nil)
		rises("purge", rev, err)
		rev = f.stored(keySubject(bucket, "k"), headTTL, "1s", headRollup, "sub")
		rises("write with TTL", rev, nil)
		f.gone(kv, "k")
		rev, err = kv.Create(f.ctx, "k", nil)
		rises("expiry", rev, err)
		f.must(kv.Purge(f.ctx, "k"))
		f.must(kv.PurgeDeletes(f.ctx, jetstream.DeleteMarkersOlderThan(-1)))
		f.bounce(s)
		f.eventually("the server answers", func() bool {
			rev, err = kv.Create(f.ctx, "k", nil)
			return err == nil
		})
		rises("restart of an empty bucket", rev, err)
	})
	t.Run("the delivery count starts again with a recreated consumer", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "attempts are max(NumDelivered, recorded + 1), and NumDelivered is no token")
		s := f.commands(nil)
		f.durable(s, longLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		f.one(s).say("-NAK")
		f.one(s).want(1, 2)
		f.must(s.DeleteConsumer(f.ctx, "c"))
		f.durable(s, longLease, nil)
		f.one(s).want(1, 1)
	})
}

func TestFact03_OnlyTheDeadlineEndsALease(t *testing.T) {
	t.Parallel()
	t.Run("a closed connection does not speed up redelivery", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a shutdown hands its claims back with a nak; takeover after a crash comes with the ack deadline")
		s := f.commands(nil)
		f.durable(s, 2*shortLease, nil)
		f.stored(s.CachedInfo().Config.Name + ".a")
		f.stored(s.CachedInfo().Config.Name + ".b")
		f.one(s).want(1, 1)
		other := f.dial(f.nc.ConnectedUrl())
		f.pullOver(other, s, 1, patience).message().want(2, 1)
		closed := other.StatusChanged(nats.CLOSED)
		other.Close()
		<-closed
		next := f.pull(s, 2, patience)
		next.message().want(1, 2) // its holder lives, yet it comes first
		next.message().want(2, 2)
	})
	t.Run("leases run out while a consumer is paused", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "after a pause every command counts as redelivered, so a pause is no refuge for a slow handler")
		s := f.commands(func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy })
		f.durable(s, 2*shortLease, nil)
		f.durable(s, 3*shortLease, func(c *jetstream.ConsumerConfig) { c.Durable = "clock" })
		n := s.CachedInfo().Config.Name
		f.stored(n + ".a")
		f.one(s).want(1, 1)
		_, err := s.PauseConsumer(f.ctx, "c", time.Now().Add(time.Hour))
		f.must(err)
		// Once the other consumer delivers again, the lease of the first is over.
		clock := f.inbox()
		clock.ask(n, "clock", 2)
		clock.next("clock")
		clock.next("clock")
		// A lease of the same length starts now; a halted one would end later.
		f.durable(s, shortLease, func(c *jetstream.ConsumerConfig) { c.Durable = "fresh" })
		both := f.inbox()
		both.ask(n, "fresh", 1)
		both.next("fresh")
		both.ask(n, "fresh", 1)
		_, err = s.ResumeConsumer(f.ctx, "c")
		f.must(err)
		// Asked only now: a resume before its time wakes no pull that waits.
		both.ask(n, "c", 1)
		both.next("c")
		both.next("fresh")
	})
}

// inbox receives for several consumers and keeps the order of arrival.
type inbox struct {
	f   *fact
	to  string
	sub *nats.Subscription
}

func (f *fact) inbox() inbox {
	f.Helper()
	to := f.nc.NewInbox()
	sub, err := f.nc.SubscribeSync(to)
	f.must(err)
	return inbox{f, to, sub}
}

func (i inbox) ask(stream, consumer string, batch int) {
	i.f.Helper()
	req := `{"batch":` + number(uint64(batch)) + `,"expires":` + number(uint64(patience)) + `}`
	i.f.must(i.f.nc.PublishRequest(nextSubject(stream, consumer), i.to, []byte(req)))
}

func (i inbox) next(consumer string) {
	i.f.Helper()
	m, err := i.sub.NextMsgWithContext(i.f.ctx)
	if err != nil {
		i.f.Fatalf("wait for a message of consumer %s: %v", consumer, err)
	}
	meta, err := m.Metadata()
	if err != nil || meta.Consumer != consumer {
		i.f.Errorf("next message: got one of consumer %+v (%v), want one of %s", meta, err, consumer)
	}
}

func TestFact04_PrefetchedMessagesBurnTheirLease(t *testing.T) {
	t.Parallel()
	f := onServer(t, "a worker pulls no more than it has free handler slots")
	s := f.commands(nil)
	f.durable(s, 2*shortLease, nil)
	f.stored(s.CachedInfo().Config.Name + ".a")
	f.stored(s.CachedInfo().Config.Name + ".b")
	both := f.pull(s, 2, patience)
	working := both.message()
	f.eventually("the second lies in the buffer", func() bool {
		n, _, err := both.sub.Pending()
		f.must(err)
		return n == 1
	})
	other := f.pull(s, 1, patience)
	f.eventually("something is delivered again", func() bool {
		working.say("+WPI")
		n, _, err := other.sub.Pending()
		f.must(err)
		return n > 0
	})
	other.message().want(2, 2)
	both.message().want(2, 1) // read only now, after it was given to another
}

func TestFact05_LimitsOfAConsumer(t *testing.T) {
	t.Parallel()
	const later = `-NAK {"delay":3600000000000}` // one hour
	t.Run("delayed naks count against MaxAckPending and stop the consumer", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "MaxAckPending is -1")
		s := f.commands(nil)
		f.durable(s, longLease, func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 2 })
		for _, id := range []string{".a", ".b", ".c"} {
			f.stored(s.CachedInfo().Config.Name + id)
		}
		f.one(s).say(later)
		f.one(s).say(later)
		if got := f.pull(s, 1, shortLease).status().Header.Get("Status"); got != "408" {
			f.Errorf("pull for a fresh message: got status %s, want 408", got)
		}
	})
	t.Run("without a limit a fresh message comes through", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "MaxAckPending is -1")
		s := f.commands(nil)
		c := f.durable(s, longLease, nil)
		if got := c.CachedInfo().Config.MaxAckPending; got != -1 {
			f.Errorf("MaxAckPending: got %d, want -1 kept", got)
		}
		const many = 1200 // more than the default limit of 1,000
		for i := range many {
			_, err := f.js.PublishMsgAsync(message(s.CachedInfo().Config.Name + "." + number(uint64(i))))
			f.must(err)
		}
		<-f.js.PublishAsyncComplete()
		batch := f.pull(s, many, patience)
		for range many {
			batch.message().say(later)
		}
		fresh := f.stored(s.CachedInfo().Config.Name + ".fresh")
		f.one(s).want(fresh, 1)
	})
	t.Run("a message past MaxDeliver stays in a work queue and is never delivered", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "MaxDeliver is -1, and attempts are bounded in the worker")
		s := f.commands(nil)
		f.durable(s, longLease, func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 })
		f.stored(s.CachedInfo().Config.Name + ".a")
		f.one(s).say("-NAK")
		if got := f.pull(s, 1, shortLease).status().Header.Get("Status"); got != "408" {
			f.Errorf("pull: got status %s, want 408", got)
		}
		if got, want := f.held(s), uint64(1); got != want {
			f.Errorf("messages in the stream: got %d, want %d", got, want)
		}
	})
	t.Run("BackOff overwrites AckWait", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "BackOff is unset, and delays are asked for with each nak")
		s := f.commands(nil)
		c := f.durable(s, longLease, func(c *jetstream.ConsumerConfig) {
			c.MaxDeliver, c.BackOff = 3, []time.Duration{time.Second, 2 * time.Second}
		})
		if got, want := c.CachedInfo().Config.AckWait, time.Second; got != want {
			f.Errorf("AckWait: got %v, want %v", got, want)
		}
	})
}
