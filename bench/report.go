package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tallyman-go/tallyman/internal/plural"
)

// writeMarkdown prints the conditions and up to two tables: what JetStream can
// carry and what Tallyman carries of it, and its peers beside it.
func (r results) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "- machine: %s, %s, %s\n", m.CPU, plural.Count(m.Cores, "core"), m.OS)
	fmt.Fprintf(&b, "- versions: %s, nats.go %s\n", m.Go, m.Client)
	for _, line := range r.servers() {
		fmt.Fprintf(&b, "- %s\n", line)
	}
	if ours := r.named(tallymanName); ours != nil {
		writeSetup(&b, r.Setup, ours.Assets, r.Disk)
	} else {
		writeSetup(&b, "", "", r.Disk)
	}
	fmt.Fprintf(&b, "- load: medians of %s; %s commands of %d bytes, latency at %d/s for %g s\n",
		plural.Count(r.Rounds, "round"), number(float64(r.N)), payloadSize, r.Rate, r.Seconds)
	for _, o := range r.Contestants {
		if o.N != r.N {
			fmt.Fprintf(&b, "- %s: %s commands\n", o.Name, number(float64(o.N)))
		}
	}
	for _, o := range r.Missing {
		fmt.Fprintf(&b, "- %s: not run, %s\n", o.Name, o.Missing)
	}

	var ours, peers []outcome
	for _, o := range r.Contestants {
		if o.peer() {
			peers = append(peers, o)
		} else {
			ours = append(ours, o)
		}
	}
	table(&b, ours)
	table(&b, peers)
	_, err := io.WriteString(w, b.String())
	return err
}

// servers returns a line for each server, with the contestants that ran on it.
func (r results) servers() []string {
	var lines, on []string
	for _, o := range r.Contestants {
		line := o.Server + ", " + o.Durability
		if i := slices.Index(lines, line); i >= 0 {
			on[i] += ", " + o.Name
		} else {
			lines, on = append(lines, line), append(on, o.Name)
		}
	}
	for i := range lines {
		lines[i] = on[i] + ": " + lines[i]
	}
	return lines
}

// table prints a column of medians for each outcome, and one of ratios with
// lowest and highest where there are some.
func table(b *strings.Builder, outcomes []outcome) {
	if len(outcomes) == 0 {
		return
	}
	head, rule := "| measure | unit |", "|---|---|"
	for _, o := range outcomes {
		head, rule = head+" "+o.Name+" |", rule+"--:|"
		if title, _ := o.compared(); title != "" {
			head, rule = head+" "+title+" |", rule+"--:|"
		}
	}
	fmt.Fprintf(b, "\n%s\n%s\n", head, rule)
	for _, m := range measures {
		if rounds := outcomes[0].Rounds; len(rounds) > 0 {
			if _, measured := rounds[0][m.key]; !measured {
				continue // its scenario was not run
			}
		}
		fmt.Fprintf(b, "| %s | %s |", m.title, m.unit)
		for _, o := range outcomes {
			fmt.Fprintf(b, " %s |", number(o.Medians[m.key]))
			if title, ratios := o.compared(); title != "" {
				fmt.Fprintf(b, " %v |", ratios[m.key])
			}
		}
		b.WriteByte('\n')
	}
}

// compared returns an outcome's ratios and what they are of, or nothing.
func (o outcome) compared() (string, map[string]spread) {
	switch {
	case o.Ratios != nil:
		return o.Name + " / " + boundName, o.Ratios
	case o.Lead != nil:
		return "Tallyman's lead", o.Lead
	}
	return "", nil
}

// number prints three digits or the whole number, with commas at thousands.
func number(v float64) string {
	switch {
	case v < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case v < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
