package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/cmd/internal/cli"
)

func parse(t *testing.T, args string) (*Flags, error) {
	t.Helper()
	for _, name := range []string{"NATS_URL", "NATS_CONTEXT"} {
		t.Setenv(name, "")
	}
	var f Flags
	parser, err := cli.Parser("worker", "", &f)
	if err != nil {
		t.Fatal(err)
	}
	_, err = parser.Parse(strings.Fields(args))
	return &f, err
}

func TestFlags(t *testing.T) {
	f, err := parse(t, "")
	if err != nil {
		t.Fatal(err)
	}
	if f.Concurrency != tallyman.DefaultConcurrency || f.drainTime() != tallyman.DefaultDrain || f.Lease != 0 ||
		f.Config != "./pool.yaml" || !reflect.DeepEqual(f.Queue, []string{"default"}) || f.Embedded || f.Configured() {
		t.Errorf("defaults: got %+v", f)
	}
	f, err = parse(t, "--embedded --data d --listen :0 --config c --queue a --queue b --concurrency 3 --lease 2s --drain 0s --http :1 --pool p")
	if err != nil {
		t.Fatal(err)
	}
	if !f.Embedded || f.Data != "d" || f.Listen != ":0" || f.Config != "c" || !reflect.DeepEqual(f.Queue, []string{"a", "b"}) ||
		f.Concurrency != 3 || f.Lease != 2*time.Second || f.drainTime() >= 0 || f.HTTP != ":1" || f.Pool != "p" {
		t.Errorf("all set: got %+v", f)
	}
	for args, want := range map[string]string{
		"--concurrency 0":           "at least 1",
		"--drain=-1s":               "negative",
		"--lease 1ms":               "at least 200ms",
		"--lease soon":              "lease",
		"--embedded --server x":     "drop one",
		"--server x --data d":       "drop them",
		"--context x --listen :0":   "drop them",
		"--log-level loud":          "log-level",
		"unexpected":                "unexpected",
		"--embedded --context main": "NATS_CONTEXT",
	} {
		if _, err := parse(t, args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want an error with %q", args, err, want)
		}
	}
}
