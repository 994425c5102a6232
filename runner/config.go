package runner

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman"
)

// Config is a pool file: which kinds are handled, and how.
type Config struct {
	// Name is the file's name, as error messages show it.
	Name string
	// Handlers is never empty after Parse or Load.
	Handlers []Spec
}

// Spec is one entry of the handlers list. Exactly one of Exec and HTTP is set.
type Spec struct {
	// Kind is an exact kind or a glob; see tallyman.Route.
	Kind string
	// Exec is the program and its arguments.
	Exec []string
	// HTTP is the URL that commands are posted to.
	HTTP string
	// ConfirmExec or ConfirmHTTP finds out what became of a run whose end nobody
	// knows. With either, each run is announced before it begins; see Exec.Confirm
	// and HTTP.Confirm.
	ConfirmExec []string
	ConfirmHTTP string
	// Timeout bounds one attempt; 0 means no limit.
	Timeout time.Duration
	// MaxAttempts overrides the pool's setting when greater than 0.
	MaxAttempts int
	// Eager asks for a token before the first attempt.
	Eager bool
	// MaxResult is the largest result in bytes; 0 means DefaultMaxResult.
	MaxResult int
	// Env is added to the worker's environment (exec).
	Env map[string]string
	// Dir is the working directory (exec). Parse makes it absolute; a relative
	// one, or none, starts from the folder of the file.
	Dir string
	// KillAfter is the time between SIGTERM and SIGKILL (exec); see Exec.
	KillAfter time.Duration
	// Headers are added to each request (http).
	Headers map[string]string
	// Line is where the entry stands in the file, from 1; 0 if in none.
	Line int
}

// ConfigError is one thing wrong with a pool file, and its remedy.
type ConfigError struct {
	File string
	Line int // from 1
	Text string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text) }

// Load reads the pool file at path, and checks that its programs and working
// directories exist here and now. Everything wrong with the file is reported
// at once, as joined ConfigErrors.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("runner: read pool file: %w", err)
	}
	c, err := Parse(path, data)
	if err != nil {
		return nil, err
	}
	if err := c.resolve(); err != nil {
		return nil, err
	}
	return c, nil
}

// resolve finds the programs, so that a typing error shows when the worker
// starts and not when the first command comes.
func (c *Config) resolve() error {
	var errs []error
	for _, s := range c.Handlers {
		for _, argv := range [][]string{s.Exec, s.ConfirmExec} {
			if argv == nil {
				continue
			}
			if text := unusable(argv[0], s.Dir); text != "" {
				errs = append(errs, &ConfigError{File: c.Name, Line: s.Line, Text: fmt.Sprintf("kind %q: %s", s.Kind, text)})
			}
		}
	}
	return errors.Join(errs...)
}

func unusable(program, dir string) string {
	if !execSupported {
		return "exec needs Linux or macOS; use http on this system"
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Sprintf("dir %s is not a directory; create it or correct dir", dir)
	}
	if !strings.Contains(program, "/") {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Sprintf("program %q is not in the worker's PATH; install it, or give its path (./%s for one in %s)", program, program, dir)
		}
		return ""
	}
	full := program
	if !filepath.IsAbs(full) {
		full = filepath.Join(dir, full)
	}
	if _, err := os.Stat(full); err != nil {
		return fmt.Sprintf("program %s does not exist; paths are relative to dir (%s)", program, dir)
	}
	if _, err := exec.LookPath(full); err != nil {
		return fmt.Sprintf("program %s cannot be executed; run: chmod +x %s", program, full)
	}
	return ""
}

// Options are what a Mux needs beyond the file. The zero value is usable.
type Options struct {
	// Logger gets what programs write to stderr, a record for each line.
	// Nil: only the tail is kept, for errors.
	Logger *slog.Logger
	// Transport sends the requests of all http handlers; nil means one shared
	// by the whole process (see NewTransport).
	Transport http.RoundTripper
}

// Mux makes the routes of the file.
func (c *Config) Mux(opts Options) (*tallyman.Mux, error) {
	mux := new(tallyman.Mux)
	for _, s := range c.Handlers {
		err := mux.Route(tallyman.Route{
			Kind: s.Kind, Handler: s.Handler(opts), Confirm: s.Confirm(opts),
			Timeout: s.Timeout, MaxAttempts: s.MaxAttempts, Eager: s.Eager,
		})
		if err != nil {
			return nil, &ConfigError{File: c.Name, Line: s.Line, Text: err.Error()}
		}
	}
	return mux, nil
}

// Handler makes the handler that s describes.
func (s Spec) Handler(opts Options) tallyman.Handler {
	var (
		h      tallyman.Handler
		intent string
	)
	if s.HTTP != "" {
		h, intent = s.post(s.HTTP, opts), "POST "+s.HTTP
		if u, err := parseURL(s.HTTP); err == nil {
			intent = "POST " + place(u) // without secrets
		}
	} else {
		h, intent = s.program(s.Exec, opts), "run "+strings.Join(s.Exec, " ")
	}
	if s.Confirm(opts) != nil {
		h = announced{h, intent}
	}
	return h
}

// Confirm makes the confirm of the handler, nil if s has none.
func (s Spec) Confirm(opts Options) tallyman.Confirm {
	switch {
	case s.ConfirmHTTP != "":
		return s.post(s.ConfirmHTTP, opts).Confirm
	case s.ConfirmExec != nil:
		return s.program(s.ConfirmExec, opts).Confirm
	}
	return nil
}

func (s Spec) post(url string, opts Options) *HTTP {
	return &HTTP{URL: url, Headers: s.Headers, MaxResult: s.MaxResult, Transport: opts.Transport}
}

func (s Spec) program(argv []string, opts Options) *Exec {
	return &Exec{
		Argv: argv, Dir: s.Dir, Env: s.Env, MaxResult: s.MaxResult,
		KillAfter: s.KillAfter, Logger: opts.Logger,
	}
}
