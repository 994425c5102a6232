package main

import "fmt"

// pair is one thing that is measured with the bound and Tallyman, the two that
// know everything that this program measures.
type pair struct {
	Raw  []sample `json:"raw"` // one for each round
	Ours []sample `json:"tallyman"`

	title   string
	alone   bool // the bound knows nothing of it
	measure func(c onJetStream, s sample) (report, error)
}

// measurePairs measures n of them in every round, with the two right after each
// other, each of them first in every other round.
func (c *conditions) measurePairs(l load, with layout, n int, of func(i int) *pair, progress func(string)) error {
	both := []onJetStream{{natsContestant: raw{}, layout: with}, {natsContestant: ours{}, layout: with}}
	for round := range l.Rounds {
		for i := range n {
			p := of(i)
			for turn := range both {
				who, s := both[(turn+round)%len(both)], sample{}
				to := &p.Ours
				if who.Name() == boundName {
					to = &p.Raw
				}
				if p.alone && to == &p.Raw {
					continue
				}
				progress(fmt.Sprintf("round %d of %d: %s: %s", round+1, l.Rounds, p.title, who.Name()))
				server, err := p.measure(who, s)
				if err != nil {
					return fmt.Errorf("%s: %s: %w", p.title, who.Name(), err)
				}
				c.ran(who, server)
				*to = append(*to, s)
			}
		}
	}
	c.done()
	return nil
}
