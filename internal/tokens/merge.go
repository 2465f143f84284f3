package tokens

import (
	"math/bits"
	"slices"
	"sync"
)

// merge returns how many tokens a piece is: it begins as its bytes, and of all adjacent
// tokens that can be merged, those are merged first that make the lowest token.
func merge(piece string) int {
	switch {
	case len(piece) == 1:
		return 1
	case len(piece) <= short:
		return mergeShort(piece)
	}
	return mergeLong(piece)
}

// short is the length up to which it is fastest to look at all tokens for each merge.
const short = 32

func mergeShort(piece string) int {
	var tokens, merged [short]uint32 // merged[i] is what tokens i and i+1 would be
	n := len(piece)
	last := uint32(piece[0])
	tokens[0] = last
	for i := 1; i < n; i++ {
		b := uint32(piece[i])
		tokens[i] = b
		merged[i-1] = find(last, b)
		last = b
	}
	merged[n-1] = none
	for {
		lowest, at := uint32(none), 0
		for i, m := range merged[:n-1] {
			if m < lowest {
				lowest, at = m, i
			}
		}
		if lowest == none {
			return n
		}
		n--
		if n == 1 {
			return 1
		}
		tokens[at] = lowest
		copy(tokens[at+1:n], tokens[at+2:])
		copy(merged[at+1:n], merged[at+2:])
		if at > 0 {
			merged[at-1] = find(tokens[at-1], lowest)
		}
		if at < n-1 {
			merged[at] = find(lowest, tokens[at+1])
		} else {
			merged[at] = none
		}
	}
}

// window is how much of a long piece is merged at once. The longest token has 128 bytes.
const window = 512

// mergeLong merges a piece by windows, so that its time is in proportion to the length and
// its memory does not depend on it.
func mergeLong(piece string) int { return mergeByWindows(piece, window) }

// mergeByWindows merges a piece by windows of a size, the last quarter of each again with
// the next one. No token may be longer than the other three.
//
// Tokens are what their text is merged to if each two neighbours are what theirs is. So
// two windows can be joined at a token that both have: the first one of the next window.
// If it is another one there, because the window before cuts off what it is merged with,
// all is done again with larger windows.
func mergeByWindows(piece string, size int) int {
	m := mergers.Get().(*merger)
	defer m.release()

	start, count, joint := 0, 0, 0 // joint is the length of the token that both have
	for start+size < len(piece) {
		m.merge(piece[start : start+size])
		if joint > 0 && m.length(0) != joint {
			return mergeByWindows(piece, 2*size)
		}
		i := 0
		for i+m.length(i) <= size*3/4 {
			i += m.length(i)
			count++
		}
		start += i
		joint = m.length(i)
	}

	m.merge(piece[start:])
	if joint > 0 && m.length(0) != joint {
		return mergeByWindows(piece, 2*size)
	}
	for i := start; i < len(piece); i += m.length(i - start) {
		count++
	}
	return count
}

// A merger merges texts that are not short. Its slices have an element for each byte of
// the text. Only those of bytes with which a token begins are used.
type merger struct {
	tokens []uint32
	begins []int32 // where the token before begins
	ends   []int32 // where the token ends

	// A tree of the lowest: of what each token and the next one could be merged to, with
	// where that is. The children of i are 2i and 2i+1, the second half are the leaves.
	lowest []uint64
}

var mergers = sync.Pool{New: func() any { return new(merger) }}

func (m *merger) release() {
	if cap(m.tokens) <= 2*window {
		mergers.Put(m)
	}
}

// length returns the length of the token that begins at i.
func (m *merger) length(i int) int { return int(m.ends[i]) - i }

func (m *merger) merge(text string) {
	n := len(text)
	leaves := 1 << bits.Len(uint(n-1))
	m.tokens = slices.Grow(m.tokens[:0], n)[:n]
	m.begins = slices.Grow(m.begins[:0], n)[:n]
	m.ends = slices.Grow(m.ends[:0], n)[:n]
	m.lowest = slices.Grow(m.lowest[:0], 2*leaves)[:2*leaves]

	for i := range n {
		m.tokens[i] = uint32(text[i])
		m.begins[i] = int32(i - 1)
		m.ends[i] = int32(i + 1)
	}
	for i := range leaves {
		m.lowest[leaves+i] = m.merged(i)
	}
	for i := leaves - 1; i > 0; i-- {
		m.lowest[i] = min(m.lowest[2*i], m.lowest[2*i+1])
	}

	for m.lowest[1] != nowhere {
		token, i := uint32(m.lowest[1]>>32), int(uint32(m.lowest[1]))
		right := int(m.ends[i])
		end := int(m.ends[right])
		m.tokens[i], m.ends[i] = token, int32(end)
		if end < n {
			m.begins[end] = int32(i)
		}
		m.set(right, nowhere)
		m.set(i, m.merged(i))
		if i > 0 {
			before := int(m.begins[i])
			m.set(before, m.merged(before))
		}
	}
}

// nowhere is in the tree where nothing can be merged.
const nowhere = 1<<64 - 1

// merged returns what the token at i and the next one can be merged to, with i.
func (m *merger) merged(i int) uint64 {
	n := len(m.tokens)
	if i >= n || int(m.ends[i]) == n {
		return nowhere
	}
	token := find(m.tokens[i], m.tokens[m.ends[i]])
	if token == none {
		return nowhere
	}
	return uint64(token)<<32 | uint64(i)
}

// set replaces a leaf of the tree.
func (m *merger) set(leaf int, merged uint64) {
	i := len(m.lowest)/2 + leaf
	m.lowest[i] = merged
	for i >>= 1; i > 0; i >>= 1 {
		m.lowest[i] = min(m.lowest[2*i], m.lowest[2*i+1])
	}
}
