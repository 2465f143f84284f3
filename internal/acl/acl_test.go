package acl

import (
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
