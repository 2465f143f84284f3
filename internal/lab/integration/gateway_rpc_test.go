package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// gateway returns mcp_gateway with subdirectives.
func gateway(lines ...string) string { return block("mcp_gateway", lines...) }

// patientGateway returns mcp_gateway that waits for servers as long as those on Node.js take to start
// on a busy machine.
func patientGateway(lines ...string) string {
	return gateway(append(lines, "join_timeout 2m", "response_timeout 2m")...)
}

// rpcAt returns the /rpc endpoint of a server, and mcpAt its Streamable HTTP endpoint.
func rpcAt(url, server string) string { return url + "/api/mcp-gateway/" + server + "/rpc" }
func mcpAt(url, server string) string { return url + "/mcp/" + server }

// acceptanceGateway returns a gateway with one server for each setting, all with the same upstream.
func acceptanceGateway(stub string) string {
	return gateway(
		"server stub http://"+stub,
		"server full http://"+stub+"/custom/path",
		"server query http://"+stub+"/custom%2Fpath?a=1",
		"server down http://127.0.0.1:1",
		block("server slow http://"+stub, "timeout 2s"),
		block("server tiny http://"+stub, "mask 100 10 10"),
		block("server raw http://"+stub, "mask off"),
		block("server aliased http://"+stub, "alias mcp-stub", "alias other %41"),
		block("server long", "path /long", proxy(stub)),
		block("server empty", "vars x y"),
		block("server guarded http://"+stub, "header Retry-After 7", "error /rpc 429"),
	)
}

// gatewayError is an error from the gateway.
type gatewayError struct {
	Status     int
	Code       int
	Symbol     string
	ID         string
	ServerName string
	StatusCode int
}

