package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/internal/plural"
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
	// Altered names what other tools have changed so that commands may be lost, or wait in vain.
	Altered []string `json:"altered"`
	// Journal is there if the pool has one, or if that cannot be told.
	Journal *journalView `json:"journal,omitempty"`
	// Shards tells the same of each shard, of a pool that has more than one. What
	// is above is the sum of them then.
	Shards []shardView `json:"shards,omitempty"`
}

// shardView is what status tells of one shard.
type shardView struct {
	Shard    int                      `json:"shard"`
	Bucket   string                   `json:"bucket"`
	Stream   streamView               `json:"stream"`
	Queues   []queueView              `json:"queues"`
	States   map[kvstate.State]uint64 `json:"states"`
	Damaged  uint64                   `json:"damaged"`
	Absorbed uint64                   `json:"absorbed"`
}

type streamView struct {
	Commands uint64 `json:"commands"`
	Bytes    uint64 `json:"bytes"`
	// FirstSeq and LastSeq are 0 in the sum over shards, each of which has its own.
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	Replicas int    `json:"replicas"`
	// MaxCommands and MaxBytes bound it, if they are there.
	MaxCommands int64 `json:"max_commands,omitempty"`
	MaxBytes    int64 `json:"max_bytes,omitempty"`
	// Settled is how many of the commands have ended and await the sweep; those
	// of queues without a consumer are not known, and not among them.
	Settled uint64 `json:"settled,omitempty"`
	// Undelivered is how many lie there though no queue has anything to deliver or
	// to settle, where acks take commands out: the audit tells why.
	Undelivered uint64 `json:"undelivered,omitempty"`
}

type queueView struct {
	Name        string `json:"name"`
	Pending     uint64 `json:"pending"`
	Outstanding int    `json:"outstanding"`
	Redelivered int    `json:"redelivered"`
	Waiting     int    `json:"waiting_pulls"`
	Paused      bool   `json:"paused"` // in a sharded pool, in every shard
	// PausedUntil, PausedBy and PausedWhy are there while the queue is paused;
	// who did it is known if it was done with tallyman pause.
	PausedUntil *time.Time `json:"paused_until,omitempty"`
	PausedBy    string     `json:"paused_by,omitempty"`
	PausedWhy   string     `json:"paused_why,omitempty"`

	paused, shards int // in how many of the shards it stands
}

type unservedView struct {
	Name     string `json:"name"`
	Commands uint64 `json:"commands"`

	in []*stream.Stream
}

// remedy says what to do about it.
func (u *unservedView) remedy(pool string) string {
	if command.ValidateName("queue", u.Name) == nil {
		return fmt.Sprintf("queue %s holds %s and has no consumer; run: tallyman init --pool %s --queue %s", line(u.Name), plural.Count(u.Commands, "command"), pool, line(u.Name))
	}
	purges := make([]string, len(u.in))
	for i, s := range u.in {
		purges[i] = fmt.Sprintf("nats stream purge %s --subject '%s'", s.Name(), line(s.Subjects(u.Name)))
	}
	return fmt.Sprintf("queue %s holds %s that no worker can get, as that is no name of a queue; take them out with: %s; then write their sequences off, as tallyman audit says", line(u.Name), plural.Count(u.Commands, "message"), strings.Join(purges, " and "))
}

// Run prints the state of the pool.
func (c *statusCommand) Run(ctx context.Context, common *cli.Common, out *cli.Out) error {
	return connected(ctx, common, func(ctx context.Context, nc *nats.Conn) error {
		pool, err := common.Open(ctx, nc)
		if err != nil {
			return err
		}
		defer func() { _ = pool.Close() }() // never fails
		v, err := statusOf(ctx, pool)
		if err != nil {
			return err
		}
		v.Journal = journalOf(ctx, nc, pool) // last, since a denial ends ctx
		if c.JSON {
			return out.JSON(v)
		}
		return v.print(pool, out)
	})
}

