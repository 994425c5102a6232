package tallyman

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tallyman-go/tallyman/command"
	"github.com/tallyman-go/tallyman/dedupe"
	"github.com/tallyman-go/tallyman/internal/memory"
	"github.com/tallyman-go/tallyman/kvstate"
)

// check holds an ordeal that has ended to the invariants, from what the server
// logged and what the handlers did, and returns what is wrong.
func (o *ordeal) check() (faults []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := &checker{o: o, log: o.server.Log(), lives: map[command.Token]*life{}, stored: map[command.Token][]int{}, acked: map[uint64]int{}}
	for _, text := range o.server.Broken() {
		c.fault("%s", text)
	}
	for i, e := range c.log {
		switch e.What {
		case memory.Stored:
			c.stored[e.Token] = append(c.stored[e.Token], i)
		case memory.Acked, memory.Removed:
			c.acked[e.Seq] = i
		case memory.Written:
			c.written(i, e)
		}
	}
	c.books()
	c.followUps()
	c.acts()
	return c.faults
}

// life is what the log has shown of one record so far.
type life struct {
	last     *kvstate.Record
	receipt  int // where in the log the receipt is; -1 for none
	digest   command.Digest
	claims   map[uint64]*kvstate.Record // by token, as first written
	handed   int                        // attempts that were taken back
	requeued int
	revision map[uint64]*kvstate.Record
}

type checker struct {
	o      *ordeal
	log    []memory.Event
	lives  map[command.Token]*life
	stored map[command.Token][]int // where in the log
	acked  map[uint64]int
	faults []string
}

func (c *checker) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// written looks at one accepted write in the light of those before it.
func (c *checker) written(i int, e memory.Event) {
	key, r := e.Entry.Key, e.Entry.Record
	if strings.HasPrefix(string(key), "_") {
		return
	}
	l := c.lives[key]
	if l == nil {
		l = &life{receipt: -1, claims: map[uint64]*kvstate.Record{}, revision: map[uint64]*kvstate.Record{}, last: &kvstate.Record{}}
		c.lives[key] = l
	}
	if r == nil {
		c.fault("%s@%d is no record: %v", key, e.Entry.Revision, e.Entry.Err)
		return
	}
	at := fmt.Sprintf("%s@%d (%s by %s)", key, r.Revision, r.State, r.Owner)
	p := l.last
	if l.receipt >= 0 {
		c.fault("I1: %s follows the receipt", at)
	}
	if r.State == kvstate.Completed {
		l.receipt = i
	}
	if err := kvstate.Check(p.State, r.State); err != nil {
		c.fault("%s: %v", at, err)
	}
	if l.digest == "" {
		l.digest = r.Digest
	}
	if r.Digest != l.digest {
		c.fault("I6: %s stands for another command than before", at)
	}
	if r.Offset < p.Offset {
		c.fault("I5: %s is at offset %d after %d", at, r.Offset, p.Offset)
	}
	if r.State == kvstate.Requeued {
		l.requeued++
	}
	if !strings.HasPrefix(r.Owner, e.By+"-") && r.Owner != e.By {
		c.fault("%s was sent by %s", at, e.By)
	}
	newClaim := (r.State == kvstate.Claimed || r.State == kvstate.Prepared) && r.Token != p.Token
	if newClaim {
		c.claim(at, l, r, e)
	} else if r.Token != p.Token {
		c.fault("I4: %s has token %d after %d, and is no claim", at, r.Token, p.Token)
	}
	if r.Attempt > c.limit(r) {
		c.fault("I8: %s is attempt %d of %d", at, r.Attempt, c.limit(r))
	}
	c.author(at, p, r, newClaim)
	if r.State == kvstate.Waiting {
		c.spacing(at, l, r)
	}
	l.last = r
	l.revision[r.Revision] = r
}

