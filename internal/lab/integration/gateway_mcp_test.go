package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Responses over Streamable HTTP pass unchanged, except for masking and headers that are not on the
// list.
func TestGatewayMCPPassesThrough(t *testing.T) {
	isolate(t)
	const session = `"headers":{"Mcp-Session-Id":"s-1","X-Other":"of the server"}`
	long := result(`"` + strings.Repeat("A", 5000) + `"`)
	tests := []struct {
		name, request string
		want          string // if it differs from the upstream's response
	}{
		{"a result", raw(result(`{"a":1.0}`), session), ""},
		{"G5 a long result", raw(long, session), result(`"` + cut("A", 5000, 2000, 2000) + `"`)},
		{"an error of the server", rpc("err", `{"n":3}`), ""},
		{"202 for a notification", `{"jsonrpc":"2.0","method":"note"}`, ""},
		{"202 for a client's response", `{"jsonrpc":"2.0","id":1,"result":{},"method":"note"}`, ""},
		{"400", raw(`{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"x"}}`, `"status":400`), ""},
		{"404 for a lost session", raw("lost", `"status":404,"ctype":"text/plain"`), ""},
		{"401 without its challenge", raw("", `"status":401,"headers":{"Www-Authenticate":"Bearer resource_metadata=x"}`),
			""},
		{"403 stays 403", raw(`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"refus"}}`, `"status":403`), ""},
		{"500 with HTML", raw("<p>", `"status":500,"ctype":"text/html"`), ""},
		{"no JSON", raw("{", ""+`"status":200`), ""},
		{"an empty response", raw(""), ""},
		{"an event stream", rpc("sse", `{"interval_ms":0}`), ""},
		{"G5 long events", rpc("sse", `{"interval_ms":0,"n":1,"size":5000}`),
			event(result(`{"content":[{"type":"text","text":"` + cut("A", 5000, 2000, 2000) + `"}]}`))},
	}
	stub := new(mcptest.Stub)
	address := upstream(t, stub)
	url := serve(t, gateway("mask", "server stub http://"+address+"/mcp?x=1"))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := post(t, "http://"+address, tt.request)
			if tt.want != "" {
				want.body = tt.want
			}
			got := post(t, mcpAt(url, "stub"), tt.request, "Mcp-Session-Id: mine", "Mcp-Protocol-Version: 2025-11-25",
				"Mcp-Method: raw", "Last-Event-Id: 7", "Accept: application/json")
			same(t, got.body, want.body)
			if got.Header.Get("X-Other")+got.Header.Get("WWW-Authenticate") != "" {
				t.Errorf("the client got %v", got.Header)
			}
			for _, header := range []http.Header{got.Header, want.Header} {
				for _, name := range []string{"Date", "Via", "Content-Length", "X-Other", "Www-Authenticate"} {
					header.Del(name)
				}
			}
			if got.StatusCode != want.StatusCode || fmt.Sprint(got.Header) != fmt.Sprint(want.Header) {
				t.Errorf("got %d %v\nwant %d %v", got.StatusCode, got.Header, want.StatusCode, want.Header)
			}
			last := stub.Last()
			same(t, last.Body, tt.request)
			for name, want := range map[string]string{"Mcp-Session-Id": "mine", "Mcp-Protocol-Version": "2025-11-25",
				"Mcp-Method": "raw", "Last-Event-Id": "7", "Accept": "application/json"} {
				if last.Headers.Get(name) != want {
					t.Errorf("the upstream received %v", last.Headers)
				}
			}
			if last.Path != "/mcp" {
				t.Errorf("got path %s", last.Path)
			}
		})
	}
	t.Run("DELETE ends a session", func(t *testing.T) {
		send(t, client, "DELETE", mcpAt(url, "stub"), "", "Mcp-Session-Id: mine")
		if last := stub.Last(); last.Method != "DELETE" || last.Headers.Get("Mcp-Session-Id") != "mine" ||
			last.Path != "/mcp" {
			t.Errorf("the upstream received %+v", last)
		}
	})
	t.Run("other methods", func(t *testing.T) {
		for _, method := range []string{"PUT", "OPTIONS", "PATCH"} {
			got := send(t, client, method, mcpAt(url, "stub"), "")
			if f := gatewayErrorOf(t, got); f.Status != 405 || got.Header.Get("Allow") != "POST, GET, DELETE" {
				t.Errorf("%s: %+v %v", method, f, got.Header)
			}
		}
	})
	t.Run("no protocol upgrade", func(t *testing.T) {
		send(t, client, "GET", mcpAt(url, "stub"), "", "Connection: Upgrade", "Upgrade: websocket")
		if upgrade := stub.Last().Headers.Get("Upgrade"); upgrade != "" {
			t.Errorf("the upstream received an upgrade to %s", upgrade)
		}
	})
}

