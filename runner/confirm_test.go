//go:build linux || darwin

package runner_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman"
	"github.com/tallyman-go/tallyman/runner"
)

func TestExec_Confirm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, script string
		finding      tallyman.Finding
		result       string
		failed       string
	}{
		{"0 is done, with the result", `printf '%s %s ' "$TALLYMAN_INTENT" "$TALLYMAN_ID"; cat`, tallyman.Done, "run pay.sh img-7 five", ""},
		{"66 is not done", "echo ignored; exit 66", tallyman.NotDone, "", ""},
		{"65 is unknown", "exit 65", tallyman.Unknown, "", ""},
		{"1 is an error", "echo no network >&2; exit 1", 0, "", "exit status 1: no network"},
		{"75 is an error", "exit 75", 0, "", "exit status 75"},
		{"a signal is an error", "kill -9 $$", 0, "", "signal 9"},
		{"progress is an error", "echo 1 >&4; sleep 60", 0, "", "no progress to save"},
		{"too large a result rejects nothing", "head -c 600000 /dev/zero", 0, "", "larger than max_result"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			claim := claimOf(tallyman.DetachedConfig{
				Command:    tallyman.Command{ID: "img-7", Kind: "resize", Payload: []byte("five")},
				OnProgress: func(uint64, []byte) error { t.Error("progress was saved"); return nil },
			})
			finding, result, err := shell(tt.script).Confirm(t.Context(), claim, []byte("run pay.sh"))
			if tt.failed != "" {
				wantError(t, err, "retry", tt.failed)
				return
			}
			if err != nil || finding != tt.finding || string(result.Body) != tt.result {
				t.Errorf("got %v, %q, %v; want %v, %q", finding, result.Body, err, tt.finding, tt.result)
			}
		})
	}
	t.Run("a program that cannot be started is an error", func(t *testing.T) {
		t.Parallel()
		_, _, err := (&runner.Exec{Argv: []string{"/no/such/program"}}).Confirm(t.Context(), claimOf(tallyman.DetachedConfig{}), nil)
		wantError(t, err, "retry", "cannot start")
	})
}

func TestHTTP_Confirm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, header string
		status       int
		finding      tallyman.Finding
		verdict      string // of the error; "complete" for none
	}{
		{"done, with the body as result", "done", 200, tallyman.Done, "complete"},
		{"not done", "not-done", 200, tallyman.NotDone, "complete"},
		{"unknown", "unknown", 204, tallyman.Unknown, "complete"},
		{"2xx without the header is an error", "", 200, 0, "retry"},
		{"2xx with another word is an error", "yes", 200, 0, "retry"},
		{"404 rejects nothing", "not-done", 404, 0, "retry"},
		{"302 rejects nothing", "done", 302, 0, "retry"},
		{"503 comes again when it says", "done", 503, 0, "retry after 7s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, _ := endpoint(t, func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Tallyman-Intent"); got != "POST%20http://x" || r.Header.Get("Idempotency-Key") != "img-7" {
					t.Errorf("got intent %q of %q", got, r.Header.Get("Idempotency-Key"))
				}
				if tt.header != "" {
					w.Header().Set("Tallyman-Finding", tt.header)
				}
				w.Header().Set("Retry-After", "7")
				w.WriteHeader(tt.status)
				if tt.status != 204 {
					io.WriteString(w, "body")
				}
			})
			finding, result, err := h.Confirm(t.Context(), claimOf(tallyman.DetachedConfig{}), []byte("POST http://x"))
			if got := verdictOf(err); got != tt.verdict {
				t.Fatalf("verdict: got %q, want %q (%v)", got, tt.verdict, err)
			}
			if err == nil && finding != tt.finding {
				t.Errorf("got %v, want %v", finding, tt.finding)
			}
			if err == nil && finding == tallyman.Done && string(result.Body) != "body" {
				t.Errorf("got result %q", result.Body)
			}
		})
	}
}

func TestConfig_Confirm(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String() + "/x?token=s3cret"
	closed.Close()
	for _, tt := range []struct {
		name, spec string
		intent     string
		closes     string // "withdrawn" or "open"
		failed     string
	}{
		{"a program is announced before it runs", "exec: [sh, -c, 'exit 9']\n    confirm: [sh, -c, exit]", "run sh -c exit 9", "open", "exit status 9"},
		{"one that cannot be started withdraws", "exec: [/no/such/program]\n    confirm: http://127.0.0.1/x", "run /no/such/program", "withdrawn", "cannot start"},
		{"a post without a connection withdraws", "http: " + nobody + "\n    confirm: [sh, -c, exit]", "POST http://" + closed.Addr().String() + "/x", "withdrawn", "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := runner.Parse("p.yaml", fmt.Appendf(nil, "handlers:\n  - kind: resize\n    %s\n", tt.spec))
			if err != nil {
				t.Fatal(err)
			}
			if c.Handlers[0].Confirm(runner.Options{}) == nil {
				t.Error("there is no Confirm")
			}
			state := "none"
			claim := claimOf(tallyman.DetachedConfig{
				OnPrepare: func(intent []byte) error {
					if string(intent) != tt.intent {
						t.Errorf("announced %q, want %q", intent, tt.intent)
					}
					state = "open"
					return nil
				},
				OnProgress: func(uint64, []byte) error { state = "withdrawn"; return nil },
			})
			_, err = c.Handlers[0].Handler(runner.Options{}).Handle(t.Context(), claim)
			if err == nil || !strings.Contains(err.Error(), tt.failed) {
				t.Errorf("got %v, want %q", err, tt.failed)
			}
			if state != tt.closes {
				t.Errorf("the intent is %s, want %s", state, tt.closes)
			}
		})
	}
	t.Run("what cannot be announced does not run", func(t *testing.T) {
		t.Parallel()
		c, err := runner.Parse("p.yaml", []byte("handlers:\n  - kind: resize\n    exec: [sh, -c, 'echo ran']\n    confirm: [sh]\n"))
		if err != nil {
			t.Fatal(err)
		}
		gone := errors.New("gone")
		claim := claimOf(tallyman.DetachedConfig{OnPrepare: func([]byte) error { return gone }})
		if got, err := c.Handlers[0].Handler(runner.Options{}).Handle(context.Background(), claim); !errors.Is(err, gone) || got.Body != nil {
			t.Errorf("got %q, %v", got.Body, err)
		}
	})
}
