package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

func withOverrides(t *testing.T) func(*Config) {
	return func(c *Config) {
		c.Servers[0].Overrides = overridesOf(t,
			&toolview.Override{Tool: "delete_file", Name: "remove_file",
				Fixed: []toolview.FixedArgument{{Name: "root", Value: []byte(`"/srv"`)}}},
			&toolview.Override{Tool: "a", Name: "b"}, &toolview.Override{Tool: "b", Name: "a"}, &toolview.Override{Tool: "gone",
				Title: "x"})
	}
}

// hasHeaders checks that the headers of a call of delete_file match its body.
func hasHeaders(t *testing.T, a *incoming) {
	t.Helper()
	for name, want := range map[string]string{
		"Mcp-Name": "delete_file", "Mcp-Param-Root": "/srv", "Mcp-Param-Path": "p",
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestOverridesInAggregate(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		for name, p := range map[string]*fakeServer{"legacy": legacyPeer("s"), "modern": modernPeer("s")} {
			t.Run([]string{"legacy", "modern"}[era]+" client, "+name+" server", func(t *testing.T) {
				p.hasList("tools/list", "tools", renamedTools...)
				g := newGateway(t, withOverrides(t), p)
				u := g.user(t, era)
				if era == mcp.Legacy {
					u.connect()
				}
				u.header.Set("Mcp-Param-Path", "p")
				u.header.Set("Mcp-Param-Root", "/etc") // clients that see the tool do not send it
				call := func(name string) reply {
					return u.ask("tools/call", `{"name":"`+name+`","arguments":{"path":"p","root":"/etc"}}`)
				}
				if got := call("s::remove_file"); got.Error != nil { // before the first list
					t.Fatalf("got %s", got.answer)
				}
				var list struct{ Tools []struct{ Name string } }
				if err := json.Unmarshal(u.ask("tools/list", "").Result, &list); err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, tool := range list.Tools {
					names = append(names, tool.Name)
				}
				if want := []string{"s::remove_file", "s::b", "s::a"}; !slices.Equal(names, want) {
					t.Errorf("got %v, want %v", names, want)
				}
				call("s::remove_file")
				u.call("s::a")
				got := call("s::delete_file")
				if got.code() != -32602 || !strings.Contains(got.Error.Message, "unknown tool s::delete_file") {
					t.Errorf("by the server's name: got %s", got.answer)
				}
				var called []string
				for _, a := range p.requests("tools/call") {
					tool := a.message.Text(jsonrpc.Name)
					called = append(called, tool+" "+string(a.message.Literal(jsonrpc.Arguments)))
					if name == "modern" && tool == "delete_file" {
						hasHeaders(t, a)
					}
				}
				const want = `delete_file {"path":"p","root":"/srv"}`
				if !slices.Equal(called, []string{want, want, `b {}`}) {
					t.Errorf("the server got %q, want %q", called, want)
				}
				for _, r := range g.config.Observer.(*recorder).takeRecords() {
					if r.Method == "tools/call" && r.Tool == "remove_file" {
						t.Errorf("recorded %+v", r)
					}
				}
				o := g.config.Observer.(*recorder)
				notified := []string{"s remove_file hidden by delete_file", "s gone missing"}
				if !slices.Equal(o.overridden, notified) {
					t.Errorf("reported %q, want %q", o.overridden, notified)
				}
			})
		}
	}
}

// A new name that is too long is shortened like others.
func TestOverrideWithLongName(t *testing.T) {
	long := strings.Repeat("long_", 20)
	for _, discovery := range []bool{false, true} {
		p := legacyPeer("s").hasTools("x", "y")
		g := newGateway(t, func(c *Config) {
			c.Naming, c.Discovery = mcp.Naming{Separator: "__", Longest: 40}, discovery
			c.Servers[0].Overrides = overridesOf(t, &toolview.Override{Tool: "x", Name: long, Hidden: []string{"a"}})
		}, p)
		name := g.names.shown("s", mcp.Tools, long)
		u := g.legacy(t)
		if got := u.call(name); len(name) != 40 || got.Error != nil {
			t.Fatalf("%s: got %s", name, got.answer)
		}
		if got := p.waitFor(t, "tools/call", 1).message; !got.Is(jsonrpc.Name, "x") {
			t.Errorf("the server got %s", got.Raw)
		}
	}
}

// A client that may not call a tool learns nothing about it.
func TestOverrideOfDeniedTool(t *testing.T) {
	p := legacyPeer("s").hasList("tools/list", "tools", renamedTools...)
	g := newGateway(t, func(c *Config) {
		withOverrides(t)(c)
		c.Clients = []*access.Client{{Name: "*", Policy: rulesOf("deny s::delete_file", "allow s::*")}}
	}, p)
	for _, arguments := range []string{`{}`, `[]`} {
		call := `{"name":"s::remove_file","arguments":` + arguments + `}`
		if got := g.legacy(t).ask("tools/call", call); got.symbol() != "acl_denied" {
			t.Errorf("%s: got %s", arguments, got.body)
		}
	}
	for _, d := range g.config.Observer.(*recorder).takeDenials() {
		if d.Target.Name != "delete_file" {
			t.Errorf("denied %+v", d)
		}
	}
}

// A client can log in to a server whose own login tool is renamed, and call that tool afterwards.
func TestOverrideOfLoginTool(t *testing.T) {
	p := legacyPeer("a").hasTools("login")
	g, login := newLoginGateway(t, p, func(c *Config) {
		c.Servers[0].Overrides = overridesOf(t, &toolview.Override{Tool: "login", Name: "enter"})
	})
	u := g.user(t, mcp.Modern)
	u.identity = "ann"
	if s := u.call("a::login"); !strings.Contains(s.answer, "https://gateway/login") {
		t.Errorf("before the login: %s", s.body)
	}
	login.logIn(g, "ann")
	if s := u.call("a::login"); !strings.Contains(s.answer, "Logged in to a.") || p.count("tools/call") > 0 {
		t.Errorf("after the login: %s", s.body)
	}
	if s := u.call("a::enter"); s.Error != nil || !p.waitFor(t, "tools/call", 1).message.Is(jsonrpc.Name, "login") {
		t.Errorf("the tool of the server: %s", s.body)
	}
}

// At a single-server endpoint, the gateway sets the headers that a modern client cannot know.
func TestOverridesAtOneServer(t *testing.T) {
	for _, kind := range []upstream.EndpointKind{upstream.Single, upstream.RPC} {
		p := modernPeer("s").hasList("tools/list", "tools", renamedTools...)
		g := newGateway(t, withOverrides(t), p)
		u := g.modern(t)
		post := func(method, params string) string {
			r := u.serverRequest(method, params)
			r.Header.Set("Mcp-Param-Path", "p")
			r.Header.Set("Mcp-Param-Root", "/etc")
			w := httptest.NewRecorder()
			g.NewRequest(w, r, inbound.Endpoint{Kind: kind, Server: "s"}, inbound.Peer{Address: "192.0.2.1"}).Serve()
			return w.Body.String()
		}
		for range 2 {
			post("tools/call", `{"name":"remove_file","arguments":{"path":"p","Root":"/etc"}}`)
		}
		for _, a := range p.requests("tools/call") {
			if got := string(a.message.Literal(jsonrpc.Arguments)); got != `{"path":"p","root":"/srv"}` {
				t.Errorf("the server got %s", got)
			}
			hasHeaders(t, a)
		}
		if n := p.count("tools/list"); n != 1 {
			t.Errorf("requested tools %d times", n)
		}
		for _, params := range []string{
			`{"name":"delete_file","arguments":{}}`, `{"name":"remove_file","arguments":[]}`, `{"name":1}`,
			`{"name":"remove_file","Arguments":{"root":"/etc"}}`, `{"name":"remove_file","NAME":"delete_file"}`,
		} {
			if got := post("tools/call", params); !strings.Contains(got, `"error"`) {
				t.Errorf("%s: got %s", params, got)
			}
		}
		if n := p.count("tools/call"); n != 2 {
			t.Errorf("the server got %d calls, want 2", n)
		}
		list := post("tools/list", "")
		shows := func(text string) int { return strings.Count(list, text) }
		if shows("delete_file") != 0 || shows("Root") != 0 || shows("remove_file") != 1 {
			t.Errorf("listed %s", list)
		}
	}
}

// The header of a fixed argument cannot have another value, even where headers have no meaning,
// because proxies may use it.
func TestFixedArgumentInHeadersAtOneServer(t *testing.T) {
	unlisted := func(w http.ResponseWriter, a *incoming) {
		_, _ = w.Write(jsonrpc.ErrorResponse(a.message.Literal(jsonrpc.ID), jsonrpc.CodeInternalError, "no"))
	}
	for name, p := range map[string]*fakeServer{
		"legacy":               legacyPeer("s").hasList("tools/list", "tools", renamedTools...),
		"modern, without list": modernPeer("s").handle("tools/list", unlisted),
	} {
		t.Run(name, func(t *testing.T) {
			era := mcp.Legacy
			if p.eras[mcp.Modern] {
				era = mcp.Modern
			}
			u := newGateway(t, withOverrides(t), p).user(t, era)
			u.header.Set("X-Single", "s")
			if era == mcp.Legacy {
				u.connect()
			}
			u.header.Set("Mcp-Param-Root", "/etc")
			u.ask("tools/call", `{"name":"remove_file","arguments":{"path":"p"}}`)
			if got := p.waitFor(t, "tools/call", 1).Header.Get("Mcp-Param-Root"); got != "" {
				t.Errorf("the server got %s", got)
			}
		})
	}
}

func overridesOf(t testing.TB, all ...*toolview.Override) *toolview.Overrides {
	t.Helper()
	overrides, err := toolview.NewOverrides(all)
	if err != nil {
		t.Fatal(err)
	}
	return overrides
}

// renamedTools are the tools of a server with overrides.
var renamedTools = []string{
	`{"name":"delete_file","inputSchema":{"type":"object","properties":{` +
		`"path":{"type":"string","x-mcp-header":"Path"},` +
		`"root":{"type":"string","x-mcp-header":"Root"}},"required":["path","root"]}}`,
	`{"name":"remove_file","inputSchema":{"type":"object"}}`,
	`{"name":"a","inputSchema":{"type":"object"}}`, `{"name":"b","inputSchema":{"type":"object"}}`,
}
