package tallyman

import (
	"fmt"
	"strings"
)

// lifeModel is what becomes of one record, without a server, a store or a
// codec: small enough to be read as the rules themselves.
type lifeModel struct {
	state    string // empty: no record
	attempt  int
	offset   int
	open     bool // an effect was announced and its outcome is not known
	due      bool // a waiting one may begin
	revision int  // 0: none; otherwise no number comes twice
	writes   int

	receipts int // since the last expiry
	views    map[string]lifeView
}

// lifeView is what somebody believes to be the record.
type lifeView struct {
	lifeModel
	mine bool // a claim of the viewer's own, or a first attempt that needs none
}

const lifeAttempts = 3

// legal is the table of transitions: from each state, the first letters of
// those that may follow, and u for requeued, x for cancelled.
var legal = map[string]string{
	"":          "cpwCPx", // claimed, prepared, waiting, Completed, Parked, cancelled
	"claimed":   "cpwCPx",
	"prepared":  "cpwCPx",
	"waiting":   "cpwPx",
	"requeued":  "cuwPx",
	"parked":    "uCd",
	"completed": "", "cancelled": "", "discarded": "",
}

var letters = map[string]string{
	"claimed": "c", "prepared": "p", "waiting": "w", "completed": "C", "parked": "P", "requeued": "u", "cancelled": "x", "discarded": "d",
}

func over(state string) bool {
	return state == "completed" || state == "cancelled" || state == "discarded"
}

// write lets who write next over what it has seen. It reports what became of it.
func (m *lifeModel) write(who string, to string, change func(*lifeModel)) string {
	v := m.views[who]
	if !strings.Contains(legal[v.state], letters[to]) {
		return "illegal"
	}
	if v.revision != m.revision {
		return "stale"
	}
	next := v.lifeModel
	next.state = to
	if change != nil {
		change(&next)
	}
	m.writes++
	m.state, m.attempt, m.offset, m.open, m.due, m.revision = next.state, next.attempt, next.offset, next.open, next.due, m.writes
	if to == "completed" {
		m.receipts++
	}
	m.see(who, true)
	return "stored"
}

func (m *lifeModel) see(who string, mine bool) {
	seen := *m
	seen.views = nil
	m.views[who] = lifeView{seen, mine}
}

// do is one step. Its answer says all that whoever took the step can see.
func (m *lifeModel) do(s lifeStep) string {
	v, has := m.views[s.who]
	switch s.what {
	case "deliver":
		m.see(s.who, false)
		return m.deliver(s.who)
	case "look":
		m.see(s.who, false)
		return "seen"
	case "crash":
		delete(m.views, s.who)
		return "gone"
	case "expire":
		if !over(m.state) {
			return "kept"
		}
		writes, views := m.writes, m.views
		*m = lifeModel{writes: writes, views: views}
		return "gone"
	}
	if !has || s.worker() && !v.mine {
		return "nothing to do"
	}
	switch s.what {
	case "progress":
		return m.write(s.who, "claimed", func(n *lifeModel) { n.offset, n.open = n.offset+s.n, false })
	case "prepare":
		return m.write(s.who, "prepared", func(n *lifeModel) { n.open = true })
	case "complete", "resolve":
		return m.write(s.who, "completed", func(n *lifeModel) { n.open = false })
	case "fail":
		switch {
		case v.attempt >= lifeAttempts && v.open:
			return "uncertain " + m.write(s.who, "parked", nil)
		case v.attempt >= lifeAttempts:
			return "exhausted " + m.write(s.who, "parked", nil)
		}
		return m.write(s.who, "waiting", func(n *lifeModel) { n.due = s.n == 0 })
	case "park":
		return m.write(s.who, "parked", nil)
	case "requeue":
		return m.write(s.who, "requeued", func(n *lifeModel) { n.attempt, n.open = 0, false })
	case "cancel":
		return m.write(s.who, "cancelled", nil)
	case "discard":
		return m.write(s.who, "discarded", nil)
	}
	panic(s.what)
}

// deliver is a command's arrival at a worker.
func (m *lifeModel) deliver(who string) string {
	takeOver := func(to string) string {
		switch {
		case m.attempt >= lifeAttempts && m.open:
			return "uncertain " + m.write(who, "parked", nil)
		case m.attempt >= lifeAttempts:
			return "exhausted " + m.write(who, "parked", nil)
		}
		return m.write(who, to, func(n *lifeModel) { n.attempt++ })
	}
	switch {
	case m.state == "":
		v := m.views[who]
		v.attempt, v.mine = 1, true
		m.views[who] = v
		return "runs without a claim"
	case over(m.state), m.state == "parked":
		return "acked"
	case m.state == "waiting" && !m.due:
		return "early"
	case m.open:
		return "asks what became of it: " + takeOver("prepared")
	}
	return "runs: " + takeOver("claimed")
}

// lifeStep is something that somebody does.
type lifeStep struct {
	who, what string
	n         int  // how far, how late
	brief     bool // what it makes final expires at once
}

// worker reports whether only the holder of a claim can do it.
func (s lifeStep) worker() bool {
	switch s.what {
	case "progress", "prepare", "complete", "fail", "park":
		return true
	}
	return false
}

func (s lifeStep) String() string {
	return fmt.Sprintf("%s %s %d brief=%v", s.who, s.what, s.n, s.brief)
}

func (m *lifeModel) String() string {
	return fmt.Sprintf("%q attempt %d offset %d open %v, receipts %d", m.state, m.attempt, m.offset, m.open, m.receipts)
}
