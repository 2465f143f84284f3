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

// A page is a web page that is open in a browser on this machine: what it can make that
// send. Its own name resolves to this machine as soon as it likes (DNS rebinding).
type page struct {
	origin string // empty for requests with which browsers send none
	client *http.Client
}

// newPage returns a page for which every name is this machine.
func newPage(origin, address string) page {
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return page{origin, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: patience, CheckRedirect: stay}}
}

// stay follows no redirection.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (p page) send(t *testing.T, method, at, body string, headers ...string) answer {
	t.Helper()
	if p.origin != "" {
		headers = append(headers, "Origin: "+p.origin)
	}
	return send(t, p.client, method, at, body, append(headers, "Sec-Fetch-Mode: cors")...)
}

// pageDoors are where the site of runForPages takes messages.
var pageDoors = []string{"/mcp", "/mcp/alpha", "/mcp/kid", "/api/mcp-gateway/alpha/rpc", "/api/mcp-gateway/kid/rpc", "/pruner/mcp", "/pruner/rpc"}

// runForPages runs the built binary as people run it on their own machine: at a loopback
// address, without credentials.
func runForPages(t *testing.T) (caddy *running, server *remoteServer, kid journal) {
	t.Helper()
	server, kid = newLenientServer(t, "echo"), newJournal(t)
	caddy = run(t, inFile(t, block(":8080", "bind 127.0.0.1", gateway("separator __", server.line("alpha"), block(child("kid", "--modern"), kid.env())),
		block("handle_path /pruner/*", pruner()))))
	return caddy, server, kid
}

// pageCalls are the messages that a page would like to be obeyed, of both eras.
func pageCalls() (messages []string, headers [][]string) {
	modern, with := (&speaker{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: lasting}}).Message("1", "tools/call", callOf("alpha", "echo", `{}`))
	return []string{rpc("tools/call", `{`+echoes+`}`), rpc("initialize", `{`+initParams+`}`), rpc("prune_text", `{}`), modern}, [][]string{nil, nil, nil, with}
}

// A page makes a name of its own resolve to 127.0.0.1, and talks to whatever listens there as
// if that were its own server. Published of all SDKs and of gateways: see SECURITY.md.
func TestSecurityDNSRebinding(t *testing.T) {
	isolate(t)
	caddy, server, kid := runForPages(t)
	_, port, _ := net.SplitHostPort(caddy.address)
	messages, headers := pageCalls()
	for _, name := range []string{"evil.test", "localhost.evil.test", "127.0.0.1.evil.test", "evil.localhost.test", "0.0.0.0", "127.0.0.1@evil.test"} {
		t.Run("A43 a page of "+name, func(t *testing.T) {
			base := "http://" + name + ":" + port
			// Browsers send no Origin with GET to the server that a page is of, and such a
			// page asks for nothing but its own.
			for _, origin := range []string{base, ""} {
				p := newPage(origin, caddy.address)
				for _, door := range pageDoors {
					for i, message := range messages {
						refusedToPage(t, p.send(t, "POST", base+door, message, append(headers[i], acceptBoth)...))
					}
					for _, method := range []string{"GET", "DELETE"} {
						refusedToPage(t, p.send(t, method, base+door, "", "Accept: text/event-stream", "Mcp-Session-Id: x"))
					}
				}
			}
		})
	}
	t.Run("A43 the same by its right name", func(t *testing.T) {
		p := newPage("", caddy.address)
		for _, door := range pageDoors[1:] {
			if got := p.send(t, "POST", "http://localhost:"+port+door, rpc("ping", `{}`), acceptBoth); got.StatusCode != 200 {
				t.Errorf("%s: got %d %s, want 200", door, got.StatusCode, got.body)
			}
		}
	})
	t.Run("A43 the admin endpoint", func(t *testing.T) {
		address := caddy.moved[":2019"]
		_, port, _ := net.SplitHostPort(address)
		for _, path := range []string{"/config/", "/mcp_gateway/servers", "/mcp_gateway/clients"} {
			if got := newPage("", address).send(t, "GET", "http://evil.test:"+port+path, ""); got.StatusCode != 403 {
				t.Errorf("%s: got %d %s, want 403", path, got.StatusCode, got.body)
			}
		}
	})
	for _, r := range server.Received() {
		if !strings.Contains(r.Body, `"ping"`) {
			t.Errorf("the server got %s %s", r.Method, r.Body)
		}
	}
	if all := kid.entries(t, "tools/call"); len(all) > 0 {
		t.Errorf("the child got %v", all)
	}
}