func TestGatewayMCPFailures(t *testing.T) {
	isolate(t)
	tests := []struct {
		name, server, request string
		want                  gatewayError
	}{
		{"an unknown server", "nope", rpc("echo", `1`), gatewayError{404, -32001, "unknown_server", "1", "nope", 0}},
		{"a batch", "stub", "[" + rpc("echo", `1`) + "]", gatewayError{400, -32600, "invalid_request", "null", "", 0}},
		{"no JSON", "stub", "{", gatewayError{400, -32700, "parse_error", "null", "", 0}},
		{"too large", "stub", strings.Repeat(" ", 10<<20+1), gatewayError{413, -32600, "payload_too_large", "null", "", 0}},
		{"an unreachable server", "down", `{"jsonrpc":"2.0","id":"x","method":"echo"}`,
			gatewayError{502, -32002, "connect_error", `"x"`, "down", 0}},
		{"silence", "slow", rpc("sleep", `{"ms":60000}`), gatewayError{502, -32002, "timeout", "1", "slow", 0}},
		{"a reset during the response", "tiny", rpc("reset", `{"n":10000}`), gatewayError{502, -32002, "connect_error", "1",
			"tiny", 0}},
		{"a server whose handlers do not respond", "empty", rpc("echo", `1`), gatewayError{404, -32603, "http_error", "1",
			"empty", 404}},
	}
	url := serve(t, acceptanceGateway(upstream(t, new(mcptest.Stub))))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := gatewayErrorOf(t, post(t, mcpAt(url, tt.server), tt.request)); got != tt.want {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
		})
	}
	t.Run("a stream of an unknown server", func(t *testing.T) {
		if got := gatewayErrorOf(t, send(t, client, "GET", mcpAt(url, "nope"), "")); got != (gatewayError{404, -32001,
			"unknown_server", "null", "nope", 0}) {
			t.Errorf("got %+v", got)
		}
	})
}

// An error of the gateway has no headers of the server, so clients cannot mistake it for the
// server's response.
func TestGatewayMCPHeadersOfBrokenResponses(t *testing.T) {
	isolate(t)
	address := rawUpstream(t, func(conn net.Conn, _ *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json; x=y\r\nMcp-Session-Id: "+
			"s\r\nX-Other: y\r\nContent-Length: 999\r\n\r\n{\"jsonrpc\":")
	})
	url := serve(t, "header X-Site yes", gateway("mask", "server breaks http://"+address))
	got := post(t, mcpAt(url, "breaks"), rpc("read", `1`))
	gatewayErrorOf(t, got)
	if got.Header.Get("X-Other")+got.Header.Get("Mcp-Session-Id")+got.Header.Get("Via") != "" ||
		got.Header.Get("X-Site") != "yes" {
		t.Errorf("got %v", got.Header)
	}
}

