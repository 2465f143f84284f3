package mcp

import (
	"strings"
	"testing"
)

func TestMatchTemplate(t *testing.T) {
	tests := []struct {
		template  string
		fits      []string
		fitsNever []string
	}{
		{"x://{a}", []string{"x://1", "x://", "x://a%2Fb", "x://é"}, []string{"x://1/2", "x://1?q", "x://1#f", "X://1",
			"x:/1", "y://1"}},
		{"x://{a}/b", []string{"x://1/b"}, []string{"x://1/2/b", "x://1/b/", "x://1"}},
		{"x://{a}.{b}", []string{"x://1.2", "x://1.2.3"}, []string{"x://1"}},
		{"x:///{+path}", []string{"x:///a/b", "x:///a?q#f", "x:///a\nb"}, []string{"x://a"}},
		{"x://a{/b*}", []string{"x://a", "x://a/1/2"}, []string{"x://a1", "x://a/1?q"}},
		{"x://a{?q,r}", []string{"x://a", "x://a?q=1&r=2"}, []string{"x://a&q=1", "x://a?q=1#f"}},
		{"x://a?k=1{&q}", []string{"x://a?k=1", "x://a?k=1&q=2"}, []string{"x://a?k=1q"}},
		{"x://a{#f}", []string{"x://a", "x://a#1/2"}, []string{"x://a1"}},
		{"x://a{.b}{;c}", []string{"x://a", "x://a.b;c=1"}, []string{"x://a/b"}},
		{"x:{a}b{/c}", []string{"x:1b2b/3", "x:b"}, []string{"x:1b2"}},
		{"x:" + strings.Repeat("{a}", maxExpressions+1), nil, []string{"x:"}},
		{"x:{+a}", []string{"x:" + strings.Repeat("a", longestMatched-2)},
			[]string{"x:" + strings.Repeat("a", longestMatched)}},
		{"x://(a)*{b:3}", []string{"x://(a)*123"}, []string{"x://a123"}},
		{"x://fixed", nil, []string{"x://fixed"}},
		{"{+all}", nil, []string{"x://1", "{+all}"}},
		{"{scheme}://a", nil, []string{"x://a"}},
		{"x://{a", nil, []string{"x://a", "x://{a"}},
		{"x://{}", nil, []string{"x://", "x://{}"}},
		{"x://{a}" + strings.Repeat("b", maxTemplate), nil, []string{"x://a" + strings.Repeat("b", maxTemplate)}},
	}
	for _, tt := range tests {
		for _, uri := range tt.fits {
			if !MatchTemplate(tt.template, uri) {
				t.Errorf("%q does not match %q", uri, tt.template)
			}
		}
		for _, uri := range tt.fitsNever {
			if MatchTemplate(tt.template, uri) {
				t.Errorf("%q matches %.40q", uri, tt.template)
			}
		}
	}
}

func FuzzMatchTemplate(f *testing.F) {
	for _, seed := range [][3]string{{"x://{a}", "1", "x://1"}, {"x://{+a}{?b}", "a/b", "x://"},
		{"x:{a}(*{b}\\", "[", "x:"}, {"{a}", "x:", "x:"}, {"x:{", "}", "x:{"}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, template, value, uri string) {
		beginning, _, _ := strings.Cut(template, "{")
		if MatchTemplate(template, uri) && (!strings.HasPrefix(uri, beginning) || !strings.Contains(beginning, ":")) {
			t.Fatalf("%q matches %q", uri, template)
		}
		// An expansion of a template matches it.
		if strings.ContainsAny(value, "/?#") || strings.ContainsAny(template, "{}") || !strings.Contains(template, ":") ||
			len(template)+len(value) > longestMatched-10 {
			return
		}
		for _, made := range [][2]string{{template + "{a}", template + value}, {template + "{+a}/b", template + value + "/b"},
			{template + "{/a*}", template + "/" + value}, {template + "{?a}", template + "?a=" + value}} {
			if !MatchTemplate(made[0], made[1]) {
				t.Fatalf("%q does not match %q", made[1], made[0])
			}
		}
	})
}
