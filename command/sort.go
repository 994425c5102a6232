package command

import (
	"bytes"
	"slices"
)

// entry is one key with its value, as encoded.
type entry struct{ key, whole []byte }

// sortMaps puts the entries of every map in the value that data starts with
// into the order of their keys, in place, and returns what follows the value.
// The encoder sorts three types of maps only; every other would come out in
// Go's random order, and equal commands would look like conflicting ones.
// The caller has checked the shape of data.
func sortMaps(data []byte) []byte {
	h, body, err := readHead(data)
	if err != nil {
		return nil
	}
	rest := body[h.size:]
	if !h.isMap {
		for range h.elements {
			rest = sortMaps(rest)
		}
		return rest
	}
	var few [16]entry
	entries, sorted := few[:0], true
	for range h.elements / 2 {
		value := sortMaps(rest)
		after := sortMaps(value)
		e := entry{key: rest[:len(rest)-len(value)], whole: rest[:len(rest)-len(after)]}
		if n := len(entries); n > 0 && compareKeys(entries[n-1], e) > 0 {
			sorted = false
		}
		entries = append(entries, e)
		rest = after
	}
	if sorted {
		return rest
	}
	slices.SortStableFunc(entries, compareKeys)
	body = body[:len(body)-len(rest)]
	ordered := make([]byte, 0, len(body))
	for _, e := range entries {
		ordered = append(ordered, e.whole...)
	}
	copy(body, ordered)
	return rest
}

// compareKeys orders strings by their text, as other languages sort them, and
// behind every other key; those go by their encoded bytes.
func compareKeys(a, b entry) int {
	textA, isA := text(a.key)
	textB, isB := text(b.key)
	switch {
	case isA && isB:
		if c := bytes.Compare(textA, textB); c != 0 {
			return c
		}
	case isA:
		return 1
	case isB:
		return -1
	}
	return bytes.Compare(a.key, b.key)
}

func text(key []byte) ([]byte, bool) {
	h, data, _ := readHead(key)
	return data, h.isString
}
