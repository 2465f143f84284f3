package acl

import (
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

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
