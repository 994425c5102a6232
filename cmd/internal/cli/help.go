package cli

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
)

// footer ends every help text.
const footer = `
Durations (D) have units: 500ms, 30s, 1h30m.
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 conflict or refused, 4 parked,
5 timed out, 6 books do not balance.
`

func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	_, err := fmt.Fprint(ctx.Stdout, footer)
	return err
}

// describe adds to the help of a flag what the parser knows: the values that it
// takes, its default and its environment variable.
func describe(v *kong.Value) string {
	var facts []string
	if v.Enum != "" && !strings.Contains(v.Help, ":") { // else the text goes through them
		facts = append(facts, "one of "+strings.Join(strings.FieldsFunc(v.Enum, func(r rune) bool { return r == ',' }), ", "))
	}
	if v.HasDefault && v.Default != "" && !v.IsBool() {
		facts = append(facts, "default "+v.Default)
	}
	for _, env := range v.Tag.Envs {
		facts = append(facts, "$"+env)
	}
	if len(facts) == 0 {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " (" + strings.Join(facts, "; ") + ")."
}

// fallbackServer says which server a command takes if none is named.
func fallbackServer(name string) string {
	if name == "worker" {
		return "; without one, a server is started here"
	}
	return "; without one, " + nats.DefaultURL
}

// words lists what a flag takes.
func words[W ~string](all []W) string {
	texts := make([]string, len(all))
	for i, w := range all {
		texts[i] = string(w)
	}
	return strings.Join(texts, ", ")
}

// mapDuration reads a duration, and says what is wrong with one that lacks its unit.
func mapDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration; write a number with its unit, such as 30s (units: ms s m h)", text)
	}
	target.Set(reflect.ValueOf(d))
	return nil
}

// selected returns the command that was being parsed, to ask for its help.
func selected(name string, err error) string {
	var p *kong.ParseError
	if errors.As(err, &p) && p.Context != nil {
		if s := p.Context.Selected(); s != nil {
			return s.FullPath()
		}
	}
	return name
}
