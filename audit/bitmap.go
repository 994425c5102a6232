package audit

import "math/bits"

// bitmap is a set of sequences above base, up to last.
type bitmap struct {
	base, last uint64
	words      []uint64
}

func newBitmap(base, last uint64) bitmap {
	return bitmap{base: base, last: last, words: make([]uint64, (last-base+63)/64)}
}

// covers reports whether seq lies in the range of the set.
func (b *bitmap) covers(seq uint64) bool { return seq > b.base && seq <= b.last }

func (b *bitmap) has(seq uint64) bool {
	i := seq - b.base - 1
	return b.covers(seq) && b.words[i/64]&(1<<(i%64)) != 0
}

// add puts seq into the set, if it is in range, and reports whether it was there.
func (b *bitmap) add(seq uint64) (was bool) {
	if !b.covers(seq) {
		return false
	}
	i := seq - b.base - 1
	w, bit := &b.words[i/64], uint64(1)<<(i%64)
	was = *w&bit != 0
	*w |= bit
	return was
}

// without counts the members that other, a set of the same range, lacks.
func (b *bitmap) without(other *bitmap) (n uint64) {
	for i, w := range b.words {
		n += uint64(bits.OnesCount64(w &^ other.words[i]))
	}
	return n
}

// count counts the members.
func (b *bitmap) count() (n uint64) {
	for _, w := range b.words {
		n += uint64(bits.OnesCount64(w))
	}
	return n
}
