package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

// counts compares the summary of an act on many.
func (o outcome) counts(t *testing.T, code int, want string) {
	t.Helper()
	o.expect(t, code)
	var got, wanted map[string]any
	if err := errors.Join(json.Unmarshal([]byte(o.stdout), &got), json.Unmarshal([]byte(want), &wanted)); err != nil {
		t.Fatalf("%v in %q", err, o.stdout)
	}
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		t.Errorf("got %v, want %v; stderr: %s", got, wanted, o.stderr)
	}
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	ids := []string{"a", "b", "-c", "--all"}
	for _, id := range ids {
		submit(t, p, tallyman.Command{ID: id, Kind: "bad", Payload: []byte("x")})
	}
	submit(t, p, tallyman.Command{ID: "done", Kind: "echo"})
	work(t, p, append(ids, "done")...)

	t.Run("needs ids or a filter, and no more than one of them", func(t *testing.T) {
		s.run(t, "requeue").expect(t, 2, "--all")
		s.run(t, "requeue", "a", "--all").expect(t, 2, "exclude")
		s.run(t, "requeue", "a", "--kind", "bad").expect(t, 2, "exclude")
		s.run(t, "requeue", "--reason", "tired").expect(t, 2, "tired", "exhausted")
		s.run(t, "requeue", "--all", "--older-than", "-1h").expect(t, 2, "--older-than")
		s.run(t, "requeue", "a", "--as", " ").expect(t, 2, "who acts")
		s.run(t, "requeue", "").expect(t, 2, "invalid command id")
	})
	t.Run("a dry run lists and changes nothing", func(t *testing.T) {
		s.run(t, "requeue", "--all", "--dry-run").expect(t, 0, "a ", "-c", "rejected", "matched 4: 4 would be requeued")
		s.run(t, "requeue", "--all", "--dry-run", "--json").counts(t, 0, `{"matched":4,"requeued":0,"already":0,"refused":0,"failed":0,"dry_run":true}`)
		s.run(t, "requeue", "--older-than", "1h", "--json").counts(t, 0, `{"matched":0,"requeued":0,"already":0,"refused":0,"failed":0}`)
	})
	t.Run("one by id, and once more", func(t *testing.T) {
		s.run(t, "requeue", "a", "--as", "ann", "--why", "the disk was full").expect(t, 0, "matched 1: 1 requeued")
		s.run(t, "requeue", "a", "--json").counts(t, 0, `{"matched":1,"requeued":0,"already":1,"refused":0,"failed":0}`)
		s.run(t, "show", "a").expect(t, 0, "requeued", "ann", "the disk was full", "may be done", "cancel")
	})
	t.Run("ids that look like flags", func(t *testing.T) {
		s.run(t, "requeue", "--json", "--", "-c", "--all").counts(t, 0, `{"matched":2,"requeued":2,"already":0,"refused":0,"failed":0}`)
	})
	t.Run("what is refused or unknown is told by its id", func(t *testing.T) {
		s.run(t, "requeue", "done").expect(t, 3, `requeue "done": refused`, `"completed"`, `"requeued"`)
		s.run(t, "requeue", "nobody").expect(t, 1, `requeue "nobody": not found`)
		o := s.run(t, "requeue", "b", "done", "nobody", "--json")
		o.counts(t, 1, `{"matched":3,"requeued":1,"already":0,"refused":1,"failed":1}`)
		o.expect(t, 1, `requeue "done": refused`, `requeue "nobody": not found`, "1 of 3 failed")
		s.run(t, "requeue", "b", "done").expect(t, 3, "matched 2: 0 requeued, 1 already, 1 refused", "1 of 2 do not admit requeue")
	})
	s.run(t, "audit").expect(t, 0)
	work(t, p, ids...)
	s.run(t, "parked", "--reason", "rejected").expect(t, 0, "a ", "-c", "to go on: tallyman show ID, then requeue, resolve or discard")
	if o := s.run(t, "parked", "--newer-than", "1ns"); o.code != 0 || strings.Contains(o.stdout+o.stderr, "rejected") {
		t.Errorf("got %+v, want an empty table", o)
	}
	s.run(t, "audit").expect(t, 0)
}

