package sse

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// pythonLines splits lines like Python's str.splitlines.
func pythonLines(s string) []string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.FieldsFunc(s, func(r rune) bool {
		return strings.ContainsRune("\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029",
			r)
	})
}

// Readers that end lines at other characters see the same lines and messages.
func TestBreaks(t *testing.T) {
	for _, stream := range []string{
		"x\u2028event: endpoint\u2028data: /mcp/other\n\n", ": a\vb\fc\x1cd\x1de\x1ef\u0085g\u2028h\u2029i\n",
		"id: \u00e9\u2026\u2019\u20ac\n\ndata: {}\n\n",
		"data: {\"a\":\"\u2028\u2028data: {}\\\\\u0085\\\\\\n\"}\n\n", "data: \xe2\x80\n\n",
		"data: \xc2\xe2\x80\xe2\xa8\n\n", "\u2028",
	} {
		for size := 1; size <= len(stream); size++ {
			var b Breaks
			var out []byte
			for piece := range slices.Chunk([]byte(stream), size) {
				out = append(out, b.Escape(piece)...)
			}
			got := string(out)
			standard := strings.FieldsFunc(got, func(r rune) bool { return r == '\n' || r == '\r' })
			if !slices.Equal(pythonLines(got), standard) {
				t.Errorf("in pieces of %d %q became %q", size, stream, got)
			}
			if text, ok := strings.CutPrefix(stream, "data: {"); ok && strings.Contains(text, "\u2028") {
				var was, is any
				if json.Unmarshal([]byte("{"+text), &was) != nil || json.Unmarshal([]byte(strings.TrimPrefix(got, "data: ")),
					&is) != nil || was.(map[string]any)["a"] != is.(map[string]any)["a"] {
					t.Errorf("in pieces of %d %q became %q", size, stream, got)
				}
			}
			if !slices.ContainsFunc(breaks, func(c string) bool { return strings.Contains(stream, c) }) && got != stream {
				t.Errorf("in pieces of %d %q became %q", size, stream, got)
			}
		}
	}
}

// An ordinary stream allocates no memory.
func TestBreaksAllocate(t *testing.T) {
	ordinary := []byte("event: message\ndata: {\"text\":\"caf\u00e9 \u2026\"}\n\n")
	var b Breaks
	if n := testing.AllocsPerRun(100, func() { b.Escape(ordinary) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
