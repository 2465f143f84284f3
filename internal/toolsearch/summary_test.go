package toolsearch

import (
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	long := strings.Repeat("é", 300)
	for _, test := range []struct {
		name, text, want string
	}{
		{"a blank text", " \n ", ""},
		{"a sentence", "Reads a file. Then more.", "Reads a file."},
		{"a line", "\n  Reads a file\r\nand more", "Reads a file"},
		{"no end of a sentence", "Reads a file", "Reads a file"},
		{"a question", "What? This.", "What?"},
		{"an abbreviation", "Reads files, e.g. logs. Fast.", "Reads files, e.g. logs."},
		{"a version and a file", "Reads v1.2 of a.txt. Fast.", "Reads v1.2 of a.txt."},
		{"an ideographic full stop", "读取文件。更多", "读取文件。"},
		{"200 characters", long[:400], long[:400]},
		{"more characters", long, long[:398] + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := summary(test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