// gatewayErrorOf parses an error of the gateway, and checks it against G21.
func gatewayErrorOf(t *testing.T, got httpResponse) gatewayError {
	t.Helper()
	var body struct {
		JSONRPC string `json:"jsonrpc"`
		Error   struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
			Data    struct {
				Code       string `json:"code"`
				ServerName string `json:"server_name"`
				StatusCode int    `json:"status_code"`
				Hint       string `json:"hint"`
			} `json:"data"`
		} `json:"error"`
		ID json.RawMessage `json:"id"`
	}
	decoder := json.NewDecoder(strings.NewReader(got.body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil || body.JSONRPC != "2.0" || body.Error.Message == "" || body.ID == nil {
		t.Errorf("not an error of the gateway: %v: %d %.300s", err, got.StatusCode, got.body)
	}
	if contentType := got.Header.Get("Content-Type"); contentType != "application/json" {
		t.Errorf("Content-Type %q", contentType)
	}
	if regexp.MustCompile(`goroutine|panic|/work|\.go|127\.0\.0\.1`).MatchString(got.body) {
		t.Errorf("G21 discloses too much: %s", got.body)
	}
	data := body.Error.Data
	return gatewayError{got.StatusCode, body.Error.Code, data.Code, string(body.ID), data.ServerName, data.StatusCode}
}

func TestGatewayRPCAnswers(t *testing.T) {
	isolate(t)
	upstreamRefusal := `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"refus"}}`
	odd := `{"big":12345678901234567890,"one":1.0,"hundred":1e2,"zero":-0,"text":"😀\ud83d\ude00\u00e9\/","b":{"z":1,` +
		`"a":2} , "n":null}`
	tests := []struct {
		name, server, request string
		want                  string
	}{
		{"G1 an echo", "stub", rpc("echo", `{"a":1}`), result(`{"a":1}`)},
		{"G2 numbers, escapes, order and white space survive", "stub", rpc("echo", odd), result(odd)},
		{"G3 a URL with a path", "full", rpc("echo", `1`), result(`1`)},
		{"G4 an id beyond 2^53", "stub", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"echo"}`,
			`{"jsonrpc":"2.0","id":12345678901234567890,"result":null}`},
		{"G4 an id with a fraction", "stub", `{"jsonrpc":"2.0","id":1.50,"method":"echo"}`,
			`{"jsonrpc":"2.0","id":1.50,"result":null}`},
		{"G4 an id that is a string", "stub", `{"jsonrpc":"2.0","id":"1","method":"echo"}`,
			`{"jsonrpc":"2.0","id":"1","result":null}`},
		{"G4 an id that is null", "stub", `{"jsonrpc":"2.0","id":null,"method":"echo"}`,
			`{"jsonrpc":"2.0","id":null,"result":null}`},
		{"G5 a long result is masked", "stub", rpc("big", `{"n":10000}`), result(`"` + cut("A", 10000, 2000, 2000) + `"`)},
		{"G5 long data of an error is masked", "stub", rpc("err", `{"n":10000}`),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"boom","data":"` + cut("E", 10000, 2000, 2000) + `"}}`},
		{"G5 masked as text/plain, too", "stub", raw(result(`"`+strings.Repeat("A", 5000)+`"`), `"ctype":"text/plain"`),
			result(`"` + cut("A", 5000, 2000, 2000) + `"`)},
		{"G5 masked without a type, too", "stub", raw(result(`"`+strings.Repeat("A", 5000)+`"`), `"ctype":""`),
			result(`"` + cut("A", 5000, 2000, 2000) + `"`)},
		{"G6 an error of the server", "stub", rpc("err", `{"n":3}`),
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32050,"message":"boom","data":"EEE"}}`},
		{"G16 a client's response is forwarded", "stub", `{"jsonrpc":"2.0","id":7,"result":{}}`,
			`{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"method not found: "}}`},
		{"G17 a notification with a response", "stub", `{"jsonrpc":"2.0","method":"echo","params":1}`,
			`{"jsonrpc":"2.0","id":null,"result":1}`},
		{"G20 a mask of the server", "tiny", rpc("big", `{"n":101}`), result(`"` + cut("A", 101, 10, 10) + `"`)},
		{"G20 no mask", "raw", rpc("big", `{"n":10000}`), result(`"` + strings.Repeat("A", 10000) + `"`)},
		{"W2 a refusal with status 403", "stub", raw(upstreamRefusal, `"status":403`), upstreamRefusal},
		{"W2 a refusal with status 403 without a JSON content type", "raw",
			raw(upstreamRefusal, `"status":403,"ctype":"text/plain"`), upstreamRefusal},
		{"an alias", "mcp-stub", rpc("echo", `1`), result(`1`)},
		{"one alias of several, percent-encoded", "%2541", rpc("echo", `1`), result(`1`)},
		{"a name percent-encoded", "s%74ub", rpc("echo", `1`), result(`1`)},
		{"O15 a compressed response", "stub", raw(result(`"`+strings.Repeat("A", 5000)+`"`), `"encoding":"gzip"`),
			result(`"` + cut("A", 5000, 2000, 2000) + `"`)},
		{"O15 a compressed response without a mask", "raw", raw(result(`"x"`), `"encoding":"gzip"`), result(`"x"`)},
		{"one event of several is the response", "stub", rpc("sse", `{"interval_ms":0}`),
			result(`{"content":[{"type":"text","text":"event 3"}]}`)},
		{"an event is masked", "stub", rpc("sse", `{"interval_ms":0,"size":5000}`),
			result(`{"content":[{"type":"text","text":"` + cut("A", 5000, 2000, 2000) + `"}]}`)},
		{"an event of several lines, without an end", "stub",
			raw("data: {\"jsonrpc\":\"2.0\",\r\nid: 5\r\ndata: \"id\":1,\r\ndata: \"result\":[]}",
				`"ctype":"text/event-stream"`), "{\"jsonrpc\":\"2.0\",\n\"id\":1,\n\"result\":[]}"},
		{"an event with another id is not the response", "stub",
			raw(event(`{"id":2,"result":0}`)+event(`{"id":"1","result":0}`)+event(`{"id":1.0,"result":1}`)+
				event(`{"id":1,"result":2}`), `"ctype":"text/event-stream"`), `{"id":1.0,"result":1}`},
		{"a large event is not buffered to its end", "raw", rpc("sse", `{"interval_ms":0,"size":3000000}`),
			result(`{"content":[{"type":"text","text":"` + strings.Repeat("A", 3000000) + `"}]}`)},
		{"a large response is not buffered to its end", "raw", rpc("big", `{"n":3000000}`),
			result(`"` + strings.Repeat("A", 3000000) + `"`)},
		{"a response with a null error", "stub", raw(`{"jsonrpc":"2.0","id":1,"result":1,"error":null}`),
			`{"jsonrpc":"2.0","id":1,"result":1,"error":null}`},
	}
	stub := new(mcptest.Stub)
	url := serve(t, acceptanceGateway(upstream(t, stub)))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := post(t, rpcAt(url, tt.server), tt.request, "Accept-Encoding: gzip")
			if got.StatusCode != 200 || got.Header.Get("Content-Type") != "application/json" ||
				got.Header.Get("Content-Encoding") != "" {
				t.Errorf("got %d %v", got.StatusCode, got.Header)
			}
			same(t, got.body, tt.want)
			same(t, stub.Last().Body, tt.request) // G2
		})
	}
}

func TestGatewayRPCFailures(t *testing.T) {
	isolate(t)
	tests := []struct {
		name, server, request string
		want                  gatewayError
		uncontacted           bool
	}{
		{"G7 an unknown server", "nope", `{"jsonrpc":"2.0","id":"req-1","method":"echo"}`,
			gatewayError{404, -32001, "unknown_server", `"req-1"`, "nope", 0}, true},
		{"G3 names are case-sensitive", "Stub", rpc("echo", `1`), gatewayError{404, -32001, "unknown_server", "1", "Stub",
			0}, true},
		{"G7 a name with a slash", "stub%2Frpc", rpc("echo", `1`), gatewayError{404, -32001, "unknown_server", "1",
			"stub/rpc", 0}, true},
		{"G8 no response in time", "slow", rpc("sleep", `{"ms":60000}`), gatewayError{502, -32002, "timeout", "1", "slow",
			0}, false},
		{"G8 no end of the response in time", "slow", rpc("sse", `{"interval_ms":400,"n":50}`),
			gatewayError{502, -32002, "timeout", "1", "slow", 0}, false},
		{"G9 an unreachable server", "down", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"echo"}`,
			gatewayError{502, -32002, "connect_error", "12345678901234567890", "down", 0}, true},
		{"G10 HTML", "stub", raw("<p>", `"ctype":"text/html"`), gatewayError{502, -32003, "invalid_json", "1", "stub", 0},
			false},
		{"G10 an empty body", "stub", raw(""), gatewayError{502, -32003, "invalid_json", "1", "stub", 0}, false},
		{"G10 half a response", "stub", raw(`{"jsonrpc":`), gatewayError{502, -32003, "invalid_json", "1", "stub", 0}, false},
		{"G10 text after the response", "stub", raw(result("1") + "x"), gatewayError{502, -32003, "invalid_json", "1",
			"stub", 0}, false},
		{"G10 endless text", "stub", raw(strings.Repeat("x", 5<<20), `"ctype":"text/plain"`),
			gatewayError{502, -32003, "invalid_json", "1", "stub", 0}, false},
		{"G10 half an event", "stub", raw(event(`{"jsonrpc":"2.0","id":1,"result":`), `"ctype":"text/event-stream"`),
			gatewayError{502, -32003, "invalid_response", "1", "stub", 0}, false},
		{"G11 an array", "stub", raw(`[` + result("1") + `]`), gatewayError{502, -32003, "invalid_response", "1", "stub", 0},
			false},
		{"G11 a string", "stub", raw(`"x"`), gatewayError{502, -32003, "invalid_response", "1", "stub", 0}, false},
		{"G11 a number", "stub", raw(`5`), gatewayError{502, -32003, "invalid_response", "1", "stub", 0}, false},
		{"G11 an object that is not a response", "stub", raw(`{"jsonrpc":"2.0","id":1}`),
			gatewayError{502, -32003, "invalid_response", "1", "stub", 0}, false},
		{"G11 a stream without a response", "stub", raw(event(`{"jsonrpc":"2.0","method":"x"}`),
			`"ctype":"text/event-stream"`), gatewayError{502, -32003, "invalid_response", "1", "stub", 0}, false},
		{"G12 status 500", "stub", raw(result("1"), `"status":500`), gatewayError{502, -32603, "http_error", "1", "stub",
			500}, false},
		{"G12 status 302", "stub", raw("", `"status":302,"headers":{"Location":"http://elsewhere"}`),
			gatewayError{502, -32603, "http_error", "1", "stub", 302}, false},
		{"G12 status 404 with a response", "stub", raw(result("1"), `"status":404`), gatewayError{502, -32603, "http_error",
			"1", "stub", 404}, false},
		{"G12 status 403 without a response", "stub", raw("<p>", `"status":403`), gatewayError{502, -32603, "http_error",
			"1", "stub", 403}, false},
		{"G12 status 403 with another error", "stub", raw(`{"error":"no"}`, `"status":403`), gatewayError{502, -32603,
			"http_error", "1", "stub", 403}, false},
		{"G12 status 202 for a request", "stub", rpc("note", `1`), gatewayError{502, -32603, "http_error", "1", "stub", 202},
			false},
		{"G13 a reset during the response", "stub", rpc("reset", `{}`), gatewayError{502, -32002, "connect_error", "1",
			"stub", 0}, false},
		{"G13 a reset during the response, unmasked", "raw", rpc("reset", `{"n":100000}`),
			gatewayError{502, -32002, "connect_error", "1", "raw", 0}, false},
		{"G13 a wrong Content-Length", "stub", raw(result("1"), `"headers":{"Content-Length":"999"}`),
			gatewayError{502, -32002, "connect_error", "1", "stub", 0}, false},
		{"G13 a wrong Content-Encoding", "raw", raw(result("1"), `"headers":{"Content-Encoding":"gzip"}`),
			gatewayError{502, -32002, "connect_error", "1", "raw", 0}, false},
		{"G13 a wrong Content-Encoding that was not requested", "raw",
			raw(result("1"), `"headers":{"Content-Encoding":"br"}`), gatewayError{502, -32003, "invalid_json", "1", "raw", 0},
			false},
		{"G13 an unknown Content-Encoding", "raw", raw(result("1"), `"headers":{"Content-Encoding":"rot13"}`),
			gatewayError{502, -32003, "invalid_json", "1", "raw", 0}, false},
		{"G14 a batch", "stub", "[" + rpc("echo", `1`) + "]", gatewayError{400, -32600, "invalid_request", "null", "", 0},
			true},
		{"G14 a string", "stub", `"x"`, gatewayError{400, -32600, "invalid_request", "null", "", 0}, true},
		{"G14 a number", "stub", `5`, gatewayError{400, -32600, "invalid_request", "null", "", 0}, true},
		{"G14 null", "stub", `null`, gatewayError{400, -32600, "invalid_request", "null", "", 0}, true},
		{"G14 two methods", "stub", `{"jsonrpc":"2.0","id":1,"method":"echo","method":"big"}`,
			gatewayError{400, -32600, "invalid_request", "null", "", 0}, true},
		{"G15 half a request", "stub", `{"jsonrpc":`, gatewayError{400, -32700, "parse_error", "null", "", 0}, true},
		{"G15 an empty request", "stub", ``, gatewayError{400, -32700, "parse_error", "null", "", 0}, true},
		{"G15 invalid UTF-8", "stub", "\xff\xfe", gatewayError{400, -32700, "parse_error", "null", "", 0}, true},
		{"G15 invalid UTF-8 in a string", "stub", rpc("echo", "\"\xff\""), gatewayError{400, -32700, "parse_error", "null",
			"", 0}, true},
		{"G17 a notification that fails has no id", "down", `{"jsonrpc":"2.0","method":"note"}`,
			gatewayError{502, -32002, "connect_error", "null", "down", 0}, true},
		{"G24 a request of 11 MiB", "stub", rpc("echo", `"`+strings.Repeat("x", 11<<20)+`"`),
			gatewayError{413, -32600, "payload_too_large", "null", "", 0}, true},
		{"a server whose handlers do not respond", "empty", rpc("echo", `1`), gatewayError{404, -32603, "http_error", "1",
			"empty", 404}, true},
		{"a handler that refuses", "guarded", rpc("echo", `1`), gatewayError{429, -32600, "rate_limited", "1", "guarded", 0},
			true},
	}
	stub := new(mcptest.Stub)
	url := serve(t, acceptanceGateway(upstream(t, stub)))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := stub.Count()
			got := post(t, rpcAt(url, tt.server), tt.request)
			if got := gatewayErrorOf(t, got); got != tt.want {
				t.Errorf("got %+v\nwant %+v", got, tt.want)
			}
			if contacted := stub.Count() != before; contacted == tt.uncontacted {
				t.Errorf("the upstream was contacted: %t", contacted)
			}
			if header := got.Header.Get("Location") + got.Header.Get("Content-Encoding"); header != "" {
				t.Errorf("the response has a header of the upstream: %v", got.Header)
			}
		})
	}
}

