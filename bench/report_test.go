package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestResults(t *testing.T) {
	t.Parallel()
	rounds := func(rate, cpu [3]float64) []sample {
		all := make([]sample, 3)
		for i := range all {
			all[i] = sample{"submit_rate": rate[i], "worker_cpu": cpu[i]}
		}
		return all
	}
	r := results{Contestants: []outcome{
		{Name: boundName, Server: "S", Durability: "D", Rounds: rounds([3]float64{100, 1000, 10}, [3]float64{1, 1, 1})},
		{Name: tallymanName, Server: "S", Durability: "D", Rounds: rounds([3]float64{50, 900, 1}, [3]float64{2, 2, 2})},
		{Name: "peer", Server: "P", Durability: "Q", Rounds: rounds([3]float64{5, 9, 1}, [3]float64{20, 10, 2})},
	}, Missing: []outcome{{Name: "absent", Missing: "no Absence: apt-get install absence"}}}
	r.conclude()
	t.Run("ratios are taken within each round", func(t *testing.T) {
		t.Parallel()
		if got, want := r.named(tallymanName).Ratios["submit_rate"], (spread{0.5, 0.1, 0.9}); got != want {
			t.Errorf("ratio = %v, want %v", got, want)
		}
		if got := r.named(boundName).Ratios; got != nil {
			t.Errorf("ratios of the bound = %v, want none", got)
		}
	})
	t.Run("a lead is above 1 where Tallyman is better", func(t *testing.T) {
		t.Parallel()
		lead := r.named("peer").Lead
		if got, want := lead["submit_rate"], (spread{10, 1, 100}); got != want {
			t.Errorf("lead in a rate = %v, want %v", got, want)
		}
		if got, want := lead["worker_cpu"], (spread{5, 1, 10}); got != want {
			t.Errorf("lead in a cost = %v, want %v", got, want)
		}
		if got := r.named(tallymanName).Lead; got != nil {
			t.Errorf("lead over itself = %v, want none", got)
		}
	})
	t.Run("the report names every figure, server and gap", func(t *testing.T) {
		t.Parallel()
		var b strings.Builder
		if err := r.writeMarkdown(&b); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"| submit, producer alone | commands/s | 100 | 50.0 | 0.50 (0.10–0.90) |\n",
			"| submit, producer alone | commands/s | 5.00 | 10.0 (1.00–100) |\n",
			"- raw, tallyman: S, D\n",
			"- peer: P, Q\n",
			"- absent: not run, no Absence: apt-get install absence\n",
		} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("report\n%swants the line %s", b.String(), want)
			}
		}
	})
}

// nowhere is a contestant whose server no machine has.
type nowhere struct{ asynqPeer }

func (nowhere) Name() string   { return "nowhere" }
func (nowhere) System() system { return lacking{} }

type lacking struct{ redisServer }

func (lacking) missing() string { return "no Nowhere: apt-get install nowhere" }

func TestSortOut(t *testing.T) {
	t.Parallel()
	able, missing := sortOut([]Contestant{nowhere{}, onJetStream{natsContestant: raw{}}})
	if len(able) != 1 || able[0].Name() != boundName {
		t.Errorf("able = %v, want raw alone", able)
	}
	if got, want := len(missing), 1; got != want {
		t.Fatalf("missing = %d, want %d", got, want)
	}
	if got, want := missing[0], (lacking{}.missing()); got.Name != "nowhere" || got.Missing != want {
		t.Errorf("missing = %+v, want nowhere with %q", got, want)
	}
}

func TestCompare_NobodyCanRun(t *testing.T) {
	t.Parallel()
	var out, log bytes.Buffer
	err := compare(t.Context(), load{N: 1, Rounds: 1}, layout{}, []Contestant{nowhere{}}, true, &out, &log)
	if !errors.Is(err, errNobody) {
		t.Errorf("compare = %v, want errNobody", err)
	}
	if want := "nowhere: not run, no Nowhere: apt-get install nowhere\n"; log.String() != want {
		t.Errorf("log = %q, want %q", &log, want)
	}
}
