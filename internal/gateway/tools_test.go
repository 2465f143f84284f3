package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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