// claim looks at a takeover, or at the first claim of all.
func (c *checker) claim(at string, l *life, r *kvstate.Record, e memory.Event) {
	p := l.last
	if r.Token != r.Revision || r.Token <= p.Token {
		c.fault("I4: %s has token %d after %d", at, r.Token, p.Token)
	}
	first := len(p.Trail) == 0
	if !first && (r.Offset != p.Offset || string(r.Checkpoint) != string(p.Checkpoint)) {
		c.fault("I5: %s takes over at offset %d %q, what was saved last is %d %q", at, r.Offset, r.Checkpoint, p.Offset, p.Checkpoint)
	}
	if p.Open() && (r.State != kvstate.Prepared || string(r.Intent) != string(p.Intent)) {
		c.fault("I9: %s takes over with intent %q, what was announced is %q", at, r.Intent, p.Intent)
	}
	if !first && r.Attempt != p.Attempt+1 {
		c.fault("I8: %s is attempt %d after %d", at, r.Attempt, p.Attempt)
	}
	if early := p.NextAt.Sub(e.At); p.State == kvstate.Waiting && early > 100*time.Millisecond {
		c.fault("I8: %s begins %v before the next attempt was due", at, early)
	}
	l.claims[r.Token] = r
}

var actLabel = regexp.MustCompile(`<act (\d+)>`)

// author finds the act that a record tells of, and asks whether it had the
// right to write it: its claim must be the one that it wrote over.
func (c *checker) author(at string, p, r *kvstate.Record, newClaim bool) {
	var text string
	switch {
	case strings.HasPrefix(r.Owner, "desk"): // the table is all that binds it
		return
	case r.State == kvstate.Completed:
		if text = string(r.Result); text == "" {
			c.fault("%s has no result", at)
		}
	case (r.State == kvstate.Waiting || r.State == kvstate.Parked) && r.Error != p.Error:
		if text = r.Error; p.Error != "" {
			text = strings.ReplaceAll(text, p.Error, "") // quoted
		}
	case string(r.Intent) != string(p.Intent) && len(r.Intent) > 0:
		text = string(r.Intent)
	case string(r.Checkpoint) != string(p.Checkpoint):
		text = string(r.Checkpoint)
	}
	found := actLabel.FindStringSubmatch(text)
	if found == nil {
		if r.Owner != p.Owner && len(p.Trail) > 0 && !newClaim && r.State != kvstate.Parked {
			c.fault("I4: %s writes over what %s owns", at, p.Owner)
		}
		return
	}
	n, _ := strconv.Atoi(found[1]) // digits
	a := c.o.acts[n]
	token, err := dedupe.Token(a.id)
	switch {
	case err != nil || string(token) != tokenOf(at):
		c.fault("%s tells of %s, which worked on %s", at, a.label(), a.id)
	case !strings.HasPrefix(r.Owner, a.by.name+"-"):
		c.fault("I4: %s tells of %s, which ran at %s", at, a.label(), a.by.name)
	case r.Attempt != a.attempt:
		c.fault("I4: %s is attempt %d, but %s is attempt %d", at, r.Attempt, a.label(), a.attempt)
	case a.token == 0 && len(p.Trail) == 0:
		a.token = r.Token // its first write is its claim, if it is one
	case a.token != p.Token:
		c.fault("I4: %s is written over token %d by %s, which has %d", at, p.Token, a.label(), a.token)
	}
}

// tokenOf returns the key with which a place begins.
func tokenOf(at string) string { key, _, _ := strings.Cut(at, "@"); return key }

// spacing holds a failed attempt to the backoff.
func (c *checker) spacing(at string, l *life, r *kvstate.Record) {
	step := r.Trail[len(r.Trail)-1]
	if step.Note == "handed back at shutdown" {
		l.handed++
		return
	}
	s := c.o.settings
	delay := r.NextAt.Sub(step.At)
	want := min(s.BackoffMin<<(r.Attempt-1), s.BackoffMax)
	if found := actLabel.FindStringSubmatch(r.Error); found != nil {
		n, _ := strconv.Atoi(found[1]) // digits
		if fixed := c.o.acts[n].delay; fixed > 0 {
			if delay != fixed {
				c.fault("I8: %s waits %v, want %v as the handler said", at, delay, fixed)
			}
			return
		}
	}
	if delay < want*4/5 || delay > want {
		c.fault("I8: %s waits %v, want %v less at most a fifth", at, delay, want)
	}
}

func (c *checker) limit(r *kvstate.Record) int {
	if r.Kind == "brief" {
		return 2
	}
	return c.o.settings.MaxAttempts
}