// Over HTTP/2, Go's transport does not say why a request was canceled, and reverse_proxy assumes
// that the client canceled it.
func TestGatewayTimeoutOverHTTP2(t *testing.T) {
	isolate(t)
	server := httptest.NewUnstartedServer(new(mcptest.Stub))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	url := serve(t, gateway(block("server slow", "timeout 2s", "reverse_proxy h2c://"+server.Listener.Addr().String())))
	for _, endpoint := range []string{rpcAt(url, "slow"), mcpAt(url, "slow")} {
		same(t, post(t, endpoint, rpc("echo", `1`)).body, result(`1`))
		if got := gatewayErrorOf(t, post(t, endpoint, rpc("sleep", `{"ms":60000}`))); got != (gatewayError{502, -32002,
			"timeout", "1", "slow", 0}) {
			t.Errorf("got %+v", got)
		}
	}
}

// newEventSource starts an upstream that responds to POST with an event stream from the test.
func newEventSource(t *testing.T) *source {
	t.Helper()
	s := newSource(t, "text/event-stream")
	address := s.address
	s.address = upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		res, err := http.DefaultClient.Do(request(t, r.Context(), "GET", "http://"+address, ""))
		if err != nil {
			return
		}
		defer res.Body.Close()
		w.Header().Set("Content-Type", "text/event-stream")
		_ = http.NewResponseController(w).Flush()
		buf := make([]byte, 64<<10)
		for {
			n, err := res.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			_ = http.NewResponseController(w).Flush()
			if err == io.EOF {
				return
			}
			if err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	}))
	return s
}

