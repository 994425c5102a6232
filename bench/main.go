package main

import (
	"cmp"
	"context"
	"encoding/json"
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

	"github.com/tallyman-go/tallyman"
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
		n      = flags.Int("n", 0, "commands of each throughput scenario (default 100,000; 20,000 with --paths and --sync, 200,000 with --flat, 50,000 with --capacity)")
		rounds = flags.Int("rounds", 0, "rounds; medians are taken over them (default 5; 3 with --flat and --capacity)")
		rate   = flags.Int("rate", 500, "commands per second of the latency scenario")
		length = flags.Duration("latency", 10*time.Second, "length of the latency scenario")
		only   = flags.String("only", "", "names of the contestants that take part, separated by commas (default all)")
		profs  = flags.String("profile", "", "directory for a CPU profile of every process (go tool pprof)")
		scen   = flags.String("scenario", "", "run this scenario, path or axis alone: "+strings.Join(slices.Concat(raceMode().names, pathNames(), axes(), capacityNames()), ", ")+" (default all)")
		quick  = flags.Bool("quick", false, "run for a moment, to see that everything works: -n 2000 -rounds 1 -latency 1s")
		byPath = flags.Bool("paths", false, "measure checkpoints, follow-ups, takeovers, retries, parking and what else is not the straight way")
		flat   = flags.Bool("flat", false, "measure what a command costs beside ever more pending commands, receipts and workers")
		capac  = flags.Bool("capacity", false, "measure what a command takes of everything, predict other loads from it, and check the predictions")
		copies = flags.Int("replicas", 1, "1, or 3 for a cluster of three servers; the peers then do not take part")
		sync   = flags.Bool("sync", false, "servers flush to disk before they answer; tallyman then has removal sweep and commit group unless told otherwise")
		shards = flags.Int("shards", 1, "shards of tallyman's pool")
		remove = flags.String("removal", "", "how commands leave tallyman's streams: ack or sweep (default ack; sweep with --sync)")
		commit = flags.String("commit", "", "how tallyman writes: each or group (default each; group with --sync)")
		asJSON = flags.Bool("json", false, "print one JSON object with every round")
	)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return errUsage
	}
	m, err := chooseMode(*byPath, *flat, *capac, *sync)
	l = load{N: *n, Rounds: *rounds, Rate: *rate, Latency: *length}
	given := func(name string) (is bool) {
		flags.Visit(func(f *flag.Flag) { is = is || f.Name == name })
		return is
	}
	if !given("n") {
		l.N = m.n
	}
	if !given("rounds") {
		l.Rounds = m.rounds
	}
	if *quick {
		l = load{N: 2000, Rounds: 1, Rate: 500, Latency: time.Second, Quick: true}
	}
	l.Profiles, l.Scenario = *profs, *scen
	var cs []Contestant
	with := layout{replicas: *copies, sync: *sync, pool: tallyman.Settings{
		Shards: *shards, Removal: tallyman.Removal(*remove), Commit: tallyman.Commit(*commit),
	}}
	if *sync {
		with.pool.Removal = cmp.Or(with.pool.Removal, tallyman.RemovalSweep)
		with.pool.Commit = cmp.Or(with.pool.Commit, tallyman.CommitGroup)
	}
	if err == nil && *shards < 1 {
		err = errors.New("--shards must be at least 1")
	}
	if err == nil {
		err = with.pool.WithDefaults().Validate()
	}
	if err == nil {
		cs, err = choose(*only, *sync)
	}
	if err == nil {
		cs, err = arrange(cs, *only != "", with)
	}
	if err == nil && m.run != nil && *only != "" {
		err = errors.New("--only does not go with --paths, --flat and --capacity")
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if err == nil {
		err = errors.Join(l.validate(), m.knows(l), m.takes(with))
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return errUsage
	}
	if m.run != nil {
		out, err := m.run(ctx, l, with, func(line string) { fmt.Fprintln(stderr, line) })
		if err != nil {
			return err
		}
		return show(out, *asJSON, stdout)
	}
	return compare(ctx, l, with, cs, *asJSON, stdout, stderr)
}

// compare measures the contestants that can run here and writes the report.
func compare(ctx context.Context, l load, with layout, cs []Contestant, asJSON bool, stdout, stderr io.Writer) error {
	able, missing := sortOut(cs)
	for _, o := range missing {
		fmt.Fprintf(stderr, "%s: not run, %s\n", o.Name, o.Missing)
	}
	if len(able) == 0 {
		return errNobody
	}
	out, err := measureAll(ctx, l, with, able, func(line string) { fmt.Fprintln(stderr, line) })
	if err != nil {
		return err
	}
	out.Missing = missing
	return show(out, asJSON, stdout)
}

func show(out tables, asJSON bool, w io.Writer) error {
	if asJSON {
		return json.NewEncoder(w).Encode(out)
	}
	return out.writeMarkdown(w)
}

func (l load) validate() error {
	if l.N < 1 || l.Rounds < 1 || l.Rate < 1 || l.Latency.Seconds()*float64(l.Rate) < 1 {
		return errors.New("-n, -rounds, -rate and -latency must allow at least one command")
	}
	return nil
}

// choose returns the contestants named in only, or if it is empty all that are
// meant for servers of this kind.
func choose(only string, sync bool) ([]Contestant, error) {
	if only == "" && sync {
		return powerSafe(), nil
	}
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
