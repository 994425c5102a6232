package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tallyman-go/tallyman/internal/plural"
)

// flatTimeout is the longest that one standing load of one contestant may take.
const flatTimeout = 10 * time.Minute

// standing is what is there, beside the commands that are measured.
type standing struct {
	axis     string
	title    string
	pending  int // commands that wait before the measured ones
	receipts int // of commands long done
	workers  int // processes
	shards   int // of Tallyman, as the bound has none; 0 for what the flags say
}

// standings lists them, the smallest of each axis first: the others are compared
// with it.
func standings(quick bool) []standing {
	scale, most := 1, 16
	if quick {
		scale, most = 1000, 3
	}
	var all []standing
	for _, n := range []int{10_000, 100_000, 1_000_000} {
		n /= scale
		all = append(all, standing{axis: "pending", title: whole(n) + " " + plural.Noun(n, "command") + " pending", pending: n, workers: 1})
	}
	for _, n := range []int{1, 100_000, 1_000_000} {
		n = max(1, n/scale)
		all = append(all, standing{axis: "receipts", title: whole(n) + " " + plural.Noun(n, "receipt") + " in the bucket", receipts: n, workers: 1})
	}
	for _, n := range []int{1, 4, 16} {
		n = min(n, most)
		all = append(all, standing{axis: "workers", title: whole(n) + " " + plural.Noun(n, "worker process"), workers: n})
	}
	for _, n := range []int{1, 4, 16} {
		all = append(all, standing{axis: "shards", title: whole(n) + " " + plural.Noun(n, "shard"), shards: n, workers: 1})
	}
	return all
}

func axes() []string { return []string{"pending", "receipts", "workers", "shards"} }

// measureStanding measures l.N commands submitted and as many worked on, while
// the rest stands by.
func measureStanding(ctx context.Context, l load, st standing, c onJetStream, s sample) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, flatTimeout, fmt.Errorf("not done after %v", flatTimeout))
	defer cancel()
	if st.shards > 0 {
		c.layout.pool.Shards = st.shards
	}
	f, err := openField(ctx, c, l.profiles(scenario{name: st.title}, c))
	if err != nil {
		return report{}, err
	}
	defer f.close()
	b, err := f.streams()
	if err != nil {
		return report{}, err
	}
	if st.pending > 0 {
		if err := submit(ctx, f, load{N: st.pending}, sample{}); err != nil {
			return report{}, err
		}
	}
	if st.receipts > 0 {
		if err := fill(ctx, f, b, st.receipts); err != nil {
			return report{}, fmt.Errorf("fill the bucket: %w", err)
		}
	}
	before, err := f.server.ask(ctx, "usage")
	if err != nil {
		return report{}, err
	}
	if err := submit(ctx, f, load{N: l.N}, s); err != nil {
		return report{}, err
	}
	after, err := f.server.ask(ctx, "usage")
	if err != nil {
		return report{}, err
	}
	if err := workOn(ctx, f, b, st.workers, l.N, s); err != nil {
		return report{}, err
	}
	s["server_cpu"] += cpuPer10k(before, after, l.N)
	s["cpu"] = s["producer_cpu"] + s["worker_cpu"] + s["server_cpu"]
	// The receipts come last: what was acked between the two looks is in them.
	left, err := b.outstanding(ctx)
	if err != nil {
		return report{}, err
	}
	entries, err := b.entries(ctx)
	if err != nil {
		return report{}, err
	}
	if accounted := left + entries.NumSubjects - b.before; accounted < uint64(st.pending+st.receipts+l.N) {
		return report{}, fmt.Errorf("%d commands pending and %d receipts account for %d, want %d",
			left, entries.NumSubjects-b.before, accounted, st.pending+st.receipts+l.N)
	}
	return f.described(), nil
}

// workOn measures workers until there are n receipts more, and the time to the
// first one since their processes were started.
func workOn(ctx context.Context, f *field, b *streamBooks, workers, n int, s sample) error {
	entries, err := b.entries(ctx)
	if err != nil {
		return err
	}
	done := func() (int, error) {
		now, err := b.entries(ctx)
		return int(now.NumSubjects - entries.NumSubjects), err
	}
	m := &meter{f: f}
	if err := m.begin(ctx, workers, ""); err != nil {
		return err
	}
	defer m.close()
	first, err := m.until(ctx, pollInterval, func() (bool, error) { d, err := done(); return d > 0, err })
	if err != nil {
		return err
	}
	s["first"] = first.Sub(m.start).Seconds() * 1000
	var reached int
	end, err := m.until(ctx, lookInterval, func() (_ bool, err error) { reached, err = done(); return reached >= n, err })
	if err != nil {
		return err
	}
	return m.end(ctx, reached, end, done, s)
}

// oneReceipt returns the receipt of the only command that has one.
func (b *streamBooks) oneReceipt(ctx context.Context) (one *jetstream.RawStreamMsg, err error) {
	for _, shard := range b.shards {
		one, err = shard.entries.GetLastMsgForSubject(ctx, "$KV.*.*")
		if err == nil && !strings.HasPrefix(keyOf(one.Subject), "_") {
			return one, nil
		}
	}
	return nil, errors.Join(errors.New("no bucket has one"), err)
}

// fill puts receipts into the bucket: that of one command that goes the whole
// way, and copies of it under other keys.
func fill(ctx context.Context, f *field, b *streamBooks, receipts int) error {
	if err := submit(ctx, f, load{N: 1}, sample{}); err != nil {
		return err
	}
	if err := workOn(ctx, f, b, 1, 1, sample{}); err != nil {
		return err
	}
	one, err := b.oneReceipt(ctx)
	if err != nil {
		return fmt.Errorf("read a receipt: %w", err)
	}
	var failed error // read after all answers are in
	js, err := jetstream.New(b.nc,
		jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) { failed = err }))
	if err != nil {
		return err
	}
	for i := range receipts - 1 {
		m := &nats.Msg{Subject: "$KV." + poolName + ".old-" + strconv.Itoa(i), Header: one.Header, Data: one.Data}
		if _, err := js.PublishMsgAsync(m, jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
		return failed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// flatRow is what one standing load did to both contestants.
type flatRow struct {
	Axis     string `json:"axis"`
	Standing string `json:"standing"`
	pair
}

// flatResults is everything that --flat --json prints.
type flatResults struct {
	conditions
	Rows []flatRow `json:"rows"`
}

func measureFlat(ctx context.Context, l load, with layout, progress func(string)) (flatResults, error) {
	out := flatResults{conditions: newConditions(l, with)}
	for _, st := range standings(l.Quick) {
		if l.Scenario != "" && l.Scenario != st.axis {
			continue
		}
		out.Rows = append(out.Rows, flatRow{Axis: st.axis, Standing: st.title, pair: pair{
			title: st.title, alone: st.shards > 0,
			measure: func(c onJetStream, s sample) (report, error) { return measureStanding(ctx, l, st, c, s) },
		}})
	}
	err := out.measurePairs(l, with, len(out.Rows), func(i int) *pair { return &out.Rows[i].pair }, progress)
	return out, err
}
