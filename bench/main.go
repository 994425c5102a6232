package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

var (
	// errUsage marks wrong usage, which the flag package has already explained.
	errUsage = errors.New("wrong usage")
	// errNobody says that no server of the chosen contestants is installed.
	errNobody = errors.New("no contestant can run here; install what the lines above name")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the whole program, of the parent and of every child.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 2 && args[0] == childCommand {
		return runChild(ctx, args[1], stdin, stdout)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		l      load
		n      = flags.Int("n", 100_000, "commands of each throughput scenario")
		rounds = flags.Int("rounds", 5, "rounds; medians are taken over them")
		rate   = flags.Int("rate", 500, "commands per second of the latency scenario")
		length = flags.Duration("latency", 10*time.Second, "length of the latency scenario")
		only   = flags.String("only", "", "names of the contestants that take part, separated by commas (default all)")
		profs  = flags.String("profile", "", "directory for a CPU profile of every process (go tool pprof)")
		scen   = flags.String("scenario", "", "run this scenario alone: submit and backlog, both at once, latency (default all)")
		quick  = flags.Bool("quick", false, "run for a moment, to see that everything works: -n 2000 -rounds 1 -latency 1s")
		asJSON = flags.Bool("json", false, "print one JSON object with every round")
	)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return errUsage
	}
	l = load{N: *n, Rounds: *rounds, Rate: *rate, Latency: *length}
	if *quick {
		l = load{N: 2000, Rounds: 1, Rate: 500, Latency: time.Second}
	}
	l.Profiles, l.Scenario = *profs, *scen
	cs, err := choose(*only)
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil {
		err = l.validate()
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return errUsage
	}

	return compare(ctx, l, cs, *asJSON, stdout, stderr)
}

// compare measures the contestants that can run here and writes the report.
func compare(ctx context.Context, l load, cs []Contestant, asJSON bool, stdout, stderr io.Writer) error {
	able, missing := sortOut(cs)
	for _, o := range missing {
		fmt.Fprintf(stderr, "%s: not run, %s\n", o.Name, o.Missing)
	}
	if len(able) == 0 {
		return errNobody
	}
	out, err := measureAll(ctx, l, able, func(line string) { fmt.Fprintln(stderr, line) })
	if err != nil {
		return err
	}
	out.Missing = missing
	if asJSON {
		return out.writeJSON(stdout)
	}
	return out.writeMarkdown(stdout)
}

func (l load) validate() error {
	if l.N < 1 || l.Rounds < 1 || l.Rate < 1 || l.Latency.Seconds()*float64(l.Rate) < 1 {
		return errors.New("-n, -rounds, -rate and -latency must allow at least one command")
	}
	if l.Scenario != "" && !slices.ContainsFunc(scenarios, func(sc scenario) bool { return sc.name == l.Scenario }) {
		return fmt.Errorf("no scenario %q; there are: submit and backlog, both at once, latency", l.Scenario)
	}
	return nil
}

// choose returns the contestants named in only, or all if it is empty.
func choose(only string) ([]Contestant, error) {
	if only == "" {
		return contestants(), nil
	}
	var cs []Contestant
	for name := range strings.SplitSeq(only, ",") {
		c, err := contestantNamed(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// sortOut returns the contestants that can run on this machine, and of the
// others what they lack.
func sortOut(cs []Contestant) (able []Contestant, missing []outcome) {
	for _, c := range cs {
		if lack := c.System().missing(); lack != "" {
			missing = append(missing, outcome{Name: c.Name(), Missing: lack})
			continue
		}
		able = append(able, c)
	}
	return able, missing
}
