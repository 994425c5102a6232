package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// writeMarkdown prints a row for each path: rates and their ratio, what the
// bucket had to take for a command, and the CPU of worker and server.
func (r pathResults) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	r.write(&b)
	fmt.Fprintf(&b, "- load: medians of %s; %s of what is counted, commands of %d bytes\n", plural.Count(r.Rounds, "round"), number(float64(r.N)), payloadSize)
	b.WriteString("\n| path | counted | raw /s | tallyman /s | tallyman / raw | writes per command, raw and tallyman | worker CPU, raw | worker CPU, tallyman | server CPU, raw | server CPU, tallyman | CPU of both, tallyman / raw | rate by CPU alone |\n")
	b.WriteString("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, row := range r.Rows {
		mid := func(rounds []sample, key string) string { return number(median(valuesOf(key, rounds))) }
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %v | %s, %s | %s | %s | %s | %s | %v | %s |\n", row.Path, row.Counts,
			mid(row.Raw, "rate"), mid(row.Ours, "rate"), row.ratio(func(s sample) float64 { return s["rate"] }),
			mid(row.Raw, "writes"), mid(row.Ours, "writes"),
			mid(row.Raw, "worker_cpu"), mid(row.Ours, "worker_cpu"), mid(row.Raw, "server_cpu"), mid(row.Ours, "server_cpu"),
			row.ratio(cpuOf), number(1/row.ratio(cpuOf).Median))
	}
	for _, row := range r.Rows {
		if row.Path == relayPath {
			fmt.Fprintf(&b, "\nSQL statements of the relay per row: raw %s, tallyman %s.\n", small(row.Raw), small(row.Ours))
		}
	}
	b.WriteString("\nCPU in ms per 10,000 of what is counted. Where the ratio of rates is far below that of CPU alone, Tallyman waits where raw does not.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// small prints the statements per row, which are few.
func small(rounds []sample) string {
	return strconv.FormatFloat(median(valuesOf("statements", rounds)), 'f', 4, 64)
}

// cpuOf is what worker and server used.
func cpuOf(s sample) float64 { return s["worker_cpu"] + s["server_cpu"] }

// ratio is Tallyman's figure to that of the bound, taken within each round.
func (r pathRow) ratio(of func(sample) float64) spread {
	ratios := make([]float64, len(r.Ours))
	for i := range ratios {
		ratios[i] = of(r.Ours[i]) / of(r.Raw[i])
	}
	return spread{median(ratios), slices.Min(ratios), slices.Max(ratios)}
}
