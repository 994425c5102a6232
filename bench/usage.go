package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cpuTime returns the user and system time that this process has used.
func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("read cpu time: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// peakRSS returns the most memory that this process ever had resident, in
// bytes. It does not ask getrusage, whose figure a process inherits from the
// one that started it.
func peakRSS() (int64, error) {
	kib, err := procField("/proc/self/status", "VmHWM")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(kib, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read peak memory: %w", err)
	}
	return n << 10, nil
}

// cpuModel names the processor, or the architecture where nothing is known.
func cpuModel() string {
	if model, err := procField("/proc/cpuinfo", "model name"); err == nil {
		return model
	}
	return runtime.GOARCH
}

// procField returns the value of the first line "key : value" of a file.
func procField(file, key string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		k, v, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("%s has no field %q", file, key)
}

// clockTick is the unit of the times in /proc/PID/stat on Linux.
const clockTick = 10 * time.Millisecond

// treeCPU returns the user and system time of a process and all that it ever
// started: of those that live, and of those that it has waited for. One that
// ends while this looks would be counted twice or not at all, so it looks until
// it meets the same processes twice.
func treeCPU(pid int) (time.Duration, error) {
	var before []int
	for range 1000 {
		stats, err := processStats()
		if err != nil {
			return 0, err
		}
		if _, alive := stats[pid]; !alive {
			return 0, fmt.Errorf("read cpu time: process %d is gone", pid)
		}
		tree := below(pid, stats)
		if slices.Equal(tree, before) {
			var total time.Duration
			for _, id := range tree {
				total += stats[id].cpu
			}
			return total, nil
		}
		before = tree
	}
	return 0, fmt.Errorf("read cpu time: children of process %d come and go too fast", pid)
}

// below returns a process and all its living descendants, in order.
func below(pid int, stats map[int]processStat) []int {
	var tree []int
	for id := range stats {
		for up := id; up != 0; up = stats[up].parent {
			if up == pid {
				tree = append(tree, id)
				break
			}
		}
	}
	slices.Sort(tree)
	return tree
}

type processStat struct {
	parent int
	cpu    time.Duration // own, and that of children waited for
}

// processStats reads the state of every process there is.
func processStats() (map[int]processStat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("read cpu time: %w", err)
	}
	stats := make(map[int]processStat, len(entries))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		if stats[pid], err = parseStat(string(text)); err != nil {
			return nil, err
		}
	}
	return stats, nil
}

// parseStat reads one line of /proc/PID/stat. The name of the process, in
// parentheses, may hold anything.
func parseStat(line string) (processStat, error) {
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 15 {
		return processStat{}, fmt.Errorf("read cpu time: %q has too few fields", line)
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return processStat{}, fmt.Errorf("read cpu time: %w", err)
	}
	s := processStat{parent: parent}
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return processStat{}, fmt.Errorf("read cpu time: %w", err)
		}
		s.cpu += time.Duration(ticks) * clockTick
	}
	return s, nil
}
