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

// diffBudget bounds the cost of all comparisons on one page, because a server may have any number
// of long definitions. The cost of a comparison, in time and memory, is the product of the line
// counts.
const diffBudget = 1_000_000

// diffJSON compares two JSON values line by line. It subtracts the cost from budget, and returns
// nil if budget is too small.
func diffJSON(before, after json.RawMessage, budget *int) (diff []diffLine) {
	a, b := strings.Split(visible(indented(before)), "\n"), strings.Split(visible(indented(after)), "\n")
	if len(a)*len(b) > *budget {
		return nil
	}
	*budget -= len(a) * len(b)
	for _, line := range difflib.Diff(a, b) {
		diff = append(diff, diffLine{line.Delta.String(), line.Payload})
	}
	return diff
}

// visible escapes invisible characters and those that change the text direction. Models read such
// characters, so a user who accepts a definition must see them.
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