// Paths, headers and methods of requests are right.
func TestGatewayRPCRequests(t *testing.T) {
	isolate(t)
	stub := new(mcptest.Stub)
	address := upstream(t, stub)
	url := serve(t, acceptanceGateway(address), `respond "next handler"`)

	t.Run("G3 paths of servers", func(t *testing.T) {
		for server, want := range map[string]string{"stub": "/rpc", "full": "/custom/path", "query": "/custom/path",
			"long": "/long"} {
			post(t, rpcAt(url, server)+"?client=1", rpc("echo", `1`))
			if last := stub.Last(); last.Path != want || last.Method != "POST" {
				t.Errorf("%s received %s %s", server, last.Method, last.Path)
			}
		}
	})
	t.Run("headers in both directions", func(t *testing.T) {
		got := post(t, rpcAt(url, "stub"), raw(result("1"), `"headers":{"Mcp-Session-Id":"s","X-Other":"kept","ETag":"v"}`),
			"Mcp-Session-Id: abc", "Mcp-Protocol-Version: 2025-06-18", "Accept: text/plain", "Content-Type: text/plain",
			"X-Mine: 1", "Authorization: Bearer x")
		for name, want := range map[string]string{
			"Mcp-Session-Id": "abc", "Mcp-Protocol-Version": "2025-06-18", "Content-Type": "application/json", "X-Mine": "1",
			"Accept": "application/json, text/event-stream", "Authorization": "", "Host": address,
		} {
			if has := stub.Last().Headers.Get(name); has != want {
				t.Errorf("the upstream received %s: %s", name, has)
			}
		}
		if got.Header.Get("Mcp-Session-Id") != "s" || got.Header.Get("X-Other") != "" || got.Header.Get("Etag") != "v" {
			t.Errorf("the client received %v", got.Header)
		}
	})
	t.Run("O15 only encodings that the gateway decodes are requested", func(t *testing.T) {
		post(t, rpcAt(url, "raw"), rpc("echo", `1`), "Accept-Encoding: deflate")
		if encoding := stub.Last().Headers.Get("Accept-Encoding"); encoding != "gzip" {
			t.Errorf("the upstream received %q", encoding)
		}
	})
	t.Run("G17 notifications", func(t *testing.T) {
		notification := func(params string) string {
			return `{"jsonrpc":"2.0","method":"raw","params":{` + params + `}}`
		}
		for _, request := range []string{
			`{"jsonrpc":"2.0","method":"note"}`, notification(`"status":204`), notification(`"status":202,"body":"ok"`),
			notification(`"body":""`),
			notification(`"ctype":"text/event-stream","body":"data: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n"`),
		} {
			got := post(t, rpcAt(url, "stub"), request)
			if got.StatusCode != 202 || got.body != "" || got.Header.Get("Content-Type") != "" {
				t.Errorf("%s: %d %v %q", request, got.StatusCode, got.Header, got.body)
			}
			same(t, stub.Last().Body, request)
		}
	})
	t.Run("G18 other methods", func(t *testing.T) {
		for _, method := range []string{"GET", "PUT", "DELETE", "OPTIONS", "HEAD"} {
			got := send(t, client, method, rpcAt(url, "stub"), "")
			if got.StatusCode != 405 || got.Header.Get("Allow") != "POST" {
				t.Errorf("%s: %d %v", method, got.StatusCode, got.Header)
			}
			if method != "HEAD" {
				if f := gatewayErrorOf(t, got); f.Code != -32600 {
					t.Errorf("%s: %+v", method, f)
				}
			}
		}
	})
	t.Run("G18 other paths", func(t *testing.T) {
		for _, path := range []string{
			"/", "/mcp/stub/x", "/mcpx/stub", "/api/mcp-gateway/stub", "/api/mcp-gateway/stub/other", "/api/mcp-gateway//rpc",
			"/api/mcp-gateway/stub/rpc/", "/api/mcp-gateway/a/b/rpc", "/API/mcp-gateway/stub/rpc", "/api/mcp-gateway/rpc",
		} {
			if got := post(t, url+path, rpc("echo", `1`)); got.StatusCode != 200 || got.body != "next handler" {
				t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
			}
		}
	})
	t.Run("G24 a chunked request", func(t *testing.T) {
		for size, want := range map[int]int{1 << 20: 200, 11 << 20: 413} {
			message := rpc("echo", `"`+strings.Repeat("x", size)+`"`)
			req := request(t, t.Context(), "POST", rpcAt(url, "raw"), message)
			req.ContentLength, req.Body = -1, io.NopCloser(struct{ io.Reader }{strings.NewReader(message)})
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("%d bytes: %d", size, res.StatusCode)
			}
			if want == 200 && stub.Last().Headers.Get("Content-Length") != strconv.Itoa(len(message)) {
				t.Errorf("the upstream received %v", stub.Last().Headers)
			}
		}
	})
	t.Run("a compressed request", func(t *testing.T) {
		got := gatewayErrorOf(t, post(t, rpcAt(url, "stub"), rpc("echo", `1`), "Content-Encoding: gzip"))
		if got != (gatewayError{415, -32600, "invalid_request", "null", "", 0}) {
			t.Errorf("got %+v", got)
		}
	})
}

