package mcpconsole

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/aryann/difflib"
)

// A diffLine is a line of two texts, of one of them or of both.
type diffLine struct {
	Sign string // - for one of the text before, + for one of the text after, or a space
	Text string
}

// Class is how the line looks.
func (l diffLine) Class() string {
	switch l.Sign {
	case "-":
		return "gone"
	case "+":
		return "new"
	}
	return ""
}

// diffRoom is how much is compared for one page, as the sum of the products of the numbers of lines: that is what it
// costs in time and in room. A server may have any number of definitions that are long.
const diffRoom = 1_000_000

// diffJSON compares two JSON values line by line. It takes what that costs from the room; if that is not enough, it
// returns nothing.
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

// visible returns JSON with escapes in the place of characters that cannot be seen, or that change the direction of
// others: models read them, and who accepts a definition is to see what they read.
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
