package gateway

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Errors of clients are not failures of the server.
func TestFaultsOfRequests(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	answer := func(status int, contentType, body string) {
		p.handle("tools/call", func(w http.ResponseWriter, a *incoming) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", a.id()))
		})
	}
	g := newGateway(t, func(c *Config) { c.Servers[0].ForwardAuth = false }, p)
	u := g.legacy(t)
	for _, tt := range []struct {
		name, contentType, body string
		status                  int
		answered                bool
		reason                  string
		certainty               upstream.Certainty
	}{
		{"a result", "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`, 200, true, "", 0},
		{"an error", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`, 200, true, "",
			0},
		{"an error with a status", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`,
			400, true, "", 0},
		{"params that it refuses", "text/plain", "bad", 400, false, "", 0},
		{"too many requests", "text/plain", "later", 429, false, "", 0},
		{"credentials that it refuses", "text/plain", "no", 401, false, "HTTP 401 text/plain", upstream.Weak},
		{"an unavailable server", "text/html", "<html>", 503, false, "HTTP 503 text/html", upstream.Doubtful},
		{"an HTML page", "text/html", "<html>", 200, false, "not an MCP server: HTTP 200 text/html", upstream.Doubtful},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer(tt.status, tt.contentType, tt.body)
			seen := g.config.Observer.(*recorder)
			seen.takeRecords()
			u.call("a::x")
			var got upstream.Record
			for _, r := range seen.takeRecords() {
				if r.ClientMethod == "tools/call" && r.Server == "a" {
					got = r
				}
			}
			fault := got.Fault
			if fault == nil {
				fault = new(upstream.Fault)
			}
			if got.Answered != tt.answered || fault.Reason != tt.reason || fault.Certainty != tt.certainty {
				t.Errorf("answered %t, %q, %d: want %t, %q, %d", got.Answered, fault.Reason, fault.Certainty, tt.answered,
					tt.reason, tt.certainty)
			}
		})
	}
}

// A client gets the names of its missing servers, and no others.
func TestMissingServersAreNamed(t *testing.T) {
	broken := legacyPeer("broken")
	broken.handle("initialize", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusUnauthorized) })
	broken.handle("server/discover", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusUnauthorized) })
	for _, tt := range []struct {
		name      string
		configure func(*Config)
		want      string
	}{
		{"an allowed server", func(c *Config) { c.ReportMissing = true },
			"Unavailable servers: broken (HTTP status 401). Their tools are missing until they are back."},
		{"report_missing off", func(*Config) {}, ""},
		{"a denied server", func(c *Config) {
			c.ReportMissing = true
			policy, err := acl.New([]acl.Rule{{Action: acl.Allow, Pattern: "ok::*"}}, acl.Deny)
			if err != nil {
				t.Fatal(err)
			}
			c.Clients = []*access.Client{{Name: "*", Policy: policy}}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			configure := func(c *Config) {
				c.Servers[1].ForwardAuth = false
				tt.configure(c)
			}
			g := newGateway(t, configure, legacyPeer("ok").hasTools("x"), broken)
			answer := g.user(t, 0).ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
				`"clientInfo":{"name":"c","version":"1"}}`)
			if got := strings.Contains(answer.body, "broken"); got != (tt.want != "") ||
				!strings.Contains(answer.body, tt.want) {
				t.Errorf("got %s", answer.body)
			}
		})
	}
}

// During an outage, the error of each call contains the reason.
func TestCallsInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that no retry happens in between
		p := legacyPeer("a")
		p.handle("initialize", func(w http.ResponseWriter, _ *incoming) { panic(http.ErrAbortHandler) })
		p.handle("server/discover", func(w http.ResponseWriter, _ *incoming) { panic(http.ErrAbortHandler) })
		g := newGateway(t, nil, p, legacyPeer("b"))
		u := g.legacy(t)
		answer := u.call("a::whatever")
		if answer.symbol() != "connect_error" || !strings.Contains(answer.body,
			`"MCP server a is unavailable: connection lost; the gateway keeps trying"`) {
			t.Errorf("got %s", answer.body)
		}
		faults := g.config.Observer.(*recorder)
		faults.mu.Lock()
		defer faults.mu.Unlock()
		if len(faults.faults) == 0 || faults.faults[0].Server != "a" || faults.faults[0].Tried != "initialize" ||
			faults.faults[0].Retry <= 0 {
			t.Errorf("reported %+v", faults.faults)
		}
	})
}