func TestGatewayLimits(t *testing.T) {
	isolate(t)
	stub := upstream(t, new(mcptest.Stub))
	url := serve(t, block("request_body", "max_size 2KiB"),
		gateway("response_limit 1KiB", "request_limit 3KiB", "mask", "server stub http://"+stub,
			block("server raw http://"+stub, "mask off")))
	tests := []struct {
		name, endpoint, request string
		want                    string
	}{
		{"G24 a response within the limit", rpcAt(url, "raw"), rpc("big", `{"n":900}`), ""},
		{"G24 a response beyond the limit", rpcAt(url, "raw"), rpc("big", `{"n":1000}`), "invalid_response"},
		{"G24 a response beyond the limit that would be masked", rpcAt(url, "stub"), rpc("big", `{"n":10000}`),
			"invalid_response"},
		{"G24 a response beyond the limit of Streamable HTTP", mcpAt(url, "stub"), rpc("big", `{"n":10000}`),
			"invalid_response"},
		{"G24 a request beyond the limit of request_body", rpcAt(url, "raw"), rpc("echo", `"`+strings.Repeat("x", 2500)+`"`),
			"payload_too_large"},
		{"G24 a request beyond the limit of the gateway", rpcAt(url, "raw"), rpc("echo", `"`+strings.Repeat("x", 3500)+`"`),
			"payload_too_large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := post(t, tt.endpoint, tt.request)
			if tt.want == "" && got.StatusCode != 200 {
				t.Errorf("got %d %s", got.StatusCode, got.body)
			}
			if tt.want != "" && gatewayErrorOf(t, got).Symbol != tt.want {
				t.Errorf("got %d %.300s", got.StatusCode, got.body)
			}
		})
	}
}

