package integration

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// A page is a web page open in a browser on this machine. Its own host name can resolve to this
// machine at any time (DNS rebinding).
type page struct {
	origin string // empty for requests that browsers send without Origin
	client *http.Client
}

// newPage returns a page for which every host name resolves to address.
func newPage(origin, address string) page {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return page{origin, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		Timeout: patience, CheckRedirect: noRedirect}}
}

// noRedirect makes a client not follow redirects.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (p page) send(t *testing.T, method, endpoint, body string, headers ...string) httpResponse {
	t.Helper()
	if p.origin != "" {
		headers = append(headers, "Origin: "+p.origin)
	}
	return send(t, p.client, method, endpoint, body, append(headers, "Sec-Fetch-Mode: cors")...)
}

// pageEndpoints are the paths of the endpoints of startPageTest.
var pageEndpoints = []string{"/mcp", "/mcp/alpha", "/mcp/kid", "/api/mcp-gateway/alpha/rpc",
	"/api/mcp-gateway/kid/rpc", "/pruner/mcp", "/pruner/rpc"}

// startPageTest runs the built binary as on a user's own machine: on a loopback address, without
// credentials.
func startPageTest(t *testing.T) (caddy *caddyProcess, server *remoteServer, kid journal) {
	t.Helper()
	server, kid = newLenientServer(t, "echo"), newJournal(t)
	caddy = run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1", gateway("separator __", server.line("alpha"),
		block(child("kid", "--modern"), kid.env())),
		block("handle_path /pruner/*", pruner()))))
	return caddy, server, kid
}

