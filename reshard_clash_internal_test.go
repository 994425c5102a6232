package tallyman

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/kvstate"
)

func TestClashes(t *testing.T) {
	t.Parallel()
	c := &clashes{}
	if err := c.err(3); err != nil {
		t.Errorf("without any: got %v", err)
	}
	for range 2 { // a scan may show an entry twice
		for i := range maxClashes {
			c.add(command.Token(fmt.Sprintf("c-%d", i)), "main_2", "main")
		}
	}
	c.add("more", "main", "main_1")
	err := c.err(3)
	if !errors.Is(err, kvstate.ErrStale) {
		t.Errorf("got %v, want %v", err, kvstate.ErrStale)
	}
	for _, want := range []string{fmt.Sprintf("%d entries", maxClashes+1), "c-19 in main and main_2", " and 1 more;", "tallyman reshard --shards 3"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "more in") {
		t.Errorf("got %v, want no more than %d named", err, maxClashes)
	}
}