// Other routes of a site are unaffected (G19).
func TestGatewayLeavesOtherRoutesAlone(t *testing.T) {
	isolate(t)
	stub := upstream(t, new(mcptest.Stub))
	var answers []string
	for _, directive := range []string{"", acceptanceGateway(stub)} {
		url := serve(t, directive, "header X-Site yes", proxy(stub))
		var all strings.Builder
		for _, path := range []string{"/x", "/mcpx", "/api/mcp-gateway/stub/other?a=%2F"} {
			got := post(t, url+path, raw(result(`"`+strings.Repeat("A", 5000)+`"`)), "Origin: http://evil.test")
			got.Header.Del("Date")
			fmt.Fprintln(&all, got.StatusCode, got.Header, got.body)
		}
		answers = append(answers, all.String())
	}
	same(t, answers[1], answers[0])
}

// Concurrent requests get their own responses (G22).
func TestGatewayKeepsRepliesApart(t *testing.T) {
	isolate(t)
	url := serve(t, acceptanceGateway(upstream(t, new(mcptest.Stub))))
	var running sync.WaitGroup
	for i := range 200 {
		running.Go(func() {
			endpoint := []string{rpcAt(url, "stub"), mcpAt(url, "aliased")}[i%2]
			text := strconv.Itoa(i) + strings.Repeat("x", i*10)
			res, err := client.Post(endpoint, "application/json", strings.NewReader(rpc("echo", quote(text))))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if string(body) != result(quote(text)) {
				t.Errorf("%d got %.100s", i, body)
			}
		})
	}
	running.Wait()
}

