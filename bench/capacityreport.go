package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// writeMarkdown prints what a command takes, what the model predicts and what
// was measured there, and what three sizes need.
func (r capacityResults) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	r.write(&b)
	fmt.Fprintf(&b, "- load: medians of %s; %s no-op commands, a tenth where servers flush\n", plural.Count(r.Rounds, "round"), number(float64(r.N)))
	for _, row := range r.Points {
		if row.Unable != "" {
			fmt.Fprintf(&b, "- %s: not measured, %s\n", row.Point, row.Unable)
		}
	}
	r.costs(&b)
	r.checks(&b)
	r.sizes(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// costs prints a row for each point.
func (r capacityResults) costs(b *strings.Builder) {
	b.WriteString("\n| measured | producer, us | worker, us | servers, us | of it to submit | busiest server, us | client to server, B | server to client, B | between servers, B | written to disks, B | pending, B | receipt, B | flushes | submit /s | work /s |\n")
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, row := range r.Points {
		if len(row.Rounds) == 0 {
			continue
		}
		mid := func(key string) string { return number(median(valuesOf(key, row.Rounds))) }
		flushed := "–"
		if row.point.sync {
			flushed = mid("flushes")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", row.Point,
			mid("producer_cpu"), mid("worker_cpu"), mid("server_cpu"), mid("server_submit_cpu"), mid("busiest_cpu"),
			mid("up"), mid("down"), mid("routed"), mid("written"), mid("pending_bytes"), mid("receipt_bytes"),
			flushed, mid("submit_rate"), mid("work_rate"))
	}
	b.WriteString("\nAll per command, CPU in microseconds; pending and receipt are one replica's. CPU of power-safe servers holds that of counting their flushes.\n")
}

// prediction is one figure that the model gave in each round, beside what was
// measured in it.
type prediction struct {
	what           string
	model, measure []float64
}

// ratio is taken within each round, of which the model knows that alone: what
// disturbed a round disturbed both sides of it.
func (p prediction) ratio() spread {
	ratios := make([]float64, len(p.model))
	for i := range ratios {
		ratios[i] = p.model[i] / p.measure[i]
	}
	return spread{median(ratios), slices.Min(ratios), slices.Max(ratios)}
}

// predicted compares the model of each round with a point.
func (r capacityResults) predicted(row pointRow) (all []prediction) {
	for round := range row.Rounds {
		known, _ := r.only(round).known(row.point.replicas)
		for i, p := range known.predictions(row.only(round), r.Machine.Cores) {
			if round == 0 {
				all = append(all, p)
				continue
			}
			all[i].model, all[i].measure = append(all[i].model, p.model...), append(all[i].measure, p.measure...)
		}
	}
	return all
}

// predictions compares the model with a point that it does not know, of which
// one round is given.
func (l line) predictions(row pointRow, cores int) []prediction {
	says, is := l.at(row.point.payload), row.cost()
	mid := func(key string) float64 { return median(valuesOf(key, row.Rounds)) }
	one := func(what string, model, measure float64) prediction {
		return prediction{what, []float64{model}, []float64{measure}}
	}
	return []prediction{
		one("producer, us", says.Producer, is.Producer),
		one("worker, us", says.Worker, is.Worker),
		one("servers, us", says.server(), is.server()),
		one("CPU of all, us", says.Producer+says.Worker+says.server(), is.Producer+is.Worker+is.server()),
		one("network, B", says.Up+says.Down+says.Routed, is.Up+is.Down+is.Routed),
		one("written, B", says.Written, is.Written),
		one("submit /s", says.submitRate(cores), mid("submit_rate")),
		one("work /s", says.workRate(cores), mid("work_rate")),
	}
}

// checks prints predictions beside measurements.
func (r capacityResults) checks(b *strings.Builder) {
	var rows []pointRow
	for _, row := range r.Points {
		if _, ok := r.known(row.point.replicas); ok && row.point.checks && len(row.Rounds) > 0 {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 {
		return
	}
	b.WriteString("\n| predicted | the pool has | figure | prediction | measured | prediction / measured |\n|---|---|---|--:|--:|--:|\n")
	for _, row := range rows {
		name, assets := row.Point, row.Assets
		for _, p := range r.predicted(row) {
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %v |\n", name, assets, p.what, number(median(p.model)), number(median(p.measure)), p.ratio())
			name, assets = "", "" // once is enough
		}
	}
	b.WriteString("\nRates are predicted from CPU alone: they hold where nothing else runs on the machine and all its cores are used.\n")
}

// sizes prints what rates far beyond this machine need.
func (r capacityResults) sizes(b *strings.Builder) {
	if len(r.Needs) == 0 {
		return
	}
	a := r.Assumed
	fmt.Fprintf(b, "\nExtrapolated, for commands of %d bytes; assumed are servers with %d cores, %g Gbit/s each way and a disk that takes %g MB/s, of which %g %% is used:\n",
		payloadSize, a.Cores, a.NIC, a.Disk, 100*a.Used)
	b.WriteString("\n| commands/s | replicas | cores of clients | cores of servers | servers | decided by | shards | pools | Gbit/s | disks, MB/s | receipts, TB per day kept | an hour's backlog, GB |\n")
	b.WriteString("|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|\n")
	for _, n := range r.Needs {
		fmt.Fprintf(b, "| %s | %d | %s | %s | %s | %s | %s | %d | %s | %s | %s | %s |\n", number(n.Rate), n.Replicas,
			number(n.ClientCores), number(n.ServerCores), whole(n.Servers), n.FirstLimit, whole(n.Shards), n.Pools,
			number(n.NIC), number(n.Disk), number(n.Day), number(n.Backlog))
	}
}
