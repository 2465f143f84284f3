package gateway

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A hiddenError hides what it wraps, as reverse_proxy's DialError does.
type hiddenError struct{ error }

func TestCauses(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	foreign := httptest.NewTLSServer(http.NotFoundHandler())
	defer foreign.Close()
	foreign.Config.ErrorLog = log.New(io.Discard, "", 0)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(at string) error {
		_, err := client.Get(at)
		var hidden *url.Error
		if !errors.As(err, &hidden) {
			t.Fatalf("%s: %v", at, err)
		}
		return hiddenError{hidden.Err}
	}
	for _, tt := range []struct {
		name string
		err  error
		want jsonrpc.Cause
	}{
		{"nothing listens", get(gone.URL), jsonrpc.CauseRefused},
		{"a name that does not exist", get("http://no-such-host.invalid"), jsonrpc.CauseNoHost},
		{"TLS to a plain port", tls.RecordHeaderError{Msg: "tls: first record does not look like a TLS handshake"}, jsonrpc.CauseTLS},
		{"a certificate of a private authority", get(foreign.URL), jsonrpc.CauseTLS},
		{"a route that does not exist", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("network is unreachable")}, jsonrpc.CauseNoRoute},
		{"a connection that was closed", io.ErrUnexpectedEOF, jsonrpc.CauseLost},
		{"a response that broke off", errAborted, jsonrpc.CauseLost},
		{"a cause that is known", &StatusError{502, startError{}}, jsonrpc.CauseNotStarted},
		{"anything else", errors.New("?"), jsonrpc.CauseNoRoute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := causeOf(tt.err); got != tt.want {
				t.Errorf("%v is %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}

type startError struct{}

func (startError) Error() string        { return "exec: no" }
func (startError) Cause() jsonrpc.Cause { return jsonrpc.CauseNotStarted }

// A child that runs and does not shake hands may be a program that is not an MCP server.
func TestFaultOfASilentChild(t *testing.T) {
	failure := jsonrpc.Timeout("a")
	failure.Cause = jsonrpc.CauseStarting
	const want = "not initialized within 2m0s; it runs, but has not answered: is it an MCP server on stdio?"
	if got := (&Server{Name: "a", ChildrenOnly: true}).fault(failure, "initialize", 2*time.Minute).Reason; got != want {
		t.Errorf("got %q", got)
	}
}

// Whatever a client does wrong is not a fault of the server.
func TestWhatARequestSaysOfTheServer(t *testing.T) {
	p := legacyPeer("a").hasTools("x")
	answer := func(status int, contentType, body string) {
		p.does("tools/call", func(w http.ResponseWriter, a *incoming) {
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
		certainty               Certainty
	}{
		{"a result", "application/json", `{"jsonrpc":"2.0","id":ID,"result":{"content":[]}}`, 200, true, "", 0},
		{"an error", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`, 200, true, "", 0},
		{"an error with a status", "application/json", `{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no"}}`, 400, true, "", 0},
		{"params that it does not take", "text/plain", "bad", 400, false, "", 0},
		{"too many requests", "text/plain", "later", 429, false, "", 0},
		{"credentials that it does not take", "text/plain", "no", 401, false, "HTTP 401 text/plain", Weak},
		{"its own failure", "text/html", "<html>", 503, false, "HTTP 503 text/html", Doubtful},
		{"a page", "text/html", "<html>", 200, false, "not an MCP server: HTTP 200 text/html", Doubtful},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answer(tt.status, tt.contentType, tt.body)
			seen := g.config.Observer.(*observed)
			seen.takeRecords()
			u.call("a::x")
			var got Record
			for _, r := range seen.takeRecords() {
				if r.Called == "tools/call" && r.Server == "a" {
					got = r
				}
			}
			fault := got.Fault
			if fault == nil {
				fault = new(Fault)
			}
			if got.Answered != tt.answered || fault.Reason != tt.reason || fault.Certainty != tt.certainty {
				t.Errorf("answered %t, %q, %d: want %t, %q, %d", got.Answered, fault.Reason, fault.Certainty, tt.answered, tt.reason, tt.certainty)
			}
		})
	}
}

// A client learns which of its servers are missing, and no other names.
func TestMissingServersAreNamed(t *testing.T) {
	broken := legacyPeer("broken")
	broken.does("initialize", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusUnauthorized) })
	broken.does("server/discover", func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusUnauthorized) })
	for _, tt := range []struct {
		name      string
		configure func(*Config)
		want      string
	}{
		{"a server that may be used", func(c *Config) { c.ReportMissing = true },
			"Unavailable servers: broken (HTTP status 401). Their tools are missing until they are back."},
		{"report_missing off", func(*Config) {}, ""},
		{"a server that may not be used", func(c *Config) {
			c.ReportMissing = true
			policy, err := acl.New([]acl.Rule{{Action: acl.Allow, Pattern: "ok::*"}}, acl.Deny)
			if err != nil {
				t.Fatal(err)
			}
			c.Clients = []*Client{{Name: "*", Policy: policy}}
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			configure := func(c *Config) {
				c.Servers[1].ForwardAuth = false
				tt.configure(c)
			}
			g := newGateway(t, configure, legacyPeer("ok").hasTools("x"), broken)
			said := g.user(t, 0).ask("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`)
			if got := strings.Contains(said.body, "broken"); got != (tt.want != "") || !strings.Contains(said.body, tt.want) {
				t.Errorf("got %s", said.body)
			}
		})
	}
}

// In an outage each call of the server is told why.
func TestCallsInAnOutage(t *testing.T) {
	p := legacyPeer("a")
	p.does("initialize", func(w http.ResponseWriter, _ *incoming) { panic(http.ErrAbortHandler) })
	p.does("server/discover", func(w http.ResponseWriter, _ *incoming) { panic(http.ErrAbortHandler) })
	g := newGateway(t, nil, p, legacyPeer("b"))
	u := g.legacy(t)
	s := g.servers["a"]
	s.mu.Lock()
	s.outage.retry = time.Now().Add(time.Hour)
	s.mu.Unlock()
	said := u.call("a::whatever")
	if said.symbol() != "connect_error" || !strings.Contains(said.body, `"MCP server a is unavailable: connection lost; it is tried again"`) {
		t.Errorf("got %s", said.body)
	}
	faults := g.config.Observer.(*observed)
	faults.mu.Lock()
	defer faults.mu.Unlock()
	if len(faults.faults) == 0 || faults.faults[0].Server != "a" || faults.faults[0].Tried != "initialize" || faults.faults[0].Retry <= 0 {
		t.Errorf("reported %+v", faults.faults)
	}
}