// If a client disconnects, its request to the server is canceled (G25).
func TestGatewayCancelsForDisconnectedClients(t *testing.T) {
	isolate(t)
	asked, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	address := upstream(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	url := serve(t, gateway("server waits http://"+address))
	for _, endpoint := range []string{rpcAt(url, "waits"), mcpAt(url, "waits")} {
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			res, err := client.Do(request(t, ctx, "POST", endpoint, rpc("echo", `1`)))
			if err == nil {
				res.Body.Close()
			}
		}()
		wait(t, asked, "the request")
		leave()
		wait(t, gone, "the end of the upstream's request")
	}
}

// A reload under load drops no request (G27).
func TestGatewayReloadUnderTraffic(t *testing.T) {
	isolate(t)
	asked, release := make(chan struct{}), make(chan struct{})
	stub := new(mcptest.Stub)
	address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") != "" {
			asked <- struct{}{}
			<-release
		}
		stub.ServeHTTP(w, r)
	}))
	listen := freeAddress(t)
	load(t, site(listen, gateway("server stub http://"+address)))
	url := "http://" + listen

	held := make(chan httpResponse, 2)
	for _, endpoint := range []string{rpcAt(url, "stub"), mcpAt(url, "stub")} {
		go func() { held <- post(t, endpoint, rpc("echo", `"held"`), "X-Hold: yes") }()
		wait(t, asked, "the pending request")
	}
	stop := make(chan struct{})
	var traffic sync.WaitGroup
	// Use a new connection for each request: a reload may close an idle one just when a request is
	// sent, and clients do not retry a POST.
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	traffic.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			res, err := fresh.Post(rpcAt(url, "stub"), "application/json", strings.NewReader(rpc("echo", `1`)))
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				continue // the closing listener accepted it: see Settled
			}
			if err != nil {
				t.Error(err)
				return
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if string(body) != result(`1`) {
				t.Errorf("got %d %s", res.StatusCode, body)
				return
			}
		}
	})
	load(t, site(listen, gateway("server stub http://"+address, "server new http://"+address)))
	same(t, send(t, fresh, "POST", rpcAt(url, "new"), rpc("echo", `2`)).body, result(`2`))
	close(stop)
	traffic.Wait()
	close(release)
	for range 2 {
		same(t, (<-held).body, result(`"held"`))
	}
}

