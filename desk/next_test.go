package desk

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tallyman-go/tallyman/kvstate"
)

func TestNext(t *testing.T) {
	t.Parallel()
	for _, s := range append(kvstate.States(), kvstate.None) {
		r := &kvstate.Record{State: s}
		if advice(r, false) == advice(&kvstate.Record{State: "unheard of"}, false) {
			t.Errorf("no advice for %q", s)
		}
		want := "[]"
		switch s {
		case kvstate.Parked:
			want = "[requeue resolve discard]"
		case kvstate.None, kvstate.Claimed, kvstate.Waiting, kvstate.Requeued:
			want = "[cancel]"
		}
		if got := fmt.Sprint(Next(r, false)); got != want {
			t.Errorf("%q: got %s, want %s", s, got, want)
		}
		// An announced effect whose outcome is not known is nobody's to cancel.
		r.Intent = []byte("pay")
		if s == kvstate.Claimed || s == kvstate.Waiting {
			want = "[]"
		}
		if got := fmt.Sprint(Next(r, false)); s != kvstate.None && got != want {
			t.Errorf("%q with an intent: got %s, want %s", s, got, want)
		}
	}
	if got := fmt.Sprint(Next(nil, false)); got != "[cancel]" {
		t.Errorf("without a record: got %s, want [cancel]", got)
	}
	if got := fmt.Sprint(Next(&kvstate.Record{State: kvstate.Parked}, true)); got != "[discard]" {
		t.Errorf("parked aside: got %s, want [discard]", got)
	}
	// What is told and what may be done are the same, but for an effect under way: of
	// that the advice looks ahead.
	for _, s := range kvstate.States() {
		if s == kvstate.Prepared {
			continue
		}
		for _, aside := range []bool{false, true} {
			r := &kvstate.Record{State: s, Reason: kvstate.ReasonConflict}
			told := advice(r, aside)
			for _, act := range []string{"requeue", "resolve", "discard", "cancel"} {
				if got, want := strings.Contains(told, act), slices.Contains(Next(r, aside), act); got != want {
					t.Errorf("%q, aside %v: the advice is %q and %s may be done: %v", s, aside, told, act, want)
				}
			}
		}
	}
}
