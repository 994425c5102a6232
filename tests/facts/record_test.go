package facts

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	codeConflict           = jetstream.ErrorCode(10071)
	codeConflictReplicated = jetstream.ErrorCode(10164)
)

func isConflict(err error) bool {
	return slices.Contains([]jetstream.ErrorCode{codeConflict, codeConflictReplicated}, apiCode(err))
}

func TestFact08_Conflicts(t *testing.T) {
	t.Parallel()
	const decision = "conflicts are classified by both codes, in one place"
	for where, tt := range map[string]struct {
		on   func(testing.TB, string) *fact
		want jetstream.ErrorCode
	}{
		"one replica":    {onServer, codeConflict},
		"three replicas": {onCluster, codeConflict},
	} {
		t.Run("a stale revision gives one of two codes, with "+where, func(t *testing.T) {
			t.Parallel()
			f := tt.on(t, decision)
			kv, bucket := f.bucket(2, 0)
			rev, err := kv.Create(f.ctx, "k", nil)
			f.must(err)
			for _, expect := range []uint64{0, rev + 1} {
				_, err = f.publish(keySubject(bucket, "k"), headExpect, number(expect))
				if !isConflict(err) {
					f.Errorf("write that expects %d over %d: got %v, want code %d or %d", expect, rev, err, codeConflict, codeConflictReplicated)
				}
				if got := apiCode(err); got != tt.want {
					f.Errorf("write that expects %d over %d: got code %d, want %d", expect, rev, got, tt.want)
				}
			}
		})
	}
	t.Run("ErrKeyExists does not match a write that races another on three replicas", func(t *testing.T) {
		t.Parallel()
		f := onCluster(t, decision)
		_, bucket := f.bucket(2, 0)
		// Conditions on a subject that has a write in flight fail with the
		// second code. Rounds go on until a write meets such a moment.
		f.eventually("a conflict with code 10164", func() bool {
			key := keySubject(bucket, nats.NewInbox()[len("_INBOX."):])
			var acks []jetstream.PubAckFuture
			for range 20 {
				ack, err := f.js.PublishMsgAsync(message(key, headExpect, "0"), jetstream.WithRetryAttempts(0))
				f.must(err)
				acks = append(acks, ack)
			}
			won, second := 0, false
			for _, ack := range acks {
				select {
				case <-ack.Ok():
					won++
				case err := <-ack.Err():
					if !isConflict(err) {
						f.Errorf("racing write: got %v, want a conflict", err)
					}
					if apiCode(err) == codeConflictReplicated {
						second = true
						if errors.Is(err, jetstream.ErrKeyExists) {
							f.Errorf("ErrKeyExists matches code %d", codeConflictReplicated)
						}
					}
				case <-f.ctx.Done():
					f.Fatalf("racing write: no answer")
				}
			}
			if won != 1 {
				f.Fatalf("racing writes that won: got %d, want 1", won)
			}
			return second
		})
	})
	t.Run("delete and expiry markers count as messages", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "nobody expects revision 0 of a key that once was: read it first, markers included")
		kv, bucket := f.bucket(1, time.Hour)
		_, err := kv.Create(f.ctx, "deleted", nil)
		f.must(err)
		f.must(kv.Delete(f.ctx, "deleted"))
		f.stored(keySubject(bucket, "expired"), headTTL, "1s")
		f.gone(kv, "expired")
		for _, key := range []string{"deleted", "expired"} {
			if _, err := f.publish(keySubject(bucket, key), headExpect, "0"); !isConflict(err) {
				f.Errorf("write that expects 0 over a %s key: got %v, want a conflict", key, err)
			}
			if _, err := kv.Create(f.ctx, key, nil); err != nil {
				f.Errorf("Create over a %s key: got %v, want success, since it reads the marker", key, err)
			}
		}
	})
}

