package resourcetemplate

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// put returns a set with these templates.
func put(t *testing.T, templates ...Template) *Set {
	t.Helper()
	ts := New()
	for _, template := range templates {
		if created, err := ts.Put(template); err != nil || !created {
			t.Fatalf("%s: created: %t, %v", template.Name, created, err)
		}
	}
	return ts
}

func TestMatch(t *testing.T) { // A67
	ts := put(t,
		Template{Name: "greeting", URITemplate: "hello://{who}", Text: "Hello {who}, {\"json\": {who}} {other} {+who}!"},
		Template{Name: "fixed", URITemplate: "about://gateway", Text: "a gateway"},
		Template{Name: "window", URITemplate: "docs://{name}", Server: "files", URI: "file:///srv/docs/{name}.md"},
		Template{Name: "wide", URITemplate: "tree://{+path}", Server: "files", URI: "file:///srv/tree/{+path}"},
		Template{Name: "one", URITemplate: "one://{+path}", Server: "files", URI: "file:///srv/{path}"},
		Template{Name: "two", URITemplate: "two://{user}/notes/{+path}.txt", Server: "notes", URI: "note:{path}?user={user}"},
	)
	for _, tt := range []struct{ name, uri, template, expanded string }{
		{"a text with a variable", "hello://World", "greeting", "Hello World, {\"json\": World} {other} World!"},
		{"an encoded value", "hello://W%C3%B6rld%20%7Bwho%7D", "greeting",
			"Hello Wörld {who}, {\"json\": Wörld {who}} {other} Wörld {who}!"},
		{"a template without variables", "about://gateway", "fixed", "a gateway"},
		{"a resource of a server", "docs://intro", "window", "file:///srv/docs/intro.md"},
		{"an encoded slash stays encoded", "docs://a%2Fb%20c", "window", "file:///srv/docs/a%2Fb%20c.md"},
		{"reserved characters are encoded", "docs://a&b=c+d", "window", "file:///srv/docs/a%26b%3Dc%2Bd.md"},
		{"a path", "tree://a/b%20c/d", "wide", "file:///srv/tree/a/b%20c/d"},
		{"a path becomes one segment", "one://a/b", "one", "file:///srv/a%2Fb"},
		{"two variables", "two://ann/notes/2026/may.txt", "two", "note:2026%2Fmay?user=ann"},
		{"dots within a name", "docs://a..b", "window", "file:///srv/docs/a..b.md"},

		{"no value", "hello://", "", ""},
		{"a slash in a segment", "hello://a/b", "", ""},
		{"a query", "hello://a?b", "", ""},
		{"a fragment in a path", "tree://a#b", "", ""},
		{"text after the template", "about://gateways", "", ""},
		{"a line break at the end", "about://gateway\n", "", ""},
		{"another scheme", "other://x", "", ""},
		{"a parent directory", "docs://..", "", ""},
		{"an encoded parent directory", "docs://%2e%2E", "", ""},
		{"a parent directory, encoded twice", "tree://a/%252e%252e/b", "", ""},
		{"a parent directory in the middle", "tree://a/../b", "", ""},
		{"a parent directory after an encoded slash", "docs://a%2F..%2Fb", "", ""},
		{"a parent directory after a backslash", "docs://a%5C..%5Cb", "", ""},
		{"an invalid escape", "docs://%zz", "", ""},
		{"bytes that are not UTF-8", "docs://%ff", "", ""},
		{"a control character", "docs://a%00", "", ""},
		{"a URI that is too long", "docs://" + strings.Repeat("x", maxURI), "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, expanded, ok := ts.Match(tt.uri)
			if ok != (tt.template != "") {
				t.Fatalf("matched: %t, %q", ok, expanded)
			}
			if ok && (got.Name != tt.template || expanded != tt.expanded) {
				t.Errorf("got %s and %q, want %s and %q", got.Name, expanded, tt.template, tt.expanded)
			}
		})
	}
}