func TestResolveAndDiscard(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	ids := []string{"a", "b", "-c", "d"}
	for _, id := range ids {
		submit(t, p, tallyman.Command{ID: id, Kind: "bad"})
	}
	work(t, p, ids...)
	s.run(t, "show", "a").expect(t, 0, "requeue, resolve, discard")

	s.run(t, "resolve", "a").expect(t, 2, "--result")
	s.run(t, "resolve", "a", "--result", "x", "--result-file", "y").expect(t, 2)
	s.run(t, "resolve", "a", "--result-file", "/nowhere").expect(t, 2, "/nowhere")
	s.run(t, "resolve", "nobody", "--result", "x").expect(t, 1, "not found")
	s.run(t, "resolve", "a", "--result", "paid", "--as", "ann", "--why", "rang the bank").expect(t, 0, "a: resolved")
	s.run(t, "resolve", "a", "--result", "paid").expect(t, 0, "was resolved already")
	s.run(t, "resolve", "a", "--result", "unpaid").expect(t, 3, "by ann at")
	o := s.run(t, "wait", "a", "--json")
	o.expect(t, 0)
	equal(t, o.object(t), "result", "paid")
	equal(t, o.object(t), "resolved_by", "ann")
	s.run(t, "show", "a").expect(t, 0, "resolved by", "rang the bank")

	run(t, s.url, "from stdin", "resolve", "--result-file", "-", "--content-type", "text/plain", "--", "-c").expect(t, 0)
	s.run(t, "wait", "--", "-c").expect(t, 0, "from stdin")
	huge := filepath.Join(t.TempDir(), "huge")
	if err := os.WriteFile(huge, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, "resolve", "b", "--result-file", huge).expect(t, 1, "2097152 bytes does not fit", "reference")

	s.run(t, "discard", "b", "--why", "nobody wants it", "--json").counts(t, 0, `{"matched":1,"discarded":1,"already":0,"refused":0,"failed":0}`)
	s.run(t, "discard", "--all").expect(t, 0, "matched 1: 1 discarded")
	s.run(t, "wait", "b", "--json").expect(t, 1, "discarded")
	s.run(t, "audit").expect(t, 0)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	for _, id := range []string{"a", "b", "-c", "d"} {
		submit(t, p, tallyman.Command{ID: id, Kind: "echo"})
	}
	submit(t, p, tallyman.Command{ID: "x", Kind: "bad"})
	s.run(t, "list", "--state", "pending").expect(t, 0, "-c", "SEQUENCE")
	s.run(t, "cancel", "a").expect(t, 0, "a: cancelled")
	s.run(t, "cancel", "a").expect(t, 0, "was cancelled already")
	s.run(t, "cancel", "--json", "--", "-c").expect(t, 0, `"cancelled":true`, `"id":"-c"`)
	o := s.run(t, "list", "--state", "pending", "--kind", "echo", "--json")
	if o.code != 0 || strings.Count(o.stdout, "\n") != 2 || !strings.Contains(o.stdout, `"id":"b"`) {
		t.Errorf("got %+v, want b and d pending", o)
	}
	if o := s.run(t, "list", "--state", "pending", "--limit", "1", "--json"); o.code != 0 || strings.Count(o.stdout, "\n") != 1 {
		t.Errorf("got %+v, want one line", o)
	}
	// Who may not delete cancels all the same.
	keep := strings.Replace(s.url, "op:op", "keep:keep", 1)
	run(t, keep, "", "cancel", "b", "d").expect(t, 0, "b: cancelled", "d: cancelled", "is not taken out of the stream", "$JS.API.STREAM.MSG.DELETE.main_commands")
	s.run(t, "audit").expect(t, 0)
	work(t, p, "x")
	s.run(t, "cancel", "x").expect(t, 3, `"parked"`, "discard")
	s.run(t, "cancel", "x", "nobody").expect(t, 3, `tallyman: cancel "x"`, `tallyman: cancel "nobody": not found`, "2 of 2 were not cancelled")
	s.run(t, "cancel", "nobody").expect(t, 1, "not found")
	s.run(t, "cancel", "--json", "a", "x").expect(t, 3, `"already":true`, `"cancelled":false`, `"id":"x"`, `"error":"desk: cancel \"x\": refused`)
	s.run(t, "pause", "nowhere").expect(t, 1, "no such queue; tallyman status lists")
	s.run(t, "audit").expect(t, 0)
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	s.run(t, "pause", "default", "--as", "ann", "--why", "the bank is closed").expect(t, 0, "until it is resumed")
	s.run(t, "init").expect(t, 0)
	s.run(t, "status").expect(t, 0, "paused by ann until it is resumed: the bank is closed")
	o := s.run(t, "status", "--json")
	o.expect(t, 0)
	q := o.object(t)["queues"].([]any)[0].(map[string]any)
	equal(t, q, "paused", "true")
	equal(t, q, "paused_by", "ann")
	equal(t, q, "paused_why", "the bank is closed")
	s.run(t, "pause", "default", "--for", "2h").expect(t, 0, "until 20")
	s.run(t, "resume", "default").expect(t, 0, "delivers")
	s.run(t, "resume", "default", "--json").expect(t, 0, `"paused":false`)
	o = s.run(t, "status", "--json")
	q = o.object(t)["queues"].([]any)[0].(map[string]any)
	equal(t, q, "paused", "false")
	if q["paused_by"] != nil || q["paused_until"] != nil {
		t.Errorf("got %v, want no word of the pause", q)
	}
	// A pause made by another tool is shown without a name.
	if _, err := s.js(t).PauseConsumer(t.Context(), "main_commands", "default", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if o := s.run(t, "status"); o.code != 0 || !strings.Contains(o.stdout, "paused until 20") || strings.Contains(o.stdout, "by ") {
		t.Errorf("got %+v, want it paused by nobody known", o)
	}
	s.run(t, "pause", "nowhere").expect(t, 1, "no such queue")
	s.run(t, "pause", "a.b").expect(t, 2, "a.b")
	s.run(t, "pause", "default", "--for", "-1s").expect(t, 2, "--for")
	s.run(t, "resume", "nowhere").expect(t, 1, "no such queue")
}

func TestShow_DecodesMessagePack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	packed, err := command.Marshal(map[string]any{"image": "7.png", "width": 300})
	if err != nil {
		t.Fatal(err)
	}
	submit(t, p, tallyman.Command{ID: "a", Kind: "bad", Payload: packed, ContentType: command.ContentTypeMsgpack})
	submit(t, p, tallyman.Command{ID: "raw", Kind: "bad", Payload: packed})
	submit(t, p, tallyman.Command{ID: "text", Kind: "bad", Payload: []byte("x")})
	s.run(t, "show", "a").expect(t, 0, "payload (MessagePack)", `{"image":"7.png","width":300}`)
	work(t, p, "a", "raw", "text")
	for _, id := range []string{"a", "raw"} {
		s.run(t, "show", id).expect(t, 0, "payload (MessagePack)", `{"image":"7.png","width":300}`)
		o := s.run(t, "show", id, "--json")
		c := o.object(t)["command"].(map[string]any)
		equal(t, c["payload_decoded"].(map[string]any), "width", "300")
		if c["payload_base64"] == nil {
			t.Errorf("the bytes themselves are missing in %v", c)
		}
	}
	if c := s.run(t, "show", "text", "--json").object(t)["command"].(map[string]any); c["payload_decoded"] != nil || c["payload"] != "x" {
		t.Errorf("text was taken for MessagePack: %v", c)
	}
}

