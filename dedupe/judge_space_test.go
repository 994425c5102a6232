package dedupe_test

import (
	"testing"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
)

// TestRecognise_SpaceAroundID is a regression: ids that begin or end with a
// space other than the ASCII one were taken for altered, since a header keeps those.
func TestRecognise_SpaceAroundID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ id, header string }{
		{" a ", "a"}, {"a", "a"}, {"\u00a0a", "\u00a0a"}, {"\u2028", "\u2028"}, {"a\u3000", "a\u3000"}, {" \u00a0", "\u00a0"},
	} {
		token, err := dedupe.Token(c.id)
		if err != nil {
			t.Fatal(err)
		}
		env, err := dedupe.Recognise("default", "kind", token, map[string][]string{command.HeaderID: {c.header}}, nil)
		if err != nil || env.ID != c.id {
			t.Errorf("id %q with header %q: got %q, %v", c.id, c.header, env.ID, err)
		}
	}
}