func TestWhichTemplateMatches(t *testing.T) { // A67
	ts := put(t,
		Template{Name: "c", URITemplate: "docs://{a}", Text: "c"},
		Template{Name: "b", URITemplate: "docs://{x}", Text: "b"},
		Template{Name: "z", URITemplate: "docs://intro{rest}", Text: "z"},
		Template{Name: "a", URITemplate: "docs://{+any}", Text: "a"},
	)
	for uri, want := range map[string]string{"docs://x": "a", "docs://intro-1": "z", "docs://intro": "a"} {
		for range 10 {
			if got, _, _ := ts.Match(uri); got == nil || got.Name != want {
				t.Errorf("%s: got %v, want %s", uri, got, want)
			}
		}
	}
}

func TestInvalidTemplates(t *testing.T) { // A67
	tests := []struct {
		name     string
		template Template
		want     string
	}{
		{"no name", Template{URITemplate: "a:b", Text: "x"}, "name: missing"},
		{"a name that is too long", Template{Name: strings.Repeat("n", 257)}, "name: 257 bytes"},
		{"no URI template", Template{Name: "n", Text: "x"}, "uriTemplate: must begin with a scheme"},
		{"no scheme", Template{Name: "n", URITemplate: "/a/{b}", Text: "x"}, "uriTemplate: must begin with a scheme"},
		{"an invalid scheme", Template{Name: "n", URITemplate: "1a:b", Text: "x"}, "uriTemplate: must begin with a scheme"},
		{"a scheme that is a variable", Template{Name: "n", URITemplate: "{a}://b", Text: "x"},
			"uriTemplate: must begin with a scheme"},
		{"the gateway's scheme", Template{Name: "n", URITemplate: "Proxy://a", Text: "x"},
			"uriTemplate: proxy:// is reserved"},
		{"an operator", Template{Name: "n", URITemplate: "a://b{?q}", Text: "x"}, "uriTemplate: '{' is not allowed"},
		{"another operator", Template{Name: "n", URITemplate: "a://b{/q}", Text: "x"}, "uriTemplate: '{' is not allowed"},
		{"an explosion", Template{Name: "n", URITemplate: "a://{q*}", Text: "x"}, "uriTemplate: '{' is not allowed"},
		{"a length", Template{Name: "n", URITemplate: "a://{q:3}", Text: "x"}, "uriTemplate: '{' is not allowed"},
		{"several names", Template{Name: "n", URITemplate: "a://{q,r}", Text: "x"}, "uriTemplate: '{' is not allowed"},
		{"a variable without a name", Template{Name: "n", URITemplate: "a://{}", Text: "x"},
			"uriTemplate: '{' is not allowed"},
		{"a name with a space", Template{Name: "n", URITemplate: "a://{a b}", Text: "x"}, "uriTemplate: '{' is not allowed"},
		{"a variable without an end", Template{Name: "n", URITemplate: "a://{a", Text: "x"},
			"uriTemplate: '{' is not allowed"},
		{"an extra brace", Template{Name: "n", URITemplate: "a://a}", Text: "x"}, "uriTemplate: '}' is not allowed"},
		{"a variable twice", Template{Name: "n", URITemplate: "a://{a}/{a}", Text: "x"}, "duplicate variable {a}"},
		{"ambiguous variables", Template{Name: "n", URITemplate: "a://{a}{b}", Text: "x"}, "no literal before {b}"},
		{"a space", Template{Name: "n", URITemplate: "a://b c", Text: "x"}, "uriTemplate: ' ' is not allowed"},
		{"neither text nor server", Template{Name: "n", URITemplate: "a:b"}, "text: missing"},
		{"text and server", Template{Name: "n", URITemplate: "a:b", Text: "x", Server: "s", URI: "c:d"},
			"text: not allowed together with server"},
		{"a server without a URI", Template{Name: "n", URITemplate: "a:b", Server: "s"}, "uri: missing"},
		{"a URI without a server", Template{Name: "n", URITemplate: "a:b", URI: "c:d"}, "server: missing"},
		{"a URI with another variable", Template{Name: "n", URITemplate: "a:{b}", Server: "s", URI: "c:{d}"},
			"uri: {d} is not in uriTemplate"},
		{"an invalid URI template", Template{Name: "n", URITemplate: "a:b", Server: "s", URI: "c:{"},
			"uri: '{' is not allowed"},
		{"a text that is too long", Template{Name: "n", URITemplate: "a:b", Text: strings.Repeat("x", maxText+1)},
			"text: 1048577 bytes"},
		{"a text with too many variables", Template{Name: "n", URITemplate: "a:{b}", Text: strings.Repeat("{b}", maxUses+1)},
			"text: 1001 uses of variables"},
		{"a description that is not text", Template{Name: "n", URITemplate: "a:b", Text: "x", Description: "\xff"},
			"description: not UTF-8"},
		{"too many variables", Template{Name: "n", URITemplate: "a:" + manyVariables(), Text: "x"}, "more than 32 variables"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ts := New()
			if _, err := ts.Put(tt.template); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want … %s …", err, tt.want)
			}
			if len(ts.All()) > 0 {
				t.Error("the template was added")
			}
		})
	}
}

