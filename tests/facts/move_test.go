package facts

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/embedded"
)

// A stream that is to begin at a sequence does so once. Neither a change of its
// configuration nor a restart takes anything away later.
func TestFact_AStreamBeginsWhereItIsTold(t *testing.T) {
	t.Parallel()
	f, srv := onOwnServer(t, "the bucket of a new shard counts on from the highest revision of the others, since revisions are fencing tokens", embedded.Config{Dir: t.TempDir()})
	cfg := jetstream.StreamConfig{
		Name: "KV_new", Subjects: []string{"$KV.new.>"}, MaxMsgsPerSubject: 2, Discard: jetstream.DiscardNew,
		Storage: jetstream.FileStorage, AllowRollup: true, AllowDirect: true, FirstSeq: 5000,
	}
	_, err := f.js.CreateStream(f.ctx, cfg)
	f.must(err)
	put := func(want uint64, opts ...jetstream.PublishOpt) {
		t.Helper()
		ack, err := f.js.Publish(f.ctx, "$KV.new.a", []byte("x"), opts...)
		if err != nil || ack.Sequence != want {
			f.Errorf("got %+v, %v, want sequence %d", ack, err, want)
		}
	}
	put(5000, jetstream.WithExpectLastSequencePerSubject(0)) // nothing precedes it
	before := f.nc.Stats().Reconnects
	f.must(srv.Restart())
	f.reconnected(before)
	put(5001)
	for _, first := range []uint64{5000, 0} {
		cfg.FirstSeq = first
		_, err = f.js.UpdateStream(f.ctx, cfg)
		f.must(err)
		str, err := f.js.Stream(f.ctx, "KV_new")
		f.must(err)
		if s := str.CachedInfo().State; s.FirstSeq != 5000 || s.Msgs != 2 {
			f.Errorf("with first_seq %d: got %+v, want both messages from 5000 on", first, s)
		}
	}
	put(5002)
}

// What a consumer delivers of the newest messages by subject is in order, and its
// last one shows how far the replica had come that it reads from.
func TestFact_AScanThatMeetsTheLastMessageHasMetAllBeforeIt(t *testing.T) {
	t.Parallel()
	f := onCluster(t, "tallyman reshard marks the end of a scan by an entry, to miss none where a replica is behind")
	n := name()
	str := f.created(jetstream.StreamConfig{Name: n, Subjects: []string{n + ".>"}, Replicas: 3, MaxMsgsPerSubject: 2, AllowDirect: true})
	const keys = 200
	for round := range 5 {
		for i := range keys {
			_, err := f.js.PublishAsync(n+"."+strings.Repeat("x", i+1), []byte{byte(round)})
			f.must(err)
		}
		select {
		case <-f.js.PublishAsyncComplete():
		case <-f.ctx.Done():
			f.Fatalf("not all were stored")
		}
		end, err := f.js.Publish(f.ctx, n+".end", nil)
		f.must(err)
		f.eventually("a scan that meets the end", func() bool {
			cons, err := str.CreateConsumer(f.ctx, jetstream.ConsumerConfig{FilterSubject: n + ".>", DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1})
			if unanswered(err) {
				return false
			}
			f.must(err)
			defer func() { _ = str.DeleteConsumer(f.ctx, cons.CachedInfo().Name) }() // or it goes with the stream
			met, last := map[string]byte{}, uint64(0)
			batch, err := cons.FetchNoWait(10 * keys)
			f.must(err)
			for m := range batch.Messages() {
				meta, err := m.Metadata()
				f.must(err)
				if meta.Sequence.Stream <= last {
					f.Errorf("sequence %d comes after %d", meta.Sequence.Stream, last)
				}
				if last = meta.Sequence.Stream; len(m.Data()) > 0 {
					met[m.Subject()] = m.Data()[0]
				}
			}
			if last < end.Sequence {
				return false
			}
			for subject, value := range met {
				if value != byte(round) {
					f.Errorf("round %d: %s shows %d", round, subject, value)
				}
			}
			if len(met) != keys {
				f.Errorf("round %d: met %d keys, want %d", round, len(met), keys)
			}
			return true
		})
	}
}
