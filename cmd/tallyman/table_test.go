package main

import "testing"

func TestLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain é 漢 😀":       "plain é 漢 😀",
		"a\x1b[2J\nb\tc":    "a [2J b c",
		"gpj.\u202eexe.img": "gpj. exe.img",
	} {
		if got := line(in); got != want {
			t.Errorf("line(%q) = %q, want %q", in, got, want)
		}
	}
}
