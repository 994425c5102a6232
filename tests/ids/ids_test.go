// Package ids_test puts ids of every shape through a real server. It is apart
// from package dedupe so that the fuzz targets there do not carry a server.
package ids_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect starts a server that listens nowhere and connects to it.
func connect(t *testing.T) (context.Context, jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	})
	if err != nil {
		t.Fatalf("new server: %v", err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the server did not start")
	}
	closed := make(chan struct{})
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { nc.Close(); <-closed })
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatalf("jetstream: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx, js
}

// naturalIDs are ids as people choose them, and some that look like what the
// server or the pool use themselves.
var naturalIDs = []string{
	"a b", " a", "a ", "a.b", "a..b", "*", ">", "$KV.main.a", "..", ".", ".a", "order.", "a:b", "123", "-rf", "--",
	"🚢", "caf\u00e9", "cafe\u0301", "a/b", "a/", "/a", "/", "//", "_", "__", "_pool", "_absorbed/1", "a_", "=", "=2A", "=5F",
	"a=b", `back\slash "quoted"`, "A", "a", strings.Repeat("x", 256), strings.Repeat(".", 256), strings.Repeat("é", 128),
}

func token(t *testing.T, id string) string {
	t.Helper()
	token, err := dedupe.Token(id)
	if err != nil {
		t.Fatalf("Token(%q): %v", id, err)
	}
	return string(token)
}

func TestToken_OnServer(t *testing.T) {
	t.Parallel()
	t.Run("every natural id is a key of its own in a bucket", func(t *testing.T) {
		t.Parallel()
		ctx, js := connect(t)
		kv, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "orders", History: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range naturalIDs {
			key := token(t, id)
			if _, err := kv.Create(ctx, key, []byte(id)); err != nil {
				t.Errorf("create key %q of id %q: %v", key, id, err)
			}
			if _, err := kv.Create(ctx, "_absorbed/"+key, []byte(id)); err != nil {
				t.Errorf("create a pool's key that ends in %q: %v", key, err)
			}
		}
		for _, id := range naturalIDs {
			entry, err := kv.Get(ctx, token(t, id))
			if err != nil || string(entry.Value()) != id {
				t.Errorf("get %q: %v", id, err)
			}
		}
		keys, err := kv.Keys(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, key := range keys {
			id, err := dedupe.ParseToken(command.Token(key))
			switch own := key[0] == '_'; {
			case own && err == nil:
				t.Errorf("the pool's own key %q reads as id %q", key, id)
			case !own && err != nil:
				t.Errorf("key %q: %v", key, err)
			case !own:
				got = append(got, id)
			}
		}
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(naturalIDs)); !slices.Equal(got, want) {
			t.Errorf("the keys name %q, want %q", got, want)
		}
	})
	t.Run("every natural id is one token of a subject that only it occupies", func(t *testing.T) {
		t.Parallel()
		ctx, js := connect(t)
		const prefix = "orders.commands.default.resize."
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{
			Name: "orders_commands", Subjects: []string{"orders.commands.*.*.*"}, Retention: jetstream.WorkQueuePolicy,
			MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, AllowDirect: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range naturalIDs {
			subject := prefix + token(t, id)
			ack, err := js.Publish(ctx, subject, []byte(id), jetstream.WithMsgID(token(t, id)))
			if err != nil || ack.Duplicate {
				t.Errorf("publish id %q: ack %+v, %v", id, ack, err)
			}
		}
		for _, id := range naturalIDs {
			msg, err := stream.GetLastMsgForSubject(ctx, prefix+token(t, id))
			if err != nil || string(msg.Data) != id {
				t.Errorf("get id %q from the stream: %v", id, err)
			}
			// Another Msg-Id, so that the subject alone has to refuse it.
			if _, err := js.Publish(ctx, prefix+token(t, id), nil); err == nil {
				t.Errorf("a second copy of id %q was accepted", id)
			}
		}
	})
}

// The client trims header values and the server skips the spaces before one.
// So ids that differ in spaces at their ends are the same Nats-Msg-Id, and the
// second command would be reported as a repeat of the first and be lost.
func TestToken_MsgIDNeedsIt(t *testing.T) {
	t.Parallel()
	ctx, js := connect(t)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "s", Subjects: []string{"s.*"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s.raw1", nil, jetstream.WithMsgID("a")); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{" a", "a "} {
		raw, err := js.Publish(ctx, "s.raw2", nil, jetstream.WithMsgID(id))
		if err != nil {
			t.Fatal(err)
		}
		if !raw.Duplicate {
			t.Errorf("%q as it is: not taken for a repeat of %q; the token is no longer needed here", id, "a")
		}
		spelled, err := js.Publish(ctx, "s.token", nil, jetstream.WithMsgID(token(t, id)))
		if err != nil {
			t.Fatal(err)
		}
		if spelled.Duplicate {
			t.Errorf("the token of %q is taken for a repeat of another id", id)
		}
	}
}
