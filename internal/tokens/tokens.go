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
