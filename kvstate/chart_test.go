package kvstate_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/kvstate"
)

// chart draws the transition table as ARCHITECTURE.md has it.
func chart() string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, to := range kvstate.None.Next() {
		b.WriteString("    [*] --> " + string(to) + "\n")
	}
	for _, from := range kvstate.States() {
		for _, to := range from.Next() {
			b.WriteString("    " + string(from) + " --> " + string(to) + "\n")
		}
		if from.Final() {
			b.WriteString("    " + string(from) + " --> [*]\n")
		}
	}
	b.WriteString("```\n")
	return b.String()
}

func TestStates_ChartInArchitecture(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- states: begin -->\n", "<!-- states: end -->"
	text, err := os.ReadFile("../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("ARCHITECTURE.md has no line %q", strings.TrimSpace(begin))
	}
	got, _, ok := strings.Cut(after, end)
	if !ok {
		t.Fatalf("ARCHITECTURE.md has no line %q", end)
	}
	if want := chart(); got != want {
		t.Errorf("the chart in ARCHITECTURE.md is not the transition table; write:\n%s", want)
	}
}
