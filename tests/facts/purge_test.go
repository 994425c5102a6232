package facts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// kept makes a stream from which an ack removes nothing, as pools have it whose
// commands are swept out.
func kept(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy }

func (f *fact) purge(s jetstream.Stream, ask string) {
	f.Helper()
	m, err := f.nc.RequestWithContext(f.ctx, "$JS.API.STREAM.PURGE."+s.CachedInfo().Config.Name, []byte(ask))
	f.must(err)
	if got := string(m.Data); !strings.Contains(got, `"success":true`) {
		f.Fatalf("purge %s: got %s", ask, got)
	}
}

func TestFact20_APurgeLeavesWhatIsNotBelowIt(t *testing.T) {
	t.Parallel()
	for where, on := range map[string]func(testing.TB, string) *fact{"one replica": onServer, "three replicas": onCluster} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			f := on(t, "settled commands are purged up to a sequence, while those behind it are delivered and acked as if nothing had happened")
			s := f.commands(kept)
			n := s.CachedInfo().Config.Name
			c := f.durable(s, longLease, nil)
			for i := range 6 {
				f.stored(n + "." + number(uint64(i)))
			}
			for range 2 {
				f.one(s).ask("+ACK")
			}
			third := f.one(s)
			if got := f.held(s); got != 6 {
				f.Errorf("after two acks the stream holds %d, want all 6", got)
			}
			f.purge(s, `{"seq":3}`)
			if got := f.held(s); got != 4 {
				f.Errorf("after the purge the stream holds %d, want 4", got)
			}
			info, err := c.Info(f.ctx)
			f.must(err)
			if info.NumPending != 3 || info.NumAckPending != 1 || info.AckFloor.Stream != 2 {
				f.Errorf("after the purge: got %d pending, %d outstanding, floor %d; want 3, 1, 2", info.NumPending, info.NumAckPending, info.AckFloor.Stream)
			}
			third.ask("+ACK")
			for want := uint64(4); want <= 6; want++ {
				d := f.one(s)
				if d.seq != want {
					f.Errorf("delivered sequence %d, want %d", d.seq, want)
				}
				d.ask("+ACK")
			}
			f.eventually("the floor reaches the end", func() bool {
				info, err := c.Info(f.ctx)
				return err == nil && info.AckFloor.Stream == 6
			})
			f.purge(s, `{"seq":7}`)
			if ack, err := f.publish(n + ".0"); err != nil || ack.Sequence != 7 {
				f.Errorf("the same subject after the purge of everything: got %+v, %v, want sequence 7", ack, err)
			}
		})
	}
}

func TestFact21_APurgeOfOneQueueLeavesOthers(t *testing.T) {
	t.Parallel()
	f := onServer(t, "what is settled of one queue is purged from between the commands of another")
	s := f.commands(kept)
	n := s.CachedInfo().Config.Name
	for i := range 3 {
		f.stored(fmt.Sprintf("%s.a.%d", n, i))
		f.stored(fmt.Sprintf("%s.b.%d", n, i))
	}
	f.durable(s, longLease, func(c *jetstream.ConsumerConfig) { c.FilterSubject = n + ".b.>" })
	f.purge(s, fmt.Sprintf(`{"seq":5,"filter":"%s.a.>"}`, n))
	if got := f.held(s); got != 4 {
		f.Errorf("after the purge the stream holds %d, want 4", got)
	}
	for want := uint64(2); want <= 6; want += 2 {
		if d := f.one(s); d.seq != want {
			f.Errorf("the other queue delivers sequence %d, want %d", d.seq, want)
		}
	}
}

// A purge makes a consumer forget what it had in line to be delivered again,
// until its ack wait has passed.
func TestFact22_APurgeDelaysWhatIsInLine(t *testing.T) {
	t.Parallel()
	const decision = "a sweep waits until nothing is in line to be delivered again: a pull waits, or nothing is outstanding"
	// inLine makes a stream whose second message was given back, while no pull waits.
	inLine := func(f *fact, wait time.Duration) jetstream.Stream {
		f.Helper()
		s := f.commands(kept)
		n := s.CachedInfo().Config.Name
		c := f.durable(s, wait, nil)
		f.stored(n + ".settled")
		f.stored(n + ".given-back")
		f.one(s).ask("+ACK")
		f.one(s).ask("-NAK")
		info, err := c.Info(f.ctx)
		f.must(err)
		if info.NumWaiting != 0 || info.NumAckPending != 1 {
			f.Errorf("in line: got %d pulls waiting and %d outstanding, want 0 and 1", info.NumWaiting, info.NumAckPending)
		}
		return s
	}
	t.Run("without a purge it comes with the next pull", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, decision)
		if d := f.one(inLine(f, longLease)); d.seq != 2 {
			f.Errorf("delivered sequence %d, want 2", d.seq)
		}
	})
	t.Run("after a purge it does not", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, decision)
		s := inLine(f, longLease)
		f.purge(s, `{"seq":2}`)
		if got := f.pull(s, 1, 200*time.Millisecond).status().Header.Get("Status"); got != "408" {
			f.Errorf("pull: got status %s, want 408", got)
		}
	})
	t.Run("but it is not lost", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, decision)
		s := inLine(f, time.Second)
		f.purge(s, `{"seq":2}`)
		if d := f.one(s); d.seq != 2 {
			f.Errorf("delivered sequence %d, want 2", d.seq)
		}
	})
}

func TestFact23_RetentionCannotBeChanged(t *testing.T) {
	t.Parallel()
	f := onServer(t, "init refuses another removal for a pool that exists")
	for _, from := range []jetstream.RetentionPolicy{jetstream.WorkQueuePolicy, jetstream.LimitsPolicy} {
		s := f.commands(func(c *jetstream.StreamConfig) { c.Retention = from })
		cfg := s.CachedInfo().Config
		if cfg.Retention = jetstream.LimitsPolicy; from == jetstream.LimitsPolicy {
			cfg.Retention = jetstream.WorkQueuePolicy
		}
		if _, err := f.js.UpdateStream(f.ctx, cfg); err == nil {
			f.Errorf("from %s to %s: the server takes it", from, cfg.Retention)
		}
	}
}
