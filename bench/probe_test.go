package main

import (
	"net"
	"slices"
	"strings"
	"testing"
)

func TestHolder(t *testing.T) {
	t.Parallel()
	mounts := []string{
		"/dev/root / ext4 rw 0 0", "tmpfs /tmp tmpfs rw 0 0", "/dev/sdb /tmp/deep xfs rw 0 0", "old /var ext2 rw 0 0", "new /var btrfs rw 0 0", "short",
	}
	for dir, want := range map[string]string{"/": "/dev/root ext4", "/home/a": "/dev/root ext4", "/tmp": "tmpfs tmpfs", "/tmp/deeper": "tmpfs tmpfs", "/tmp/deep/er": "/dev/sdb xfs", "/var/x": "new btrfs"} {
		device, kind := holder(mounts, dir)
		if got := device + " " + kind; got != want {
			t.Errorf("holder(%s) = %q, want %q", dir, got, want)
		}
	}
}

func TestFlushes(t *testing.T) {
	t.Parallel()
	lines := strings.Join([]string{
		`12 fsync(9) = 0`,
		`12 fsync(9 <unfinished ...>`,
		`13 fdatasync(4) = 0`,
		`12 <... fsync resumed>) = 0`,
		`13 openat(AT_FDCWD, "meta.inf.tmp", O_WRONLY|O_CREAT|O_SYNC|O_CLOEXEC, 0644) = 7`,
		`13 openat(AT_FDCWD, "1.blk", O_RDONLY|O_CLOEXEC) = 8`,
		`13 +++ exited with 0 +++`,
	}, "\n")
	if got, want := flushes(lines), 4; got != want {
		t.Errorf("flushes = %d, want %d", got, want)
	}
}

func TestCheckBatch(t *testing.T) {
	t.Parallel()
	if err := checkBatch([]byte(`{"stream":"S","seq":7,"batch":"b","count":3}`), 3); err != nil {
		t.Errorf("a batch that is stored: %v", err)
	}
	if err := checkBatch([]byte(`{"stream":"S","seq":7}`), 1); err != nil {
		t.Errorf("a message that went alone: %v", err)
	}
	for answer, want := range map[string]string{
		`{"stream":"S","seq":7,"batch":"b","count":2}`:                    "2 of 3 messages",
		`{"stream":"S","seq":7}`:                                          "single message",
		`{"error":{"code":400,"err_code":10071,"description":"no luck"}}`: "no luck (10071)",
		`nonsense`: "read the answer",
	} {
		if err := checkBatch([]byte(answer), 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("checkBatch(%s) = %v, want an error that says %q", answer, err, want)
		}
	}
}

func TestShardNames(t *testing.T) {
	t.Parallel()
	want := []shardName{{"bench_commands", "KV_bench"}, {"bench_1_commands", "KV_bench_1"}, {"bench_2_commands", "KV_bench_2"}}
	if got := shardNames(3); !slices.Equal(got, want) {
		t.Errorf("shardNames(3) = %v, want %v", got, want)
	}
	if got, want := keyOf("$KV.bench_2.a.b"), "a.b"; got != want {
		t.Errorf("keyOf = %q, want %q", got, want)
	}
}

func TestBytesSent(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	out, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	const n = 1000
	if _, err := out.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(make([]byte, n)); err != nil { // which acks what came
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{in, out} {
		if _, err := conn.Read(make([]byte, n)); err != nil {
			t.Fatal(err)
		}
	}
	port := listener.Addr().(*net.TCPAddr).Port
	// What the reader of the second kilobyte acks may still be on its way.
	if got, err := bytesSent(map[int]bool{port: true}); err != nil || got < n || got > 2*n+2 {
		t.Errorf("bytesSent = %d, %v; want %d from each side, and one for the opening", got, err, n)
	}
	if got, err := bytesSent(map[int]bool{1: true}); err != nil || got != 0 {
		t.Errorf("bytesSent on another port = %d, %v; want 0", got, err)
	}
}

func TestProbeDisk(t *testing.T) {
	t.Parallel()
	d, err := probeDisk(t.TempDir())
	if err != nil || d.Fsync <= 0 || d.Device == "" || d.Filesystem == "" {
		t.Errorf("probeDisk = %+v, %v; want a device, a file system and a time", d, err)
	}
}
