package dedupe_test

import (
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

// BenchmarkRecognise establishes whose delivery came from the wire, and judges
// it beside an empty record: the straight way of every command.
func BenchmarkRecognise(b *testing.B) {
	env, err := dedupe.Identify(command.Command{ID: "order-20260731-000042", Kind: "resize", Payload: make([]byte, 128)})
	if err != nil {
		b.Fatal(err)
	}
	header := map[string][]string{
		command.HeaderMsgID: {string(env.Token)}, command.HeaderID: {env.ID}, command.HeaderDigest: {string(env.Digest)},
	}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		got, err := dedupe.Recognise(env.Queue, env.Kind, env.Token, header, env.Payload)
		if err != nil {
			b.Fatal(err)
		}
		if c := dedupe.Judge(got, 7, kvstate.Entry{Key: env.Token}, now); c != dedupe.Fresh {
			b.Fatalf("case = %v, want %v", c, dedupe.Fresh)
		}
	}
}