func TestFact09_TimeToLive(t *testing.T) {
	t.Parallel()
	const ttl = "3s" // outlasts a machine that stalls before it has looked
	t.Run("Update makes a key with a TTL permanent", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "records with a TTL are written by publishing, never by Update")
		kv, _ := f.bucket(1, time.Hour)
		rev, err := kv.Create(f.ctx, "updated", nil, jetstream.KeyTTL(3*time.Second))
		f.must(err)
		_, err = kv.Update(f.ctx, "updated", nil, rev)
		f.must(err)
		_, err = kv.Create(f.ctx, "control", nil, jetstream.KeyTTL(3*time.Second))
		f.must(err)
		f.gone(kv, "control") // it was written last, and goes alone
		if _, err := kv.Get(f.ctx, "updated"); err != nil {
			f.Errorf("updated key: got %v, want it kept", err)
		}
	})
	for how, rollup := range map[string][]string{"": nil, " and a rollup": {headRollup, "sub"}} {
		t.Run("a TTL goes together with an expected revision"+how, func(t *testing.T) {
			t.Parallel()
			f := onServer(t, "a receipt is one write: compare-and-swap, retention and the end of its history at once")
			kv, bucket := f.bucket(5, 0)
			rev, err := kv.Create(f.ctx, "k", []byte("earlier"))
			f.must(err)
			subject := keySubject(bucket, "k")
			head := func(expect uint64) []string {
				return append([]string{headTTL, ttl, headExpect, number(expect)}, rollup...)
			}
			if _, err := f.publish(subject, head(rev+7)...); !isConflict(err) {
				f.Errorf("write with a stale revision: got %v, want a conflict", err)
			}
			if got, err := kv.Get(f.ctx, "k"); err != nil || got.Revision() != rev {
				f.Errorf("after the conflict: got %+v, %v, want revision %d untouched", got, err, rev)
			}
			f.stored(subject, head(rev)...)
			history, err := kv.History(f.ctx, "k")
			f.must(err)
			want := 2
			if rollup != nil {
				want = 1
			}
			if got := len(history); got != want {
				f.Errorf("revisions kept: got %d, want %d", got, want)
			}
			if rollup != nil {
				f.gone(kv, "k")
				return
			}
			f.eventually("the older revision is uncovered", func() bool {
				got, err := kv.Get(f.ctx, "k")
				f.must(err)
				return string(got.Value()) == "earlier"
			})
		})
	}
	t.Run("expiry uncovers the older revision also in a bucket with markers", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "terminal records carry a rollup whatever the bucket's settings")
		kv, bucket := f.bucket(5, time.Second)
		_, err := kv.Create(f.ctx, "k", []byte("earlier"))
		f.must(err)
		f.stored(keySubject(bucket, "k"), headTTL, ttl)
		f.eventually("the older revision is uncovered", func() bool {
			got, err := kv.Get(f.ctx, "k")
			f.must(err)
			return string(got.Value()) == "earlier"
		})
	})
	t.Run("in a bucket with markers and history, a shorter TTL is raised to that of the markers", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "the pool's bucket has no markers, or receipts would outlive their retention unnoticed")
		_, bucket := f.bucket(2, time.Hour)
		f.stored(keySubject(bucket, "k"), headTTL, ttl)
		s, err := f.js.Stream(f.ctx, "KV_"+bucket)
		f.must(err)
		m, err := s.GetMsg(f.ctx, 1)
		f.must(err)
		if got, want := m.Header.Get(headTTL), "3600"; got != want {
			f.Errorf("TTL as stored: got %q, want %q", got, want)
		}
	})
	t.Run("a TTL of less than a second is refused, as is one where the bucket allows none", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "retention is at least a second, and init turns TTLs on")
		_, bucket := f.bucket(1, 0)
		if _, err := f.publish(keySubject(bucket, "k"), headTTL, "500ms"); apiCode(err) != 10165 {
			f.Errorf("TTL of 500ms: got %v, want code 10165", err)
		}
		plain := name()
		_, err := f.js.CreateKeyValue(f.ctx, jetstream.KeyValueConfig{Bucket: plain})
		f.must(err)
		if _, err := f.publish(keySubject(plain, "k"), headTTL, ttl); apiCode(err) != 10166 {
			f.Errorf("TTL in a bucket without: got %v, want code 10166", err)
		}
	})
}

func TestFact10_PipelinedCompareAndSwap(t *testing.T) {
	t.Parallel()
	for where, on := range map[string]func(testing.TB, string) *fact{"one replica": onServer, "three replicas": onCluster} {
		t.Run("each write is judged alone, with "+where, func(t *testing.T) {
			t.Parallel()
			f := on(t, "receipts are settled by pipelined writes; one conflict spoils no other")
			kv, bucket := f.bucket(2, 0)
			const many, taken = 100, 42
			_, err := kv.Create(f.ctx, number(taken), []byte("earlier"))
			f.must(err)
			acks := make([]jetstream.PubAckFuture, many)
			for i := range acks {
				m := message(keySubject(bucket, number(uint64(i))), headExpect, "0", "Tallyman-State", "completed")
				acks[i], err = f.js.PublishMsgAsync(m, jetstream.WithRetryAttempts(0), jetstream.WithStallWait(patience))
				f.must(err)
			}
			for i, ack := range acks {
				select {
				case got := <-ack.Ok():
					if e, err := kv.Get(f.ctx, number(uint64(i))); i == taken || err != nil || e.Revision() != got.Sequence {
						f.Errorf("write %d: accepted as %d, read back %+v, %v", i, got.Sequence, e, err)
					}
				case err := <-ack.Err():
					if i != taken || !isConflict(err) {
						f.Errorf("write %d: got %v, want success, and a conflict for write %d", i, err, taken)
					}
				case <-f.ctx.Done():
					f.Fatalf("write %d: no answer", i)
				}
			}
			s, err := f.js.Stream(f.ctx, "KV_"+bucket)
			f.must(err)
			m, err := s.GetLastMsgForSubject(f.ctx, keySubject(bucket, "7"))
			f.must(err)
			if got := m.Header.Get("Tallyman-State"); got != "completed" {
				f.Errorf("header of an entry: got %q, want it kept", got)
			}
		})
	}
	t.Run("the default stall wait gives up", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "WithStallWait is always set")
		js, err := jetstream.New(f.nc, jetstream.WithPublishAsyncMaxPending(1))
		f.must(err)
		// Someone who listens and never answers stands for a slow server.
		mute := name()
		_, err = f.nc.SubscribeSync(mute)
		f.must(err)
		_, err = js.PublishMsgAsync(message(mute))
		f.must(err)
		_, err = js.PublishMsgAsync(message(mute))
		if !errors.Is(err, jetstream.ErrTooManyStalledMsgs) {
			f.Errorf("second publish: got %v, want %v", err, jetstream.ErrTooManyStalledMsgs)
		}
	})
}
