package mcp

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestResourceURI(t *testing.T) { // A11, R20
	tests := []struct{ name, server, uri, want string }{
		{"a file", "alpha", "file://alpha/data.txt", `{"server":"alpha","uri":"file://alpha/data.txt"}`},
		{"no HTML escaping", "a&b", "x:?a=<1>&b=2", `{"server":"a&b","uri":"x:?a=<1>&b=2"}`},
		{"quotes", `a"b`, `x:\"`, `{"server":"a\"b","uri":"x:\\\""}`},
		{"characters beyond ASCII", "é", "x:/世/😀", `{"server":"é","uri":"x:/世/😀"}`},
		{"control characters", "a", "x:\n\x00", `{"server":"a","uri":"x:\n\u0000"}`},
		{"a long URI", "a", "x:" + strings.Repeat("y", 1000), `{"server":"a","uri":"x:` + strings.Repeat("y", 1000) +
			`"}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ResourceURI(tt.server, tt.uri)
			encoded, ok := strings.CutPrefix(got, "proxy://resource/")
			if !ok {
				t.Fatalf("got %s", got)
			}
			if place, err := base64.RawURLEncoding.DecodeString(encoded); err != nil || string(place) != tt.want {
				t.Errorf("got %s, %v, want %s", place, err, tt.want)
			}
			if appended := AppendResourceURI([]byte("before "), tt.server, tt.uri); string(appended) != "before "+got {
				t.Errorf("appended %s, want %s", appended, got)
			}
		})
	}
	const golden = "proxy://resource/eyJzZXJ2ZXIiOiJhbHBoYSIsInVyaSI6ImZpbGU6Ly9hbHBoYS9kYXRhLnR4dCJ9"
	if got := ResourceURI("alpha", "file://alpha/data.txt"); got != golden {
		t.Errorf("got %s", got)
	}
}

func TestAppendResourceURIAllocatesNothing(t *testing.T) {
	dst := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() {
		dst = AppendResourceURI(dst[:0], "alpha",
			"file://alpha/data.txt")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestParseURI(t *testing.T) { // A12, A13, A66, R20
	resource := func(place string) string {
		return "proxy://resource/" + base64.RawURLEncoding.EncodeToString([]byte(place))
	}
	// The base64 of this text has + or -, / or _, and padding.
	const place = `{"server":"alpha","uri":"x:~~~???>>>"}`
	tests := []struct {
		name        string
		proxy       string
		server, uri string
		err         string
	}{
		{"a resource", resource(`{"server":"alpha","uri":"a:b"}`), "alpha", "a:b", ""},
		{"URL-safe", "proxy://resource/" + base64.RawURLEncoding.EncodeToString([]byte(place)), "alpha", "x:~~~???>>>", ""},
		{"URL-safe and padded", "proxy://resource/" + base64.URLEncoding.EncodeToString([]byte(place)), "alpha",
			"x:~~~???>>>", ""},
		{"standard", "proxy://resource/" + base64.RawStdEncoding.EncodeToString([]byte(place)), "alpha", "x:~~~???>>>", ""},
		{"standard and padded", "proxy://resource/" + base64.StdEncoding.EncodeToString([]byte(place)), "alpha",
			"x:~~~???>>>", ""},
		{"another order and white space", resource(` {"uri" : "a:b", "server" : "alpha"} `), "alpha", "a:b", ""},
		{"another member", resource(`{"server":"alpha","uri":"a:b","x":{"uri":1}}`), "alpha", "a:b", ""},
		{"escapes", resource(`{"s\u0065rver":"\u0061lpha","uri":"a:\ud83d\ude00"}`), "alpha", "a:😀", ""},
		{"a template", "proxy://template/alpha/file:///{path}", "alpha", "file:///{path}", ""},
		{"an expanded template", "proxy://template/alpha/db://x/users/a%2Fb?q=1#f", "alpha",
			"db://x/users/a%2Fb?q=1#f", ""},
		{"a template of a server with an odd name", "proxy://template/a%2Fb%20%C3%A9/x:y", "a/b é", "x:y", ""},

		{"empty", "", "", "", "neither"},
		{"a foreign scheme", "file:///etc/passwd", "", "", "neither"},
		{"another host", "proxy://resources/abc", "", "", "neither"},
		{"an observation", "proxy://observation/1", "", "", "neither"},
		{"capitals", "PROXY://resource/abc", "", "", "neither"},
		{"not base64", "proxy://resource/***", "", "", "base64"},
		{"mixed base64 variants", "proxy://resource/-_+/", "", "", "base64"},
		{"too much padding", resource(`{"server":"alpha","uri":"a:b"}`) + "==", "", "", "base64"},
		{"a line break", resource(`{"server":"alpha","uri":"a:b"}`) + "\n", "", "", "base64"},
		{"no content", "proxy://resource/", "", "", "JSON"},
		{"not JSON", resource("alpha a:b"), "", "", "JSON"},
		{"truncated JSON", resource(`{"server":"alpha","uri":"a:b"`), "", "", "JSON"},
		{"text after it", resource(`{"server":"alpha","uri":"a:b"}{}`), "", "", "JSON"},
		{"a server twice", resource(`{"server":"alpha","uri":"a:b","server":"beta"}`), "", "", "JSON"},
		{"bytes that are not UTF-8", resource("{\"server\":\"alpha\",\"uri\":\"a:\xff\"}"), "", "", "JSON"},
		{"deep nesting", resource(strings.Repeat("[", 100000)), "", "", "JSON"},
		{"an array", resource(`["alpha","a:b"]`), "", "", "names no server"},
		{"null", resource(`null`), "", "", "names no server"},
		{"no server", resource(`{"uri":"a:b"}`), "", "", "names no server"},
		{"an empty server", resource(`{"server":"","uri":"a:b"}`), "", "", "names no server"},
		{"a server that is not a string", resource(`{"server":1,"uri":"a:b"}`), "", "", "names no server"},
		{"a member in another case", resource(`{"Server":"alpha","uri":"a:b"}`), "", "", "names no server"},
		{"no URI", resource(`{"server":"alpha"}`), "", "", "names no URI"},
		{"an empty URI", resource(`{"server":"alpha","uri":""}`), "", "", "names no URI"},
		{"a URI that is not a string", resource(`{"server":"alpha","uri":["a:b"]}`), "", "", "names no URI"},
		{"an empty template", "proxy://template/", "", "", "names no server"},
		{"a template without a server", "proxy://template//x:y", "", "", "names no server"},
		{"a template of a server with a bad escape", "proxy://template/a%zz/x:y", "", "", "names no server"},
		{"a template without a URI", "proxy://template/alpha/", "", "", "names no URI"},
		{"a template without a slash", "proxy://template/alpha", "", "", "names no URI"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, uri, err := ParseURI(tt.proxy)
			if server != tt.server || uri != tt.uri {
				t.Errorf("got %q, %q", server, uri)
			}
			wantError(t, err, tt.err)
		})
	}
}

func TestTemplateURI(t *testing.T) { // A66
	tests := []struct{ server, template, want string }{
		{"alpha", "file:///{+path}", "proxy://template/alpha/file:///{+path}"},
		{"a/{b}", "{+uri}", "proxy://template/a%2F%7Bb%7D/{+uri}"},
		{"alpha", "db://x{/table}{?q*}", "proxy://template/alpha/db://x{/table}{?q*}"},
	}
	for _, tt := range tests {
		got := TemplateURI(tt.server, tt.template)
		if got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
		if server, template, err := ParseURI(got); server != tt.server || template != tt.template || err != nil {
			t.Errorf("%s: got %q, %q, %v", got, server, template, err)
		}
	}
}

// The scheme ui:// stays, because hosts check it. URIs with other schemes cannot use it.
func TestUIResourceURI(t *testing.T) {
	got := UIResourceURI("alpha", "ui://app/x.html")
	if !strings.HasPrefix(got, "ui://") || got == "ui://app/x.html" {
		t.Errorf("got %s", got)
	}
	for _, uri := range []string{"ui://", "ui://a", "ui://é/\"\\\n", got} {
		if server, original, err := ParseURI(UIResourceURI("a/b é", uri)); server != "a/b é" || original != uri ||
			err != nil {
			t.Errorf("%q became %q and %q, %v after a round trip", uri, server, original, err)
		}
	}
	for _, uri := range []string{"file:///x", "UI://a", "ui:a", ""} {
		if got := UIResourceURI("a", uri); got != ResourceURI("a", uri) {
			t.Errorf("%q became %s", uri, got)
		}
	}
	place := func(text string) string { return uiPrefix + base64.RawURLEncoding.EncodeToString([]byte(text)) }
	for uri, want := range map[string]string{
		place(`{"server":"a","uri":"file:///etc/passwd"}`): "ui:// URI",
		place(`{"server":"a","uri":"UI://x"}`):             "ui:// URI",
		place(`{"server":"a","uri":""}`):                   "names no URI",
		place(`{"uri":"ui://x"}`):                          "names no server",
		place(`{"server":"a","uri":"ui://x","uri":"y:z"}`): "JSON",
		uiPrefix + "***":                                   "base64",
		"ui://proxy/" + strings.TrimPrefix(got, uiPrefix):  "neither",
		"UI" + strings.TrimPrefix(got, "ui"):               "neither",
	} {
		server, original, err := ParseURI(uri)
		if wantError(t, err, want); server != "" || original != "" {
			t.Errorf("%s was read as %q and %q", uri, server, original)
		}
	}
}

func TestObservationURI(t *testing.T) {
	if got := ObservationURI("k7"); got != strings.Replace(ObservationTemplate, "{id}", "k7", 1) ||
		got != "proxy://observation/k7" {
		t.Errorf("got %s", got)
	}
	for uri, want := range map[string]string{"proxy://observation/k7": "k7", "proxy://observation/": "",
		"proxy://resource/k7": "", "": ""} {
		if id, ok := ParseObservationURI(uri); id != want || ok != (want != "") {
			t.Errorf("%s: got %q, %t", uri, id, ok)
		}
	}
}

func TestURIsRoundTrip(t *testing.T) { // A12, A66
	random := rand.New(rand.NewPCG(5, 6))
	alphabet := []rune("ab/:%+-_ {}?#&<>=\"'\\\n\t\x00\x7f\u2028é世😀\U0010ffff\ufffd")
	some := func() string {
		text := make([]rune, random.IntN(40)+1)
		for i := range text {
			text[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(text)
	}
	for range 5000 {
		server, uri := some(), some()
		for _, proxy := range []string{ResourceURI(server, uri), TemplateURI(server, uri), UIResourceURI(server, uri)} {
			gotServer, gotURI, err := ParseURI(proxy)
			if gotServer != server || gotURI != uri || err != nil {
				t.Fatalf("%q and %q became %q, %q, %v after a round trip", server, uri, gotServer, gotURI, err)
			}
		}
		if _, got, err := ParseURI(UIResourceURI(server, UIScheme+uri)); got != UIScheme+uri || err != nil {
			t.Fatalf("%q became %q, %v after a round trip", UIScheme+uri, got, err)
		}
		// encoding/base64 and encoding/json decode the same.
		encoded, _ := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(ResourceURI(server, uri), "proxy://resource/"))
		var place struct{ Server, URI string }
		decoder := json.NewDecoder(bytes.NewReader(encoded))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&place); err != nil || place.Server != server || place.URI != uri {
			t.Fatalf("%q and %q: got %+v, %v", server, uri, place, err)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	f.Add(ResourceURI("alpha", "file://alpha/data.txt"))
	f.Add(TemplateURI("a/b", "x:{y}"))
	f.Add("proxy://resource/e30=")
	f.Add(resourcePrefix + base64.StdEncoding.EncodeToString([]byte(`{"server":"a","server":"b","uri":"c"}`)))
	f.Add(resourcePrefix +
		base64.StdEncoding.EncodeToString([]byte("{\"server\":\"\xff\",\"Server\":\"b\",\"uri\":\"\\ud800??>\"}")))
	f.Add("proxy://template/a%2Fb/x%2F/..//{y}")
	f.Add("proxy://template/%zz/x")
	f.Add("proxy://template/a")
	f.Add("proxy://resource/\n")
	f.Add(ResourceURI("alpha", "file:///d\u0364ta"))
	f.Add("file:///x")
	f.Add(UIResourceURI("alpha", "ui://x"))
	f.Add(uiPrefix + base64.StdEncoding.EncodeToString([]byte(`{"server":"a","uri":"file:///x"}`)))
	f.Fuzz(func(t *testing.T, proxy string) {
		server, uri, err := ParseURI(proxy)
		if err != nil {
			if server != "" || uri != "" {
				t.Errorf("got %q and %q with error %v", server, uri, err)
			}
			return
		}
		if rest, ok := strings.CutPrefix(proxy, templatePrefix); ok {
			// The part after the server is the unchanged URI.
			if name, own, _ := strings.Cut(rest, "/"); own != uri || strings.Count(name, "%") == 0 && name != server {
				t.Errorf("%q was read as %q and %q", proxy, server, uri)
			}
			if s, u, err := ParseURI(TemplateURI(server, uri)); s != server || u != uri || err != nil {
				t.Errorf("%q and %q became %q, %q, %v after a round trip", server, uri, s, u, err)
			}
		}
		if encoded, ok := strings.CutPrefix(proxy, resourcePrefix); ok {
			if !hasMembers(encoded, map[string]any{"server": server, "uri": uri}) {
				t.Errorf("%q was read as %q and %q", proxy, server, uri)
			}
			if s, u, err := ParseURI(ResourceURI(server, uri)); s != server || u != uri || err != nil {
				t.Errorf("%q and %q became %q, %q, %v after a round trip", server, uri, s, u, err)
			}
		}
	})
}

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