func manyVariables() string {
	var template strings.Builder
	for i := range maxVariables + 1 {
		fmt.Fprintf(&template, "{v%d}-", i)
	}
	return template.String()
}

func TestListAndReplace(t *testing.T) { // A67
	ts := put(t,
		Template{Name: "b", URITemplate: "docs://{a}", Title: "B & <b>", Description: "about b", MIMEType: "text/plain",
			Text: "secret"},
		Template{Name: "a", URITemplate: "hello://{a}", Server: "s", URI: "file:///{a}"},
	)
	want := []string{
		`{"uriTemplate":"hello://{a}","name":"a"}`,
		`{"uriTemplate":"docs://{a}","name":"b","title":"B & <b>","description":"about b","mimeType":"text/plain"}`,
	}
	for i, template := range ts.All() {
		item := template.Descriptor()
		if string(item) != want[i] {
			t.Errorf("got %s\nwant %s", item, want[i])
		}
		if !json.Valid(item) {
			t.Errorf("%s is not JSON", item)
		}
	}
	if created, err := ts.Put(Template{Name: "a", URITemplate: "bye://{a}", Text: "bye"}); created || err != nil {
		t.Errorf("created: %t, %v", created, err)
	}
	if _, _, ok := ts.Match("hello://x"); ok {
		t.Error("the replaced template still matches")
	}
	if all := ts.All(); len(all) != 2 || all[0].Name != "a" || all[0].Text != "bye" || all[1].Text != "secret" {
		t.Errorf("got %+v", all)
	}
	if !ts.Has("a") || !ts.Delete("a") || ts.Delete("a") || ts.Has("a") {
		t.Error("the template was not deleted once")
	}
	if _, _, ok := ts.Match("bye://x"); ok || len(ts.All()) != 1 {
		t.Error("the deleted template still matches")
	}
}

