//go:build linux

package chaos

import (
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

const (
	ok          = "HTTP/1.1 200 OK\r\n"
	isJSON      = "Content-Type: application/json\r\n"
	isSSE       = "Content-Type: text/event-stream\r\n"
	chunked     = "Transfer-Encoding: chunked\r\n"
	gzipped     = "Content-Encoding: gzip\r\n"
	resultStart = `{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":"`
	resultEnd   = `"}]}}`
	noiseEvent  = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\"," +
		"\"data\":\"still here\"}}\n\n"
	unlimited     = math.MaxInt
	otherResponse = "response to another request"
	broken        = "broken off"
)

// TestUpstreamFails has servers over HTTP fail in many ways: W2, G8 to G13, A38.
func TestUpstreamFails(t *testing.T) {
	bad := newServer(t, map[string]func(*exchange){
		"silent":           hangs,
		"closes":           sends(""),
		"no-http":          sends("SSH-2.0-OpenSSH_9.2\r\n"),
		"length-too-long":  sends(ok + isJSON + "Content-Length: 1000\r\n\r\n" + resultStart + "x" + resultEnd),
		"length-too-short": sends(ok + isJSON + "Content-Length: 50\r\n\r\n" + resultStart + "x" + resultEnd),
		"two-lengths": sends(ok + isJSON + "Content-Length: 10\r\nContent-Length: 20\r\n\r\n" + resultStart + "x" +
			resultEnd),
		"bad-chunk":  sends(ok + isJSON + chunked + "\r\nxyz\r\n" + resultStart + "x" + resultEnd + "\r\n0\r\n\r\n"),
		"chunks-cut": sends(ok + isJSON + chunked + "\r\n1000\r\n" + resultStart),
		"sse-cut":    sends(ok + isSSE + chunked + "\r\n1000\r\ndata: " + resultStart),
		"sse-ends":   sends(ok + isSSE + "Connection: close\r\n\r\n" + noiseEvent),
		"html":       sends(ok + "Content-Type: text/html\r\nConnection: close\r\n\r\n<html>"),
		"wrong-id": sends(ok + isJSON + "Connection: close\r\n\r\n" + strings.Replace(resultStart, "{id}",
			`"another"`, 1) + resultEnd),
		"redirects": sends("HTTP/1.1 307 Temporary Redirect\r\nConnection: close\r\nLocation: " +
			"http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
		"endless-headers": sendsRepeatedly(ok, "X-More: "+strings.Repeat("x", 1000)+"\r\n", unlimited),
		"endless-header":  sendsRepeatedly(ok+"X-More: ", strings.Repeat("x", 1000), unlimited),
		"endless-1xx":     sendsRepeatedly("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", unlimited),
		"endless-string":  sendsRepeatedly(ok+isJSON+"\r\n"+resultStart, strings.Repeat("x", 10_000), unlimited),
		"endless-space":   sendsRepeatedly(ok+isJSON+"\r\n", strings.Repeat(" ", 10_000), unlimited),
		"endless-nesting": sendsRepeatedly(ok+isJSON+"\r\n"+`{"jsonrpc":"2.0","id":{id},"result":`,
			strings.Repeat("[", 10_000), unlimited),
		"endless-events": sendsRepeatedly(ok+isSSE+"\r\n", strings.Replace(noiseEvent, "here",
			strings.Repeat("here", 1000), 1), unlimited),
		"endless-event":   sendsRepeatedly(ok+isSSE+"\r\ndata: "+resultStart, strings.Repeat("x", 10_000), unlimited),
		"endless-comment": sendsRepeatedly(ok+isSSE+"\r\n", ": "+strings.Repeat("x", 10_000), unlimited),
	})
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{bad.Server},
		gateway: []string{"server bad " + bad.URL + "/mcp", block("server hurried "+bad.URL+"/mcp", "timeout 1s")},
		site: []string{block("mcp_gateway", "separator __", "mcp_path /limited/mcp", "rpc_path /limited/api/mcp-gateway",
			"response_limit 4MiB",
			block("server bad "+bad.URL+"/mcp", "timeout 30s"))},
	})
	for _, f := range []fault{
		{name: "does not respond", server: "hurried", tool: "silent", want: gatewayError("timeout")},
		{name: "closes the connection before responding", tool: "closes", want: gatewayError("connect_error")},
		{name: "uses another protocol", tool: "no-http", want: gatewayError("connect_error")},
		{name: "declares a longer body than it sends", tool: "length-too-long", want: byEndpoint("502 connect_error", broken,
			"200 connect_error")},
		// The rest of the body stays on the connection, so the next call on it may fail instead.
		{name: "declares a shorter body than it sends", tool: "length-too-short",
			want: byEndpoint("502 invalid_json or 502 connect_error", "200 not JSON or 502 connect_error",
				"200 invalid_json or 200 connect_error")},
		{name: "declares two lengths", tool: "two-lengths", want: gatewayError("connect_error")},
		{name: "sends invalid chunks", tool: "bad-chunk", want: byEndpoint("502 connect_error", broken, "200 connect_error")},
		{name: "closes the connection within a chunk", tool: "chunks-cut", want: byEndpoint("502 connect_error", broken,
			"200 connect_error")},
		{name: "closes the connection within an event", tool: "sse-cut", want: byEndpoint("502 connect_error", broken,
			"200 connect_error")},
		{name: "ends a stream without a response", tool: "sse-ends", want: byEndpoint("502 invalid_response",
			"200 "+noResponseInStream, "200 invalid_response")},
		{name: "sends an HTML page", tool: "html", want: byEndpoint("502 invalid_json", "200 not JSON", "200 invalid_json")},
		{name: "responds to another request", tool: "wrong-id", want: byEndpoint("200 "+otherResponse, "200 "+otherResponse,
			"200 invalid_response")},
		{name: "redirects", tool: "redirects", want: byEndpoint("502 http_error", "502 http_error", "200 http_error")},
		{name: "sends endless informational responses", server: "hurried", tool: "endless-1xx", calls: 2,
			want: gatewayError("timeout")},
		// At /rpc the timeout is for the whole response, which then breaks off if it has begun.
		{name: "sends an endless string", server: "hurried", tool: "endless-string", want: byEndpoint("502 timeout", "", "")},
		{name: "sends endless white space", tool: "endless-space", want: byEndpoint("502 invalid_json", "", "")},
		{name: "sends endless brackets", server: "hurried", tool: "endless-nesting",
			want: byEndpoint(broken+" or 502 timeout", "", "")},
		{name: "sends endless events", server: "hurried", tool: "endless-events", want: byEndpoint("502 timeout", "", "")},
		{name: "sends an endless event", server: "hurried", tool: "endless-event", want: byEndpoint("502 timeout", "", "")},
		{name: "sends an endless comment", server: "hurried", tool: "endless-comment", want: byEndpoint("502 timeout", "",
			"")},
		{name: "sends a string beyond response_limit", gateway: "/limited", tool: "endless-string", calls: 4,
			want: byEndpoint("502 invalid_response", broken, broken), budget: 160},
		{name: "sends white space beyond response_limit", gateway: "/limited", tool: "endless-space", calls: 4,
			want: byEndpoint("502 invalid_json", broken, "200 invalid_response"), budget: 160},
		{name: "sends brackets beyond response_limit", gateway: "/limited", tool: "endless-nesting", calls: 4,
			want: byEndpoint(broken, broken, broken), budget: 160},
		{name: "sends events beyond response_limit", gateway: "/limited", tool: "endless-events", calls: 4,
			want: byEndpoint("502 invalid_response", broken+" or 200 invalid_response", "200 invalid_response"), budget: 160},
		{name: "sends an event beyond response_limit", gateway: "/limited", tool: "endless-event", calls: 4,
			want: byEndpoint("502 invalid_response", broken, broken), budget: 160},
		{name: "sends a comment beyond response_limit", gateway: "/limited", tool: "endless-comment", calls: 4,
			want: byEndpoint("502 invalid_response", "200 invalid_response", "200 invalid_response"), budget: 160},
		// Caddy accepts 10 MiB of headers.
		{name: "sends endless headers", tool: "endless-headers", calls: 1, want: gatewayError("connect_error"), budget: 256},
		{name: "sends an endless header", tool: "endless-header", calls: 1, want: gatewayError("connect_error"), budget: 256},
	} {
		f.server, f.counter = cmp.Or(f.server, "bad"), bad
		s.runCallFault(t, f)
	}
}

