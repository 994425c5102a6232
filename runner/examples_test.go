//go:build linux || darwin

package runner_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/runner"
)

func TestDocs_PoolFile(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/handlers.md shows no pool file")
	}
	if _, err := runner.Parse("handlers.md", []byte(text)); err != nil {
		t.Errorf("the documented pool file: %v", err)
	}
}

func TestExamples(t *testing.T) {
	t.Parallel()
	config, err := runner.Parse("../examples/handlers/pool.yaml", mustRead(t, "../examples/handlers/pool.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	handler := func(kind string) tallyman.Handler {
		for _, s := range config.Handlers {
			if s.Kind == kind {
				if s.Env != nil {
					s.Env["PAUSE"] = "0"
				}
				return s.Handler(runner.Options{})
			}
		}
		t.Fatalf("no handler of kind %s", kind)
		return nil
	}
	claim := func(payload string, offset uint64, checkpoint string) *tallyman.Claim {
		return claimOf(tallyman.DetachedConfig{
			Command: tallyman.Command{ID: "c-1", Payload: []byte(payload)}, Token: 5, Offset: offset, Checkpoint: []byte(checkpoint),
		})
	}

	t.Run("greet", func(t *testing.T) {
		t.Parallel()
		got, err := handler("greet").Handle(t.Context(), claim("Ada", 0, ""))
		if want := "Hello, Ada. This was command c-1, attempt 1.\n"; err != nil || string(got.Body) != want {
			t.Errorf("got %q, %v; want %q", got.Body, err, want)
		}
		_, err = handler("greet").Handle(t.Context(), claim("", 0, ""))
		wantError(t, err, "park rejected", "the payload is empty; submit a name")
	})

	t.Run("count", func(t *testing.T) {
		t.Parallel()
		c := claim("10", 0, "")
		got, err := handler("count").Handle(t.Context(), c)
		if err != nil || string(got.Body) != "55\n" || c.Offset() != 10 || string(c.Checkpoint()) != "55" {
			t.Errorf("got %q at %d %q, %v; want 55 at 10", got.Body, c.Offset(), c.Checkpoint(), err)
		}
		got, err = handler("count").Handle(t.Context(), claim("10", 9, "45"))
		if err != nil || string(got.Body) != "55\n" {
			t.Errorf("resumed: got %q, %v; want 55", got.Body, err)
		}
	})

	t.Run("report", func(t *testing.T) {
		t.Parallel()
		got, err := handler("report-*").Handle(t.Context(), claim(`{"rows":[1,2,3]}`, 1, `{"total": 1}`))
		if want := `{"total": 6, "token": 5}`; err != nil || string(got.Body) != want {
			t.Errorf("got %q, %v; want %q", got.Body, err, want)
		}
		_, err = handler("report-*").Handle(t.Context(), claim(`[]`, 0, ""))
		wantError(t, err, "park rejected", "payload must be")
	})
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