// books accounts for every sequence from what is stored in the end.
func (c *checker) books() {
	by := map[uint64][]command.Token{}
	for key, e := range lastOf(c.log) {
		if seq, ok := kvstate.AbsorbedSeq(key); ok {
			by[seq] = append(by[seq], key)
		}
		if e.Record != nil && e.Record.State.Terminal() {
			for _, seq := range e.Record.Seqs {
				by[seq] = append(by[seq], key)
			}
		}
		if e.Record != nil && !e.Record.State.Terminal() {
			c.fault("I3: %s is left as %s", key, e.Record.State)
		}
	}
	for seq := uint64(1); seq <= c.o.server.LastSeq(); seq++ {
		if len(by[seq]) != 1 {
			c.fault("I3: sequence %d is accounted for by %v, want exactly one entry", seq, by[seq])
		}
		if _, ok := c.acked[seq]; !ok {
			c.fault("I3: sequence %d was never acked", seq)
		}
	}
}

// followUps exist if and only if their parent's receipt does.
func (c *checker) followUps() {
	for key, l := range c.lives {
		if l.receipt < 0 {
			continue
		}
		for _, f := range l.last.FollowUps {
			token, err := dedupe.Token(f.ID)
			if err != nil || len(c.stored[token]) == 0 {
				c.fault("I7: %s has a receipt, its follow-up %s was not born (%v)", key, f.ID, err)
				continue
			}
			for _, seq := range l.last.Seqs {
				if acked, ok := c.acked[seq]; ok && acked > l.receipt && acked < c.stored[token][0] {
					c.fault("I7: %s was acked before its follow-up %s was born", key, f.ID)
				}
			}
		}
	}
	for token, stored := range c.stored {
		parent, _, ok := strings.Cut(string(token), "/")
		if !ok {
			continue
		}
		l := c.lives[command.Token(parent)]
		if l == nil || l.receipt < 0 || l.receipt > stored[0] {
			c.fault("I7: %s was born without the receipt of its parent", token)
		}
	}
}

// acts holds what handlers were told, and how often they ran, to the records.
func (c *checker) acts() {
	runs := map[string]int{}
	for id, labels := range c.o.world.effects {
		token, _ := dedupe.Token(id) // it had a record
		l := c.lives[token]
		if len(labels) > 1+l.requeued { // which is a person's word that it may happen
			c.fault("I9: the effect of %s happened %d times, by %v", id, len(labels), labels)
		}
		if l.requeued == 0 && len(labels) > 0 && l.last.State == kvstate.Parked && l.last.Reason == kvstate.ReasonExhausted {
			c.fault("I9: %s is parked as exhausted, as if nothing had happened, but %v", id, labels)
		}
	}
	for _, a := range c.o.acts {
		if !a.confirms {
			runs[a.id]++
		}
		token, _ := dedupe.Token(a.id) // it had a record, or a subject
		l := c.lives[token]
		if l == nil {
			c.fault("I3: %s worked on %s, which has no record", a.label(), a.id)
			continue
		}
		if begun := l.revision[a.token]; a.token > 0 && a.offset > 0 && (begun == nil || begun.Offset < a.offset) {
			c.fault("I5: %s began at offset %d, which its claim %d does not have", a.label(), a.offset, a.token)
		}
		for _, offset := range a.saved {
			durable := false
			for _, r := range l.revision {
				durable = durable || r.Offset == offset && string(r.Checkpoint) == a.label()
			}
			durable = durable || l.last.Kind == "sparse" // it was told that they gather
			if !durable {
				c.fault("I5: %s was told that offset %d is durable", a.label(), offset)
			}
		}
	}
	for id, n := range runs {
		token, _ := dedupe.Token(id)
		l := c.lives[token]
		if l == nil {
			continue
		}
		// A copy, and an old answer of a replica, may let it run once more in
		// vain: without a claim, so that its outcome is refused.
		spare := len(c.stored[token]) - 1
		if most := c.limit(l.last)*(1+l.requeued) + l.handed + spare; n > most {
			c.fault("I8: %s ran %d times, want at most %d", id, n, most)
		}
	}
}