// A huge response is not buffered (G23).
func TestGatewayHugeReply(t *testing.T) {
	isolate(t)
	const n = 64 << 20
	address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":"`)
		piece := []byte(strings.Repeat("A", 1<<20))
		for range n >> 20 {
			_, _ = w.Write(piece)
		}
		_, _ = io.WriteString(w, `"}`)
	}))
	url := serve(t, gateway("server huge http://"+address))
	before := allocated(t)
	got := post(t, rpcAt(url, "huge"), rpc("read", `1`))
	after := allocated(t)
	same(t, got.body, result(`"`+cut("A", n, 2000, 2000)+`"`))
	if grown := after - before; grown > n {
		t.Errorf("allocated %.0f bytes for a response of %d", grown, n)
	}
}

// allocated returns how many bytes Caddy has allocated so far.
func allocated(t *testing.T) float64 {
	t.Helper()
	for line := range strings.Lines(admin(t, "GET", "/metrics", "").body) {
		if value, ok := strings.CutPrefix(line, "go_memstats_alloc_bytes_total "); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no go_memstats_alloc_bytes_total in the metrics")
	return 0
}

// A response that breaks off after its beginning was sent is visibly incomplete.
func TestGatewayRPCBreaksOffLate(t *testing.T) {
	isolate(t)
	address := rawUpstream(t, func(conn net.Conn, _ *bufio.Reader) {
		body := result(`"` + strings.Repeat("A", 3<<20) + `"`)
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			len(body), body[:2<<20])
	})
	url := serve(t, gateway(block("server raw http://"+address, "mask off")))
	res := open(t, client, "POST", rpcAt(url, "raw"), rpc("read", `1`))
	body, err := io.ReadAll(res.Body)
	if res.StatusCode != 200 || err == nil {
		t.Errorf("%d with %d bytes, %v", res.StatusCode, len(body), err)
	}
}

