package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
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