func statusOf(ctx context.Context, pool *tallyman.Pool) (statusView, error) {
	v := statusView{
		Pool: pool.Name(), Settings: settingsOf(pool.Settings()),
		Queues: []queueView{}, Unserved: []unservedView{}, Altered: []string{}, States: noStates(),
	}
	err := persist(ctx, initPatience, nil, func(ctx context.Context) error {
		altered, err := pool.Altered(ctx)
		v.Altered = append(v.Altered, altered...)
		return err
	})
	if err != nil {
		return v, err
	}
	unserved := map[string]unservedView{}
	for _, at := range pool.Shards() {
		s, err := statusOfShard(ctx, pool, at, unserved)
		if err != nil {
			return v, err
		}
		if !sharded(pool) {
			v.Stream, v.Queues, v.States, v.Damaged, v.Absorbed = s.Stream, s.Queues, s.States, s.Damaged, s.Absorbed
			continue
		}
		v.add(s)
	}
	for _, u := range unserved {
		v.Unserved = append(v.Unserved, u)
	}
	slices.SortFunc(v.Unserved, func(a, b unservedView) int { return strings.Compare(a.Name, b.Name) })
	return v, nil
}

func noStates() map[kvstate.State]uint64 {
	none := map[kvstate.State]uint64{}
	for _, s := range kvstate.States() {
		none[s] = 0
	}
	return none
}

