package pipeline

import (
	"math/rand/v2"
	"testing"
)

// TestMessage_HasItsOwnHeaders uses one message again and again, with headers
// that differ in kind, order and number, and looks for those of an earlier use.
func TestMessage_HasItsOwnHeaders(t *testing.T) {
	t.Parallel()
	names := make([]string, 2*usualHeaders)
	for i := range names {
		names[i] = string(rune('A' + i))
	}
	shapes := [][]string{
		names[:6], names[:6], names[:3], names[:6], names[3:6], names[:usualHeaders], names, names[:2], nil, names[:6],
		{"A", "C", "B"}, {"A", "B"}, {"B", "A"}, names[1:],
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 { // in any order
		var some []string
		for _, i := range rnd.Perm(len(names))[:rnd.IntN(len(names))] {
			some = append(some, names[i])
		}
		shapes = append(shapes, some, some)
	}
	m := NewMessage("a", nil)
	for use, shape := range shapes {
		m.msg.Subject = "a"
		want := map[string]string{}
		for i, name := range shape {
			want[name] = string(rune('a'+use%26)) + name
			m.Set(name, want[name])
			if use%5 == 4 && i == len(shape)/2 {
				m.Unset(name)
				delete(want, name)
			}
		}
		if got := m.Headers(); got != len(want) {
			t.Fatalf("use %d: %d headers, want %d of %q", use, got, len(want), shape)
		}
		for name, value := range want {
			if got := m.msg.Header.Get(name); got != value {
				t.Fatalf("use %d: header %s is %q, want %q", use, name, got, value)
			}
		}
		if use%3 == 2 {
			m.msg.Header["Batch"] = []string{"by a group"} // which owns it for a while
		}
		m.recycle()
		if len(m.msg.Header) > usualHeaders {
			t.Fatalf("use %d: kept %d headers, more than have a place", use, len(m.msg.Header))
		}
	}
}
