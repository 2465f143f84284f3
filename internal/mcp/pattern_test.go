package mcp

import "testing"

func TestPattern(t *testing.T) {
	for _, test := range []struct {
		pattern, server, tool string
		want                  bool
	}{
		{"fs::read", "fs", "read", true},
		{"fs::read", "fs", "Read", false},
		{"fs::read", "fs2", "read", false},
		{"fs::*", "fs", "anything/at.all", true},
		{"fs::*", "fs", "", true},
		{"*::read_*", "fs", "read_file", true},
		{"*::read_*", "fs", "thread_file", false},
		{"*::*_file", "", "read_file", true},
		{"*::a*b*c", "x", "abc", true},
		{"*::a*b*c", "x", "a-b-b-c", true},
		{"*::a*b*c", "x", "acb", false},
		{"*::ab*ba", "x", "aba", false},
		{"fs::a::b", "fs", "a::b", true},
		{"fs::[a]", "fs", "[a]", true},
	} {
		p, err := ParsePattern(test.pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Match(test.server, test.tool); got != test.want {
			t.Errorf("%s on %s::%s: %v", test.pattern, test.server, test.tool, got)
		}
	}
	for _, s := range []string{"", "read", "fs:read", "::read", "fs::"} {
		if _, err := ParsePattern(s); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}
