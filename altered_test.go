package tallyman_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman"
)

// Changes that other tools can make to a pool, after which commands would be
// lost, or wait for ever, without a word.
func TestWorker_RefusesWhatOtherToolsHaveAltered(t *testing.T) {
	t.Parallel()
	type stream = jetstream.StreamConfig
	type consumer = jetstream.ConsumerConfig
	r := newRig(t, brisk, tallyman.Topology{})
	running, _ := start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	eventually(t, r.ctx, "the worker to be ready", func() bool { return running.Ready(r.ctx) == nil })
	if found, err := r.Altered(r.ctx); err != nil || len(found) > 0 {
		t.Fatalf("got %q, %v; want nothing", found, err)
	}
	for name, tt := range map[string]struct {
		stream   func(*stream)
		bucket   func(*stream)
		consumer func(*consumer)
		want     string
	}{
		"max deliver":            {consumer: func(c *consumer) { c.MaxDeliver = 5 }, want: "max deliver is 5"},
		"max ack pending":        {consumer: func(c *consumer) { c.MaxAckPending = 10 }, want: "max ack pending is 10"},
		"backoff":                {consumer: func(c *consumer) { c.BackOff = []time.Duration{c.AckWait, time.Second} }, want: "[30s 1s]"},
		"filter":                 {consumer: func(c *consumer) { c.FilterSubject = "main.commands.default.echo.>" }, want: `"main.commands.default.echo.>"`},
		"filters":                {consumer: func(c *consumer) { c.FilterSubject, c.FilterSubjects = "", []string{"main.commands.default.echo.>"} }, want: `["main.commands.default.echo.>"]`},
		"headers only":           {consumer: func(c *consumer) { c.HeadersOnly = true }, want: "headers only"},
		"inactive threshold":     {consumer: func(c *consumer) { c.InactiveThreshold = time.Hour }, want: "inactive threshold is 1h0m0s"},
		"ack wait":               {consumer: func(c *consumer) { c.AckWait = 7 * time.Second }, want: "ack wait is 7s"},
		"max age":                {stream: func(c *stream) { c.MaxAge = time.Hour }, want: "max age is 1h0m0s"},
		"discard old":            {stream: func(c *stream) { c.Discard, c.DiscardNewPerSubject = jetstream.DiscardOld, false }, want: "discard policy is old"},
		"discard per subject":    {stream: func(c *stream) { c.DiscardNewPerSubject = false }, want: "discard new per subject is off"},
		"copies":                 {stream: func(c *stream) { c.MaxMsgsPerSubject = 2 }, want: "max messages per subject are 2"},
		"allow direct":           {stream: func(c *stream) { c.AllowDirect = false }, want: "stream main_commands is not"},
		"subjects":               {stream: func(c *stream) { c.Subjects = append(c.Subjects, "other.*") }, want: `["main.commands.*.*.*" "other.*"]`},
		"other subjects":         {stream: func(c *stream) { c.Subjects = []string{"other.*"} }, want: `["other.*"]`},
		"subject transform":      {stream: func(c *stream) { c.SubjectTransform = moved("main.commands.*.*.*", "moved.{{wildcard(3)}}") }, want: "subject transform"},
		"no ack":                 {stream: func(c *stream) { c.NoAck = true }, want: "confirms nothing"},
		"max pull batch":         {consumer: func(c *consumer) { c.MaxRequestBatch = 1 }, want: "limit for pulls"},
		"max pull expire":        {consumer: func(c *consumer) { c.MaxRequestExpires = time.Second }, want: "limit for pulls"},
		"max pull bytes":         {consumer: func(c *consumer) { c.MaxRequestMaxBytes = 1 }, want: "limit for pulls"},
		"bucket's subjects":      {bucket: func(c *stream) { c.Subjects = append(c.Subjects, "beside.>") }, want: `["$KV.main.>" "beside.>"]`},
		"bucket's transform":     {bucket: func(c *stream) { c.SubjectTransform = moved("$KV.main.>", "moved.>") }, want: "subject transform"},
		"bucket's no ack":        {bucket: func(c *stream) { c.NoAck = true }, want: "confirms nothing"},
		"bucket's max age":       {bucket: func(c *stream) { c.MaxAge = time.Hour }, want: "max age is 1h0m0s"},
		"bucket's history":       {bucket: func(c *stream) { c.MaxMsgsPerSubject = 1 }, want: "history is 1"},
		"bucket's discard":       {bucket: func(c *stream) { c.Discard = jetstream.DiscardOld }, want: "discard policy is old"},
		"bucket's discard new":   {bucket: func(c *stream) { c.DiscardNewPerSubject = true }, want: "discard new per subject is on"},
		"bucket's message size":  {bucket: func(c *stream) { c.MaxMsgSize = 1 << 10 }, want: "max message size is 1024"},
		"bucket's allow direct":  {bucket: func(c *stream) { c.AllowDirect = false }, want: "bucket main is not"},
		"bucket's allow rollups": {bucket: func(c *stream) { c.AllowRollup = false }, want: "allow rollup is off"},
	} {
		t.Run(name, func(t *testing.T) {
			r.edit(t, "main_commands", tt.stream)
			r.edit(t, "KV_main", tt.bucket)
			remedy := "tallyman init --pool main"
			if tt.consumer != nil {
				remedy += " --queue default"
				cons, err := r.js.Consumer(r.ctx, "main_commands", "default")
				if err != nil {
					t.Fatal(err)
				}
				cfg := cons.CachedInfo().Config
				tt.consumer(&cfg)
				if _, err := r.js.UpdateConsumer(r.ctx, "main_commands", cfg); err != nil {
					t.Fatal(err)
				}
			}
			says := func(text string) bool { return strings.Contains(text, tt.want) && strings.HasSuffix(text, remedy) }

			w, err := r.NewWorker(tallyman.WorkerConfig{Mux: handle("echo", echo), Logger: silent})
			if err != nil {
				t.Fatal(err)
			}
			enough, cancel := context.WithTimeout(r.ctx, time.Minute)
			defer cancel()
			if err := w.Run(enough); !errors.Is(err, tallyman.ErrSettings) || !says(err.Error()) {
				t.Errorf("a worker that starts: got %v, want ErrSettings with %q and %q", err, tt.want, remedy)
			}
			if found, err := r.Altered(r.ctx); err != nil || len(found) != 1 || !says(found[0]) {
				t.Errorf("got %q, %v; want one line with %q and %q", found, err, tt.want, remedy)
			}
			if err := running.Ready(r.ctx); err == nil || !says(err.Error()) {
				t.Errorf("a worker at work is ready: %v, want %q", err, tt.want)
			}

			if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
				t.Fatal(err)
			}
			if found, err := r.Altered(r.ctx); err != nil || len(found) > 0 {
				t.Errorf("after the remedy: got %q, %v; want nothing", found, err)
			}
			eventually(t, r.ctx, "the worker to be ready again", func() bool { return running.Ready(r.ctx) == nil })
		})
	}
}

