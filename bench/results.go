package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// measure is one row of the report.
type measure struct{ key, title, unit string }

var measures = []measure{
	{"submit_rate", "submit, producer alone", "commands/s"},
	{"backlog_rate", "backlog, worker alone", "commands/s"},
	{"both_rate", "both at once", "commands/s"},
	{"latency_p50", "latency p50, submit to receipt", "ms"},
	{"latency_p99", "latency p99, submit to receipt", "ms"},
	{"producer_cpu", "CPU of the producer", "ms per 10,000"},
	{"worker_cpu", "CPU of the worker", "ms per 10,000"},
	{"server_cpu", "CPU of the server, submit and backlog", "ms per 10,000"},
	{"worker_peak", "peak RSS of the worker, backlog", "MiB"},
}

// machine says where and with what the run was made.
type machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	OS         string `json:"os"`
	Go         string `json:"go"`
	Client     string `json:"client"`
	Server     string `json:"server"`
	Durability string `json:"durability"`
}

// outcome is what one contestant achieved.
type outcome struct {
	Name    string            `json:"name"`
	Medians sample            `json:"medians"`
	Ratios  map[string]spread `json:"ratios,omitempty"` // nil for the bound, or when it did not take part
	Rounds  []sample          `json:"rounds"`
}

// spread tells how the ratios to the bound, one of each round, are distributed.
type spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func (s spread) String() string { return fmt.Sprintf("%.2f (%.2f–%.2f)", s.Median, s.Low, s.High) }

// results is everything that --json prints.
type results struct {
	Machine     machine   `json:"machine"`
	N           int       `json:"n"`
	Rounds      int       `json:"rounds"`
	Rate        int       `json:"latency_rate"`
	Seconds     float64   `json:"latency_seconds"`
	Contestants []outcome `json:"contestants"`
}

func newResults(l load, cs []Contestant) results {
	r := results{
		Machine: machine{
			CPU: cpuModel(), Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
			Go: runtime.Version(), Client: nats.Version,
		},
		N: l.N, Rounds: l.Rounds, Rate: l.Rate, Seconds: l.Latency.Seconds(),
	}
	for _, c := range cs {
		r.Contestants = append(r.Contestants, outcome{Name: c.Name()})
	}
	return r
}

// conclude derives medians and ratios from the rounds.
func (r *results) conclude() {
	bound := slices.IndexFunc(r.Contestants, func(o outcome) bool { return o.Name == contestants()[0].Name() })
	for i := range r.Contestants {
		o := &r.Contestants[i]
		o.Medians = sample{}
		for _, m := range measures {
			o.Medians[m.key] = median(valuesOf(m.key, o.Rounds))
		}
		if bound < 0 || bound == i {
			continue
		}
		o.Ratios = make(map[string]spread)
		for _, m := range measures {
			if len(o.Rounds) == 0 || o.Rounds[0][m.key] == 0 {
				continue // its scenario was not run; JSON knows no NaN
			}
			ratios := valuesOf(m.key, o.Rounds)
			for round, v := range valuesOf(m.key, r.Contestants[bound].Rounds) {
				ratios[round] /= v
			}
			o.Ratios[m.key] = spread{median(ratios), slices.Min(ratios), slices.Max(ratios)}
		}
	}
}

// valuesOf returns one measure of every round.
func valuesOf(key string, rounds []sample) []float64 {
	values := make([]float64, len(rounds))
	for i, s := range rounds {
		values[i] = s[key]
	}
	return values
}

// median returns the middle of values, or the mean of the two middle ones.
// It sorts values and returns 0 for none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.SortFunc(values, cmp.Compare[float64])
	mid := len(values) / 2
	if len(values)%2 == 1 {
		return values[mid]
	}
	return (values[mid-1] + values[mid]) / 2
}

func (r results) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// writeMarkdown prints the conditions and one table: a column of medians per
// contestant, and a column of ratios, with lowest and highest, for each but
// the bound.
func (r results) writeMarkdown(w io.Writer) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "- machine: %s, %d cores, %s\n", m.CPU, m.Cores, m.OS)
	fmt.Fprintf(&b, "- versions: %s, nats-server %s, nats.go %s\n", m.Go, m.Server, m.Client)
	fmt.Fprintf(&b, "- durability: %s\n", m.Durability)
	fmt.Fprintf(&b, "- load: medians of %d rounds; %s commands of %d bytes, latency at %d/s for %g s\n\n",
		r.Rounds, number(float64(r.N)), payloadSize, r.Rate, r.Seconds)

	head, rule := "| measure | unit |", "|---|---|"
	for _, o := range r.Contestants {
		head, rule = head+" "+o.Name+" |", rule+"--:|"
		if o.Ratios != nil {
			head, rule = head+" "+o.Name+" / "+contestants()[0].Name()+" |", rule+"--:|"
		}
	}
	fmt.Fprintf(&b, "%s\n%s\n", head, rule)
	for _, m := range measures {
		if rounds := r.Contestants[0].Rounds; len(rounds) > 0 {
			if _, measured := rounds[0][m.key]; !measured {
				continue // its scenario was not run
			}
		}
		fmt.Fprintf(&b, "| %s | %s |", m.title, m.unit)
		for _, o := range r.Contestants {
			fmt.Fprintf(&b, " %s |", number(o.Medians[m.key]))
			if o.Ratios != nil {
				fmt.Fprintf(&b, " %v |", o.Ratios[m.key])
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
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
