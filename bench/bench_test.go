package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman/internal/pgtest"
	"go.uber.org/goleak"
)

// TestMain lets the test binary be executed as a child, as the program is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childCommand {
		main()
		return
	}
	code := pgtest.Main(m.Run)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestRun_Quick(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"--quick", "--json"}, nil, &stdout, &stderr); err != nil {
		t.Fatalf("run: %v\n%s", err, &stderr)
	}
	var got results
	if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
		t.Fatalf("read results: %v", err)
	}
	if got, want := len(got.Contestants)+len(got.Missing), len(contestants()); got != want {
		t.Fatalf("contestants = %d, want %d", got, want)
	}
	for _, c := range contestants() {
		t.Run(c.Name(), func(t *testing.T) {
			needs(t, c)
			o := got.named(c.Name())
			if o == nil {
				t.Fatal("it did not take part")
			}
			for _, m := range measures {
				if o.Medians[m.key] <= 0 {
					t.Errorf("%s = %v, want something above 0", m.key, o.Medians[m.key])
				}
			}
			if o.Server == "" || o.Durability == "" {
				t.Errorf("outcome = %+v, want the server's version and durability", o)
			}
		})
	}
}

// needs skips the test where a contestant's server is missing, and says how to get it.
func needs(t *testing.T, c Contestant) {
	t.Helper()
	if lack := c.System().missing(); lack != "" {
		t.Skipf("%s: not run, %s", c.Name(), lack)
	}
}

func TestRun_Usage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--only", "nobody"}, {"--n", "0"}, {"--latency", "1ms", "--rate", "1"}, {"more"}, {"--no-such-flag"},
		{"--paths", "--flat"}, {"--paths", "--scenario", "latency"}, {"--flat", "--only", "raw"}, {"--replicas", "2"}, {"--replicas", "3", "--only", "asynq"},
		{"--capacity", "--paths"}, {"--capacity", "--sync"}, {"--capacity", "--shards", "4"}, {"--shards", "0"}, {"--shards", "1000"},
		{"--removal", "burn"}, {"--commit", "never"}, {"--sync", "--only", "asyncjobs"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			if err := run(t.Context(), args, nil, &stdout, &stderr); !errors.Is(err, errUsage) {
				t.Errorf("run = %v, want errUsage", err)
			}
			if stderr.Len() == 0 {
				t.Error("stderr is empty, want an explanation")
			}
		})
	}
}

func TestRunChild(t *testing.T) {
	t.Parallel()
	t.Run("a child that cannot get ready says why", func(t *testing.T) {
		t.Parallel()
		_, err := startProcess(t.Context(), order{Role: "juggle", Contestant: "nobody"})
		if err == nil || !strings.Contains(err.Error(), `no contestant is named "nobody"`) {
			t.Errorf("startProcess = %v, want the child's own error", err)
		}
	})
	t.Run("a child dies with its parent's context", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		p, err := startProcess(ctx, order{Role: "server", System: jetStream{}.name(), Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		want := errors.New("enough")
		cancel(want)
		if _, got := p.ask(ctx, "usage"); !errors.Is(got, want) {
			t.Errorf("ask = %v, want %v", got, want)
		}
	})
}

func TestCommandsOf(t *testing.T) {
	t.Parallel()
	before := time.Now()
	seen := make(map[string]bool)
	for c := range commandsOf(100, 0) {
		at, err := submittedAt(c.ID)
		if err != nil {
			t.Fatal(err)
		}
		if at.Before(before.Truncate(0)) || at.After(time.Now()) {
			t.Fatalf("%s was submitted at %v, want between %v and now", c.ID, at, before)
		}
		if got, want := len(c.Payload), payloadSize; got != want {
			t.Fatalf("payload has %d bytes, want %d", got, want)
		}
		seen[c.ID] = true
	}
	if got, want := len(seen), 100; got != want {
		t.Errorf("distinct ids = %d, want %d", got, want)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 5}, 5}} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0.123: "0.12", 12.34: "12.3", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := number(v); got != want {
			t.Errorf("number(%s) = %q, want %q", fmt.Sprint(v), got, want)
		}
	}
}
