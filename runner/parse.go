package runner

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/tallyman-go/tallyman"
)

// maxMaxResult is the largest payload that a NATS server can be set to accept.
const maxMaxResult = 64 << 20

// Parse reads a pool file from data. Name is shown in errors, and relative
// paths start from its folder. Parse does not look at programs; Load does.
func Parse(name string, data []byte) (*Config, error) {
	d := &document{name: name}
	c := &Config{Name: name}
	if root := d.read(data); root != nil {
		c.Handlers = d.handlers(root)
	}
	if err := errors.Join(d.errs...); err != nil {
		return nil, err
	}
	return c, nil
}

const emptyRemedy = "add at least one, such as:\n" +
	"  handlers:\n" +
	"    - kind: resize\n" +
	"      exec: [./resize.sh]"

func (d *document) handlers(root ast.Node) []Spec {
	var list ast.Node
	for _, f := range d.fields(root, "the file") {
		if f.name != "handlers" {
			d.failf(f.line, "unknown field %q; the only field at the top is handlers", f.name)
			continue
		}
		list = f.value
	}
	if list == nil {
		if len(d.errs) == 0 {
			d.failf(lineOf(root), "there are no handlers; %s", emptyRemedy)
		}
		return nil
	}
	entries, ok := d.list(list)
	if !ok {
		d.failf(lineOf(list), "handlers must be a list; begin each entry with \"- kind: ...\"")
		return nil
	}
	if len(entries) == 0 {
		d.failf(lineOf(list), "handlers is empty; %s", emptyRemedy)
	}
	var specs []Spec
	seen := make(map[string]int)
	for _, entry := range entries {
		s := d.spec(entry)
		if first, twice := seen[s.Kind]; twice && s.Kind != "" {
			d.failf(s.Line, "kind %q has a handler already, in line %d; remove one of them", s.Kind, first)
		}
		seen[s.Kind] = s.Line
		specs = append(specs, s)
	}
	return specs
}

const (
	anyFields  = "kind, exec, http, confirm, timeout, max_attempts, eager, max_result"
	execFields = "env, dir, kill_after"
	httpFields = "headers"
)

func (d *document) spec(entry ast.Node) Spec {
	s := Spec{Line: lineOf(entry)}
	set := make(map[string]int) // field -> line
	for _, f := range d.fields(entry, "an entry of handlers") {
		set[f.name] = f.line
		d.set(&s, f)
	}
	for _, line := range set {
		s.Line = min(s.Line, line)
	}
	d.check(&s, set)
	return s
}

func (d *document) set(s *Spec, f field) {
	switch f.name {
	case "kind":
		s.Kind = d.text(f)
	case "exec":
		s.Exec = d.argv(f)
	case "confirm":
		if _, isText := d.scalar(f.value); isText {
			s.ConfirmHTTP = d.text(f)
			d.checkURL(f, s.ConfirmHTTP)
		} else {
			s.ConfirmExec = d.argv(f)
		}
	case "http":
		s.HTTP = d.text(f)
		d.checkURL(f, s.HTTP)
	case "timeout":
		s.Timeout = d.duration(f)
		if s.Timeout == 0 {
			d.failf(f.line, "timeout must be longer than 0; leave it out for no limit")
		}
	case "max_attempts":
		s.MaxAttempts = d.integer(f, 1, 1_000_000, "leave it out for the pool's setting")
	case "eager":
		s.Eager = d.boolean(f)
	case "max_result":
		s.MaxResult = d.integer(f, 1, maxMaxResult, fmt.Sprintf("it counts bytes; leave it out for %d", DefaultMaxResult))
	case "env":
		s.Env = d.texts(f)
		d.checkEnv(f.line, s.Env)
	case "dir":
		s.Dir = d.text(f)
	case "kill_after":
		if s.KillAfter = d.duration(f); s.KillAfter == 0 {
			s.KillAfter = -1 // none at all; 0 in Exec means the default
		}
	case "headers":
		s.Headers = d.texts(f)
		d.checkHeaders(f.line, s.Headers)
	default:
		d.failf(f.line, "unknown field %q; an entry may have %s; with exec also %s; with http also %s",
			f.name, anyFields, execFields, httpFields)
	}
}

