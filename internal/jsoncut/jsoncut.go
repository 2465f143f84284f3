// Package jsoncut shortens large JSON to smaller JSON of the same shape.
//
// Long arrays lose items in the middle, long strings lose text in the middle, and a
// marker says how much was left out. Keys stay as long as they fit. If the goal of the
// reader is known, the items and lines that match it are kept instead of the first and
// last ones.
//
// # Guarantees
//
//   - The output is compact JSON within the limit. Numbers, true, false and null that are
//     kept do not change. Each value that is kept has the same type as before.
//   - Texts that differ only in white space and in the escapes of strings give the same
//     output.
//   - Cutting an output again changes nothing, because it fits.
//   - If the keys and shortened values of all objects outside of arrays fit, no such object
//     loses a member. An item of an array that is kept loses members only if its keys and
//     shortened values do not fit into the array.
//   - Media are either kept or left out, never cut.
//   - Time is about linear in the text. Memory is one copy of the text, or two with a goal,
//     and 32 bytes for each object or array of more than 32 bytes.
package jsoncut

import (
	"bytes"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Cutter cuts JSON texts to a limit.
type Cutter struct {
	// MaxChars is how many characters (Unicode code points of the JSON text) the output may
	// have.
	MaxChars int

	// Goal says in a few words what the reader looks for. Items and members that match it
	// are preferred. If it is empty, the first and last ones are.
	Goal string

	// Note is added to each marker after the count, such as " id=obs_ab12".
	Note string

	// Bare omits the markers for items and members, so that the output can still match the
	// schema of the text. Strings still get markers.
	Bare bool
}

// maxText is how many bytes a text may have. Offsets have 32 bits and must suffice even if
// each byte becomes the three bytes of U+FFFD.
const maxText = 1 << 30

// byteOrderMark may precede a text. It is left out.
var byteOrderMark = []byte("\ufeff")

// Cut returns text cut to MaxChars. A text that fits is only made compact. Cut reports
// false if text is not a single JSON object or array, or if it cannot be cut to the limit.
func (c Cutter) Cut(text []byte) (short []byte, ok bool) {
	text = bytes.TrimPrefix(text, byteOrderMark)
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

// Some values, such as media, cannot use the room that they get. If an output uses less
// than enoughUsed of the limit, fill tries again with more room.
const (
	enoughUsed = 0.8
	moreRoom   = 4 // times the limit
	maxTries   = 5
)

// fill returns root cut to MaxChars, and tries to use most of them.
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

// IsJSON reports whether text is a single JSON object or array. It rejects most other
// texts by their first and last characters.
func IsJSON(text []byte) bool {
	text = bytes.TrimPrefix(text, byteOrderMark)
	if !looksJSON(text) {
		return false
	}
	s := jsonspan.Scanner{SkipCounting: true}
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
	note      []byte // Note, escaped for a JSON string
	noteChars int

	text  []byte // compact, with canonical escapes
	nodes []node // objects and arrays of text that can be cut, in order of start

	hits       []hit // terms of the goal in text, in order
	hitsSeen   int   // see maxHitsSeen
	splitBytes int   // see maxSplitBytes
}
