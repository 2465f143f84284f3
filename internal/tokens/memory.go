package tokens

import (
	"math/bits"
	"sync"
	"unicode/utf8"
)

// A memory has pieces that have been counted. Most come more than once, in one text and
// in the next.
type memory struct {
	// Pieces by their hash: each takes the place of the one before. That of no piece has
	// no length.
	known  [1 << remembered]key
	counts [1 << remembered]uint8
}

// A key is the bytes of a piece, and in its last byte how many they are.
type key [3]uint64

const (
	remembered = 14 // bits of a hash
	longest    = len(key{})*8 - 1
)

var memories = sync.Pool{New: func() any { return new(memory) }}

// count returns how many tokens a piece of the text is.
func (m *memory) count(text string, start, end int) int {
	length := end - start
	switch {
	case length == 1 && text[start] < utf8.RuneSelf:
		return 1
	case length > longest:
		return countPiece(text[start:end])
	}
	k := keyOf(text, start, length)
	h := k.hash()
	if m.known[h] != k {
		m.known[h], m.counts[h] = k, uint8(countPiece(text[start:end]))
	}
	return int(m.counts[h])
}

// keyOf returns the key of the piece of that length that begins at start.
func keyOf(text string, start, length int) (k key) {
	if start+8*len(k) > len(text) { // cannot be read as three numbers
		var piece [8 * len(k)]byte
		copy(piece[:], text[start:start+length])
		text, start = string(piece[:]), 0
	}
	for i := 0; 8*i < length; i++ {
		k[i] = load(text, start+8*i)
		if rest := length - 8*i; rest < 8 {
			k[i] &= 1<<(8*rest) - 1
		}
	}
	k[len(k)-1] |= uint64(length) << 56
	return k
}

func (k key) hash() uint64 {
	h := k[0] ^ bits.RotateLeft64(k[1], 29) ^ bits.RotateLeft64(k[2], 47)
	h *= fibonacci
	h ^= h >> 32
	return h * fibonacci >> (64 - remembered)
}
