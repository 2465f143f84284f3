// Package jsoncut shortens JSON that is too large to JSON of the same shape.
//
// Long arrays lose items in the middle, long strings lose text in the middle, and a
// marker says how much was left out. Keys stay as long as they fit. If the reader's
// goal is known, the items and lines that bear on it are kept in place of the first
// and the last ones.
//
// # What is promised
//
//   - The answer is compact JSON within the limit. Numbers, true, false and null are
//     kept to the byte. Each value that is kept has the type it had.
//   - Texts that differ only in white space and in the escapes of strings give the same
//     answer.
//   - Cutting an answer again changes nothing, for it fits.
//   - If keys and shortened values of all objects outside of arrays fit, no such object
//     loses a member. An item of an array that is kept loses members only if its keys and
//     shortened values do not fit into the array.
//   - Media are kept whole or left out as a whole.
//   - Time is about linear in the text. Memory is a copy of the text, two if there is a
//     goal, and 32 bytes for each object or array of more than 32 bytes.
package jsoncut

import (
	"bytes"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Cutter says how values are cut.
type Cutter struct {
	// MaxChars is how many characters the answer may have. They are the Unicode code
	// points of the JSON text.
	MaxChars int

	// Goal says in a few words what the reader looks for. Items and members that bear on
	// it are preferred. If it is empty, the first and the last ones are.
	Goal string

	// Note is put into each marker after the count, such as " id=obs_ab12".
	Note string

	// Bare leaves no markers in the place of items and members, so that the answer can
	// still match the schema of the text. Strings have markers even so.
	Bare bool
}

// maxText is how many bytes a text may have. Offsets in it take 32 bits, also if each
// byte becomes the three bytes of U+FFFD.
const maxText = 1 << 30

// Cut returns text within MaxChars. A text that fits is made compact and nothing else.
// It reports false if text is not a single JSON object or array, or if it cannot be
// brought within the limit.
func (c Cutter) Cut(text []byte) (short []byte, ok bool) {
	if !looksJSON(text) || len(text) > maxText {
		return nil, false
	}
	w := work{Cutter: c, note: jsonspan.AppendBody(nil, c.Note)}
	w.noteChars = utf8.RuneCount(w.note)
	root, ok := w.read(text)
	switch {
	case !ok:
		return nil, false
	case root.chars <= c.MaxChars:
		return w.text, true
	case root.hard > c.MaxChars:
		return nil, false
	}
	w.findGoal()
	short = w.fill(root)
	return short, short != nil
}

// Some values cannot use the room that they are given, such as media. If an answer uses
// less than this share of the limit, others are made with more room.
const (
	enoughUsed = 0.8
	moreRoom   = 4 // times the limit
	maxTries   = 5
)

// fill returns root within MaxChars and tries to use most of them.
func (w *work) fill(root value) (best []byte) {
	most := -1
	limit, high := w.MaxChars, moreRoom*w.MaxChars
	low := limit
	for range maxTries {
		short := w.append(make([]byte, 0, w.MaxChars), root, limit)
		switch used := utf8.RuneCount(short); {
		case used > w.MaxChars:
			high = limit
		case used > most:
			best, most, low = short, used, limit
		default:
			low = limit
		}
		if float64(most) >= enoughUsed*float64(w.MaxChars) {
			break
		}
		limit = (low + high) / 2
	}
	return best
}

// IsJSON reports whether text is a single JSON object or array. Most texts that are not
// are told by their first and last characters.
func IsJSON(text []byte) bool {
	if !looksJSON(text) {
		return false
	}
	s := jsonspan.Scanner{Uncounted: true}
	s.Report(0, len(text))
	s.Feed(text)
	s.Finish()
	for {
		switch s.Next() {
		case jsonspan.Done:
			return true
		case jsonspan.Invalid:
			return false
		}
	}
}

// looksJSON reports whether text begins and ends like an object or array.
func looksJSON(text []byte) bool {
	text = bytes.Trim(text, " \t\r\n")
	if len(text) < 2 {
		return false
	}
	first, last := text[0], text[len(text)-1]
	return first == '{' && last == '}' || first == '[' && last == ']'
}

// work is the state of one call of [Cutter.Cut].
type work struct {
	Cutter
	note      []byte // as it stands in a JSON string
	noteChars int

	text  []byte // compact, with canonical escapes
	nodes []node // the objects and arrays of text that can be cut, by where they begin

	hits    []hit // where text has terms of the goal
	seen    int   // how many were looked at, see maxSeen
	divided int   // see maxDivided
}
