package prune

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestRecover(t *testing.T) {
	thousand := numbered(1000)
	for _, test := range []struct {
		name, text string
		ranges     []Range
		numbers    bool
		want       string
	}{
		{"P41 all lines", thousand, []Range{{1, 1000}}, false, strings.TrimSuffix(thousand, "\n")},
		{"P42 lines with their numbers", thousand, []Range{{120, 121}}, true, "120│ ligne 120\n121│ ligne 121"},
		{"P42 lines without their numbers", thousand, []Range{{120, 121}}, false, "ligne 120\nligne 121"},
		{"P42 lines with different line ends, joined with line feeds", "a\r\nb\rc\nd", []Range{{1, 4}}, false, "a\nb\nc\nd"},
		{"P43 ranges in the requested order", "a\nb\nc\nd\ne\nf", []Range{{5, 6}, {1, 2}, {5, 5}}, false, "e\nf\na\nb\ne"},
		{"P43 ranges that overlap", "a\nb\nc\nd", []Range{{1, 3}, {2, 4}}, true, "1│ a\n2│ b\n3│ c\n2│ b\n3│ c\n4│ d"},
		{"P43 a range twice", "a\nb", []Range{{2, 2}, {2, 2}}, false, "b\nb"},
		{"P44 an end after the last line", "a\nb\nc\n", []Range{{2, 99999}}, false, "b\nc"},
		{"P44 the largest end", "a\nb", []Range{{2, math.MaxInt}}, true, "2│ b"},
		{"an empty line first", "\n\nc", []Range{{1, 3}}, false, "\n\nc"},
		{"an empty line alone", "a\n\n", []Range{{2, 2}}, true, "2│ "},
		{"an empty line and another", "a\n\n", []Range{{2, 2}, {1, 1}}, false, "\na"},
		{"P34 P53 unchanged bytes", " \xff\u2028é\t\nb", []Range{{1, 1}}, false, " \xff\u2028é\t"},
		{"P39 a marker in the text", "⟦PRUNÉ: prune_id=x lignes 1-2 (2) raison=y⟧\nb", []Range{{1, 1}}, false,
			"⟦PRUNÉ: prune_id=x lignes 1-2 (2) raison=y⟧"},
		{"no ranges", "a\nb", nil, true, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Recover(test.text, test.ranges, test.numbers); err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestRecoverRefusesInvalidRanges(t *testing.T) { // P46
	for _, test := range []struct {
		name, text string
		ranges     []Range
	}{
		{"begins before the first line", "a\nb", []Range{{0, 1}}},
		{"begins far before the first line", "a\nb", []Range{{math.MinInt, 1}}},
		{"begins after the last line", "a\nb", []Range{{3, 3}}},
		{"begins after a final line end", "a\nb\n", []Range{{3, 3}}},
		{"begins far after the last line", "a\nb", []Range{{math.MaxInt, math.MaxInt}}},
		{"ends before it begins", "a\nb", []Range{{2, 1}}},
		{"ends before the first line", "a\nb", []Range{{1, 0}}},
		{"in a text without lines", "", []Range{{1, 1}}},
		{"after a valid range", "a\nb", []Range{{1, 2}, {2, 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := Recover(test.text, test.ranges, false); !errors.Is(err, ErrRange) || got != "" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