// check looks at what only the whole entry shows.
func (d *document) check(s *Spec, set map[string]int) {
	_, isExec := set["exec"]
	_, isHTTP := set["http"]
	switch _, hasKind := set["kind"]; {
	case !hasKind:
		d.failf(s.Line, "entry has no kind; add kind: NAME, or a glob such as invoice-*")
	case s.Kind != "":
		nothing := tallyman.HandlerFunc(func(context.Context, *tallyman.Claim) (tallyman.Result, error) {
			return tallyman.Result{}, nil
		})
		if err := new(tallyman.Mux).Route(tallyman.Route{Kind: s.Kind, Handler: nothing}); err != nil {
			d.failf(set["kind"], "kind %q is neither a name (1 to 64 of A-Z a-z 0-9 - _) nor a glob such as invoice-*; correct it", s.Kind)
		}
	}
	switch {
	case isExec && isHTTP:
		d.failf(max(set["exec"], set["http"]), "entry has both exec and http; keep one of them")
	case !isExec && !isHTTP:
		d.failf(s.Line, "entry has neither exec nor http; add exec: [PROGRAM, ARG...] or http: URL")
	case isExec:
		d.notWith(set, "exec", httpFields, "http")
	case isHTTP:
		d.notWith(set, "http", execFields, "exec")
	}
	if isExec || s.ConfirmExec != nil {
		dir := s.Dir
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(filepath.Dir(d.name), dir)
		}
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		s.Dir = dir
	}
}

func (d *document) notWith(set map[string]int, is, fields, other string) {
	for _, name := range strings.Split(fields, ", ") {
		if line, ok := set[name]; ok {
			d.failf(line, "%s is for %s and this entry uses %s; remove it", name, other, is)
		}
	}
}

func (d *document) argv(f field) []string {
	items, ok := d.list(f.value)
	if !ok {
		d.failf(f.line, "%s must be a list of the program and its arguments, such as %s: [./resize.sh, --fast]; no shell is involved (for one, write %s: [sh, -c, \"...\"])", f.name, f.name, f.name)
		return nil
	}
	if len(items) == 0 {
		d.failf(f.line, "%s is empty; name a program, such as %s: [./resize.sh]", f.name, f.name)
	}
	var argv []string
	for i, item := range items {
		arg, ok := d.scalar(item)
		switch {
		case !ok:
			d.failf(lineOf(item), "item %d of %s is not text; put it into quotes", i+1, f.name)
		case i == 0 && arg == "":
			d.failf(lineOf(item), "the first item of %s is empty; name a program", f.name)
		case strings.ContainsRune(arg, 0):
			d.failf(lineOf(item), "item %d of %s holds a NUL byte, which no argument can; remove it", i+1, f.name)
		}
		argv = append(argv, arg)
	}
	return argv
}

func (d *document) checkURL(f field, raw string) {
	if raw == "" {
		return // reported as no text
	}
	if _, err := parseURL(raw); err != nil {
		or := ""
		if f.name == "confirm" {
			or = ", or as a list to run a program"
		}
		d.failf(f.line, "%s %q is not a usable URL: %v; write it as http://HOST:PORT/PATH%s", f.name, raw, err, or)
	}
}

func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, err
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("it does not begin with http:// or https://")
	case u.Host == "":
		return nil, errors.New("it names no host")
	case u.Fragment != "":
		return nil, errors.New("it has a #fragment, which is never sent")
	}
	return u, nil
}

func (d *document) checkEnv(line int, env map[string]string) {
	for _, name := range sortedKeys(env) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(env[name], 0):
			d.failf(line, "env %q is no possible variable: names hold no \"=\", and neither name nor value a NUL byte; correct it", name)
		case slices.Contains(ownVariables, name):
			d.failf(line, "env %s is set by the worker for each command; choose another name", name)
		}
	}
}

func (d *document) checkHeaders(line int, headers map[string]string) {
	for _, name := range sortedKeys(headers) {
		switch {
		case !validHeader(name, headers[name]):
			d.failf(line, "header %q is no valid HTTP header; names are like X-Api-Key, values have no control characters", name)
		case isOwnHeader(name):
			d.failf(line, "header %s is set by the worker for each command; remove it", name)
		}
	}
}

func (d *document) duration(f field) time.Duration {
	text := d.text(f)
	if text == "" {
		return 1 // reported; not 0, which would be reported again
	}
	v, err := time.ParseDuration(text)
	if _, bare := strconv.ParseFloat(text, 64); bare == nil && text != "0" {
		d.failf(f.line, "%s %q has no unit; write %ss for seconds (units: ms s m h)", f.name, text, text)
		return 1
	}
	if err != nil {
		d.failf(f.line, "%s %q is not a duration; write it like 500ms, 30s, 5m or 1h30m", f.name, text)
		return 1
	}
	if v < 0 {
		d.failf(f.line, "%s %q is negative; write it like 30s", f.name, text)
		return 1
	}
	return v
}