func moved(from, to string) *jetstream.SubjectTransformConfig {
	return &jetstream.SubjectTransformConfig{Source: from, Destination: to}
}

// The server makes interest of limits where it is asked to, and commands of a queue without a
// consumer are dropped then. Nobody could open the pool any more, and init said that it is fixed.
func TestCreate_TakesBackTheRetentionOfAPoolThatIsSwept(t *testing.T) {
	t.Parallel()
	settings := brisk
	settings.Removal = tallyman.RemovalSweep
	r := newRig(t, settings, tallyman.Topology{})
	running, _ := start(t, r.Pool, tallyman.WorkerConfig{Mux: handle("echo", echo)})
	eventually(t, r.ctx, "the worker to be ready", func() bool { return running.Ready(r.ctx) == nil })
	r.edit(t, "main_commands", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy })
	const want = "its retention is interest"
	if found, err := r.Altered(r.ctx); err != nil || len(found) != 1 || !strings.Contains(found[0], want) {
		t.Errorf("got %q, %v; want one line with %q", found, err, want)
	}
	if err := running.Ready(r.ctx); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a worker at work is ready: %v, want %q", err, want)
	}
	if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err != nil {
		t.Fatal(err)
	}
	if found, err := r.Altered(r.ctx); err != nil || len(found) > 0 {
		t.Errorf("after the remedy: got %q, %v; want nothing", found, err)
	}
	r.submit(t, tallyman.Command{ID: "a", Kind: "echo"})
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Error(err)
	}
	r.emptied(t)
}

