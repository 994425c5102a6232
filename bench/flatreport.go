package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// writeMarkdown prints a table for each contestant, with a row for each
// standing load and its CPU against that of the smallest one of its axis.
func (r flatResults) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	r.write(&b)
	fmt.Fprintf(&b, "- load: medians of %s; %s commands of %d bytes beside what stands by\n", plural.Count(r.Rounds, "round"), number(float64(r.N)), payloadSize)
	r.table(&b, tallymanName, func(row flatRow) []sample { return row.Ours })
	r.table(&b, boundName, func(row flatRow) []sample { return row.Raw })
	b.WriteString("\nCPU in ms per 10,000 commands, of the server for both; memory in MiB, the most of any worker.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r flatResults) table(b *strings.Builder, name string, of func(flatRow) []sample) {
	fmt.Fprintf(b, "\n| %s, with | submit /s | work /s | producer CPU | worker CPU | server CPU | CPU in all, change | of clients | of server | worker RSS | server RSS | first receipt after ms |\n", name)
	b.WriteString("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	var first []sample
	axis := ""
	for _, row := range r.Rows {
		rounds := of(row)
		if len(rounds) == 0 {
			continue // it does not take part in this axis
		}
		if row.Axis != axis {
			axis, first = row.Axis, rounds
		}
		mid := func(key string) string { return number(median(valuesOf(key, rounds))) }
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", row.Standing,
			mid("submit_rate"), mid("rate"), mid("producer_cpu"), mid("worker_cpu"), mid("server_cpu"),
			change(rounds, first, "cpu"), change(rounds, first, "producer_cpu", "worker_cpu"), change(rounds, first, "server_cpu"),
			mid("worker_peak"), mid("server_peak"), mid("first"))
	}
}

// change tells by how much a sum of measures is above that of others, within
// each round: the median, the lowest and the highest in percent.
func change(rounds, base []sample, keys ...string) string {
	sum := func(s sample) (total float64) {
		for _, k := range keys {
			total += s[k]
		}
		return total
	}
	if len(rounds) > 0 && &rounds[0] == &base[0] {
		return "–"
	}
	percent := make([]float64, len(rounds))
	for i := range rounds {
		percent[i] = 100 * (sum(rounds[i])/sum(base[i]) - 1)
	}
	return fmt.Sprintf("%+.0f %% (%+.0f to %+.0f)", median(percent), slices.Min(percent), slices.Max(percent))
}

// whole prints a count, with commas at thousands.
func whole(n int) string {
	if n < 100 {
		return strconv.Itoa(n)
	}
	return number(float64(n))
}
