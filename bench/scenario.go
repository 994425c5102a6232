package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// scenarioTimeout is the longest that one scenario of one contestant may take.
const scenarioTimeout = 3 * time.Minute

// load says how much is measured.
type load struct {
	N       int           // commands of a throughput scenario
	Rounds  int           // times that everything is measured
	Rate    int           // commands per second of the latency scenario
	Latency time.Duration // length of the latency scenario
	// Profiles is a directory for a CPU profile of every process; empty for none.
	Profiles string
	// Scenario is the only one to run; empty for all.
	Scenario string
	// Quick makes what stands by small as well.
	Quick bool
}

// share is how many commands of a throughput scenario a contestant gets.
func (l load) share(c Contestant) int { return max(1, l.N/c.Share()) }

// profiles names the profiles of one contestant in one scenario. Further
// processes of a role have a number behind it; another round overwrites all.
func (l load) profiles(sc scenario, c Contestant) func(role string) string {
	count := map[string]int{}
	return func(role string) string {
		if l.Profiles == "" {
			return ""
		}
		if count[role]++; count[role] > 1 {
			role += fmt.Sprint("-", count[role])
		}
		return filepath.Join(l.Profiles, strings.ReplaceAll(fmt.Sprintf("%s-%s-%s.pprof", c.Name(), sc.name, role), " ", "_"))
	}
}

// sample holds what one run measured, by the keys of measures.
type sample map[string]float64

// scenario measures something on a fresh field.
type scenario struct {
	name string
	run  func(ctx context.Context, f *field, l load, s sample) error
}

var scenarios = []scenario{
	{"submit and backlog", submitAndBacklog},
	{"both at once", bothAtOnce},
	{"latency", latency},
}

// submitAndBacklog measures a producer alone and then, in another process, a
// worker alone on what the producer left.
func submitAndBacklog(ctx context.Context, f *field, l load, s sample) error {
	before, err := f.server.ask(ctx, "usage")
	if err != nil {
		return err
	}
	if err := submit(ctx, f, l, s); err != nil {
		return err
	}
	if err := backlog(ctx, f, l, s); err != nil {
		return err
	}
	after, err := f.server.ask(ctx, "usage")
	if err != nil {
		return err
	}
	s["server_cpu"] = cpuPer10k(before, after, l.N)
	_, err = f.completions(ctx, l.N)
	return err
}

func submit(ctx context.Context, f *field, l load, s sample) error {
	producer, err := f.start(ctx, "produce", l.N, 0)
	if err != nil {
		return err
	}
	defer producer.close()
	before, err := producer.ask(ctx, "usage")
	if err != nil {
		return err
	}
	after, err := producer.ask(ctx, "go")
	if err != nil {
		return err
	}
	s["submit_rate"] = perSecond(l.N, after.End.Sub(after.Start))
	s["producer_cpu"] = cpuPer10k(before, after, l.N)
	return nil
}

func backlog(ctx context.Context, f *field, l load, s sample) error {
	worker, err := f.start(ctx, "work", 0, 0)
	if err != nil {
		return err
	}
	defer worker.close()
	before, err := worker.ask(ctx, "go")
	if err != nil {
		return err
	}
	end, err := f.settled(ctx, l.N, worker)
	if err != nil {
		return err
	}
	if err := f.swept(ctx); err != nil { // their removal is part of the cost
		return err
	}
	after, err := worker.ask(ctx, "usage")
	if err != nil {
		return err
	}
	s["backlog_rate"] = perSecond(l.N, end.Sub(before.Start))
	s["worker_cpu"] = cpuPer10k(before, after, l.N)
	s["worker_peak"] = float64(after.Peak) / (1 << 20)
	_, err = worker.ask(ctx, "stop")
	return err
}

func bothAtOnce(ctx context.Context, f *field, l load, s sample) error {
	start, end, err := flow(ctx, f, l.N, 0)
	if err != nil {
		return err
	}
	s["both_rate"] = perSecond(l.N, end.Sub(start))
	_, err = f.completions(ctx, l.N)
	return err
}

// latency measures from just before a submission to its completion as the
// server tells it, by the one clock of this machine.
func latency(ctx context.Context, f *field, l load, s sample) error {
	n := int(l.Latency.Seconds() * float64(l.Rate))
	if err := f.books.Time(ctx); err != nil {
		return err
	}
	if _, _, err := flow(ctx, f, n, l.Rate); err != nil {
		return err
	}
	completions, err := f.completions(ctx, n)
	if err != nil {
		return err
	}
	took := make([]time.Duration, 0, n)
	for id, at := range completions {
		submitted, err := submittedAt(id)
		if err != nil {
			return err
		}
		took = append(took, at.Sub(submitted))
	}
	slices.Sort(took)
	s["latency_p50"] = took[n/2].Seconds() * 1000
	s["latency_p99"] = took[n*99/100].Seconds() * 1000
	return nil
}

// flow lets a producer and a worker run together until n commands are settled.
// It returns when the producer began and when the last command was completed.
func flow(ctx context.Context, f *field, n, rate int) (start, end time.Time, err error) {
	worker, err := f.start(ctx, "work", 0, 0)
	if err != nil {
		return start, end, err
	}
	defer worker.close()
	producer, err := f.start(ctx, "produce", n, rate)
	if err != nil {
		return start, end, err
	}
	defer producer.close()
	if _, err := worker.ask(ctx, "go"); err != nil {
		return start, end, err
	}
	produced, err := producer.ask(ctx, "go")
	if err != nil {
		return start, end, err
	}
	if end, err = f.settled(ctx, n, worker); err != nil {
		return start, end, err
	}
	if err := f.swept(ctx); err != nil {
		return start, end, err
	}
	_, err = worker.ask(ctx, "stop")
	return produced.Start, end, err
}

func perSecond(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

func cpuPer10k(before, after report, n int) float64 {
	return (after.CPU - before.CPU).Seconds() * 1000 * 10_000 / float64(n)
}

// measureAll runs every scenario in every round with every contestant. The
// contestants of one scenario follow each other at once, so that what else the
// machine does meets them alike, and another one begins in every round.
func measureAll(ctx context.Context, l load, with layout, cs []Contestant, progress func(string)) (results, error) {
	out := newResults(l, with, cs)
	for round := range l.Rounds {
		samples := make([]sample, len(cs))
		for _, sc := range scenarios {
			if l.Scenario != "" && l.Scenario != sc.name {
				continue
			}
			for turn := range cs {
				i := (turn + round) % len(cs)
				if samples[i] == nil {
					samples[i] = sample{}
				}
				progress(fmt.Sprintf("round %d of %d: %s: %s", round+1, l.Rounds, sc.name, cs[i].Name()))
				server, err := measureOne(ctx, l, sc, cs[i], samples[i])
				if err != nil {
					return out, fmt.Errorf("%s: %s: %w", sc.name, cs[i].Name(), err)
				}
				o := &out.Contestants[i]
				o.Server, o.Durability, o.Assets = cs[i].System().name()+" "+server.Version, server.Durability, server.Assets
			}
		}
		for i, s := range samples {
			out.Contestants[i].Rounds = append(out.Contestants[i].Rounds, s)
		}
	}
	out.conclude()
	return out, nil
}

func measureOne(ctx context.Context, l load, sc scenario, c Contestant, s sample) (report, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, scenarioTimeout,
		fmt.Errorf("not done after %v", scenarioTimeout))
	defer cancel()
	f, err := openField(ctx, c, l.profiles(sc, c))
	if err != nil {
		return report{}, err
	}
	defer f.close()
	l.N = l.share(c)
	return f.described(), sc.run(ctx, f, l, s)
}