func TestGatewayMCPStreams(t *testing.T) {
	isolate(t)
	note := event(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
	listen := `{"jsonrpc":"2.0","id":"listen:0","method":"subscriptions/listen","params":{}}`
	timeout := `{"jsonrpc":"2.0","error":{"code":-32002,"message":"the MCP server did not answer in time",` +
		`"data":{"code":"timeout","server_name":"talks"}},"id":1}`

	mute := upstream(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else it does not see the end of the connection
		<-r.Context().Done()
	}))
	var url string
	begin := func(t *testing.T, method, message string) (*source, *bufio.Reader) {
		t.Helper()
		var s *source
		if method == "GET" {
			s = newSource(t, "text/event-stream")
		} else {
			s = newEventSource(t)
		}
		url = serve(t, gateway("mask", block("server talks http://"+s.address, "timeout 2s"),
			block("server mute http://"+mute, "timeout 2s")))
		res := open(t, client, method, mcpAt(url, "talks"), message)
		if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("got %d %v", res.StatusCode, res.Header)
		}
		return s, bufio.NewReader(res.Body)
	}
	t.Run("events arrive one by one, masked", func(t *testing.T) {
		s, body := begin(t, "POST", rpc("read", `1`))
		for range 3 {
			s.send(t, note)
			same(t, nextEvent(t, body), note)
		}
		s.send(t, textEvent(5000))
		same(t, nextEvent(t, body), cutEvent(5000, 2000, 2000))
		close(s.parts)
		if rest, err := io.ReadAll(body); len(rest) > 0 || err != nil {
			t.Errorf("got rest %q, %v", rest, err)
		}
	})
	t.Run("an active stream may exceed the timeout", func(t *testing.T) {
		url := serve(t, acceptanceGateway(upstream(t, new(mcptest.Stub))))
		got := post(t, mcpAt(url, "slow"), rpc("sse", `{"interval_ms":300,"n":8}`))
		if n := strings.Count(got.body, "data: "); n != 8 || strings.Contains(got.body, "timeout") {
			t.Errorf("got %d events, last %s", n, got.body[max(0, len(got.body)-200):])
		}
	})
	t.Run("an idle stream ends with an error event", func(t *testing.T) {
		s, body := begin(t, "POST", rpc("read", `1`))
		s.send(t, note)
		same(t, nextEvent(t, body), note)
		rest, err := io.ReadAll(body)
		same(t, string(rest), event(timeout))
		if err != nil {
			t.Error(err)
		}
		wait(t, s.gone, "the end of the upstream's stream")
	})
	t.Run("a stream that idles within a comment, too", func(t *testing.T) {
		s, body := begin(t, "POST", rpc("read", `1`))
		s.send(t, ": ping\nid: 5\n: pi")
		rest, err := io.ReadAll(body)
		same(t, string(rest), ": ping\nid: 5\n: pi\n\n"+event(timeout))
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("a stream that idles within an event breaks off", func(t *testing.T) {
		s, body := begin(t, "POST", rpc("read", `1`))
		s.send(t, note+"data: {\"jsonrpc\"")
		if rest, err := io.ReadAll(body); err == nil || strings.Contains(string(rest), "timeout") {
			t.Errorf("got %q, %v", rest, err)
		}
	})
	t.Run("a stream that idles after the response just ends", func(t *testing.T) {
		s, body := begin(t, "POST", rpc("read", `1`))
		s.send(t, event(result(`1`)))
		rest, err := io.ReadAll(body)
		same(t, string(rest), event(result(`1`)))
		if err != nil {
			t.Error(err)
		}
	})
	t.Run("a stream that breaks off stays incomplete", func(t *testing.T) {
		s, body := begin(t, "POST", rpc("read", `1`))
		s.send(t, note)
		same(t, nextEvent(t, body), note)
		s.send(t, "")
		if rest, err := io.ReadAll(body); err == nil {
			t.Errorf("got end %q", rest)
		}
	})
	for _, lasting := range []struct{ method, message string }{{"GET", ""}, {"POST", listen}} {
		t.Run(lasting.method+" may be idle for any time", func(t *testing.T) {
			s, body := begin(t, lasting.method, lasting.message)
			s.send(t, note)
			same(t, nextEvent(t, body), note)
			// A later request times out before the next event.
			if got := gatewayErrorOf(t, post(t, mcpAt(url, "mute"), rpc("read", `1`))); got.Symbol != "timeout" {
				t.Fatalf("a hanging request: got %+v, want a timeout", got)
			}
			s.send(t, note)
			same(t, nextEvent(t, body), note)
		})
	}
}

func TestGatewayOriginAndHost(t *testing.T) {
	isolate(t)
	stub := upstream(t, new(mcptest.Stub))
	tests := []struct {
		name    string
		options []string
		header  string
		want    string // symbol of the error
	}{
		{"A43 no Origin", nil, "X: y", ""},
		{"A43 a foreign Origin", nil, "Origin: http://evil.test", "forbidden_origin"},
		{"A43 a local Origin", nil, "Origin: http://localhost:3000", ""},
		{"A43 a local Origin by address", nil, "Origin: http://127.5.0.1", ""},
		{"A43 a local Origin by IPv6 address", nil, "Origin: http://[::1]:80", ""},
		{"A43 an Origin with a local prefix", nil, "Origin: http://localhost.evil.test", "forbidden_origin"},
		{"A43 an Origin with a local suffix", nil, "Origin: http://evil.test#localhost", "forbidden_origin"},
		{"A43 the Origin null", nil, "Origin: null", "forbidden_origin"},
		{"A43 a listed Origin", []string{"origins https://app.test https://b.test"}, "Origin: https://B.test", ""},
		{"A43 a listed Origin with another port", []string{"origins https://app.test"}, "Origin: https://app.test:8443",
			"forbidden_origin"},
		{"A43 all Origins", []string{"origins *"}, "Origin: null", ""},
		{"A43 a foreign Host", nil, "Host: evil.test", "forbidden_host"},
		{"A43 a foreign Host with a port", nil, "Host: evil.test:8080", "forbidden_host"},
		{"A43 a Host with a local prefix", nil, "Host: 127.0.0.1.evil.test", "forbidden_host"},
		{"A43 a local Host", nil, "Host: LOCALHOST:1", ""},
		{"A43 a local Host by IPv6 address", nil, "Host: [::1]", ""},
		{"A43 a listed Host", []string{"hosts mcp.test"}, "Host: mcp.test:8443", ""},
		{"A43 a Host that is not listed", []string{"hosts mcp.test"}, "Host: evil.test", "forbidden_host"},
		{"A43 all Hosts", []string{"hosts *"}, "Host: evil.test", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, gateway(append(tt.options, "server stub http://"+stub)...))
			for _, endpoint := range []string{rpcAt(url, "stub"), mcpAt(url, "stub")} {
				req := request(t, t.Context(), "POST", endpoint, rpc("echo", `1`), tt.header)
				if host, ok := strings.CutPrefix(tt.header, "Host: "); ok {
					req.Host = host
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				got := httpResponse{res, string(body)}
				if tt.want == "" {
					same(t, got.body, result(`1`))
				} else if failure := gatewayErrorOf(t, got); failure.Symbol != tt.want || failure.Status != 403 {
					t.Errorf("%+v", failure)
				}
			}
		})
	}
}

