package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/redact"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
)

// listTools returns a line for each tool that a client sees and for each server that failed.
func listTools(g *testGateway, client string) (lines []string) {
	for _, list := range g.NewOperator(httptest.NewRequest(http.MethodPost, "/mcp", nil), client).ListTools() {
		for _, tool := range list.Tools {
			lines = append(lines, list.Server+" "+tool.Name)
		}
		if list.Failure != nil {
			lines = append(lines, list.Server+" failed: "+list.Failure.Data.Symbol)
		}
	}
	return lines
}

func TestListTools(t *testing.T) {
	withClients := func(c *Config) {
		c.Clients = []*access.Client{
			{Name: "limited", Policy: rulesOf("allow tool:a::x", "deny *::*")},
			{Name: "nothing", Policy: rulesOf("deny *::*")},
			{Name: access.Anonymous, Policy: rulesOf("allow b::*", "deny *::*")},
		}
	}
	all := []string{"a a::x", "a a::y", "b b::x", "down failed: connect_error"}
	for _, tt := range []struct {
		name      string
		configure func(*Config)
		client    string
		want      []string
	}{
		{"all", nil, "", all},
		{"exposed tools only", func(c *Config) { c.Servers[0].Expose = []string{"y"} }, "", all[1:]},
		{"an operator", withClients, "", all},
		{"a client with rules", withClients, "limited", []string{"a a::x"}},
		{"a client without rules", withClients, "other", all},
		{"a client without rights", withClients, "nothing", nil},
		{"an unknown client", withClients, access.Anonymous, []string{"b b::x"}},
		{"discovery", func(c *Config) { c.Discovery = true }, "", []string{" search_tools", " describe_tool", " call_tool"}},
		{"recovery", func(c *Config) {
			c.Servers = c.Servers[:1]
			c.Servers[0].Mask, c.Servers[0].MaskMCP = originalsMask{}, true
		}, "", []string{"a a::x", "a a::y", " recover_observation"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			down := newPeer("down")
			down.down.Store(true)
			a := legacyPeer("a").hasTools("x", "y")
			g := newGateway(t, tt.configure, a, modernPeer("b").hasTools("x"), down)
			if got := listTools(g, tt.client); !slices.Equal(got, tt.want) {
				t.Errorf("got %q", got)
			}
			if n := len(a.alive); n > 0 {
				t.Errorf("%d sessions remain", n)
			}
			if n := len(g.known()); n > 0 {
				t.Errorf("%d clients are remembered", n)
			}
			g.audiences.each(func(a *audience) { t.Errorf("an audience is remembered: %+v", a) })
			if records := g.config.Observer.(*recorder).takeRecords(); len(records) > 0 {
				t.Errorf("recorded %+v", records)
			}
			g.Usage.Tallies(func(label string, _ *inbound.Tally) { t.Errorf("the request of %s was counted", label) })
		})
	}
}

// The gateway does not send tools/list to a server without tools.
func TestListToolsOfServerWithoutTools(t *testing.T) {
	p := legacyPeer("a")
	p.capabilities = `{"prompts":{}}`
	g := newGateway(t, nil, p)
	if got := listTools(g, ""); got != nil || p.count("tools/list") > 0 || p.count("initialize") != 1 {
		t.Errorf("got %q after %d requests", got, p.count("tools/list"))
	}
}

