package mcpconsole

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/aryann/difflib"
)

// A diffLine is a line of a diff.
type diffLine struct {
	Sign string // - for removed, + for added, or a space
	Text string
}

// Class returns the CSS class of the line.
func (l diffLine) Class() string {
	switch l.Sign {
	case "-":
		return "gone"
	case "+":
		return "new"
	}
	return ""
}

// diffRoom bounds the comparisons of one page: the sum over all definitions of the product of their
// line counts, which is their cost in time and memory. A server may have any number of long
// definitions.
const diffRoom = 1_000_000

// diffJSON compares two JSON values line by line. It subtracts the cost from room, and returns nothing
// if room is too small.
func diffJSON(before, after json.RawMessage, room *int) (diff []diffLine) {
	a, b := strings.Split(visible(indented(before)), "\n"), strings.Split(visible(indented(after)), "\n")
	if len(a)*len(b) > *room {
		return nil
	}
	*room -= len(a) * len(b)
	for _, line := range difflib.Diff(a, b) {
		diff = append(diff, diffLine{line.Delta.String(), line.Payload})
	}
	return diff
}

// visible escapes invisible characters and those that change the text direction. Models read them, so
// the user who accepts a definition must see them.
func visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
