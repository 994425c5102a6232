package pipeline_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/internal/pipeline"
)

// A message that is given back twice would be two writes at once.
func TestDeliver_GivesMessagesBackOnce(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := nats.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	open, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = open.Close() })
	closed, err := pipeline.New(nc, pipeline.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		pipe    *pipeline.Pipe
		group   *pipeline.Group
		subject string
	}{
		"nobody listens":             {open, nil, "nobody"},
		"nobody listens, in a group": {open, pipeline.NewGroup(open, pipeline.GroupConfig{}), "nobody"},
		"not sent":                   {open, nil, ""},
		"not sent, in a group":       {open, pipeline.NewGroup(open, pipeline.GroupConfig{}), ""},
		"closed":                     {closed, nil, "nobody"},
		"closed, in a group":         {closed, pipeline.NewGroup(closed, pipeline.GroupConfig{}), "nobody"},
	} {
		for range 20 {
			m := pipeline.NewMessage(c.subject, []byte("x"))
			m.Set("A", "1")
			if _, err := pipeline.AwaitWrite(t.Context(), func(done func(pipeline.PubAck, error)) error {
				return c.pipe.Deliver(m, c.group, done)
			}); err == nil {
				t.Fatalf("%s: got no error", name)
			}
			a, b := pipeline.NewMessage("a", nil), pipeline.NewMessage("b", nil)
			if a == b {
				t.Fatalf("%s: its message was given back twice", name)
			}
			if a.Headers() != 0 || a.Size() != 0 || a.Subject() != "a" {
				t.Fatalf("%s: a message begins with what an earlier one had", name)
			}
			a.Recycle()
			b.Recycle()
		}
	}
}

// TestMessage_ManyHeaders has more of them than there is room for at first.
func TestMessage_ManyHeaders(t *testing.T) {
	t.Parallel()
	for range 2 { // the second time as one that is used again
		m := pipeline.NewMessage("a", []byte("x"))
		for i := range 30 {
			m.Set("H"+strconv.Itoa(i), strings.Repeat("v", i))
		}
		if m.Headers() != 30 {
			t.Errorf("got %d headers, want 30", m.Headers())
		}
		m.Unset("H0")
		if m.Headers() != 29 {
			t.Errorf("got %d headers, want 29", m.Headers())
		}
		m.Recycle()
	}
}
