package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/kvstate"
	"github.com/tallyman-go/tallyman/stream"
)

type statusCommand struct {
	JSON bool `name:"json" help:"Print JSON."`
}

type statusView struct {
	Pool     string       `json:"pool"`
	Settings settingsView `json:"settings"`
	Stream   streamView   `json:"stream"`
	Queues   []queueView  `json:"queues"`
	// States counts the records in the bucket. Commands that nobody has
	// written about yet are in no state.
	States map[kvstate.State]uint64 `json:"states"`
	// Damaged counts records that do not decode.
	Damaged  uint64 `json:"damaged"`
	Absorbed uint64 `json:"absorbed"`
	// Unserved names queues that hold commands and have no consumer.
	Unserved []unservedView `json:"unserved_queues"`
}

type streamView struct {
	Commands uint64 `json:"commands"`
	Bytes    uint64 `json:"bytes"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	Replicas int    `json:"replicas"`
	// Settled is how many of the commands have ended and await the sweep; those
	// of queues without a consumer are not known, and not among them.
	Settled uint64 `json:"settled,omitempty"`
}

type queueView struct {
	Name        string `json:"name"`
	Pending     uint64 `json:"pending"`
	Outstanding int    `json:"outstanding"`
	Redelivered int    `json:"redelivered"`
	Waiting     int    `json:"waiting_pulls"`
	Paused      bool   `json:"paused"`
	// PausedUntil, PausedBy and PausedWhy are there while the queue is paused;
	// who did it is known if it was done with tallyman pause.
	PausedUntil *time.Time `json:"paused_until,omitempty"`
	PausedBy    string     `json:"paused_by,omitempty"`
	PausedWhy   string     `json:"paused_why,omitempty"`
}

type unservedView struct {
	Name     string `json:"name"`
	Commands uint64 `json:"commands"`
}

// Run prints the state of the pool.
func (c *statusCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return withPool(ctx, common, func(ctx context.Context, pool *tallyman.Pool) error {
		v, err := statusOf(ctx, pool)
		if err != nil {
			return err
		}
		if c.JSON {
			return out.JSON(v)
		}
		return v.print(pool, out)
	})
}

func statusOf(ctx context.Context, pool *tallyman.Pool) (statusView, error) {
	v := statusView{
		Pool: pool.Name(), Settings: settingsOf(pool.Settings()),
		Queues: []queueView{}, Unserved: []unservedView{}, States: map[kvstate.State]uint64{},
	}
	state, err := pool.Commands().State(ctx)
	if err != nil {
		return v, err
	}
	v.Stream = streamView{Commands: state.Messages, Bytes: state.Bytes, FirstSeq: state.FirstSeq, LastSeq: state.LastSeq, Replicas: state.Replicas}
	queues, err := pool.Commands().Queues(ctx)
	if err != nil {
		return v, err
	}
	served := uint64(0)
	for _, q := range queues {
		served += q.Pending + uint64(q.Outstanding)
		view := queueView{Name: q.Name, Pending: q.Pending, Outstanding: q.Outstanding, Redelivered: q.Redelivered, Waiting: q.Waiting}
		if err := view.pause(ctx, pool, q); err != nil {
			return v, err
		}
		v.Queues = append(v.Queues, view)
	}
	slices.SortFunc(v.Queues, func(a, b queueView) int { return strings.Compare(a.Name, b.Name) })
	if served < state.Messages { // only then is the expensive question worth asking
		if err := v.findUnserved(ctx, pool); err != nil {
			return v, err
		}
	}
	if pool.Commands().Sweeps() {
		for _, q := range v.Unserved {
			served += q.Commands
		}
		v.Stream.Settled = state.Messages - min(served, state.Messages)
	}
	for _, s := range kvstate.States() {
		v.States[s] = 0
	}
	err = pool.Records().Scan(ctx, func(e kvstate.Entry) error {
		if _, ok := kvstate.AbsorbedSeq(e.Key); ok {
			v.Absorbed++
		}
		switch {
		case kvstate.Own(e.Key):
		case e.Record == nil:
			v.Damaged++
		default:
			v.States[e.Record.State]++
		}
		return nil
	})
	return v, err
}

// pause tells of a queue's pause, which may also have been made by another tool.
func (v *queueView) pause(ctx context.Context, pool *tallyman.Pool, q stream.Queue) error {
	if !q.Paused {
		return nil
	}
	v.Paused, v.PausedUntil = true, known(q.PausedUntil)
	p, err := deskOf(pool).LastPause(ctx, q.Name)
	if err != nil {
		return err
	}
	if p.ResumedBy == "" && p.Until.Equal(q.PausedUntil) {
		v.PausedBy, v.PausedWhy = p.By, p.Why
	}
	return nil
}

func (v *queueView) note() string {
	if !v.Paused {
		return ""
	}
	note := "paused"
	if v.PausedBy != "" {
		note += " by " + v.PausedBy
	}
	if v.PausedUntil != nil {
		note += " " + untilText(*v.PausedUntil)
	}
	if v.PausedWhy != "" {
		note += ": " + v.PausedWhy
	}
	return note
}

func (v *statusView) findUnserved(ctx context.Context, pool *tallyman.Pool) error {
	counts, err := pool.Commands().CountByQueue(ctx)
	if err != nil {
		return err
	}
	for name, n := range counts {
		if !slices.ContainsFunc(v.Queues, func(q queueView) bool { return q.Name == name }) {
			v.Unserved = append(v.Unserved, unservedView{name, n})
		}
	}
	slices.SortFunc(v.Unserved, func(a, b unservedView) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

func (v *statusView) print(pool *tallyman.Pool, out *cli.Out) error {
	t := newTable(out)
	t.row("pool", v.Pool)
	t.settings(pool.Settings())
	t.row("replicas", v.Stream.Replicas)
	settled := ""
	if v.Stream.Settled > 0 {
		settled = fmt.Sprintf(" (%d of them settled, to be swept)", v.Stream.Settled)
	}
	t.row("stream", fmt.Sprintf("%d commands%s, %d bytes, sequences %d to %d", v.Stream.Commands, settled, v.Stream.Bytes, v.Stream.FirstSeq, v.Stream.LastSeq))
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t.row("QUEUE", "PENDING", "OUTSTANDING", "REDELIVERED", "WAITING PULLS", "")
	for _, q := range v.Queues {
		t.row(q.Name, q.Pending, q.Outstanding, q.Redelivered, q.Waiting, q.note())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, q := range v.Unserved {
		fmt.Fprintf(out, "queue %s holds %d commands and has no consumer; run: tallyman init --pool %s --queue %s\n", line(q.Name), q.Commands, v.Pool, line(q.Name))
	}
	fmt.Fprintln(out)
	t.row("STATE", "COMMANDS")
	for _, s := range kvstate.States() {
		t.row(s, v.States[s])
	}
	if v.Damaged > 0 {
		t.row("damaged", v.Damaged)
	}
	t.row("absorbed", v.Absorbed)
	return t.Flush()
}
