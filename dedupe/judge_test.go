package dedupe_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestJudge(t *testing.T) {
	t.Parallel()
	env, err := dedupe.Identify(command.Command{ID: "a", Kind: "k", Queue: command.DefaultQueue})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	const seq, other = 7, 3
	for name, c := range map[string]struct {
		state  kvstate.State
		of     uint64 // sequence that the record accounts for
		change func(*kvstate.Record)
		want   dedupe.Case
	}{
		"claimed":                                    {kvstate.Claimed, seq, nil, dedupe.Resume},
		"claimed, with an intent":                    {kvstate.Claimed, seq, func(r *kvstate.Record) { r.Intent = []byte{} }, dedupe.Unsure},
		"prepared":                                   {kvstate.Prepared, seq, nil, dedupe.Unsure},
		"waiting, and due":                           {kvstate.Waiting, seq, func(r *kvstate.Record) { r.NextAt = now.Add(100 * time.Millisecond) }, dedupe.Resume},
		"waiting":                                    {kvstate.Waiting, seq, func(r *kvstate.Record) { r.NextAt = now.Add(101 * time.Millisecond) }, dedupe.Early},
		"waiting, with an intent":                    {kvstate.Waiting, seq, func(r *kvstate.Record) { r.NextAt, r.Intent = now.Add(time.Second), []byte{} }, dedupe.Early},
		"due, with an intent":                        {kvstate.Waiting, seq, func(r *kvstate.Record) { r.Intent = []byte{} }, dedupe.Unsure},
		"claimed, of another copy":                   {kvstate.Claimed, other, nil, dedupe.Rival},
		"prepared, of another copy":                  {kvstate.Prepared, other, nil, dedupe.Rival},
		"waiting, of another copy":                   {kvstate.Waiting, other, func(r *kvstate.Record) { r.NextAt = now.Add(time.Second) }, dedupe.Rival},
		"sent back, which always is another copy":    {kvstate.Requeued, other, nil, dedupe.Resume},
		"sent back, and the old delivery is here":    {kvstate.Requeued, seq, nil, dedupe.Resume},
		"completed":                                  {kvstate.Completed, seq, nil, dedupe.Settled},
		"parked":                                     {kvstate.Parked, seq, nil, dedupe.Settled},
		"cancelled":                                  {kvstate.Cancelled, seq, nil, dedupe.Settled},
		"discarded":                                  {kvstate.Discarded, seq, nil, dedupe.Settled},
		"completed, of another copy":                 {kvstate.Completed, other, nil, dedupe.Repeated},
		"parked, of another copy":                    {kvstate.Parked, other, nil, dedupe.Repeated},
		"cancelled, of another copy":                 {kvstate.Cancelled, other, nil, dedupe.Repeated},
		"another command, though of this sequence":   {kvstate.Completed, seq, func(r *kvstate.Record) { r.Digest = "other" }, dedupe.Conflict},
		"another command, sent back":                 {kvstate.Requeued, other, func(r *kvstate.Record) { r.Digest = "other" }, dedupe.Conflict},
		"another command, which announced an effect": {kvstate.Prepared, other, func(r *kvstate.Record) { r.Digest = "other" }, dedupe.Conflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &kvstate.Record{ID: "a", Kind: "k", Digest: env.Digest, State: c.state, Seqs: []uint64{c.of}}
			if c.change != nil {
				c.change(r)
			}
			if got := dedupe.Judge(env, seq, kvstate.Entry{Key: env.Token, Revision: 1, Record: r}, now); got != c.want {
				t.Errorf("got case %d, want %d", got, c.want)
			}
		})
	}
	if got := dedupe.Judge(env, seq, kvstate.Entry{Key: env.Token}, now); got != dedupe.Fresh {
		t.Errorf("without a record: got case %d, want %d", got, dedupe.Fresh)
	}
	if got := dedupe.Judge(env, seq, kvstate.Entry{Key: env.Token, Revision: 1, Err: errors.New("damaged")}, now); got != dedupe.Corrupt {
		t.Errorf("with a damaged record: got case %d, want %d", got, dedupe.Corrupt)
	}
}
