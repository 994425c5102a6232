package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// quickly runs the program for a moment and reads what it prints.
func quickly(t *testing.T, to any, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), append(args, "--quick", "--json"), nil, &stdout, &stderr); err != nil {
		t.Fatalf("run %v: %v\n%s", args, err, &stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), to); err != nil {
		t.Fatalf("read results: %v", err)
	}
}

func TestRun_Paths(t *testing.T) {
	t.Parallel()
	var got pathResults
	quickly(t, &got, "--paths")
	if len(got.Servers) != 1 || got.LoadAfter == "" {
		t.Errorf("conditions = %+v, want one server and the load", got.conditions)
	}
	if got, want := len(got.Rows), len(paths()); got != want {
		t.Fatalf("rows = %d, want %d", got, want)
	}
	for i, p := range paths() {
		row := got.Rows[i]
		for _, s := range []sample{row.Raw[0], row.Ours[0]} {
			if s["rate"] <= 0 || s["worker_cpu"] <= 0 || s["server_cpu"] <= 0 || s["writes"] < float64(p.writes) {
				t.Errorf("%s = %v, want a rate, CPU and %d writes per command", p.name, s, p.writes)
			}
		}
	}
}

func TestRun_Sync(t *testing.T) {
	t.Parallel()
	var got results
	quickly(t, &got, "--sync", "--scenario", "both at once")
	if got, want := len(got.Contestants)+len(got.Missing), len(powerSafe()); got != want {
		t.Fatalf("contestants = %d, want %d", got, want)
	}
	for _, o := range got.Contestants {
		if o.Medians["both_rate"] <= 0 || !strings.Contains(o.Durability, "survives a power cut") {
			t.Errorf("%s = %+v, want a rate on a server that survives a power cut", o.Name, o)
		}
	}
	if got.Disk == nil || got.Disk.Fsync <= 0 || got.Disk.Filesystem == "" {
		t.Errorf("disk = %+v, want what it is and what a flush takes", got.Disk)
	}
	if want := "1 shard, removal sweep, commit group"; got.Setup != want {
		t.Errorf("setup = %q, want %q", got.Setup, want)
	}
}

func TestRun_Flat(t *testing.T) {
	t.Parallel()
	var got flatResults
	quickly(t, &got, "--flat")
	if got, want := len(got.Rows), len(standings(true)); got != want {
		t.Fatalf("rows = %d, want %d", got, want)
	}
	for _, row := range got.Rows {
		if (len(row.Raw) == 0) != (row.Axis == "shards") {
			t.Errorf("%s: %d rounds of raw, want some unless it is about shards", row.Standing, len(row.Raw))
		}
		for _, s := range append(row.Raw, row.Ours[0]) {
			for _, key := range []string{"submit_rate", "rate", "producer_cpu", "worker_cpu", "server_cpu", "worker_peak", "server_peak", "first"} {
				if s[key] <= 0 {
					t.Errorf("%s: %s = %v, want something above 0", row.Standing, key, s[key])
				}
			}
		}
	}
}

func TestRun_Replicas(t *testing.T) {
	t.Parallel()
	var got results
	quickly(t, &got, "--replicas", "3", "--scenario", "both at once")
	if got, want := len(got.Contestants), 3; got != want {
		t.Fatalf("contestants = %d, want %d: no peers", got, want)
	}
	for _, o := range got.Contestants {
		if o.Medians["both_rate"] <= 0 || !strings.Contains(o.Durability, "R3") {
			t.Errorf("%s = %+v, want a rate on three replicas", o.Name, o)
		}
	}
}

func TestPathResults(t *testing.T) {
	t.Parallel()
	r := pathResults{Rows: []pathRow{{
		Path: "p", Counts: "calls", pair: pair{
			Raw:  []sample{{"rate": 100, "writes": 2, "worker_cpu": 1, "server_cpu": 3}, {"rate": 1000, "writes": 2, "worker_cpu": 1, "server_cpu": 3}},
			Ours: []sample{{"rate": 50, "writes": 2, "worker_cpu": 2, "server_cpu": 6}, {"rate": 1000, "writes": 2, "worker_cpu": 2, "server_cpu": 6}},
		},
	}}}
	var b strings.Builder
	if err := r.writeMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	if want := "| p | calls | 550 | 525 | 0.75 (0.50–1.00) | 2.00, 2.00 | 1.00 | 2.00 | 3.00 | 6.00 | 2.00 (2.00–2.00) | 0.50 |\n"; !strings.Contains(b.String(), want) {
		t.Errorf("report\n%swants the line %s", &b, want)
	}
}

func TestRun_Capacity(t *testing.T) {
	t.Parallel()
	var got capacityResults
	quickly(t, &got, "--capacity")
	if got, want := len(got.Points), len(points()); got != want {
		t.Fatalf("points = %d, want %d", got, want)
	}
	for i, row := range got.Points {
		p := points()[i]
		if row.Unable != "" {
			if row.Unable != p.unable() || !p.sync {
				t.Errorf("%s was not measured: %s", row.Point, row.Unable)
			}
			continue
		}
		keys := []string{"producer_cpu", "worker_cpu", "server_cpu", "busiest_cpu", "up", "down", "written", "pending_bytes", "receipt_bytes", "submit_rate", "work_rate"}
		if p.replicas > 1 {
			keys = append(keys, "routed")
		}
		if p.sync {
			keys = append(keys, "flushes")
		}
		for _, key := range keys {
			if row.Rounds[0][key] <= 0 {
				t.Errorf("%s: %s = %v, want something above 0", row.Point, key, row.Rounds[0][key])
			}
		}
		if up := row.Rounds[0]["up"]; up < float64(p.payload) {
			t.Errorf("%s: a command of %d bytes made clients send %v", row.Point, p.payload, up)
		}
	}
	if got, want := len(got.Needs), 6; got != want {
		t.Errorf("sizes = %d, want %d", got, want)
	}
}

func TestFlatResults(t *testing.T) {
	t.Parallel()
	costs := func(producer, worker, server float64) []sample {
		return []sample{{"producer_cpu": producer, "worker_cpu": worker, "server_cpu": server, "cpu": producer + worker + server}}
	}
	r := flatResults{Rows: []flatRow{
		{Axis: "pending", Standing: "few", pair: pair{Raw: costs(1, 1, 1), Ours: costs(10, 10, 20)}},
		{Axis: "pending", Standing: "many", pair: pair{Raw: costs(1, 1, 1), Ours: costs(10, 20, 10)}},
	}}
	var b strings.Builder
	if err := r.writeMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| few | 0.00 | 0.00 | 10.0 | 10.0 | 20.0 | – | – | – |",
		"| many | 0.00 | 0.00 | 10.0 | 20.0 | 10.0 | +0 % (+0 to +0) | +50 % (+50 to +50) | -50 % (-50 to -50) |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report\n%swants the line %s", &b, want)
		}
	}
}