// statusOfShard looks at one shard. Commands in queues without a consumer are
// added to unserved.
func statusOfShard(ctx context.Context, pool *tallyman.Pool, at tallyman.Shard, unserved map[string]unservedView) (shardView, error) {
	v := shardView{Shard: at.Index, Bucket: at.Records.Bucket(), Queues: []queueView{}, States: noStates()}
	var state stream.State
	var queues []stream.Queue
	err := persist(ctx, initPatience, nil, func(ctx context.Context) (err error) {
		if state, err = at.Commands.State(ctx); err == nil {
			queues, err = at.Commands.Queues(ctx)
		}
		return err
	})
	if err != nil {
		return v, err
	}
	v.Stream = streamView{Commands: state.Messages, Bytes: state.Bytes, FirstSeq: state.FirstSeq, LastSeq: state.LastSeq, Replicas: state.Replicas,
		MaxCommands: max(state.MaxMsgs, 0), MaxBytes: max(state.MaxBytes, 0)}
	served, idle := uint64(0), true
	for _, q := range queues {
		served += q.Pending + uint64(q.Outstanding)
		idle = idle && q.Pending == 0 && q.Outstanding == 0
		view := queueView{Name: q.Name, Pending: q.Pending, Outstanding: q.Outstanding, Redelivered: q.Redelivered, Waiting: q.Waiting}
		if err := view.pause(ctx, pool, q); err != nil {
			return v, err
		}
		v.Queues = append(v.Queues, view)
	}
	slices.SortFunc(v.Queues, func(a, b queueView) int { return strings.Compare(a.Name, b.Name) })
	if served < state.Messages { // only then is the expensive question worth asking
		mine := map[string]uint64{}
		if err := v.findUnserved(ctx, at, mine); err != nil {
			return v, err
		}
		for name, n := range mine {
			u := unserved[name]
			u.Name, u.Commands, u.in = name, u.Commands+n, append(u.in, at.Commands)
			unserved[name] = u
			served += n
		}
	}
	switch left := state.Messages - min(served, state.Messages); {
	case at.Commands.Sweeps():
		v.Stream.Settled = left
	case idle: // else some may just be on their way in or out
		v.Stream.Undelivered = left
	}
	err = at.Records.Scan(ctx, func(e kvstate.Entry) error {
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

// add adds what a shard holds. A queue that does not stand in every shard is
// not paused, and says in how many it does.
func (v *statusView) add(s shardView) {
	v.Shards = append(v.Shards, s)
	v.Stream.Commands += s.Stream.Commands
	v.Stream.Bytes += s.Stream.Bytes
	v.Stream.MaxCommands += s.Stream.MaxCommands
	v.Stream.MaxBytes += s.Stream.MaxBytes
	v.Stream.Settled += s.Stream.Settled
	v.Stream.Undelivered += s.Stream.Undelivered
	v.Stream.Replicas = s.Stream.Replicas
	for state, n := range s.States {
		v.States[state] += n
	}
	v.Damaged += s.Damaged
	v.Absorbed += s.Absorbed
	for _, q := range s.Queues {
		i, there := slices.BinarySearchFunc(v.Queues, q, func(a, b queueView) int { return strings.Compare(a.Name, b.Name) })
		if !there {
			v.Queues = slices.Insert(v.Queues, i, queueView{Name: q.Name})
		}
		v.Queues[i].add(q)
	}
	for i := range v.Queues {
		q := &v.Queues[i]
		q.shards = len(v.Shards)
		q.Paused = q.paused == q.shards
	}
}

func (v *queueView) add(q queueView) {
	v.Pending += q.Pending
	v.Outstanding += q.Outstanding
	v.Redelivered += q.Redelivered
	v.Waiting += q.Waiting
	if q.Paused {
		v.paused++
		v.PausedUntil, v.PausedBy, v.PausedWhy = q.PausedUntil, q.PausedBy, q.PausedWhy
	}
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
	if !v.Paused && v.paused == 0 {
		return ""
	}
	note := "paused"
	if !v.Paused {
		note += fmt.Sprintf(" in %d of %d shards; pause or resume it again:", v.paused, v.shards)
	}
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

func (v *shardView) findUnserved(ctx context.Context, at tallyman.Shard, unserved map[string]uint64) error {
	counts, err := at.Commands.CountByQueue(ctx)
	if err != nil {
		return err
	}
	for name, n := range counts {
		if !slices.ContainsFunc(v.Queues, func(q queueView) bool { return q.Name == name }) {
			unserved[name] += n
		}
	}
	return nil
}

// sequences says which sequences lie in the stream.
func (s *streamView) sequences() string {
	switch {
	case s.Commands == 0:
		return fmt.Sprintf("last sequence %d", s.LastSeq)
	case s.FirstSeq == s.LastSeq:
		return fmt.Sprintf("sequence %d", s.LastSeq)
	}
	return fmt.Sprintf("sequences %d to %d", s.FirstSeq, s.LastSeq)
}

// bounds says how much the stream may hold; empty if it has no bound.
func (s *streamView) bounds() string {
	var bounds []string
	if s.MaxCommands > 0 {
		bounds = append(bounds, plural.Count(s.MaxCommands, "command"))
	}
	if s.MaxBytes > 0 {
		bounds = append(bounds, plural.Count(s.MaxBytes, "byte"))
	}
	return strings.Join(bounds, " or ")
}

func (v *statusView) print(pool *tallyman.Pool, out *cli.Out) error {
	t := newTable(out)
	t.row("pool", v.Pool)
	t.settings(pool.Settings())
	t.row("replicas", v.Stream.Replicas)
	settled := ""
	if v.Stream.Settled > 0 {
		settled = fmt.Sprintf(" (%d of them acked, to be swept)", v.Stream.Settled)
	}
	if n := len(v.Shards); n > 0 {
		t.row("streams", fmt.Sprintf("%s%s, %d bytes in %s", plural.Count(v.Stream.Commands, "command"), settled, v.Stream.Bytes, plural.Count(n, "shard")))
	} else {
		t.row("stream", fmt.Sprintf("%s%s, %d bytes, %s", plural.Count(v.Stream.Commands, "command"), settled, v.Stream.Bytes, v.Stream.sequences()))
	}
	if bounds := v.Stream.bounds(); bounds != "" {
		t.row("full at", bounds)
	}
	if v.Journal != nil {
		t.row("journal", v.Journal)
	}
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
		fmt.Fprintln(out, q.remedy(v.Pool))
	}
	for _, text := range v.Altered {
		fmt.Fprintln(out, line(text))
	}
	if n := v.Stream.Undelivered; n > 0 {
		fmt.Fprintf(out, "the stream holds %s that no queue delivers; tallyman audit says why, and what to do\n", plural.Count(n, "command"))
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