// pageCalls returns messages of both eras that a malicious page could send, with their headers.
func pageCalls() (messages []string, headers [][]string) {
	modern, modernHeaders := (&testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`,
		HTTP: streamClient}}).Message("1", "tools/call", callOf("alpha", "echo", `{}`))
	return []string{rpc("tools/call", `{`+echoes+`}`), rpc("initialize", `{`+initParams+`}`), rpc("prune_text", `{}`),
		modern}, [][]string{nil, nil, nil, modernHeaders}
}

// A page makes its own host name resolve to 127.0.0.1, and sends requests to local ports as if they
// were its own server. This was published for all SDKs and for gateways: see SECURITY.md.
func TestSecurityDNSRebinding(t *testing.T) {
	isolate(t)
	caddy, server, kid := startPageTest(t)
	_, port, _ := net.SplitHostPort(caddy.address)
	messages, headers := pageCalls()
	for _, name := range []string{"evil.test", "localhost.evil.test", "127.0.0.1.evil.test", "evil.localhost.test",
		"0.0.0.0", "127.0.0.1@evil.test"} {
		t.Run("A43 a page of "+name, func(t *testing.T) {
			base := "http://" + name + ":" + port
			// Browsers send no Origin with same-origin GET requests.
			for _, origin := range []string{base, ""} {
				p := newPage(origin, caddy.address)
				for _, path := range pageEndpoints {
					for i, message := range messages {
						expectPageRefused(t, p.send(t, "POST", base+path, message, append(headers[i], acceptBoth)...))
					}
					for _, method := range []string{"GET", "DELETE"} {
						expectPageRefused(t, p.send(t, method, base+path, "", "Accept: text/event-stream", "Mcp-Session-Id: x"))
					}
				}
			}
		})
	}
	t.Run("A43 the same with localhost", func(t *testing.T) {
		p := newPage("", caddy.address)
		for _, path := range pageEndpoints[1:] {
			if got := p.send(t, "POST", "http://localhost:"+port+path, rpc("ping", `{}`), acceptBoth); got.StatusCode != 200 {
				t.Errorf("%s: got %d %s, want 200", path, got.StatusCode, got.body)
			}
		}
	})
	t.Run("A43 the admin endpoint", func(t *testing.T) {
		address := caddy.addresses[":2019"]
		_, port, _ := net.SplitHostPort(address)
		for _, path := range []string{"/config/", "/mcp_gateway/servers", "/mcp_gateway/clients"} {
			if got := newPage("", address).send(t, "GET", "http://evil.test:"+port+path, ""); got.StatusCode != 403 {
				t.Errorf("%s: got %d %s, want 403", path, got.StatusCode, got.body)
			}
		}
	})
	for _, r := range server.Received() {
		if !strings.Contains(r.Body, `"ping"`) {
			t.Errorf("the server received %s %s", r.Method, r.Body)
		}
	}
	if all := kid.entries(t, "tools/call"); len(all) > 0 {
		t.Errorf("the child received %v", all)
	}
}

// expectPageRefused checks that a request was refused, and that the page may not read the response.
func expectPageRefused(t *testing.T, got httpResponse) {
	t.Helper()
	if f := gatewayErrorOf(t, got); f.Status != 403 || f.Symbol != "forbidden_host" && f.Symbol != "forbidden_origin" {
		t.Errorf("%s %s: %+v", got.Request.Method, got.Request.URL, f)
	}
	if allowed := got.Header.Values("Access-Control-Allow-Origin"); len(allowed) > 0 {
		t.Errorf("a page may read the response: %v", allowed)
	}
}

// A page sends requests that browsers allow without a preflight: only the headers of forms, and a
// plain text body. It could have a tool called without reading the response.
func TestSecurityCrossSiteRequests(t *testing.T) {
	isolate(t)
	caddy, server, kid := startPageTest(t)
	base := "http://" + caddy.address
	pid := pidAt(t, base+"/mcp/kid")
	before := server.Count()
	messages, _ := pageCalls()
	for _, origin := range []string{"https://evil.test", "null", "http://localhost.evil.test",
		"chrome-extension://abcdefghijklmnop", "http://127.0.0.1.evil.test:8080", "http://[::ffff:203.0.113.1]"} {
		p := newPage(origin, caddy.address)
		t.Run("A43 a page of "+origin, func(t *testing.T) {
			for _, path := range pageEndpoints {
				for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
					"application/json"} {
					for _, message := range messages {
						expectPageRefused(t, p.send(t, "POST", base+path, message, "Content-Type: "+kind))
					}
				}
			}
		})
		t.Run("the admin endpoint and a page of "+origin, func(t *testing.T) {
			admin := newPage(origin, caddy.addresses[":2019"])
			for _, path := range []string{"/load", "/stop", "/config/", "/mcp_gateway/servers/kid/restart",
				"/mcp_gateway/servers/kid/accept", "/mcp_gateway/templates"} {
				if got := admin.send(t, "POST", "http://"+caddy.addresses[":2019"]+path, `{}`,
					"Content-Type: text/plain"); got.StatusCode != 403 && got.StatusCode != 400 || strings.Contains(got.body, "pid") {
					t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
				}
			}
		})
	}
	for _, site := range []string{"cross-site", "same-site"} {
		t.Run("A43 an image in a page, "+site, func(t *testing.T) {
			for _, path := range pageEndpoints {
				got := send(t, &http.Client{Timeout: patience}, "GET", base+path, "", "Sec-Fetch-Site: "+site,
					"Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")
				expectPageRefused(t, got)
			}
		})
	}
	t.Run("a preflight request", func(t *testing.T) {
		for _, path := range pageEndpoints {
			got := newPage("https://evil.test", caddy.address).send(t, "OPTIONS", base+path, "",
				"Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type, mcp-session-id")
			if got.StatusCode < 400 || got.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: %d %v", path, got.StatusCode, got.Header)
			}
		}
	})
	if n := server.Count() - before; n > 0 {
		t.Errorf("the server received %d requests, want 0", n)
	}
	if again := pidAt(t, base+"/mcp/kid"); again != pid {
		t.Errorf("the child was %d, is %d", pid, again)
	}
	if all := kid.messages(t, "tools/call"); len(all) != 2 {
		t.Errorf("the child received %d calls, want 2", len(all))
	}
}

// A server allows all origins in its CORS headers. Pages that the gateway does not allow still get
// no response.
func TestSecurityCORSOfServers(t *testing.T) {
	isolate(t)
	open := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result(`{}`))
	}))
	url := serve(t, gateway("origins https://app.test", "server open http://"+open+"/mcp"))
	for _, way := range endpointsOf(url, "open") {
		expectPageRefused(t, post(t, way.url, rpc("ping", `{}`), "Origin: https://evil.test"))
		if way.name == "/mcp" {
			continue
		}
		if got := post(t, way.url, rpc("ping", `{}`), "Origin: https://app.test"); got.StatusCode != 200 {
			t.Errorf("%s: got %d %s, want 200", way.name, got.StatusCode, got.body)
		}
	}
}
