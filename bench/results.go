package main

import (
	"cmp"
	"slices"
)

// rateUnit is the unit of the measures of which more is better.
const rateUnit = "commands/s"

// measure is one row of the report.
type measure struct{ key, title, unit string }

var measures = []measure{
	{"submit_rate", "submit, producer alone", rateUnit},
	{"backlog_rate", "backlog, worker alone", rateUnit},
	{"both_rate", "both at once", rateUnit},
	{"latency_p50", "latency p50, submit to completion", "ms"},
	{"latency_p99", "latency p99, submit to completion", "ms"},
	{"producer_cpu", "CPU of the producer", "ms per 10,000"},
	{"worker_cpu", "CPU of the worker", "ms per 10,000"},
	{"server_cpu", "CPU of the server, submit and backlog", "ms per 10,000"},
	{"worker_peak", "peak RSS of the worker, backlog", "MiB"},
}

// machine says where and with what the run was made.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	OS     string `json:"os"`
	Go     string `json:"go"`
	Client string `json:"client"`
}

// outcome is what one contestant achieved.
type outcome struct {
	Name       string `json:"name"`
	N          int    `json:"n"` // commands of a throughput scenario
	Server     string `json:"server"`
	Durability string `json:"durability"`
	Assets     string `json:"assets,omitempty"`  // on JetStream, what it made there
	Missing    string `json:"missing,omitempty"` // why it did not take part
	Medians    sample `json:"medians,omitempty"`
	// Ratios are its figures to those of the bound; nil for the bound itself,
	// for peers, and when the bound did not take part.
	Ratios map[string]spread `json:"ratios,omitempty"`
	// Lead says how many times better than this peer Tallyman is: its rates are
	// divided by the peer's, and of everything else the peer's by Tallyman's.
	Lead   map[string]spread `json:"lead,omitempty"`
	Rounds []sample          `json:"rounds,omitempty"`
}

// spread tells how ratios, one of each round, are distributed.
type spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func (s spread) String() string {
	return number(s.Median) + " (" + number(s.Low) + "–" + number(s.High) + ")"
}

// results is everything that --json prints.
type results struct {
	Machine     machine   `json:"machine"`
	N           int       `json:"n"`
	Rounds      int       `json:"rounds"`
	Rate        int       `json:"latency_rate"`
	Seconds     float64   `json:"latency_seconds"`
	Contestants []outcome `json:"contestants"` // in the order of contestants
	Missing     []outcome `json:"missing,omitempty"`
	Setup       string    `json:"setup"` // of Tallyman, as it was asked for
	Disk        *disk     `json:"disk,omitempty"`
}

func newResults(l load, with layout, cs []Contestant) results {
	r := results{
		Machine: thisMachine(),
		N:       l.N, Rounds: l.Rounds, Rate: l.Rate, Seconds: l.Latency.Seconds(),
		Setup: with.described(), Disk: with.disk(),
	}
	for _, c := range cs {
		r.Contestants = append(r.Contestants, outcome{Name: c.Name(), N: l.share(c)})
	}
	return r
}

// named returns the outcome of a contestant, or nil if it did not take part.
func (r *results) named(name string) *outcome {
	for i := range r.Contestants {
		if r.Contestants[i].Name == name {
			return &r.Contestants[i]
		}
	}
	return nil
}

// conclude derives medians and ratios from the rounds.
func (r *results) conclude() {
	bound, tallyman := r.named(boundName), r.named(tallymanName)
	for i := range r.Contestants {
		o := &r.Contestants[i]
		o.Medians = sample{}
		for _, m := range measures {
			o.Medians[m.key] = median(valuesOf(m.key, o.Rounds))
		}
		switch {
		case o.Name == boundName:
		case o.peer():
			if tallyman != nil {
				o.Lead = lead(*tallyman, *o)
			}
		case bound != nil:
			o.Ratios = ratios(*o, *bound)
		}
	}
}

// peer tells whether it is one of those that Tallyman is compared with.
func (o outcome) peer() bool {
	return o.Name != boundName && o.Name != batchBoundName && o.Name != tallymanName
}

// ratios returns the figures of a to those of b, taken within each round.
func ratios(a, b outcome) map[string]spread {
	all := make(map[string]spread)
	for _, m := range measures {
		if len(a.Rounds) == 0 || a.Rounds[0][m.key] == 0 || b.Rounds[0][m.key] == 0 {
			continue // its scenario was not run; JSON knows no NaN
		}
		values := valuesOf(m.key, a.Rounds)
		for round, v := range valuesOf(m.key, b.Rounds) {
			values[round] /= v
		}
		all[m.key] = spread{median(values), slices.Min(values), slices.Max(values)}
	}
	return all
}

// lead returns how many times better than b a is.
func lead(a, b outcome) map[string]spread {
	all, inverse := ratios(a, b), ratios(b, a)
	for _, m := range measures {
		if s, measured := inverse[m.key]; measured && m.unit != rateUnit {
			all[m.key] = s
		}
	}
	return all
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