// The client does not wait for a server that keeps its stream open after the response.
func TestGatewayRPCDoesNotWaitForStreamsToEnd(t *testing.T) {
	isolate(t)
	gone := make(chan struct{}, 1)
	address := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, event(result(`1`)))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		gone <- struct{}{}
	}))
	url := serve(t, gateway("response_timeout 10m", "server open http://"+address))
	one := sequentialClient(t)
	for range 2 {
		began := time.Now()
		same(t, send(t, one, "POST", rpcAt(url, "open"), rpc("read", `1`)).body, result(`1`))
		wait(t, gone, "the end of the stream")
		if took := time.Since(began); took > patience {
			t.Errorf("took %s", took)
		}
	}
}

// Headers of a handler that refuses a request reach the client.
func TestGatewayKeepsHeadersOfRefusals(t *testing.T) {
	isolate(t)
	url := serve(t, block("mcp_gateway", block("server a http://127.0.0.1:1", `header WWW-Authenticate "Bearer realm=x"`,
		"error 401")))
	for _, endpoint := range []string{rpcAt(url, "a"), url + "/mcp/a"} {
		got := post(t, endpoint, rpc("echo", `1`))
		if want := (gatewayError{401, -32600, "unauthorized", "1", "a", 0}); gatewayErrorOf(t, got) != want {
			t.Errorf("got %+v, want %+v", gatewayErrorOf(t, got), want)
		}
		if header := got.Header.Get("WWW-Authenticate"); header != "Bearer realm=x" {
			t.Errorf("WWW-Authenticate: %q", header)
		}
	}
}
