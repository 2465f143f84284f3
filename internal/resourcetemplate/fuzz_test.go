package resourcetemplate

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzTemplate adds arbitrary templates. Either the error names a field, or the descriptor is JSON
// and the values of a matching URI expand to the same URI.
func FuzzTemplate(f *testing.F) {
	for _, seed := range [][3]string{
		{"docs://{name}", "file:///srv/{name}.md", "docs://a%20b"}, {"docs://{+path}", "file:///srv/{+path}",
			"docs://a/b%2Fc"}, {"docs://{a}-{b}/x", "db:{b}/{a}", "docs://1-2-3/x"}, {"docs://{a}{b}", "x:y", "docs://ab"},
		{"docs://{a}/{a}", "x:y", ""}, {"docs://{?q}", "x:y", ""}, {"docs://{", "x:{b}", ""}, {"docs://x}", "x:y",
			""}, {"proxy://{a}", "x:y", "proxy://a"}, {"no scheme {a}", "x:y", ""}, {"docs://fixed", "x:y", "docs://fixed"},
		{"docs://{a}", "{a}", "docs://.."},
		{"docs://é/{a}", "x:é/{a}", "docs://é/%C3%A9"}, {"docs://{a}", "x:{a}", "docs://%252e%252e"}, {"docs://{a}", "x:{a}",
			"docs://%ff"}, {"docs://{a}", "x:{a}", "docs://a%00"},
		{"", "x:y", ""}, {"\xff:{a}", "x:y", ""}, {"d!:{a}", "x:y", ""}, {"docs://{a}", "x:{}", ""}, {"docs://{a}", "x:{a*}",
			""}, {"docs://{a}", "x:{a b}", "docs://a"}, {"docs://{a}", "", "docs://a"}, {"docs://{a}-{b}", "x:{a}", "docs://a"},
		{"docs://{a}", "x:{b}", "docs://a"},
	} {
		f.Add(seed[0], seed[1], "text of {a} and {+path} {other}", seed[2])
	}
	fields := []string{"name: ", "uriTemplate: ", "uri: ", "text: ", "server: "}
	f.Fuzz(func(t *testing.T, uriTemplate, target, text, uri string) {
		for _, template := range []Template{{Name: "t", URITemplate: uriTemplate, Server: "s", URI: target},
			{Name: "t", URITemplate: uriTemplate, Text: text}} {
			ts := New()
			created, err := ts.Put(template)
			if err != nil {
				named := false
				for _, field := range fields {
					named = named || strings.HasPrefix(err.Error(), field)
				}
				if created || !named || ts.Has("t") {
					t.Fatalf("%+v: %t, %v", template, created, err)
				}
				continue
			}
			var shown struct{ URITemplate, Name string }
			if err := json.Unmarshal(ts.All()[0].Descriptor(), &shown); err != nil || shown.URITemplate != uriTemplate ||
				shown.Name != "t" {
				t.Fatalf("%+v: descriptor is %s", template, ts.All()[0].Descriptor())
			}
			if _, original, ok := ts.Find(uriTemplate); !ok || original != template.URI {
				t.Fatalf("%+v: match is %t, %q", template, ok, original)
			}
			literal, _, _ := strings.Cut(uriTemplate, "{")
			got, expanded, ok := ts.Match(uri)
			if !ok {
				continue
			}
			if got.Name != "t" || !strings.HasPrefix(uri, literal) || !utf8.ValidString(expanded) {
				t.Fatalf("%q matches %+v and becomes %q", uri, template, expanded)
			}
			// The values expand to the same URI.
			address, _ := parse(uriTemplate)
			values, _ := address.match(uri)
			again, err := url.PathUnescape(address.expand(values))
			if once, errOnce := url.PathUnescape(uri); err != nil || errOnce != nil || again != once {
				t.Fatalf("%q of %q became %q after a round trip", uri, uriTemplate, again)
			}
			for name, v := range values {
				for step := range strings.SplitSeq(v.decoded, "/") {
					if step == ".." || step == "." {
						t.Fatalf("%q: got value %q for %s", uri, v.decoded, name)
					}
				}
			}
			if template.Server != "" {
				continue
			}
			want := text
			if !strings.ContainsAny(strings.Join(decodedOf(values), ""), "{}") {
				for name, v := range values {
					want = strings.ReplaceAll(strings.ReplaceAll(want, "{"+name+"}", v.decoded), "{+"+name+"}", v.decoded)
				}
				if expanded != want {
					t.Fatalf("%q became %q, want %q", uri, expanded, want)
				}
			}
		}
	})
}

func decodedOf(values map[string]value) (all []string) {
	for _, v := range values {
		all = append(all, v.decoded)
	}
	return all
}