// A server of revision 2024-11-05 works: an event stream that names the endpoint for messages, and
// carries the responses.
func TestGatewayLegacyServer(t *testing.T) {
	isolate(t)
	answers, proceed := make(chan string, 1), make(chan struct{}, 1)
	for _, address := range []string{"/messages/?sessionId=a%26b", "messages/?sessionId=a%26b",
		"http://elsewhere.test/messages/?sessionId=a%26b"} {
		t.Run(address, func(t *testing.T) {
			server := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == "GET" && r.URL.Path == "/sse":
					w.Header().Set("Content-Type", "text/event-stream")
					for i, part := range []string{": hello\n\n", "event: end", "point\r\ndata: " + address, "\r\n\r\n"} {
						_, _ = io.WriteString(w, part)
						_ = http.NewResponseController(w).Flush()
						if i == 0 {
							<-proceed
						}
					}
					select {
					case answer := <-answers:
						_, _ = io.WriteString(w, event(answer))
						_ = http.NewResponseController(w).Flush()
					case <-r.Context().Done():
					}
				case r.Method == "POST" && r.URL.Path == "/messages/" && r.URL.RawQuery == "sessionId=a%26b":
					message, _ := io.ReadAll(r.Body)
					w.WriteHeader(http.StatusAccepted)
					answers <- result(quote(string(message) + strings.Repeat("A", 5000)))
				default:
					http.NotFound(w, r)
				}
			}))
			url := serve(t, block("handle_path /tools/*", gateway("mask", "server old http://"+server+"/sse",
				"server two http://"+server+"/sse")))
			body := bufio.NewReader(open(t, client, "GET", url+"/tools/mcp/old", "").Body)
			same(t, nextEvent(t, body), ": hello\n\n")
			proceed <- struct{}{} // the gateway forwards comments at once
			first := nextEvent(t, body)
			endpoint, ok := strings.CutPrefix(first, "event: endpoint\ndata: /tools/mcp/old?endpoint=")
			if !ok {
				t.Fatalf("got first event %q", first)
			}
			token := strings.TrimSpace(endpoint)
			if got := post(t, url+"/tools/mcp/old?endpoint="+token, rpc("read", `1`)); got.StatusCode != 202 {
				t.Fatalf("got %d %s, want 202", got.StatusCode, got.body)
			}
			text := nextEvent(t, body)
			if !strings.Contains(text, "KIMI_PROXY_OBSERVATION_MASKED") || !strings.Contains(text, `\"method\":\"read\"`) {
				t.Errorf("got response %.300s", text)
			}
			for name, endpoint := range map[string]string{
				"a forged seal": "/tools/mcp/old?endpoint=" + token[:len(token)-4] + "AAAA",
				"another path":  "/tools/mcp/old?endpoint=L2FkbWlu" + token[strings.IndexByte(token, '.'):],
				"no seal":       "/tools/mcp/old?endpoint=L2FkbWlu",
				"no token":      "/tools/mcp/old?endpoint=",
				"other server":  "/tools/mcp/two?endpoint=" + token,
			} {
				if got := gatewayErrorOf(t, post(t, url+endpoint, rpc("read", `1`))); got.Status != 400 || got.Code != -32600 {
					t.Errorf("%s: %+v", name, got)
				}
			}
		})
	}
}

