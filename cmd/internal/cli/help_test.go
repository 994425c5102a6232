package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
)

type sample struct {
	Common

	Try  trySample  `cmd:"" help:"Try it."`
	Stop stopSample `cmd:"" help:"Stop it."`
}

type trySample struct {
	Wait  time.Duration `help:"How long." default:"3s" placeholder:"D"`
	Limit int           `help:"How many; 0 for all." default:"0" placeholder:"N"`
	State string        `help:"One of these: ${states}." placeholder:"S"`
	Now   bool          `help:"At once."`
}

type stopSample struct {
	ID string `arg:""`
}

// sampleParser returns a parser that writes help to a buffer and does not exit.
func sampleParser(t *testing.T) (*kong.Kong, *bytes.Buffer) {
	t.Helper()
	p, err := Parser("sample", "What it is.", &sample{})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p.Stdout, p.Exit = &out, func(int) {}
	return p, &out
}

func TestHelp(t *testing.T) {
	t.Parallel()
	p, out := sampleParser(t)
	_, _ = p.Parse([]string{"try", "--help"}) // the parser of the test does not exit
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"How long (default 3s).",
		"0 for all (default 0).",
		"At once. ",
		"claimed, prepared, waiting",
		"Name of the pool (default main; $TALLYMAN_POOL).",
		"(one of debug, info, warn, error; default info)",
		"without one, nats://127.0.0.1:4222 ($NATS_URL)",
		"Durations (D) have units",
		"Exit codes: 0 done, 1 failed, 2 wrong usage",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if own, common := strings.Index(text, "--wait"), strings.Index(text, "--pool"); own < 0 || common < own {
		t.Errorf("want the flags of the command before those of all:\n%s", out)
	}
	if long := regexp.MustCompile(`(?m)^.{81,}$`).FindString(out.String()); long != "" {
		t.Errorf("longer than 80 columns: %q", long)
	}
}

func TestParse_ErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args      []string
		want, see string
	}{
		{[]string{"try", "--wait", "10"}, `--wait: "10" is not a duration; write a number with its unit, such as 30s`, "sample try"},
		{[]string{"try", "--wait", "soon"}, "is not a duration", "sample try"},
		{[]string{"stop"}, "<id>", "sample stop"},
		{[]string{"stop", "a", "--log-level", "loud"}, "debug", "sample stop"},
		{[]string{"nothing"}, "nothing", "sample"},
		{nil, "try", "sample"},
	} {
		p, _ := sampleParser(t)
		_, err := parse(p, c.args)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want an error with %q", c.args, err, c.want)
		}
		if got := selected("sample", err); got != c.see {
			t.Errorf("%v: help is said to be at %q, want %q", c.args, got, c.see)
		}
	}
}
