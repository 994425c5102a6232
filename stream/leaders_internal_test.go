package stream

import (
	"slices"
	"testing"
)

func TestMoves(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c"}
	led := func(by ...string) (groups []group) {
		for _, leader := range by {
			groups = append(groups, group{leader: leader, members: all})
		}
		return groups
	}
	for _, c := range []struct {
		name   string
		groups []group
		moves  int
		want   []int // how many each of a, b and c leads in the end, in any order
	}{
		{"none", nil, 0, []int{0, 0, 0}},
		{"one", led("a"), 0, []int{0, 0, 1}},
		{"even", led("a", "b", "c", "a"), 0, []int{1, 1, 2}},
		{"all on one", led("a", "a", "a"), 2, []int{1, 1, 1}},
		{"two on one", led("a", "a"), 1, []int{0, 1, 1}},
		{"many on one", led("b", "b", "b", "b", "b", "b", "b", "b"), 5, []int{2, 3, 3}},
		{"only one may lead", []group{{leader: "a", members: []string{"a"}}, {leader: "a", members: []string{"a"}}}, 0, []int{0, 0, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			leads := map[string]int{"a": 0, "b": 0, "c": 0}
			for _, g := range c.groups {
				leads[g.leader]++
			}
			got := moves(c.groups)
			for _, m := range got {
				leads[c.groups[m.of].leader]--
				leads[m.to]++
			}
			counts := []int{leads["a"], leads["b"], leads["c"]}
			slices.Sort(counts)
			if len(got) != c.moves || !slices.Equal(counts, c.want) {
				t.Errorf("got %d moves to %v, want %d to %v", len(got), counts, c.moves, c.want)
			}
		})
	}
}