// Handlers in a server block are sorted as in a site, before the reverse_proxy of its URL.
func TestGatewayServerBlocks(t *testing.T) {
	isolate(t)
	stub := new(mcptest.Stub)
	address := upstream(t, stub)
	url := serve(t, gateway(
		block("server plain http://"+address+"/x",
			"@tool vars {http.mcp.tool} read",
			"request_header @tool X-Tool "+
				"{http.mcp.server}/{http.mcp.method}/{http.mcp.tool}/{http.mcp.request_id}/{http.request.uri}/{http.mcp.client}"),
		block("server nested", block("route", "request_header X-Tool nested", proxy(address))),
		block("server sample", "mcp_sample"),
	))
	post(t, mcpAt(url, "plain"), rpc("tools/call", `{"name":"read","arguments":{"name":"{http.mcp.server}"}}`))
	if got := stub.Last().Headers.Get("X-Tool"); got != "plain/tools/call/read/1//x/" {
		t.Errorf("placeholders: %s", got)
	}
	post(t, rpcAt(url, "plain"), `{"jsonrpc":"2.0","id":"{env.HOME}","method":"tools/call","params":{"name":"read"}}`)
	if got := stub.Last().Headers.Get("X-Tool"); got != "plain/tools/call/read/{env.HOME}//x/" {
		t.Errorf("placeholders: %s", got)
	}
	post(t, mcpAt(url, "nested"), rpc("echo", `1`))
	if got := stub.Last().Headers.Get("X-Tool"); got != "nested" {
		t.Errorf("nested: %s", got)
	}
	if text := toolText(t, post(t, rpcAt(url, "sample"),
		rpc("tools/call", `{"name":"read_log"}`)).body); !strings.Contains(text, "KIMI_PROXY_OBSERVATION_MASKED") {
		t.Errorf("the sample server returned %.200s", text)
	}
}

// Unknown paths get a 404 that names the endpoint of the gateway.
func TestGatewayUnknownPaths(t *testing.T) { // A2
	isolate(t)
	const token = "0123456789abcdef0123456789abcdef"
	sample := block("server sample", "mcp_sample")
	first, second := freeAddress(t), freeAddress(t)
	load(t, site(first, gateway("separator __", block("client c", "token "+token), sample), "respond /served next")+
		site(second, block("handle_path /tools/*", gateway("separator __", sample))))
	url, behind := "http://"+first, "http://"+second
	for _, tt := range []struct {
		name, endpoint, method string
		description            string
		mcp                    string // endpoint in the body; empty for OAuth errors
	}{
		{"too deep", url + "/mcp/sample/x", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"a message to a path that is too deep", url + "/mcp/sample/x", "POST", "the MCP endpoint is /mcp", "/mcp"},
		{"the prefix of /rpc endpoints", url + "/api/mcp-gateway", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"an /rpc endpoint without rpc", url + "/api/mcp-gateway/sample", "POST", "the MCP endpoint is /mcp", "/mcp"},
		{"an /rpc endpoint with another suffix", url + "/api/mcp-gateway/sample/other", "POST", "the MCP endpoint is /mcp",
			"/mcp"},
		{"a common health path", url + "/health", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"the old transport", url + "/sse", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"behind a prefix", behind + "/tools/mcp/sample/x", "GET", "the MCP endpoint is /tools/mcp", "/tools/mcp"},
		{"a login", url + "/.well-known/oauth-protected-resource/mcp", "GET",
			"no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"a login at the root", url + "/.well-known/oauth-authorization-server", "GET",
			"no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"a login below mcp_path", url + "/mcp/.well-known/openid-configuration", "GET",
			"no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"registration", url + "/register", "POST", "no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"a login without tokens", behind + "/tools/register", "POST", "this gateway has no OAuth login", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := send(t, client, tt.method, tt.endpoint, "")
			var body struct {
				Error       string
				Description string `json:"error_description"`
				Endpoints   struct{ MCP string }
			}
			if err := json.Unmarshal([]byte(got.body), &body); err != nil {
				t.Fatalf("%v: %q", err, got.body)
			}
			if got.StatusCode != 404 || got.Header.Get("Content-Type") != "application/json" || body.Error != "not_found" {
				t.Errorf("got %d %v %s", got.StatusCode, got.Header, got.body)
			}
			if !strings.Contains(body.Description, tt.description) || body.Endpoints.MCP != tt.mcp {
				t.Errorf("got %s", got.body)
			}
		})
	}
	if got := send(t, client, "GET", url+"/served", ""); got.StatusCode != 200 || got.body != "next" {
		t.Errorf("path of another handler: %d %s", got.StatusCode, got.body)
	}
	for _, path := range []string{"/mcp/sample", "/mcp/sample/"} {
		if got := post(t, url+path, rpc("tools/list", `{}`), acceptBoth, bearer(token)); !strings.Contains(got.body,
			`"tools"`) {
			t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
		}
	}
	got := send(t, client, "GET", behind+"/tools/mcp", "", "Accept: text/html")
	if gatewayErrorOf(t, got).Status != 405 || !strings.Contains(got.body,
		"this address is for MCP clients, not for browsers") {
		t.Errorf("a browser: %d %s", got.StatusCode, got.body)
	}
}

