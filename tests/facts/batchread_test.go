package facts

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// readMany sends one raw direct get for the last messages of many subjects and
// returns what came before the final status, and that.
func (f *fact) readMany(bucket string, more map[string]any, keys ...string) ([]*nats.Msg, *nats.Msg) {
	f.Helper()
	req := map[string]any{}
	maps.Copy(req, more)
	subjects := make([]string, len(keys))
	for i, k := range keys {
		subjects[i] = keySubject(bucket, k)
	}
	req["multi_last"] = subjects
	body, err := json.Marshal(req)
	f.must(err)
	sub, err := f.nc.SubscribeSync(f.nc.NewInbox())
	f.must(err)
	f.must(f.nc.PublishRequest("$JS.API.DIRECT.GET.KV_"+bucket, sub.Subject, body))
	var found []*nats.Msg
	for {
		m, err := sub.NextMsgWithContext(f.ctx)
		if err != nil {
			f.Fatalf("read of %d keys: %d found, then %v", len(keys), len(found), err)
		}
		if m.Header.Get("Status") != "" {
			return found, m
		}
		found = append(found, m)
	}
}

func (f *fact) wantEnd(m *nats.Msg, status, words string) {
	f.Helper()
	if m.Header.Get("Status") != status || m.Header.Get("Description") != words {
		f.Errorf("end of the answer: got %v, want %s %s", m.Header, status, words)
	}
}

func TestFact11_OneReadForABatch(t *testing.T) {
	t.Parallel()
	const decision = "the records of a fetched batch are read by one request"
	for where, on := range map[string]func(testing.TB, string) *fact{"one replica": onServer, "three replicas": onCluster} {
		t.Run("missing keys are left out, with "+where, func(t *testing.T) {
			t.Parallel()
			f := on(t, decision)
			kv, bucket := f.bucket(3, 0)
			for _, k := range []string{"b", "a", "unread"} {
				_, err := kv.Create(f.ctx, k, nil)
				f.must(err)
			}
			last, err := kv.Update(f.ctx, "b", []byte("latest"), 1)
			f.must(err)
			var found []*nats.Msg
			var end *nats.Msg
			// A follower that lags may answer first.
			f.eventually("the latest revision is read", func() bool {
				found, end = f.readMany(bucket, nil, "missing", "a", "b")
				return len(found) == 2 && found[1].Header.Get("Nats-Sequence") == number(last)
			})
			// In the order of sequences, not of the question.
			want := []string{keySubject(bucket, "a"), keySubject(bucket, "b")}
			got := []string{found[0].Header.Get("Nats-Subject"), found[1].Header.Get("Nats-Subject")}
			if !slices.Equal(got, want) || string(found[1].Data) != "latest" {
				f.Errorf("found: got %v, the second %q, want %v and its latest value", got, found[1].Data, want)
			}
			f.wantEnd(end, "204", "EOB")
			if got := end.Header.Get("Nats-Num-Pending"); got != "0" {
				f.Errorf("Nats-Num-Pending at the end: got %q, want 0", got)
			}
		})
	}
	t.Run("a deleted key is found, with its marker", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "the revision of a marker is what a write over it must expect")
		kv, bucket := f.bucket(1, 0)
		_, err := kv.Create(f.ctx, "a", nil)
		f.must(err)
		f.must(kv.Delete(f.ctx, "a"))
		found, _ := f.readMany(bucket, nil, "a")
		if len(found) != 1 || found[0].Header.Get("KV-Operation") != "DEL" || found[0].Header.Get("Nats-Sequence") != "2" {
			f.Errorf("found: got %d messages, want one marker with sequence 2", len(found))
		}
	})
	t.Run("none found is a 404 and nothing else", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a batch of fresh commands is the common case and no error")
		kv, bucket := f.bucket(1, 0)
		for _, state := range []string{"an empty bucket", "a bucket with other keys"} {
			found, end := f.readMany(bucket, nil, "missing", "neither")
			if len(found) != 0 {
				f.Errorf("%s: found %d, want none", state, len(found))
			}
			f.wantEnd(end, "404", "No Results")
			_, err := kv.Create(f.ctx, "other", nil)
			if state == "an empty bucket" {
				f.must(err)
			}
		}
	})
	t.Run("1,024 are answered and 1,025 refused, counting those found", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "a batch read asks for at most 1,024 keys")
		_, bucket := f.bucket(1, 0)
		keys := make([]string, 1025)
		for i := range keys {
			keys[i] = number(uint64(i))
			_, err := f.js.PublishMsgAsync(message(keySubject(bucket, keys[i])), jetstream.WithStallWait(patience))
			f.must(err)
		}
		<-f.js.PublishAsyncComplete()
		found, end := f.readMany(bucket, nil, keys[:1024]...)
		if len(found) != 1024 {
			f.Errorf("found: got %d, want 1,024", len(found))
		}
		f.wantEnd(end, "204", "EOB")
		found, end = f.readMany(bucket, nil, keys...)
		if len(found) != 0 {
			f.Errorf("found of 1,025: got %d, want none", len(found))
		}
		f.wantEnd(end, "413", "Too Many Results")
		found, end = f.readMany(bucket, nil, append(keys[1:], "missing")...)
		if len(found) != 1024 {
			f.Errorf("1,024 of 1,025 found: got %d, want 1,024", len(found))
		}
		f.wantEnd(end, "204", "EOB")
	})
	t.Run("max_bytes ends the answer early and says how many are left", func(t *testing.T) {
		t.Parallel()
		f := onServer(t, "answers are bounded by bytes where records carry checkpoints")
		kv, bucket := f.bucket(1, 0)
		keys := []string{"a", "b", "c", "d"}
		for _, k := range keys {
			_, err := kv.Create(f.ctx, k, make([]byte, 1000))
			f.must(err)
		}
		found, end := f.readMany(bucket, map[string]any{"max_bytes": 1500}, keys...)
		left := end.Header.Get("Nats-Num-Pending")
		if len(found) == 0 || len(found) == len(keys) || left != number(uint64(len(keys)-len(found))) {
			f.Errorf("found %d of %d, and %s left, want some of both that add up", len(found), len(keys), left)
		}
		f.wantEnd(end, "204", "EOB")
	})
}
