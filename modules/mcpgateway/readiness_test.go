package mcpgateway

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// probeHealth returns the status and body of a health probe.
func probeHealth(t *testing.T, h *Handler, method, host string, headers ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(method, "http://"+host+"/mcp/health", nil)
	for i := 0; i+1 < len(headers) && headers[i] != ""; i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := serve(t, h, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestReadinessOfChildren(t *testing.T) {
	child := func(name string, flags ...string) string {
		return serverOf(name, proxyTo(childTransport(flags...), name+":1"))
	}
	missing := `,"transport":{"protocol":"mcp_stdio","command":["/nonexistent/server"]}`
	optional := strings.Replace(serverOf("extra", proxyTo(missing, "extra:1")), `{`, `{"optional":true,`, 1)
	h := adaptGateway(t, `{"servers":[`+child("good")+`,`+serverOf("bad", proxyTo(missing, "bad:1"))+`,`+optional+`]}`)

	call := func(server string) {
		serve(t, h, newPost("/api/mcp-gateway/"+server+"/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
	}
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 200 || body != `{"status":"ready"}` {
		t.Errorf("before the first request: %d %s", status, body)
	}
	if word, up := h.byName["good"].readiness(); word != "idle" || !up {
		t.Errorf("after the probe: %s %t, want idle", word, up)
	}
	call("good")
	call("extra")
	if word, up := h.byName["good"].readiness(); word != "running" || !up {
		t.Errorf("a running server: %s %t", word, up)
	}
	if word, up := h.byName["extra"].readiness(); up {
		t.Errorf("a server that cannot start: %s", word)
	}
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 200 {
		t.Errorf("while an optional server is down: %d %s", status, body)
	}
	call("bad")
	status, body := probeHealth(t, h, "GET", "localhost")
	if status != 503 || body != `{"status":"not ready","servers":{"bad":"stopped"}}` &&
		body != `{"status":"not ready","servers":{"bad":"waiting"}}` {
		t.Errorf("while a server is down: %d %s", status, body)
	}
}

// A gateway is not ready while a server starts.
func TestReadinessWhileStarting(t *testing.T) {
	listens := `,"transport":{"protocol":"mcp_stdio","command":["sh","-c","cat >/dev/null"],"start_timeout":600000000000}`
	h := adaptGateway(t, `{"servers":[`+serverOf("slow", proxyTo(listens, "slow:1"))+`]}`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := newPost("/api/mcp-gateway/slow/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		serve(t, h, r.WithContext(ctx))
	}()
	defer func() { cancel(); <-done }()
	await.Until(t, "the server starts", func() bool {
		word, up := h.byName["slow"].readiness()
		return word == "starting" && !up
	})
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 503 ||
		body != `{"status":"not ready","servers":{"slow":"starting"}}` {
		t.Errorf("%d %s", status, body)
	}
}

func TestReadinessOfHTTPServers(t *testing.T) {
	h := adaptGateway(t, `{"servers":[`+serverOf("remote", proxyTo("", "127.0.0.1:1"))+`]}`)
	s := h.byName["remote"]
	if word, up := s.readiness(); word != "idle" || !up {
		t.Errorf("before the first check: %s %t", word, up)
	}
	record := s.health.Load()
	record.failed(zap.NewNop(), &upstream.Fault{Server: "remote", Reason: "connection refused"})
	if status, body := probeHealth(t, h, "GET", "localhost"); status != 503 ||
		body != `{"status":"not ready","servers":{"remote":"unhealthy"}}` {
		t.Errorf("after a failed check: %d %s", status, body)
	}
	record.succeeded(zap.NewNop())
	if word, up := s.readiness(); word != "healthy" || !up {
		t.Errorf("after a successful check: %s %t", word, up)
	}
}

func TestReadinessRefuses(t *testing.T) {
	h := adaptGateway(t, `{"hosts":["mcp.test"],"servers":[`+serverOf("a", proxyTo("", "127.0.0.1:1"))+`]}`)
	for _, tt := range []struct {
		name, method, host, header, value string
		status                            int
	}{
		{"the address of a pod", "GET", "10.0.0.7:8080", "", "", 200},
		{"an IPv6 address", "HEAD", "[fd00::7]:8080", "", "", 200},
		{"a name of the gateway", "GET", "mcp.test", "", "", 200},
		{"a foreign host", "GET", "evil.test", "", "", 403},
		{"a page of another site", "GET", "10.0.0.7", "Origin", "https://evil.test", 403},
		{"an image in a page of another site", "GET", "10.0.0.7", "Sec-Fetch-Site", "cross-site", 403},
		{"another method", "POST", "localhost", "", "", 405},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if status, body := probeHealth(t, h, tt.method, tt.host, tt.header, tt.value); status != tt.status {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}
