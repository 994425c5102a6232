package stream

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman/command"
)

func FuzzSubject(f *testing.F) {
	f.Add("default", "resize", "img-7")
	f.Add("q", "k", "=2E=2E")
	f.Add("", "", "")
	f.Fuzz(func(t *testing.T, queue, kind, token string) {
		s := &Stream{prefix: subjectPrefix("main")}
		if strings.ContainsAny(queue+kind, ".") {
			t.Skip() // names are validated before a subject is made of them
		}
		gotQueue, gotKind, gotToken := s.parse(s.Subject(queue, kind, command.Token(token)))
		if gotQueue != queue || gotKind != kind || gotToken != command.Token(token) {
			t.Errorf("got %q %q %q, want %q %q %q", gotQueue, gotKind, gotToken, queue, kind, token)
		}
	})
}

func FuzzDelivery(f *testing.F) {
	f.Add("main.commands.default.resize.img-7", "$JS.ACK.main_commands.default.2.7.9.1700000000000000000.0")
	f.Add("main.commands.default.resize.img-7", "$JS.ACK._.acc.main_commands.default.2.7.9.1700000000000000000.0.rnd")
	f.Add("other", "$JS.ACK.......")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, subject, reply string) {
		s := &Stream{prefix: subjectPrefix("main")}
		d := s.delivery(&nats.Msg{Subject: subject, Reply: reply}, time.Now())
		if d != nil && !strings.HasPrefix(reply, "$JS.ACK.") {
			t.Errorf("took %q for a delivery", reply)
		}
	})
}

func TestDelivery_Reply(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, 1700000000000000000)
	for name, reply := range map[string]string{
		"short form":               "$JS.ACK.main_commands.default.2.7.9.1700000000000000000.0",
		"with domain":              "$JS.ACK.hub.acc.main_commands.default.2.7.9.1700000000000000000.0",
		"with domain and a suffix": "$JS.ACK.hub.acc.main_commands.default.2.7.9.1700000000000000000.0.rnd",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &Stream{prefix: subjectPrefix("main")}
			d := s.delivery(&nats.Msg{Subject: "main.commands.default.resize.img-7", Reply: reply}, time.Now())
			if d == nil {
				t.Fatal("no delivery")
			}
			if d.Attempts != 2 || d.Seq != 7 || !d.StoredAt.Equal(at) {
				t.Errorf("got delivery %d of sequence %d at %v, want 2 of 7 at %v", d.Attempts, d.Seq, d.StoredAt, at)
			}
			if d.Queue != "default" || d.Kind != "resize" || d.Token != "img-7" {
				t.Errorf("got %q %q %q", d.Queue, d.Kind, d.Token)
			}
		})
	}
}

func TestDelivery_AckNeedsProof(t *testing.T) {
	t.Parallel()
	d := &Delivery{Seq: 7}
	if err := d.Ack(command.Proof{}); err == nil {
		t.Error("acked without proof")
	}
}