// TestUpstreamLinkFails breaks the connection between Caddy and a server with toxiproxy.
func TestUpstreamLinkFails(t *testing.T) {
	const size = 60_000
	far := newServer(t, map[string]func(*exchange){
		"big": func(x *exchange) { answer(x.w, x.id, text(strings.Repeat("x", size))) },
		"events": func(x *exchange) {
			x.w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(x.w, strings.Repeat(noiseEvent, 100))
			_, _ = fmt.Fprintf(x.w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", x.id,
				text(strings.Repeat("x", size)))
		},
	})
	link := newLink(t, far.Listener.Addr().String())
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{far.Server},
		gateway: []string{"server far-away http://" + link.Listen + "/mcp", block("server hurried http://"+link.Listen+
			"/mcp", "timeout 10s")},
	})
	for _, f := range []fault{
		{name: "refuses connections", start: link.down, tool: "big", want: gatewayError("connect_error")},
		{name: "is cut during a body", start: link.toxic("limit_data", `{"bytes":20000}`), tool: "big",
			want: byEndpoint("502 connect_error", broken, "200 connect_error")},
		{name: "is cut during a stream", start: link.toxic("limit_data", `{"bytes":30000}`), tool: "events",
			want: byEndpoint("502 connect_error", broken, "200 connect_error")},
		{name: "stalls", server: "hurried", start: link.toxic("timeout", `{"timeout":0}`), tool: "big",
			want: gatewayError("timeout")},
		{name: "is slow to respond", start: link.toxic("latency", `{"latency":300,"jitter":200}`), tool: "big",
			want: byEndpoint("200 result", "200 result", "200 result")},
		{name: "is too slow for the whole response", server: "hurried", start: link.toxic("bandwidth", `{"rate":5}`),
			calls: 1, tool: "big", want: byEndpoint("502 timeout", "200 result", "200 result")},
		{name: "sends a few bytes at a time", start: link.toxic("slicer", `{"average_size":500,"size_variation":100,`+
			`"delay":10}`), tool: "big", want: byEndpoint("200 result", "200 result", "200 result")},
		{name: "is slow to close", start: link.toxic("slow_close", `{"delay":500}`), tool: "big",
			want: byEndpoint("200 result", "200 result", "200 result")},
		{name: "resets connections", start: link.toxic("reset_peer", `{"timeout":0}`), tool: "big",
			want: gatewayError("connect_error")},
		{name: "resets connections after a while", start: link.toxic("reset_peer", `{"timeout":100}`), tool: "big",
			want: gatewayError("connect_error")},
	} {
		f.server, f.counter = cmp.Or(f.server, "far-away"), far
		s.runCallFault(t, f)
	}
}

