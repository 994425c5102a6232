package main

import (
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
)

func TestWhy(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	submit(t, p, tallyman.Command{ID: "a b", Kind: "echo", Payload: []byte("hello")})
	submit(t, p, tallyman.Command{ID: "bad", Kind: "bad"})

	s.run(t, "why", "a b").expect(t, 0, `"a b" is pending`, "Sequence 1 was stored, of kind echo in queue default", "no worker has got it yet")
	work(t, p, "a b", "bad")
	s.run(t, "why", "a b").expect(t, 0, `"a b" is completed`, "finished it on attempt 1; the receipt holds five bytes", "Completed, and final.")
	s.run(t, "why", "bad", "--scan", "--utc").expect(t, 0, `parked it as rejected: "never\nagain"`, "A person may requeue, resolve or discard it.")

	o := s.run(t, "why", "bad", "--json")
	o.expect(t, 0)
	got := o.object(t)
	equal(t, got, "id", "bad")
	equal(t, got, "state", "parked")
	if v, _ := got["verdict"].(string); !strings.HasPrefix(v, "Parked as rejected") {
		t.Errorf("the verdict is %q", v)
	}
	events := got["events"].([]any)
	event := events[len(events)-1].(map[string]any)
	equal(t, event, "source", "record")
	equal(t, event, "what", "parked")
	equal(t, event, "attempt", "1")
	for _, key := range []string{"at", "actor", "text"} {
		if event[key] == nil || event[key] == "" {
			t.Errorf("key %s is missing in %v", key, event)
		}
	}

	submit(t, p, tallyman.Command{ID: "astray", Kind: "echo", Queue: "dfault"})
	s.run(t, "why", "astray").expect(t, 0, "no worker has got it yet", "make one with tallyman init --queue dfault")
	submit(t, p, tallyman.Command{ID: "at home", Kind: "echo"})
	if o := s.run(t, "why", "at home"); o.code != 0 || strings.Contains(o.stdout, "no consumer") {
		t.Errorf("got %+v, want it pending in a queue that has a consumer", o)
	}

	s.run(t, "why", "nobody").expect(t, 1, `command "nobody": not found`, "main.commands.*.*.nobody")
	if err := p.Records().PutWait(t.Context(), command.Token("torn"), []byte("\x1b[2J"), 0); err != nil {
		t.Fatal(err)
	}
	o = s.run(t, "why", "torn")
	o.expect(t, 0, "torn is damaged", "Its record is damaged, and it has left the stream")
	if strings.Contains(o.stdout, "\x1b") {
		t.Errorf("control characters reach the terminal: %q", o.stdout)
	}
}