// Listed definitions are those that clients get, byte for byte, even if servers share the URI of a
// UI resource.
func TestListedDefinitions(t *testing.T) {
	for _, separator := range []string{"::", ""} {
		app := `{"name":"app","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"ui://app"}}}`
		other := `{"name":"x" , "inputSchema":{"type":"object","properties":{"q":{}}}}`
		peers := []*fakeServer{legacyPeer("a").hasList("tools/list", "tools", app, other)}
		if separator != "" {
			peers = append(peers, legacyPeer("b").hasList("tools/list", "tools", app))
		}
		g := newGateway(t, func(c *Config) {
			c.Naming.Separator = separator
			c.Servers[0].Mask, c.Servers[0].MaskMCP, c.Servers[0].Focus = originalsMask{}, true, toolview.NewFocus("focus")
		}, peers...)
		var listed struct{ Tools []json.RawMessage }
		if err := json.Unmarshal(g.legacy(t).ask("tools/list", "").Result, &listed); err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, list := range g.NewOperator(httptest.NewRequest(http.MethodPost, "/mcp", nil), "").ListTools() {
			for _, tool := range list.Tools {
				got = append(got, string(tool.Definition))
				if focused := string(tool.WithoutFocus) != string(tool.Definition); focused != (list.Server == "a") {
					t.Errorf("%q without its focus: %s", tool.Name, tool.WithoutFocus)
				}
			}
		}
		for _, tool := range listed.Tools {
			want = append(want, string(tool))
		}
		if len(want) < 3 || !slices.Equal(got, want) {
			t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A canceled request leaves no session behind.
func TestListToolsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := legacyPeer("a").handle("tools/list", func(_ http.ResponseWriter, a *incoming) {
		cancel()
		<-a.Context().Done()
	})
	g := newGateway(t, nil, p)
	lists := g.NewOperator(httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", nil), "").ListTools()
	if len(lists) != 1 || lists[0].Failure == nil || len(lists[0].Tools) > 0 {
		t.Errorf("got %+v", lists)
	}
	if n := len(p.alive); n > 0 {
		t.Errorf("%d sessions remain", n)
	}
}

func TestFocusRemoved(t *testing.T) {
	focus := toolview.NewFocus("focus")
	for _, tt := range []struct{ tool, want string }{
		{`{"name":"x","inputSchema":{"type":"object","properties":{"q":{}}}}`, ""},
		{`{"name":"x","inputSchema":{"type":"object","properties":{ }}}`, ""},
		{`{"name":"x","inputSchema":{"type":"object"}}`, `{"name":"x","inputSchema":{"type":"object","properties":{}}}`},
		{`{"name":"x","inputSchema":{}}`, `{"name":"x","inputSchema":{"properties":{}}}`},
	} {
		edit, ok := focus.Add([]byte(tt.tool))
		if !ok {
			t.Fatalf("%s cannot have a focus", tt.tool)
		}
		if tt.want == "" {
			tt.want = tt.tool
		}
		added := jsonspan.Spliced([]byte(tt.tool), edit)
		if got := focus.RemovedFrom(added); string(got) != tt.want {
			t.Errorf("got %s\nwant %s", got, tt.want)
		}
		if got := focus.RemovedFrom([]byte(tt.tool)); string(got) != tt.tool {
			t.Errorf("got %s\nwant %s", got, tt.tool)
		}
	}
}

// explain returns the explanations for a client, and the server of each.
func explain(g *testGateway, client string) (servers []string, all []Explanation) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for _, list := range g.NewOperator(r, "").Explain(client) {
		for _, e := range list.Explained {
			servers, all = append(servers, list.Server), append(all, e)
		}
	}
	return servers, all
}

// explainedPeers are servers with items of all kinds.
func explainedPeers() []*fakeServer {
	var peers []*fakeServer
	for _, p := range []*fakeServer{legacyPeer("a"), modernPeer("b")} {
		p.hasList("tools/list", "tools",
			`{"name":"read_x","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}`,
			`{"name":"put_x","inputSchema":{"type":"object"},"annotations":{"destructiveHint":false,"idempotentHint":true}}`,
			`{"name":"remove_x","inputSchema":{"type":"object"}}`)
		p.hasList("prompts/list", "prompts", `{"name":"read_p"}`, `{"name":"put_p"}`)
		p.hasList("resources/list", "resources", `{"uri":"file:///open/r","name":"r"}`, `{"uri":"file:///shut/r","name":"r"}`)
		p.hasList("resources/templates/list", "resourceTemplates",
			`{"uriTemplate":"file:///open/{n}","name":"t"}`, `{"uriTemplate":"file:///shut/{n}","name":"t"}`)
		p.handle("prompts/get", func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"messages":[]}`) })
		p.handle("resources/read", func(w http.ResponseWriter, a *incoming) { a.reply(w, `{"contents":[]}`) })
		peers = append(peers, p)
	}
	return peers
}

// Explanations match the lists and calls of the client.
func TestExplanationsAgreeWithListsAndCalls(t *testing.T) {
	for name, configure := range map[string]func(*Config){
		"no rules":            nil,
		"everything denied":   rulesForAll("deny *"),
		"tools by name":       rulesForAll("allow a::read_*", "allow *::put_x", "deny *"),
		"read only":           rulesForAll("allow read_only", "deny *"),
		"not destructive":     rulesForAll("deny destructive", "allow *"),
		"a server":            rulesForAll("allow b::*", "deny *"),
		"annotation of one":   rulesForAll("deny open_world:a::*", "allow idempotent:b::*", "deny tool:b::*"),
		"prompts":             rulesForAll("allow prompt:*::read_*", "deny *"),
		"resources":           rulesForAll("deny resource:a::file:///shut", "allow resource:file:///shut", "deny resource:*"),
		"confirm destructive": rulesForAll("confirm destructive", "allow *"),
		"confirm after deny":  rulesForAll("deny a::remove_*", "confirm *::*", "deny *"),
		"expose": func(c *Config) {
			rulesForAll("deny a::put_x", "allow *")(c)
			c.Servers[0].Expose = []string{"read_*", "put_*"}
		},
		"redaction": func(c *Config) {
			rulesForAll("allow read_only", "deny *")(c)
			var err error
			if c.Clients[0].Redactor, err = redact.New([]string{"secret"}, nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(fmt.Sprintf("%s %v", name, era), func(t *testing.T) {
				g := newGateway(t, configure, explainedPeers()...)
				u := g.user(t, era)
				u.identity, u.capabilities = "ann", "{}" // cannot confirm
				if era == mcp.Legacy {
					u.connect()
				}
				servers, all := explain(g, "ann")
				if len(all) != 18 {
					t.Fatalf("explained: %+v", all)
				}
				for i, e := range all {
					checkExplanation(t, u, servers[i], e)
				}
			})
		}
	}
}

// checkExplanation compares an explanation with the client's lists and calls.
func checkExplanation(t *testing.T, u *testClient, server string, e Explanation) {
	t.Helper()
	list := explainedKinds[slices.IndexFunc(explainedKinds, func(k explainedKind) bool { return k.name == e.Kind })].list
	shown := u.g.names.shown(server, list, e.Name)
	what := fmt.Sprintf("%s %s of %s: %s by %q", e.Kind, e.Name, server, e.Decision.Action, e.Decision.Reason())
	if want := e.Decision.Action != acl.Deny; (e.Shown == shown) != want || (e.Shown == "") == want {
		t.Errorf("%s: shown as %q", what, e.Shown)
	}
	listed := u.ask(mcp.ListKinds[list].Method, "{}").body
	if got := strings.Contains(listed, string(jsonrpc.Quote(shown))); got != (e.Decision.Action == acl.Allow) {
		t.Errorf("%s: listed %t: %s", what, got, listed)
	}
	var answer reply
	switch u.g.config.Observer.(*recorder).takeDenials(); list {
	case mcp.Tools:
		answer = u.call(shown)
	case mcp.Prompts:
		answer = u.ask("prompts/get", `{"name":`+string(jsonrpc.Quote(shown))+`}`)
	case mcp.Resources:
		answer = u.ask("resources/read", `{"uri":`+string(jsonrpc.Quote(shown))+`}`)
	default:
		return // cannot be requested
	}
	denials := u.g.config.Observer.(*recorder).takeDenials()
	symbol := map[acl.Action]string{acl.Deny: "acl_denied", acl.Confirm: "confirmation_required"}[e.Decision.Action]
	switch {
	case e.Decision.Reason() == "not in the server's expose list":
		if answer.code() != jsonrpc.CodeInvalidParams {
			t.Errorf("%s: got %s", what, answer.body)
		}
	case answer.symbol() != symbol || (len(answer.Result) > 0) != (symbol == ""):
		t.Errorf("%s: got %s", what, answer.body)
	case symbol == "" && len(denials) > 0, symbol != "" && (len(denials) != 1 || denials[0].Rule != e.Decision.Reason()):
		t.Errorf("%s: denied %+v", what, denials)
	}
	if rule := e.Decision.Reason(); symbol != "" && strings.Contains(answer.body, rule) {
		t.Errorf("%s: the answer names the rule: %s", what, answer.body)
	}
}

// Some items are hidden from a client regardless of its rules.
func TestExplainedReasons(t *testing.T) {
	tool := func(name, description string) string {
		return `{"name":"` + name + `","description":"` + description + `","inputSchema":{"type":"object"}}`
	}
	p := modernPeer("a").hasList("tools/list", "tools", tool("x", "first"), tool("denied", "first"))
	g := newGateway(t, func(c *Config) {
		rulesForAll("deny a::denied")(c)
		c.PinTools = true
		c.Servers[0].Expose = []string{"x", "denied", "twice", "bad", "hid*"}
	}, p)
	u := g.modern(t)
	u.ask("tools/list", "{}")
	p.hasList("tools/list", "tools", tool("x", "second"), tool("denied", "second"), tool("twice", ""),
		tool("twice", "other"), invalidTool, tool(`hid\u200bden`, ""), tool("unexposed", ""))
	want := []string{
		"x: deny: its definition has changed (pin_tools)",
		"denied: deny: deny a::denied",
		"twice: allow: default allow",
		"twice: deny: the server lists it more than once",
		"bad: deny: its definition is invalid: x-mcp-header of a: ",
		"hid\u200bden: deny: its name has hidden characters",
		"unexposed: deny: not in the server's expose list",
	}
	_, all := explain(g, access.Anonymous)
	var got []string
	for _, e := range all {
		got = append(got, e.Name+": "+e.Decision.Action.String()+": "+e.Decision.Reason())
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got %q", got)
	}
	listed := u.ask("tools/list", "{}").body
	for name, symbol := range map[string]string{"x": "tool_changed", "denied": "acl_denied", "twice": ""} {
		if s := u.call("a::" + name); s.symbol() != symbol || strings.Contains(listed, "a::"+name) != (symbol == "") {
			t.Errorf("%s: got %s, listed %s", name, s.body, listed)
		}
	}
}

// The operator also connects to servers that the client may not use. This leaves no state for the
// client.
func TestExplainAsksAsTheOperator(t *testing.T) {
	down := newPeer("down")
	down.down.Store(true)
	a, few := legacyPeer("a").hasTools("x"), modernPeer("few").hasTools("y")
	few.capabilities = `{"tools":{}}`
	g := newGateway(t, func(c *Config) {
		c.Discovery = true
		c.Clients = []*access.Client{
			{Name: "nothing", Policy: rulesOf("deny *")},
			{Name: "dev-*", Policy: rulesOf("allow read_only", "deny *")},
			{Name: access.Anonymous, Policy: rulesOf("deny destructive")},
		}
	}, a, few, down)
	for client, want := range map[string]string{
		"nothing": "deny *", "dev-7": "deny *", access.Anonymous: "deny destructive", "other": "no rules",
	} {
		lists := g.NewOperator(httptest.NewRequest(http.MethodGet, "/", nil), "").Explain(client)
		if len(lists) != 4 || lists[2].Failure == nil || lists[2].Reason == "" || len(lists[3].Tools) != 3 {
			t.Fatalf("%s: got %+v", client, lists)
		}
		for i, name := range []string{"x", "y"} {
			all := lists[i].Explained
			if lists[i].Failure != nil || len(lists[i].Tools) > 0 || len(all) != 1 || all[0].Name != name ||
				all[0].Annotations != mcp.Unannotated || all[0].Decision.Reason() != want {
				t.Errorf("%s: got %+v", client, lists[i])
			}
		}
	}
	if n := len(a.alive); n > 0 {
		t.Errorf("%d sessions remain", n)
	}
	caller := g.rules.Caller("")
	if _, notified := g.shared.ToolNotes(g.servers["a"], &caller, http.Header{}).Annotations("x"); notified {
		t.Error("the annotations count as listed for the client")
	}
	g.Usage.Tallies(func(label string, _ *inbound.Tally) { t.Errorf("the request of %s was counted", label) })
}

// Denied items are not listed, but their explanations take memory, which is limited.
func TestExplanationHasALimit(t *testing.T) {
	page := 0
	p := legacyPeer("a").handle("resources/list", func(w http.ResponseWriter, a *incoming) {
		page++
		a.reply(w, fmt.Sprintf(`{"resources":[{"uri":"file:///%s","name":"r"}],"nextCursor":"%d"}`,
			strings.Repeat("x", 1<<20), page))
	})
	g := newGateway(t, rulesForAll("deny *"), p)
	lists := g.NewOperator(httptest.NewRequest(http.MethodGet, "/", nil), "").Explain(access.Anonymous)
	if failure := lists[0].Failure; failure == nil || failure.Cause != jsonrpc.CauseTooLarge || page != maxListing>>20 {
		t.Errorf("got %+v after %d pages", failure, page)
	}
}

func TestAListWithTooManyPages(t *testing.T) {
	page := 0
	p := legacyPeer("a").handle("tools/list", func(w http.ResponseWriter, a *incoming) {
		page++
		a.reply(w, fmt.Sprintf(`{"tools":[{"name":"x%d"}],"nextCursor":"%d"}`, page, page))
	})
	g := newBareGateway(joinWithin(time.Hour), p)
	lists := g.NewOperator(httptest.NewRequest(http.MethodGet, "/", nil), "").Explain(access.Anonymous)
	if failure := lists[0].Failure; failure == nil || failure.Cause != jsonrpc.CauseTooLarge ||
		!strings.HasSuffix(failure.Message, "more than 10000 pages") || page != maxPages {
		t.Errorf("got %+v after %d pages", failure, page)
	}
}

// Describe uses only the server of the tool, in one session, whichever tools the client sees.
func TestDescribe(t *testing.T) {
	tool := func(name, description string) string {
		return `{"name":"` + name + `","description":"` + description + `","inputSchema":{"type":"object"}}`
	}
	long := strings.Repeat("n", 100)
	for _, era := range []func(string) *fakeServer{legacyPeer, modernPeer} {
		a, b := era("a").hasList("tools/list", "tools", tool("x", "first")), era("b").hasTools("y")
		g := newGateway(t, func(c *Config) {
			c.PinTools, c.Naming.Longest = true, 64
			c.Clients = []*access.Client{{Name: "ann", Policy: rulesOf("deny *::n*")}, {Name: access.Anonymous}}
		}, a, b)
		g.modern(t).ask("tools/list", "{}") // pins x
		asked, alive := b.count("tools/list"), len(a.alive)
		a.hasList("tools/list", "tools", tool("x", "second"), tool(long, ""), tool("free", ""))
		describe := func(name, client string) Description {
			return g.NewOperator(httptest.NewRequest(http.MethodGet, "/", nil), "").Describe(name, client)
		}
		for _, tt := range []struct{ name, client, want string }{
			{"a::free", "", "a::free"},
			{"a::free", "ann", "a::free: free shown as a::free by default allow"},
			{g.names.shown("a", mcp.Tools, long), "ann",
				g.names.shown("a", mcp.Tools, long) + ": " + long + " shown as  by deny *::n*"},
			{"a::" + long, "", "[a::free " + g.names.shown("a", mcp.Tools, long) + "]"},
			{"a::x", "ann", "its definition has changed (pin_tools)"},
			{"a::none", "ann", "[a::free " + g.names.shown("a", mcp.Tools, long) + "]"},
			{"none", "ann", "[]"},
		} {
			d := describe(tt.name, tt.client)
			got := fmt.Sprint(d.Names)
			switch e := d.Explanation; {
			case d.Tool != nil && e != nil:
				got = fmt.Sprintf("%s: %s shown as %s by %s", d.Tool.Name, e.Name, e.Shown, e.Decision.Reason())
			case d.Tool != nil:
				got = d.Tool.Name
			case d.HiddenReason != "":
				got = d.HiddenReason
			}
			if got != tt.want || d.Failure != nil {
				t.Errorf("%s for %q: got %s, %+v", tt.name, tt.client, got, d)
			}
		}
		if n := len(a.alive); n != alive {
			t.Errorf("%d sessions remain", n-alive)
		}
		if now := b.count("tools/list"); now != asked {
			t.Errorf("the other server got %d requests", now-asked)
		}
		a.down.Store(true)
		if d := describe("a::free", "ann"); d.Failure == nil || d.Reason == "" || d.Tool != nil {
			t.Errorf("got %+v", d)
		}
	}
}
