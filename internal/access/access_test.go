package access

import (
	"slices"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// policy returns a policy that allows only what matches a pattern.
func policy(t *testing.T, pattern string) *acl.Policy {
	t.Helper()
	p, err := acl.New([]acl.Rule{{Action: acl.Allow, Pattern: pattern}}, acl.Deny)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCallers(t *testing.T) {
	r := NewRules([]*Client{
		{Name: "ann", Match: []string{"ann@example.com"}, Policy: policy(t, "a::*")},
		{Name: "ci-*", Policy: policy(t, "b::*")},
		{Name: "ci-1"},
	}, nil)
	for _, tt := range []struct {
		identity          string
		name, label       string
		rules             string // name of the rules, "" for none
		owner, account    string
		seesA, isVolatile bool
	}{
		{"ann", "ann", "ann", "ann", "ann", "ann", true, true},
		{Identity("ann", "token"), "ann", "ann", "ann", Identity("ann", "token"), "ann", true, false},
		{"ann@example.com", "ann", "ann", "ann", "ann@example.com", "ann", true, true},
		{"ci-7", "ci-7", "ci-*", "ci-*", "ci-7", "ci-7", false, true},
		{"ci-1", "ci-1", "ci-1", "ci-1", "ci-1", "ci-1", true, true}, // the exact name precedes the pattern
		{"bob", "bob", "other", "", "bob", "bob", true, true},
		{"", "", Anonymous, "", "@192.0.2.1", "", true, false},
		{OperatorIdentity, "", OperatorLabel, "", OperatorIdentity, OperatorAccount, true, false},
	} {
		c := r.Caller(tt.identity)
		c.Address = "192.0.2.1"
		rules := ""
		if c.Client != nil {
			rules = c.Client.Name
		}
		if c.Name != tt.name || c.Label != tt.label || rules != tt.rules {
			t.Errorf("%q: name %q, label %q, rules of %q", tt.identity, c.Name, c.Label, rules)
		}
		if c.Owner() != tt.owner || c.Account() != tt.account || c.MustReauthenticate() != tt.isVolatile {
			t.Errorf("%q: owner %q, account %q, volatile %t", tt.identity, c.Owner(), c.Account(), c.MustReauthenticate())
		}
		target := mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}
		if r.Sees(tt.identity, "a") != tt.seesA || c.Allows(target) != tt.seesA {
			t.Errorf("%q: sees the server: %t, may call its tool: %t", tt.identity, r.Sees(tt.identity, "a"), c.Allows(target))
		}
	}
	if !r.Match("ann@example.com") || r.Match("ann") || r.Match("") {
		t.Error("Match uses names other than identities")
	}
}

// Rules never allow names with invisible characters.
func TestHiddenCharacters(t *testing.T) {
	c := NewRules([]*Client{{Name: "ann", Policy: policy(t, "*")}}, nil).Caller("ann")
	for name, want := range map[string]bool{"x": true, "x\u200b": false, "\u202ex": false} {
		for _, kind := range []mcp.TargetKind{mcp.Tool, mcp.Prompt} {
			target := mcp.Target{Server: "a", Kind: kind, Name: name}
			if got := c.Allows(target); got != want {
				t.Errorf("%q: %t", name, got)
			}
			if got := c.DecideCall(target, []byte(`{}`)).Action != acl.Deny; got != want {
				t.Errorf("call of %q: %t", name, got)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	limit := func(key string, pattern string) Limit {
		var p *mcp.Pattern
		if pattern != "" {
			parsed, err := mcp.ParsePattern(pattern)
			if err != nil {
				t.Fatal(err)
			}
			p = &parsed
		}
		return NewLimit(ratelimit.Limit{Key: key, N: 1, Per: time.Minute, Burst: 2}, p)
	}
	r := NewRules([]*Client{{Name: "ann", Limits: []Limit{limit("own", ""), limit("x", "a::x")}}},
		[]Limit{limit("all", "")})
	x := mcp.Target{Server: "a", Kind: mcp.Tool, Name: "x"}
	for _, tt := range []struct {
		identity string
		target   mcp.Target
		request  bool
		want     []string
	}{
		{"ann", x, true, []string{"all", "own", "x"}},
		{"ann", mcp.Target{Server: "a", Kind: mcp.Tool, Name: "y"}, true, []string{"all", "own"}},
		{"ann", x, false, []string{"all aside", "own aside"}},
		{"bob", x, true, []string{"all"}},
		{OperatorIdentity, x, true, nil},
	} {
		c := r.Caller(tt.identity)
		var keys []string
		for _, l := range r.Limits(nil, &c, tt.target, tt.request) {
			keys = append(keys, l.Key)
			if request := l.N == 1 && l.Burst == 2; request != tt.request {
				t.Errorf("%q: %s allows %d, %d at once", tt.identity, l.Key, l.N, l.Burst)
			}
		}
		if !slices.Equal(keys, tt.want) {
			t.Errorf("%q, %v, request %t: got %q", tt.identity, tt.target, tt.request, keys)
		}
	}
}
