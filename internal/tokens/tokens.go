// Package tokens counts the tokens of texts, as language models count them.
//
// The tokens are exactly those of o200k_base, the encoding of OpenAI's models since
// GPT-4o. Other models use other encodings. Names of special tokens, such as
// <|endoftext|>, count as plain text. Each byte that is not UTF-8 counts as U+FFFD, as
// encoding/json decodes it.
//
// A scanner splits a text into pieces, instead of the regular expression of the encoding.
// The bytes of each piece are then merged to tokens. The vocabulary is a table of all
// merges, o200k_base.merges, which internal/lab/vocabulary writes. It is made from the
// vocabulary of tiktoken, Copyright (c) 2022 OpenAI, Shantanu Jain, under the MIT License:
// see the file LICENSE.tiktoken.
package tokens

import (
	_ "embed"
	"iter"
	"math/bits"
	"sync"
	"unicode/utf8"
)

//go:embed o200k_base.merges
var table string

// Count returns the number of tokens of a text.
func Count(text string) (tokens int) {
	c := pieceCaches.Get().(*pieceCache)
	defer pieceCaches.Put(c)
	for i := 0; i < len(text); {
		end := pieceEnd(text, i)
		tokens += c.count(text, i, end)
		i = end
	}
	return tokens
}

// Pieces yields the offset in bytes and the number of tokens of each piece of a text, in
// order. The pieces cover the whole text and share no tokens, so their tokens add up to
// Count. A piece is a word, a number, symbols or white space, and may contain newlines.
func Pieces(text string) iter.Seq2[int, int] {
	return func(yield func(offset, tokens int) bool) {
		c := pieceCaches.Get().(*pieceCache)
		defer pieceCaches.Put(c)
		for i := 0; i < len(text); {
			end := pieceEnd(text, i)
			if !yield(i, c.count(text, i, end)) {
				return
			}
			i = end
		}
	}
}

// countPiece returns the number of tokens of a piece.
func countPiece(piece string) int {
	if !utf8.ValidString(piece) {
		piece = string([]rune(piece)) // U+FFFD for each byte
	}
	return mergePiece(piece)
}

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
