package main

import (
	"os"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/internal/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m.Run)) }

func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(pgtest.DSN(t), &out); err != nil {
		t.Fatal(err)
	}
	const want = "the second decision was refused: the run has gone on\n" +
		"trip-1/train: reserved a seat\ntrip-1/hotel: reserved a room\n"
	if got := out.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
