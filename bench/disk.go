package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// disk is what the servers' files lie on, and what a flush costs there.
type disk struct {
	Device     string        `json:"device"`
	Filesystem string        `json:"filesystem"`
	Fsync      time.Duration `json:"fsync_ns"` // median
}

func (d disk) String() string {
	return fmt.Sprintf("%s, %s; an append of 4 KiB with fsync takes %v (median of %d)",
		d.Device, d.Filesystem, d.Fsync.Round(time.Microsecond), probes)
}

// probes is how many appends are measured.
const probes = 200

// probeDisk measures what a flush costs where dir lies.
func probeDisk(dir string) (disk, error) {
	d := disk{}
	var err error
	if d.Device, d.Filesystem, err = mountOf(dir); err != nil {
		return d, err
	}
	f, err := os.CreateTemp(dir, "tallyman-bench-probe-")
	if err != nil {
		return d, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // a temporary file
	defer f.Close()
	page := make([]byte, 4096)
	took := make([]float64, 0, probes)
	for range probes {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			return d, err
		}
		if err := f.Sync(); err != nil {
			return d, err
		}
		took = append(took, float64(time.Since(began)))
	}
	d.Fsync = time.Duration(median(took))
	return d, nil
}

// mountOf returns device and type of the file system that holds a folder.
func mountOf(dir string) (device, kind string, err error) {
	dir, err = filepath.EvalSymlinks(dir)
	if err != nil {
		return "", "", err
	}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	var lines []string
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	device, kind = holder(lines, dir)
	return device, kind, scan.Err()
}

// holder finds, among lines of /proc/mounts, the deepest mount above a folder;
// of two at one place the later one counts.
func holder(mounts []string, dir string) (device, kind string) {
	best := 0
	for _, line := range mounts {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		at := strings.TrimSuffix(fields[1], "/")
		if above := dir == at || strings.HasPrefix(dir, at+"/"); above && len(fields[1]) >= best {
			device, kind, best = fields[0], fields[2], len(fields[1])
		}
	}
	return device, kind
}