// refusedToPage wants a page to be refused, and not to be told anything.
func refusedToPage(t *testing.T, got answer) {
	t.Helper()
	if f := failureOf(t, got); f.Status != 403 || f.Symbol != "forbidden_host" && f.Symbol != "forbidden_origin" {
		t.Errorf("%s %s: %+v", got.Request.Method, got.Request.URL, f)
	}
	if allowed := got.Header.Values("Access-Control-Allow-Origin"); len(allowed) > 0 {
		t.Errorf("a page may read it: %v", allowed)
	}
}

// A page sends what browsers send without asking first: no header but those that forms have,
// and a body that only looks like a text. It need not read the answer for the tool to be called.
func TestSecurityCrossSiteRequests(t *testing.T) {
	isolate(t)
	caddy, server, kid := runForPages(t)
	base := "http://" + caddy.address
	pid := pidAt(t, base+"/mcp/kid")
	before := server.Count()
	messages, _ := pageCalls()
	for _, origin := range []string{"https://evil.test", "null", "http://localhost.evil.test", "chrome-extension://abcdefghijklmnop", "http://127.0.0.1.evil.test:8080", "http://[::ffff:203.0.113.1]"} {
		p := newPage(origin, caddy.address)
		t.Run("A43 a page of "+origin, func(t *testing.T) {
			for _, door := range pageDoors {
				for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json"} {
					for _, message := range messages {
						refusedToPage(t, p.send(t, "POST", base+door, message, "Content-Type: "+kind))
					}
				}
			}
		})
		t.Run("the admin endpoint and a page of "+origin, func(t *testing.T) {
			admin := newPage(origin, caddy.moved[":2019"])
			for _, path := range []string{"/load", "/stop", "/config/", "/mcp_gateway/servers/kid/restart", "/mcp_gateway/servers/kid/accept", "/mcp_gateway/templates"} {
				if got := admin.send(t, "POST", "http://"+caddy.moved[":2019"]+path, `{}`, "Content-Type: text/plain"); got.StatusCode != 403 && got.StatusCode != 400 || strings.Contains(got.body, "pid") {
					t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
				}
			}
		})
	}
	for _, site := range []string{"cross-site", "same-site"} {
		t.Run("A43 an image in a page, "+site, func(t *testing.T) {
			for _, door := range pageDoors {
				got := send(t, &http.Client{Timeout: patience}, "GET", base+door, "", "Sec-Fetch-Site: "+site, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")
				refusedToPage(t, got)
			}
		})
	}
	t.Run("a page asks first", func(t *testing.T) {
		for _, door := range pageDoors {
			got := newPage("https://evil.test", caddy.address).send(t, "OPTIONS", base+door, "", "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: content-type, mcp-session-id")
			if got.StatusCode < 400 || got.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s: %d %v", door, got.StatusCode, got.Header)
			}
		}
	})
	if n := server.Count() - before; n > 0 {
		t.Errorf("the server got %d requests", n)
	}
	if again := pidAt(t, base+"/mcp/kid"); again != pid {
		t.Errorf("the child %d has become %d", pid, again)
	}
	if all := kid.messages(t, "tools/call"); len(all) != 2 {
		t.Errorf("the child was called %d times", len(all))
	}
}

// A server says that all pages may read its answers. Those that may not use the gateway do not
// get any.
func TestSecurityCORSOfServers(t *testing.T) {
	isolate(t)
	open := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, result(`{}`))
	}))
	url := serve(t, gateway("origins https://app.test", "server open http://"+open+"/mcp"))
	for _, way := range waysIn(url, "open") {
		refusedToPage(t, post(t, way.at, rpc("ping", `{}`), "Origin: https://evil.test"))
		if way.name == "/mcp" {
			continue
		}
		if got := post(t, way.at, rpc("ping", `{}`), "Origin: https://app.test"); got.StatusCode != 200 {
			t.Errorf("%s: got %d %s, want 200", way.name, got.StatusCode, got.body)
		}
	}
}