// What the server does not change in a consumer that exists, init cannot mend.
func TestCreate_SaysWhatItCannotChange(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		removal tallyman.Removal
		made    jetstream.ConsumerConfig
		want    string
	}{
		"deliver policy": {tallyman.RemovalSweep, jetstream.ConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckExplicitPolicy}, "deliver policy is new"},
		"ack policy":     {tallyman.RemovalSweep, jetstream.ConsumerConfig{AckPolicy: jetstream.AckAllPolicy}, "ack policy is AckAll"},
		"replay policy":  {tallyman.RemovalAck, jetstream.ConsumerConfig{AckPolicy: jetstream.AckExplicitPolicy, ReplayPolicy: jetstream.ReplayOriginalPolicy}, "replay policy is original"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := brisk
			settings.Removal = tt.removal
			r := newRig(t, settings, tallyman.Topology{})
			if err := r.js.DeleteConsumer(r.ctx, "main_commands", "default"); err != nil {
				t.Fatal(err)
			}
			made := tt.made
			made.Durable, made.FilterSubject, made.AckWait, made.MaxDeliver, made.MaxAckPending = "default", "main.commands.default.>", brisk.Lease, -1, -1
			if _, err := r.js.CreateConsumer(r.ctx, "main_commands", made); err != nil {
				t.Fatal(err)
			}
			if found, err := r.Altered(r.ctx); err != nil || len(found) != 1 || !strings.Contains(found[0], tt.want) {
				t.Errorf("got %q, %v; want one line with %q", found, err, tt.want)
			}
			const remedy = "nats consumer rm main_commands default"
			if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{}); err == nil || !strings.Contains(err.Error(), remedy) {
				t.Errorf("got %v, want an error that says %q", err, remedy)
			}
		})
	}
}

// A pool whose stream was protected by hand, which the server does not undo, could not be
// brought up to anything any more: init failed.
func TestCreate_LivesWithWhatCannotBeUndone(t *testing.T) {
	t.Parallel()
	r := newRig(t, brisk, tallyman.Topology{})
	r.edit(t, "main_commands", func(c *jetstream.StreamConfig) { c.DenyDelete, c.DenyPurge, c.AllowMsgTTL = true, true, true })
	if err := tallyman.Create(r.ctx, r.nc, "main", tallyman.Settings{}, tallyman.Topology{Queues: []string{"other"}}); err != nil {
		t.Fatal(err)
	}
	start(t, r.Pool, tallyman.WorkerConfig{Queues: []string{"other"}, Mux: handle("echo", echo)})
	r.submit(t, tallyman.Command{ID: "a", Kind: "echo", Queue: "other"})
	if _, err := r.Wait(r.ctx, "a"); err != nil {
		t.Error(err)
	}
	r.emptied(t)
}

// edit changes the configuration of a stream as another tool would.
func (r *rig) edit(t testing.TB, name string, change func(*jetstream.StreamConfig)) {
	t.Helper()
	if change == nil {
		return
	}
	str, err := r.js.Stream(r.ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	cfg := str.CachedInfo().Config
	change(&cfg)
	if _, err := r.js.UpdateStream(r.ctx, cfg); err != nil {
		t.Fatal(err)
	}
}
