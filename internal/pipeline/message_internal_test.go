package pipeline

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"strings"
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

// A header that is taken away before it is set again, in another order than the
// last use had, is sent.
func TestMessage_UnsetBeforeSet(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		use  func(*Message)
		want map[string]string
	}{
		{"the second, then both", func(m *Message) { m.Unset("B"); m.Set("A", "1"); m.Set("B", "2") }, map[string]string{"A": "1", "B": "2"}},
		{"the second in between", func(m *Message) { m.Set("A", "1"); m.Unset("B"); m.Set("B", "2") }, map[string]string{"A": "1", "B": "2"}},
		{"the first, then both", func(m *Message) { m.Unset("A"); m.Set("A", "1"); m.Set("B", "2") }, map[string]string{"A": "1", "B": "2"}},
		{"the first at the end", func(m *Message) { m.Set("A", "1"); m.Set("B", "2"); m.Unset("A") }, map[string]string{"B": "2"}},
		{"both again after that", func(m *Message) { m.Set("A", "1"); m.Set("B", "2") }, map[string]string{"A": "1", "B": "2"}},
		{"the first and again", func(m *Message) { m.Set("A", "1"); m.Unset("A"); m.Set("A", "2"); m.Set("B", "3") }, map[string]string{"A": "2", "B": "3"}},
		{"both after a use that had one of a batch in place of one", func(m *Message) {
			m.Set("A", "0")
			m.Set("B", "0")
			m.Unset("A")
			m.msg.Header["Batch"] = []string{"by a group"}
			m.recycle()
			m.Set("A", "1")
			m.Set("B", "2")
		}, map[string]string{"A": "1", "B": "2"}},
	} {
		m := NewMessage("a", nil)
		for range 3 {
			m.Set("A", "old")
			m.Set("B", "old")
			m.recycle()
			c.use(m)
			m.forget() // as Deliver does
			got := map[string]string{}
			for name, values := range m.msg.Header {
				got[name] = values[0]
			}
			if !maps.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, got, c.want)
			}
			m.recycle()
		}
	}
}

func TestMessage_Room(t *testing.T) {
	t.Parallel()
	t.Run("is of length 0, and kept up to a limit", func(t *testing.T) {
		t.Parallel()
		m := NewMessage("a", nil)
		for _, n := range []int{1, maxRoom, maxRoom + 1, 1 << 20, 10} {
			m.Fill(append(make([]byte, 0, n), "body"...)[:min(n, 4)])
			if got, want := m.Size(), min(n, 4); got != want {
				t.Errorf("with room for %d: %d bytes, want %d", n, got, want)
			}
			m.recycle()
			if got := m.Room(); len(got) != 0 || cap(got) > maxRoom {
				t.Errorf("after one of %d bytes there is room for %d, with %d in it", n, cap(got), len(got))
			}
			if m.Size() != 0 {
				t.Errorf("after one of %d bytes it begins with %d", n, m.Size())
			}
		}
	})
	t.Run("shows nothing of a longer body", func(t *testing.T) {
		t.Parallel()
		m := NewMessage("a", nil)
		for _, body := range []string{"a long body", "short", "", "longer than it was", "x"} {
			m.Fill(append(m.Room(), body...))
			if got := string(m.msg.Data); got != body {
				t.Errorf("got %q, want %q", got, body)
			}
			m.recycle()
		}
	})
	t.Run("is that of one message alone", func(t *testing.T) {
		t.Parallel()
		const n = 8
		var live [n]*Message
		for use := range 50 {
			for i := range live {
				body := bytes.Repeat([]byte{byte('a' + i)}, 1+(use*7+i*13)%100)
				live[i] = NewMessage("a", nil)
				live[i].Fill(append(live[i].Room(), body...))
			}
			for i, m := range live {
				if len(m.msg.Data) != 1+(use*7+i*13)%100 || strings.Trim(string(m.msg.Data), string(rune('a'+i))) != "" {
					t.Fatalf("use %d: message %d holds %q", use, i, m.msg.Data)
				}
				m.Recycle()
			}
		}
	})
}
