package acl

import (
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/condition"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestNoPolicyAllowsEverything(t *testing.T) {
	var p *Policy
	if !p.MayAllow("a") {
		t.Error("the server is denied")
	}
	for _, d := range []Decision{
		p.Tool(newTool("a", "x", 0)), p.Prompt("a", "x"), p.Resource("a", "%"), p.Template("a", "{x}"), p.Template("a", "x"),
	} {
		if d.Action != Allow {
			t.Error("something is denied")
		}
	}
	if p.Restricts("a") || p.Shadowed() != nil || p.Fingerprint() != "" {
		t.Error("a nil policy has rules")
	}
}

func TestNewRefuses(t *testing.T) { // A53, A54, A55
	for _, test := range []struct{ name, pattern, want string }{
		{"an empty pattern", "", "missing ::"},
		{"a server alone", "beta", "write server::* for a whole server"},
		{"a star and more", "b*", "missing ::"},
		{"a tool without a server", "tool:read", "missing ::"},
		{"an empty server", "::read", "one side of :: is empty"},
		{"an empty tool", "beta::", "one side of :: is empty"},
		{"an empty prompt", "prompt:beta::", "one side of :: is empty"},
		{"an unknown kind", "tools:beta::x", `unknown kind "tools"`},
		{"a URI without its kind", "file:///x::y", `unknown kind "file"`},
		{"no prefix", "resource:", "no prefix"},
		{"no prefix after a server", "resource:beta::", "no prefix"},
		{"no prefix after all servers", "resource:*::", "no prefix"},
		{"no server before a prefix", "resource:::file:///x", "no server before ::"},
		{"no server before a tool", "tool:::x", "one side of :: is empty"},
		{"a prefix without a scheme", "resource:secret", "it does not begin with a scheme"},
		{"a prefix without a scheme of a server", "resource:beta::/secret", "it does not begin with a scheme"},
		{"a prefix with a star", "resource:file:///secret/*", "a prefix cannot contain *"},
		{"a prefix with a variable", "resource:file:///{x}", "a prefix cannot contain variables"},
		{"a prefix with a query", "resource:file:///x?y", "a prefix cannot contain a query"},
		{"a prefix with a fragment", "resource:file:///x#y", "a prefix cannot contain a query or fragment"},
		{"a prefix with an invalid escape", "resource:file:///%zz", "not followed by two hexadecimal digits"},
		{"a prefix with a line break", "resource:file:///a\nb", "control characters"},
		{"a prefix with a host beyond ASCII", "resource:http://ö.example/", "its host is ambiguous"},
		{"a prefix with an escaped ..", "resource:file:///a%2f..%2fb", "its path is ambiguous"},
		{"a prefix of a file without a root", "resource:file:srv", "its path is ambiguous"},
		{"a misspelled annotation", "readonly", "did you mean read_only?"},
		{"an annotation without ::", "read_only:files", "missing ::"},
		{"a prefix with too many escapes", "resource:file:///%252525252541", "escaped too many times"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := New([]Rule{{Pattern: "*"}, {Pattern: test.pattern}}, Allow)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %s", err, test.want)
			}
			if quoted := strings.ReplaceAll(test.pattern, "\n", `\n`); !strings.HasPrefix(err.Error(), `pattern "`+quoted+
				`": `) {
				t.Errorf("%v does not name the pattern", err)
			}
		})
	}
}

func TestRulesForToolsOnly(t *testing.T) {
	when, err := condition.Compile("true")
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"prompt:a::x", "resource:file:///x", "resource:*"} {
		for _, rule := range []Rule{{Action: Confirm, Pattern: pattern}, {Action: Deny, Pattern: pattern, When: when}} {
			_, err := New([]Rule{rule}, Allow)
			if err == nil || !strings.Contains(err.Error(), "confirm and when are for tools only") {
				t.Errorf("%s: %v", pattern, err)
			}
		}
	}
}

