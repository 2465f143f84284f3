package mcp

import (
	"slices"
	"strings"
	"testing"
)

func TestMentions(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                      nil,
		"Read docs://intro first.":              {"docs://intro"},
		"See docs://a, docs://b; docs://c/d?":   {"docs://a", "docs://b", "docs://c/d"},
		"(ui://app/x.html), `file:///a b`":      {"ui://app/x.html", "file:///a"},
		"<docs://a> \"docs://b\" [c](docs://d)": {"docs://a", "docs://b", "docs://d"},
		"é世docs://é/世。 x":                       {"docs://é/世。"},
		"db://x{table}":                         {"db://x"},
		"://none a:// ://":                      nil,
		"a1+.-://x":                             {"a1+.-://x"},
		"mailto:a@b":                            nil,
		"long://" + strings.Repeat("x", 2000):   nil,
	} {
		got := Mentions(text)
		if got != strings.Join(want, "\n") {
			t.Errorf("%.40q: got %q, want %q", text, got, want)
		}
		for _, uri := range want {
			if !IsMentioned(got, uri) || IsMentioned(got, uri[:len(uri)-1]) {
				t.Errorf("%q: %q", uri, got)
			}
		}
		if IsMentioned(got, "") || IsMentioned(got, got+"\n") {
			t.Errorf("%q", got)
		}
	}
	if all := strings.Split(Mentions(strings.Repeat("x://y ", 1000)), "\n"); len(all) != maxMentions {
		t.Errorf("%d", len(all))
	}
}

func FuzzMentions(f *testing.F) {
	f.Add("Read docs://intro, and (x://y).")
	f.Add("é://x \xff://y")
	f.Fuzz(func(t *testing.T, text string) {
		mentions := Mentions(text)
		if len(mentions) > maxMentions*(longestMention+1) {
			t.Fatalf("%d bytes", len(mentions))
		}
		for uri := range strings.SplitSeq(mentions, "\n") {
			if uri != "" && (!strings.Contains(text, uri) || !IsMentioned(mentions, uri) || slices.Contains([]byte(uri), ' ')) {
				t.Fatalf("mention %q in %q", uri, text)
			}
		}
	})
}
