package cli

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestOut_JSON_EscapesWhatATerminalMayActOn(t *testing.T) {
	t.Parallel()
	const hostile = "a\x1b[2J\u0085\u009b\x7f\u202e\U000e0001 <ü\U0001f600>"
	var b bytes.Buffer
	out := Out{&b}
	if err := out.JSON(map[string]string{"k": hostile}); err != nil {
		t.Fatal(err)
	}
	const want = `{"k":"a\u001b[2J\u0085\u009b\u007f\u202e\udb40\udc01 <ü😀>"}` + "\n"
	if got := b.String(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var again map[string]string
	if err := json.Unmarshal(b.Bytes(), &again); err != nil || again["k"] != hostile {
		t.Errorf("it reads as %q, %v; want what was printed", again["k"], err)
	}
}