// The same site can have an authorization server, or the metadata of one.
func TestGatewayLeavesLoginsToOthers(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", block("server sample", "mcp_sample")), `respond /.well-known/* "{}"`,
		"respond /register 201")
	for path, status := range map[string]int{
		"/.well-known/oauth-protected-resource": 200, "/.well-known/oauth-protected-resource/mcp": 200, "/register": 201,
		"/token": 404,
	} {
		if got := send(t, client, "GET", url+path, ""); got.StatusCode != status {
			t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
		}
	}
}

// Health probes show the state of servers, need no credentials, and do not count as client
// requests.
func TestGatewayReadiness(t *testing.T) {
	isolate(t)
	const token = "0123456789abcdef0123456789abcdef"
	url := serve(t, gateway("separator __", "hosts mcp.test", block("client c", "token "+token),
		child("good"), "server bad stdio /nonexistent/server", block("server extra stdio /nonexistent/server", "optional")))
	health := func(method string) httpResponse { return send(t, client, method, url+"/mcp/health", "") }
	if got := health("GET"); got.StatusCode != 200 || got.body != "{\"status\":\"ready\"}\n" {
		t.Errorf("before any request: %d %s", got.StatusCode, got.body)
	}
	if got := health("HEAD"); got.StatusCode != 200 || got.body != "" {
		t.Errorf("HEAD: %d %s", got.StatusCode, got.body)
	}
	r := request(t, t.Context(), "GET", url+"/mcp/health", "")
	r.Host = "10.0.0.7:8080" // as Kubernetes does
	if res, err := client.Do(r); err != nil || res.StatusCode != 200 {
		t.Errorf("with a pod address: %v %v", res, err)
	}
	metrics := admin(t, "GET", "/metrics", "").body
	if strings.Contains(metrics, "caddy_mcp_requests_total{") {
		t.Errorf("probes count as requests:\n%s", metrics)
	}

	call := func(server string) {
		post(t, rpcAt(url, server), rpc("tools/list", `{}`), bearer(token))
	}
	call("good")
	call("extra")
	if got := health("GET"); got.StatusCode != 200 {
		t.Errorf("with an optional server down: %d %s", got.StatusCode, got.body)
	}
	call("bad")
	got := health("GET")
	if got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got.body,
		`{"status":"not ready","servers":{"bad":"`) || strings.Contains(got.body, "nonexistent") {
		t.Errorf("with a server down: %d %s", got.StatusCode, got.body)
	}
}
