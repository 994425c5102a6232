package main

import (
	"strings"
	"testing"
)

func TestSync(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	want := `the first worker stands still after 1000 changes
the first worker wakes up, and the database refuses its batch
the second worker went on behind change 1000 and finished at 5000, on attempt 2
all 10 balances are those of the source: each change was applied once
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
