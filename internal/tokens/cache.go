package tokens

import (
	"math/bits"
	"sync"
	"unicode/utf8"
)

// A pieceCache holds the token counts of pieces. Most pieces repeat, within a text and in
// other texts.
type pieceCache struct {
	// Pieces by their hash. A piece replaces the previous one with the same hash. The key
	// of an empty slot has length 0.
	keys   [1 << hashBits]key
	counts [1 << hashBits]uint8
}

// A key is the bytes of a piece. Its last byte is their number.
type key [3]uint64

const (
	hashBits  = 14
	maxCached = len(key{})*8 - 1
)

var pieceCaches = sync.Pool{New: func() any { return new(pieceCache) }}

// count returns the number of tokens of the piece text[start:end].
func (c *pieceCache) count(text string, start, end int) int {
	length := end - start
	switch {
	case length == 1 && text[start] < utf8.RuneSelf:
		return 1
	case length > maxCached:
		return countPiece(text[start:end])
	}
	k := keyOf(text, start, length)
	h := k.hash()
	if c.keys[h] != k {
		c.keys[h], c.counts[h] = k, uint8(countPiece(text[start:end]))
	}
	return int(c.counts[h])
}

// keyOf returns the key of the piece with this length that begins at start.
func keyOf(text string, start, length int) (k key) {
	if start+8*len(k) > len(text) { // too near the end to read three numbers
		var piece [8 * len(k)]byte
		copy(piece[:], text[start:start+length])
		text, start = string(piece[:]), 0
	}
	for i := 0; 8*i < length; i++ {
		k[i] = load64(text, start+8*i)
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
	return h * fibonacci >> (64 - hashBits)
}