func TestShow_PayloadBeside(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	large := strings.Repeat("x", int(s.nc.MaxPayload()))
	if _, err := s.nc.Request("main.commands.default.bad.a", []byte(large), time.Minute); err != nil {
		t.Fatal(err)
	}
	work(t, p, "a")
	if e, err := p.Records().Read(t.Context(), kvstate.PayloadKey("a")); err != nil || e.Raw == nil {
		t.Fatalf("the payload fits into the record, or %v: nothing is tested", err)
	}
	o := s.run(t, "show", "a", "--json")
	o.expect(t, 0)
	c := o.object(t)["command"].(map[string]any)
	if got := c["payload"]; got != large {
		t.Errorf("got a payload of %d bytes, want %d", len(fmt.Sprint(got)), len(large))
	}
	s.run(t, "requeue", "a").expect(t, 0)
	work(t, p, "a")
	s.run(t, "discard", "a").expect(t, 0, "1 discarded")
	if e, err := p.Records().Read(t.Context(), kvstate.PayloadKey("a")); err != nil || e.Raw != nil {
		t.Errorf("the payload of a discarded command is still there, or %v", err)
	}
	s.run(t, "audit").expect(t, 0)
}

// TestDesk_Aside looks at and discards a message that did not decode.
func TestDesk_Aside(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.run(t, "init").expect(t, 0)
	p := s.pool(t)
	if _, err := s.nc.Request("main.commands.default.echo.=zz", []byte("x"), time.Minute); err != nil {
		t.Fatal(err)
	}
	submit(t, p, tallyman.Command{ID: "a", Kind: "echo"})
	work(t, p, "a")
	// It was delivered before "a" and is written without waiting for it.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if e, err := p.Records().Read(t.Context(), kvstate.MalformedKey(1)); err != nil {
			t.Fatal(err)
		} else if e.Record != nil {
			break
		}
		<-tick.C
	}
	s.run(t, "parked").expect(t, 0, "_malformed/1", "tallyman discard KEY")
	s.run(t, "show", "_malformed/1").expect(t, 0, "malformed", "discard")
	s.run(t, "requeue", "_malformed/1").expect(t, 3, "does not decode", "discard it")
	s.run(t, "discard", "_malformed/1").expect(t, 0, "1 discarded")
}
