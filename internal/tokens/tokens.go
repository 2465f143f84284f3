// Package tokens counts the tokens that models make of texts.
//
// The tokens are exactly those of o200k_base, the encoding of OpenAI's models since
// GPT-4o. Other models have encodings of their own. Names of special tokens, such as
// <|endoftext|>, are text like any other. Bytes that are not UTF-8 count as U+FFFD each,
// which is what encoding/json makes of them.
//
// A text is split into pieces, by a scanner in place of the regular expression of the
// encoding. The bytes of each piece are then merged to tokens. The vocabulary is a table
// of all merges, o200k_base.merges, which internal/lab/vocabulary writes. It is made from
// the vocabulary of tiktoken, Copyright (c) 2022 OpenAI, Shantanu Jain, which is under the
// MIT License: see the file LICENSE.tiktoken.
package tokens

import (
	_ "embed"
	"iter"
	"unicode/utf8"
)

//go:embed o200k_base.merges
var table string

// Count returns how many tokens a text is.
func Count(text string) (tokens int) {
	m := memories.Get().(*memory)
	defer memories.Put(m)
	for i := 0; i < len(text); {
		end := next(text, i)
		tokens += m.count(text, i, end)
		i = end
	}
	return tokens
}

// Pieces returns where each piece of a text begins, and how many tokens it is. The pieces
// are the whole text, in order. No token is of more than one, so their tokens add up to
// Count. A piece is a word, a number, symbols or white space, and may have newlines in it.
func Pieces(text string) iter.Seq2[int, int] {
	return func(yield func(offset, tokens int) bool) {
		m := memories.Get().(*memory)
		defer memories.Put(m)
		for i := 0; i < len(text); {
			end := next(text, i)
			if !yield(i, m.count(text, i, end)) {
				return
			}
			i = end
		}
	}
}

// countPiece returns how many tokens a piece is.
func countPiece(piece string) int {
	if !utf8.ValidString(piece) {
		piece = string([]rune(piece)) // U+FFFD for each byte
	}
	return merge(piece)
}