// A link is a connection to a server that can be made to fail.
type link struct{ *toxiproxy.Proxy }

func newLink(t *testing.T, address string) *link {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{toxiproxy.NewProxy(server, "link", "127.0.0.1:0", address)}
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	return l
}

// toxic returns a function that adds a toxic to responses.
func (l *link) toxic(kind, attributes string) func(*faultRun) func() {
	return func(o *faultRun) func() {
		o.Helper()
		toxic := fmt.Sprintf(`{"name":%q,"type":%[1]q,"stream":"downstream","attributes":%s}`, kind, attributes)
		if _, err := l.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			o.Fatal(err)
		}
		return func() { l.Toxics.ResetToxics(context.Background()) }
	}
}

// down closes the link until the fault ends.
func (l *link) down(o *faultRun) func() {
	l.Stop()
	return func() {
		if err := l.Start(); err != nil {
			o.Error(err)
		}
	}
}

// TestUpstreamSendsBombs has servers send responses that are small until they are decompressed.
// Masks see them decompressed. Without a mask they are forwarded, or buffered up to a limit.
func TestUpstreamSendsBombs(t *testing.T) {
	size := byLength(96<<20, 1<<30)
	bad := newServer(t, map[string]func(*exchange){
		"string": bomb(isJSON, resultStart, "x", resultEnd, size),
		"events": bomb(isSSE, "", strings.Replace(noiseEvent, "here", strings.Repeat("here", 10_000), 1),
			"data: "+resultStart+resultEnd+"\n\n", size),
		"event":   bomb(isSSE, "data: "+resultStart, "x", resultEnd+"\n\n", size),
		"nesting": bomb(isJSON, `{"jsonrpc":"2.0","id":{id},"result":`, "[", "", size),
		"space":   bomb(isJSON, "", " ", resultStart+resultEnd, size),
	})
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{bad.Server},
		gateway: []string{block("server bad "+bad.URL+"/mcp", "timeout 10m")},
		site: []string{
			block("mcp_gateway", "separator __", "mcp_path /masked/mcp", "rpc_path /masked/api/mcp-gateway", "mask",
				block("server bad "+bad.URL+"/mcp", "timeout 10m")),
			block("mcp_gateway", "separator __", "mcp_path /limited/mcp", "rpc_path /limited/api/mcp-gateway",
				"response_limit 4MiB", block("server bad "+bad.URL+"/mcp", "timeout 10m")),
		},
	})
	const passed = "200 forwarded"
	for _, f := range []fault{
		{name: "a string, masked", gateway: "/masked", tool: "string", want: byEndpoint("200 result", "200 result",
			"200 result")},
		{name: "an event, masked", gateway: "/masked", tool: "event", want: byEndpoint("200 result", "200 result",
			"200 result")},
		{name: "a string beyond response_limit", gateway: "/limited", tool: "string", calls: 4,
			want: byEndpoint("502 invalid_response", broken, broken)},
		{name: "an event beyond response_limit", gateway: "/limited", tool: "event", calls: 4,
			want: byEndpoint("502 invalid_response", broken, broken)},
		{name: "events", tool: "events", want: byEndpoint("200 result", "200 result", "200 result")},
		{name: "a string", tool: "string", want: byEndpoint("200 result", passed, passed)},
		{name: "an event", tool: "event", want: byEndpointAndEra("200 result", "200 result", "200 result", passed)},
		{name: "brackets", tool: "nesting", want: byEndpoint(broken, passed, broken)},
		{name: "white space", tool: "space", want: byEndpoint("502 invalid_json", passed, "200 invalid_response"),
			budget: 512},
	} {
		f.server, f.calls = "bad", 1
		s.runCallFault(t, f)
	}
}

// bomb returns a handler that sends size bytes of repeated text, compressed, between a start
// and an end.
func bomb(header, start, repeated, end string, size int) func(*exchange) {
	part := []byte(strings.Repeat(repeated, 1+(1<<20)/len(repeated)))
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, _ = io.WriteString(conn, ok+header+gzipped+"Connection: close\r\n\r\n")
		zw, _ := gzip.NewWriterLevel(conn, gzip.BestSpeed) // a valid level
		_, err := io.WriteString(zw, strings.ReplaceAll(start, "{id}", string(x.id)))
		for sent := 0; err == nil && sent < size; sent += len(part) {
			_, err = zw.Write(part)
		}
		_, _ = io.WriteString(zw, strings.ReplaceAll(end, "{id}", string(x.id)))
		_ = zw.Close()
	}
}