func TestLimitOfTemplates(t *testing.T) {
	ts := New()
	for i := range maxTemplates {
		if _, err := ts.Put(Template{Name: fmt.Sprint(i), URITemplate: fmt.Sprint("a:", i), Text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ts.Put(Template{Name: "one more", URITemplate: "a:b", Text: "x"}); err == nil {
		t.Error("a template over the limit was added")
	}
	if _, err := ts.Put(Template{Name: "7", URITemplate: "a:7", Text: "y"}); err != nil {
		t.Error(err)
	}
	if _, err := ts.Put(Template{Name: "7", URITemplate: "a:8", Text: "y"}); err == nil {
		t.Error("two templates have the same URIs")
	}
}

func TestConcurrentUse(t *testing.T) {
	ts := New()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			name := fmt.Sprint(i)
			mine := Template{Name: name, URITemplate: "a" + name + "://{b}", Text: "{b}"}
			for range 50 {
				if created, err := ts.Put(mine); !created || err != nil {
					t.Errorf("put %s: %t, %v", name, created, err)
				}
				if _, _, ok := ts.Match("a" + name + "://x"); !ok || !ts.Has(name) {
					t.Errorf("%s is missing", name)
				}
				ts.All()
				if !ts.Delete(name) {
					t.Errorf("%s cannot be deleted", name)
				}
			}
			_, _ = ts.Put(mine)
		})
	}
	all.Wait()
	if got := ts.All(); len(got) != 4 {
		t.Errorf("%v remain", got)
	}
}

// FuzzMatch matches arbitrary URIs. The result never leaves the prefix of the target.
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{"x", "a/b", "..", "%2e%2e/", "%252e%252e%252f", "a%2Fb", "ä", "%00", "?q", "a\\..\\b"} {
		f.Add(seed)
	}
	ts := New()
	_, _ = ts.Put(Template{Name: "one", URITemplate: "one://{v}", Server: "s", URI: "file:///srv/{v}"})
	_, _ = ts.Put(Template{Name: "all", URITemplate: "all://{+v}", Server: "s", URI: "file:///srv/{+v}"})
	f.Add(`a\..\..\etc`)
	f.Add("x%5c..%5cy")
	f.Add("x%255c%2e%2e")
	f.Fuzz(func(t *testing.T, v string) {
		for _, scheme := range []string{"one://", "all://"} {
			_, got, ok := ts.Match(scheme + v)
			for range 3 { // a server may decode it, and read a backslash as a slash
				if ok && slices.Contains(strings.FieldsFunc(got, func(c rune) bool { return c == '/' || c == '\\' }), "..") {
					t.Errorf("%q became %q", v, got)
				}
				if decoded, err := url.PathUnescape(got); err == nil {
					got = decoded
				}
			}
		}
		if _, got, ok := ts.Match("one://" + v); ok {
			rest, in := strings.CutPrefix(got, "file:///srv/")
			if !in || rest == "" || strings.ContainsAny(rest, "/?#\\ ") || strings.Trim(rest, ".") == "" && len(rest) < 3 {
				t.Errorf("%q became %q", v, got)
			}
		}
		if _, got, ok := ts.Match("all://" + v); ok {
			if strings.Contains(got+"/", "/../") || strings.ContainsAny(got, "?#") {
				t.Errorf("%q became %q", v, got)
			}
		}
	})
}

func TestReplace(t *testing.T) {
	s := New()
	defer s.Close()
	for _, name := range []string{"a", "b"} {
		if _, err := s.Put(Template{Name: name, URITemplate: name + "://{x}", Text: "old"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Replace([]Template{{Name: "c", URITemplate: "c://{x}"}, {Name: "d"}}); err == nil || len(s.All()) != 2 {
		t.Errorf("got %v with templates %v", err, s.All())
	}
	if err := s.Replace([]Template{{Name: "b", URITemplate: "b://{x}", Text: "new"}, {Name: "c", URITemplate: "c://{x}",
		Text: "{x}"}}); err != nil {
		t.Fatal(err)
	}
	if _, got, _ := s.Match("b://1"); got != "new" || s.Has("a") || !s.Has("c") {
		t.Errorf("b became %q, set is %v", got, s.All())
	}
	for _, name := range []string{"b", "c"} { // makes room
		s.Delete(name)
	}
	for i := range maxTemplates {
		if _, err := s.Put(Template{Name: fmt.Sprint("t", i), URITemplate: fmt.Sprintf("t%d://{x}", i),
			Text: "x"}); err != nil {
			t.Fatal(err)
		}
	}
}

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