func TestReason(t *testing.T) {
	p := policy(t, "confirm destructive:a::*, deny resource:a::file:///x, allow a::*, deny")
	for want, d := range map[string]Decision{
		"no rules":                 (*Policy)(nil).Template("a", "file:///{x}"),
		"confirm destructive:a::*": p.Tool(newTool("a", "x", mcp.Unannotated)),
		"deny a::* when arguments.x, else default allow": policy(t, "deny a::* when arguments.x, allow").Tool(newTool("a",
			"y", 0)),
		"deny when tool=='y'": policy(t, "deny * when tool=='y', allow").Tool(newTool("a", "y",
			0)),
		"deny a::y when arguments.x: no such key: x": policy(t, "deny a::y when arguments.x, allow").Call(newTool("a",
			"y", 0)),
		"allow a::*":   p.Prompt("a", "x"),
		"default deny": p.Prompt("b", "x"),
		"the URI cannot be compared: it does not begin with a scheme and a colon": p.Resource("a", "x"),
		"the URI cannot be compared: its path is ambiguous":                       p.Template("a", "file:x/{y}"),
		"allow *": policy(t, "allow *, deny").Template("a", "{x}"),
	} {
		if got := d.Reason(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestShadowed(t *testing.T) { // A57
	for _, test := range []struct {
		name, policy string
		want         []string
	}{
		{"no rules", "deny", nil},
		{"the narrow pattern first", "allow a::x, deny a::*, deny", nil},
		{"the wide pattern first", "deny a::*, allow a::x, deny",
			[]string{`allow a::x never applies, because deny a::* comes before it`}},
		{"the same action", "deny a::*, deny a::x, allow", nil},
		{"the same pattern", "deny a::x, allow a::x, allow",
			[]string{`allow a::x never applies, because deny a::x comes before it`}},
		{"everything", "allow *, deny b::*, deny prompt:c::x, deny resource:note:x, deny", []string{
			`deny b::* never applies, because allow * comes before it`,
			`deny prompt:c::x never applies, because allow * comes before it`,
			`deny resource:note:x never applies, because allow * comes before it`,
		}},
		{"stars in stars", "deny a*::x*y*, allow ab*::x*z*y, allow",
			[]string{`allow ab*::x*z*y never applies, because deny a*::x*y* comes before it`}},
		{"stars that overlap", "deny ab*::*, allow a*::x, allow", nil},
		{"tools do not shadow prompts", "deny tool:a::*, allow prompt:a::x, allow", nil},
		{"tools do not shadow a server", "deny tool:a::*, allow a::*, allow", nil},
		{"a wide prefix", "allow resource:file:///a, deny resource:file:///a/b, allow",
			[]string{`deny resource:file:///a/b never applies, because allow resource:file:///a comes before it`}},
		{"a wide prefix in another spelling", "deny resource:FILE:/A/, allow resource:file:///a/b, allow",
			[]string{`allow resource:file:///a/b never applies, because deny resource:FILE:/A/ comes before it`}},
		{"a wide prefix of another server", "allow resource:a::file:///a, deny resource:b::file:///a/b, allow", nil},
		{"a wide prefix of one server", "allow resource:a::file:///a, deny resource:file:///a/b, allow", nil},
		{"a prefix of a longer name", "allow resource:file:///a, deny resource:file:///ab, allow", nil},
		{"a prefix and all", "deny resource:file:///a, allow resource:*, allow", nil},
		{"annotations", "allow read_only, deny read_only:a::x, deny destructive:a::x, deny", []string{
			"deny read_only:a::x never applies, because allow read_only comes before it",
		}},
		{"a confirmation too late", "allow a::*, confirm a::x, confirm *, deny", []string{
			"confirm a::x never applies, because allow a::* comes before it",
		}},
		{"conditions", "deny a::* when arguments.x==1, allow a::x, deny a::x when arguments.x==2, allow", []string{
			"deny a::x when arguments.x==2 never applies, because allow a::x comes before it",
		}},
		{"all and a prefix", "deny resource:*, allow resource:file:///a, allow",
			[]string{`allow resource:file:///a never applies, because deny resource:* comes before it`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := policy(t, test.policy).Shadowed(); !slices.Equal(got, test.want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestFingerprint(t *testing.T) { // A57
	seen := make(map[string]string)
	for _, text := range []string{"allow", "deny", "allow a::x, deny", "deny a::x, deny", "confirm a::x, deny",
		"deny a::x when true, deny", "deny a::x when false, deny", "allow a::x, allow", "allow a::x, allow a::y, deny",
		"allow a::y, allow a::x, deny"} {
		got := policy(t, text).Fingerprint()
		if other, ok := seen[got]; ok || got == "" {
			t.Errorf("%s has %q, as has %s", text, got, other)
		}
		seen[got] = text
		if again := policy(t, text).Fingerprint(); again != got {
			t.Errorf("%s has %q and %q", text, got, again)
		}
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	tool := newTool("alpha", "x and y and z", 0)
	p := policy(t, "deny a*::x*y*z, allow prompt:*::p, deny resource:notes::note:x, deny b::*, allow")
	for _, test := range []struct {
		name   string
		decide func() bool
	}{
		{"on a server", func() bool { return p.MayAllow("alpha") }},
		{"on restrictions", func() bool { return p.Restricts("alpha") }},
		{"on a tool", func() bool { return isAllowed(p.Tool(tool)) }},
		{"on a prompt", func() bool { return isAllowed(p.Prompt("alpha", "p")) }},
		{"on a resource without rules", func() bool { return isAllowed(p.Resource("alpha", "file:///a/%2e%2e/b")) }},
		{"on a template without rules", func() bool { return isAllowed(p.Template("alpha", "file:///a/{b}")) }},
		{"on a resource of a denied server", func() bool { return isAllowed(p.Resource("b", "file:///a/%2e%2e/b")) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			if n := testing.AllocsPerRun(100, func() { test.decide() }); n != 0 {
				t.Errorf("%v times", n)
			}
		})
	}
}

func TestLiteralPrefix(t *testing.T) { // A69
	for _, test := range []struct {
		template, want string
		open           bool
	}{
		{"file:///a/b", "file:///a/b", false},
		{"file:///a/{b}", "file:///a/", true},
		{"file:///a/b{c}", "file:///a/", true},
		{"file:///a/b{+c}/{d}", "file:///a/", true},
		{"file:///a/b{/c}", "file:///a/b", true},
		{"file:///a/b{?c}", "file:///a/b", true},
		{"file:///a/b{#c}", "file:///a/b", true},
		{"file:///a/b?c={d}", "file:///a/b?c=", true},
		{`file:///a\{b}`, `file:///a\`, true},
		{"memo://h{b}/c", "memo://", true},
		{"memo://h:{port}/c", "memo://", true},
		{"note:{id}", "note:", true},
		{"urn:isbn:{id}", "urn:isbn:", true},
		{"no{id}", "", true},
		{"{id}", "", true},
		{"{", "", true},
	} {
		if got, open := literalPrefix(test.template); got != test.want || open != test.open {
			t.Errorf("%s: got %q, %v", test.template, got, open)
		}
	}
}

func BenchmarkPolicy(b *testing.B) {
	p := policy(b, "deny alpha::slow*, deny resource:file:///secret, allow resource:file:///, allow alpha::*, deny")
	tool := newTool("alpha", "echo", 0)
	b.Run("tool", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Tool(tool)
		}
	})
	b.Run("resource", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Resource("alpha", "file:///home/me/src/../notes%20of/today.txt")
		}
	})
}

// FuzzResource compares decisions with a slow and simple comparison of URIs, which does not
// consider other spellings that a server may treat as equal.
func FuzzResource(f *testing.F) { // A55
	for _, uri := range []string{
		"file:///secret/x", "file:///pub/../secret", "file:///pub/%2e%2e/secret", "file:///%2573ecret/x", `file:\\\secret\x`,
		"file://host/secret?x#y", "file:///a//../secret/..;/b", "file:secret", "http://h.example:80/a/b",
		"HTTP://u@h.Example/a",
		"note:abc/def", "note:x/../abc", "file:///pub%2f..%2fsecret", "file:///..%5csecret", "file:///\u017fecret%00", "{x}",
		"file:///C|/x", "http://x\\@h.example/a", "file:///secret%23/../pub",
		"file:///%", "\xff:{x}", "note:a/./b", "file:///pub/./..", "http://h.example", "note+1:\u01d9/%2525", "x@y:z",
		"http://a:b:c/d", "note:a/b{x}", "note:a{#x}",
	} {
		f.Add(uri)
	}
	prefixes := []string{"file:///secret", "http://h.example/a", "note:abc"}
	denies, allows := make(map[string]*Policy), make(map[string]*Policy)
	for _, prefix := range prefixes {
		denies[prefix] = policy(f, "deny resource:"+prefix+", allow")
		allows[prefix] = policy(f, "allow resource:"+prefix+", deny")
	}
	f.Fuzz(func(t *testing.T, uri string) {
		for _, prefix := range prefixes {
			below, ok := isBelow(uri, prefix)
			denied, allowed := !isAllowed(denies[prefix].Resource("s", uri)), isAllowed(allows[prefix].Resource("s", uri))
			if allowed && !denied {
				t.Errorf("%q is below %s for an allow rule, but not for a deny rule", uri, prefix)
			}
			if ok && below && !denied {
				t.Errorf("%q is below %s and not denied", uri, prefix)
			}
			if ok && !below && allowed && strings.HasPrefix(prefix, "file:") {
				t.Errorf("%q is not below %s and allowed", uri, prefix)
			}
			if isAllowed(denies[prefix].Template("s", uri)) && !strings.Contains(uri, "{") && denied {
				t.Errorf("%q is listed, but cannot be read", uri)
			}
		}
	})
}

// isBelow reports whether a URI is below a prefix. ok is false if the URI is invalid.
func isBelow(uri, prefix string) (below, ok bool) {
	u, err := url.Parse(uri)
	if err != nil {
		return false, false
	}
	p, _ := url.Parse(prefix)
	if u.Scheme != p.Scheme {
		return false, true
	}
	host := strings.TrimSuffix(strings.ToLower(u.Host), ":80")
	if host != p.Host && u.Scheme != "file" {
		return false, true
	}
	at, root := cleanPath(u), cleanPath(p)
	return at == root || strings.HasPrefix(at, root+"/"), true
}

func cleanPath(u *url.URL) string {
	p := u.Path + u.Opaque
	for {
		decoded, err := url.PathUnescape(p)
		if err != nil || decoded == p {
			break
		}
		p = decoded
	}
	return strings.ToLower(path.Clean("/" + strings.ReplaceAll(p, `\`, "/")))
}

// Of two rules, the first one that selects an item decides on it. The results for a whole server
// are consistent with those for its items.
func FuzzRules(f *testing.F) {
	for _, patterns := range [][2]string{
		{"*", "a::b"}, {"a::*", "tool:a::*"}, {"tool:a::b*", "prompt:*::b"}, {"resource:*", "resource:a::file:///x"},
		{"resource:file:///x", "**"}, {"tool::x", "tool:tool::x"}, {"a::b::c", "*a*::*"}, {"a", "::"},
		{"kind:a::b", "resource:x?y"}, {"read_only", "a::b"}, {"destructive:a::*", "*"}, {"tool:a::b", "read_only:a::b"},
		{"resource:", "*"}, {"resource:{x}", "*"}, {"resource:x", "*"}, {"resource:x@y:z", "*"}, {"resource:file://@x", "*"},
		{"resource:note1:", "*"},
	} {
		f.Add(patterns[0], patterns[1], true, false, "a", "b", "file:///x")
		f.Add(patterns[0], patterns[1], false, true, "tool", "x", "note:x")
	}
	for _, uri := range []string{"file:x", "file:///C:/x", "note:\u01d9\u200b/x:y", "note:/\xff", "note://x/./y"} {
		f.Add("resource:note:x", "resource:*", true, false, "a", "b", uri)
	}
	f.Fuzz(func(t *testing.T, first, second string, allowFirst, allowSecond bool, server, name, uri string) {
		compiled := func(otherwise bool, rules ...Rule) *Policy {
			p, err := New(rules, allowed(otherwise))
			if err != nil {
				return nil
			}
			return p
		}
		a, b := Rule{Action: allowed(allowFirst), Pattern: first}, Rule{Action: allowed(allowSecond), Pattern: second}
		one, other := compiled(false, Rule{Action: Allow, Pattern: first}),
			compiled(false, Rule{Action: Allow, Pattern: second})
		if one == nil || other == nil {
			return
		}
		for _, otherwise := range []bool{false, true} {
			p := compiled(otherwise, a, b)
			asked := map[string]func(*Policy) bool{
				"tool":           func(p *Policy) bool { return isAllowed(p.Tool(newTool(server, name, mcp.Unannotated))) },
				"read-only tool": func(p *Policy) bool { return isAllowed(p.Tool(newTool(server, name, mcp.ReadOnly))) },
				"prompt":         func(p *Policy) bool { return isAllowed(p.Prompt(server, name)) },
				"other":          func(p *Policy) bool { return p.AllowsOther(server) },
			}
			for kind, ask := range asked {
				want := otherwise
				if ask(one) {
					want = allowFirst
				} else if ask(other) {
					want = allowSecond
				}
				if got := ask(p); got != want {
					t.Fatalf("%+v, %+v, else %t: %s %q of %q is allowed: %t", a, b, otherwise, kind, name, server, got)
				}
				if got := ask(p); got && !p.MayAllow(server) || !got && !p.Restricts(server) {
					t.Fatalf("%+v, %+v, else %t: %s %q of %q is allowed: %t, and of the server anything: %t, not all: %t", a, b,
						otherwise, kind, name, server, got, p.MayAllow(server), p.Restricts(server))
				}
			}
			resource := isAllowed(p.Resource(server, uri))
			if resource && !p.MayAllow(server) || !resource && !p.RestrictsResources(server) || p.RestrictsResources(server) &&
				!p.Restricts(server) {
				t.Fatalf("%+v, %+v, else %t: %q of %q is allowed: %t", a, b, otherwise, uri, server, resource)
			}
			if again := compiled(otherwise, a, b); again.Fingerprint() != p.Fingerprint() || compiled(!otherwise, a,
				b).Fingerprint() == p.Fingerprint() {
				t.Fatalf("%+v, %+v, else %t: the fingerprint is %s", a, b, otherwise, p.Fingerprint())
			}
		}
		// Determine independently what a pattern selects.
		kind, rest := "", first
		if strings.Contains(first, "read_only") || strings.Contains(first, "destructive") || strings.Contains(first,
			"idempotent") || strings.Contains(first, "open_world") {
			return
		}
		for _, word := range []string{"tool", "prompt", "resource"} {
			if after, ok := strings.CutPrefix(first, word+":"); ok && (!strings.HasPrefix(after, ":") ||
				strings.HasPrefix(after, "::")) {
				kind, rest = word, after
			}
		}
		patternServer, patternName, _ := strings.Cut(rest, "::")
		all := strings.Trim(rest, "*") == "" && kind == ""
		named := all || kind != "resource" && fits(patternServer, server) && fits(patternName, name)
		whole := all || strings.Trim(patternName, "*") == ""
		if tool, prompt := isAllowed(one.Tool(newTool(server, name, 0))),
			isAllowed(one.Prompt(server, name)); tool != (named && kind != "prompt") ||
			prompt != (named && (kind == "prompt" || kind == "" && whole)) {
			t.Fatalf("%q selects %q of %q: %t as a tool, %t as a prompt", first, name, server, tool, prompt)
		}
	})
}

// fits reports whether a name matches a pattern. It tries all possibilities.
func fits(pattern, name string) bool {
	before, after, star := strings.Cut(pattern, "*")
	rest, ok := strings.CutPrefix(name, before)
	switch {
	case !star:
		return pattern == name
	case !ok:
		return false
	}
	after = strings.TrimLeft(after, "*")
	for i := range len(rest) + 1 {
		if after == "" || fits(after, rest[i:]) {
			return true
		}
	}
	return false
}

func TestReadsArguments(t *testing.T) {
	for text, want := range map[string]bool{
		"allow":                                                false,
		"deny s::x, allow":                                     false,
		"confirm s::x, allow":                                  true,
		"confirm s::y, allow":                                  false,
		"allow s::x, confirm *, deny":                          false,
		"deny s::x when arguments.a == 1, allow":               true,
		"deny s::x when client == \"a\", allow":                false,
		"allow read_only, deny * when arguments.a == 1, allow": true,
	} {
		if got := policy(t, text).ReadsArguments("s", "x"); got != want {
			t.Errorf("%s: got %t", text, got)
		}
	}
	if (*Policy)(nil).ReadsArguments("s", "x") {
		t.Error("no rules: got true")
	}
}
