package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/embedded"
	"github.com/tallyman-go/tallyman/journal"
)

// TestMain is the example itself where the tests below start this binary again.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TRIP_DIR"); dir != "" {
		if err := run(context.Background(), os.Stdout, dir, os.Getenv("TRIP_KILL")); err != nil {
			fmt.Fprintln(os.Stderr, "trip:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// want is the whole report. It shows every event once and in order, every
// effect once, and the budget; only requests to the world may be repeated.
const want = `lisbon
  1  asked      42000 cents at most              then: lock
  2  locked     42000 cents                      then: reserve
  3  reserved   no. trip/lisbon/2/1              then: pay
  4  paid       no. trip/lisbon/3/1              then: settle
  5  settled    42000 cents                      then: booked
oslo
  1  asked      30000 cents at most              then: lock
  2  locked     30000 cents                      then: reserve
  3  sold-out   no room is left                  then: unlock
  4  unlocked   30000 cents                      then: given up
rome
  1  asked      20000 cents at most              then: lock
  2  locked     20000 cents                      then: reserve
  3  reserved   no. trip/rome/2/1                then: pay
  4  declined   the bank declined                then: cancel
  5  cancelled  no. trip/rome/4/1                then: unlock
  6  unlocked   20000 cents                      then: given up
reykjavik
  1  asked      500000 cents at most             then: lock
  2  refused    the budget does not allow it     then: given up
effects in the world
  cancellation of the room in rome
  payment of 42000 cents for lisbon
  room in lisbon
  room in rome
  (N requests were repeated, and changed nothing)
budget
  limit 100000, locked map[], spent map[lisbon:42000]
the journal balances: 23 decisions of 5 runs without a gap, and every published command is there
`

var count = regexp.MustCompile(`\(\d+ requests`)

func check(t *testing.T, report string) {
	t.Helper()
	if got := count.ReplaceAllString(report, "(N requests"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// trip runs the example in a process of its own and reports whether it was killed.
func trip(t *testing.T, dir, kill string) (report string, killed bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "TRIP_DIR="+dir, "TRIP_KILL="+kill)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && ctx.Err() == nil && !exit.Exited() {
		return stdout.String(), true
	}
	if err != nil {
		t.Fatalf("with %q: %v\n%s%s", kill, err, stderr.String(), stdout.String())
	}
	return stdout.String(), false
}

// points are all places where the example can be told to die, in their order.
func points() []string {
	all := []string{"asked"}
	for _, step := range []string{"lock", "reserve", "pay", "settle", "cancel", "unlock"} {
		for _, moment := range []string{"relayed", "submitted", "before", "effect", "decided"} {
			all = append(all, step+"/"+moment)
		}
	}
	return all
}

func TestTrip(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out, t.TempDir(), ""); err != nil {
		t.Fatal(err)
	}
	check(t, out.String())
}

// TestBudget_LateAttempt: an attempt that was believed dead, and wakes up when
// its trip was long given up, must not lock the budget again.
func TestBudget_LateAttempt(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(embedded.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	nc, err := tallyman.Connect(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if err := errors.Join(
		tallyman.Create(t.Context(), nc, "trips", tallyman.Settings{}, tallyman.Topology{}),
		journal.Create(t.Context(), nc, journal.Config{Pool: "trips"}),
	); err != nil {
		t.Fatal(err)
	}
	pool, err := tallyman.Open(t.Context(), nc, "trips")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	j, err := journal.Open(t.Context(), nc, pool, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	o := &office{j: j}
	w := Wish{Trip: "oslo", Cents: limit}
	for _, kind := range []string{"locked", "locked", "unlocked", "unlocked", "locked"} {
		if _, err := o.book(t.Context(), "attempt", kind, w); err != nil {
			t.Fatal(err)
		}
	}
	budget, err := journal.Load(t.Context(), j, budgetRun, budgets)
	if err != nil {
		t.Fatal(err)
	}
	if b := budget.State(); b.used() != 0 || budget.Seq() != 2 {
		t.Errorf("got %+v after %d decisions, want nothing locked after 2", b, budget.Seq())
	}
	if ok, err := o.book(t.Context(), "next", "locked", Wish{Trip: "rome", Cents: limit + 1}); ok || err != nil {
		t.Errorf("more than the limit: %v, %v", ok, err)
	}
}

func TestTrip_KilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, point := range points() {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if report, killed := trip(t, dir, point); !killed {
				t.Fatalf("it was not killed at %s:\n%s", point, report)
			}
			report, killed := trip(t, dir, "")
			if killed {
				t.Fatal("it was killed without being told to")
			}
			check(t, report)
			switch point { // the effect was there when it died, and was asked for again
			case "reserve/effect", "pay/effect", "cancel/effect":
				if strings.Contains(report, "(0 requests") {
					t.Error("nothing was repeated: the death came too late to show anything")
				}
			}
		})
	}
}

func TestTrip_KilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir, deaths := t.TempDir(), 0
	for range 8 {
		all := points()
		if _, killed := trip(t, dir, all[random.IntN(len(all))]); killed {
			deaths++
		}
	}
	t.Logf("killed %d times", deaths)
	report, _ := trip(t, dir, "")
	check(t, report)
}
