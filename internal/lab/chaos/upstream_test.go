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
	ok      = "HTTP/1.1 200 OK\r\n"
	isJSON  = "Content-Type: application/json\r\n"
	isSSE   = "Content-Type: text/event-stream\r\n"
	chunked = "Transfer-Encoding: chunked\r\n"
	gzipped = "Content-Encoding: gzip\r\n"
	begun   = `{"jsonrpc":"2.0","id":{id},"result":{"content":[{"type":"text","text":"`
	done    = `"}]}}`
	noise   = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":\"still here\"}}\n\n"
	endless = math.MaxInt
	another = "answer to another request"
	broken  = "broken off"
)

// What servers over HTTP do to the gateway: W2, G8 to G13, A38.
func TestUpstreamFails(t *testing.T) {
	bad := newServer(t, map[string]func(*exchange){
		"silent":           waits,
		"closes":           says(""),
		"no-http":          says("SSH-2.0-OpenSSH_9.2\r\n"),
		"length-too-long":  says(ok + isJSON + "Content-Length: 1000\r\n\r\n" + begun + "x" + done),
		"length-too-short": says(ok + isJSON + "Content-Length: 50\r\n\r\n" + begun + "x" + done),
		"two-lengths":      says(ok + isJSON + "Content-Length: 10\r\nContent-Length: 20\r\n\r\n" + begun + "x" + done),
		"bad-chunk":        says(ok + isJSON + chunked + "\r\nxyz\r\n" + begun + "x" + done + "\r\n0\r\n\r\n"),
		"chunks-cut":       says(ok + isJSON + chunked + "\r\n1000\r\n" + begun),
		"sse-cut":          says(ok + isSSE + chunked + "\r\n1000\r\ndata: " + begun),
		"sse-ends":         says(ok + isSSE + "Connection: close\r\n\r\n" + noise),
		"html":             says(ok + "Content-Type: text/html\r\nConnection: close\r\n\r\n<html>"),
		"wrong-id":         says(ok + isJSON + "Connection: close\r\n\r\n" + strings.Replace(begun, "{id}", `"somebody's"`, 1) + done),
		"redirects":        says("HTTP/1.1 307 Temporary Redirect\r\nConnection: close\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
		"endless-headers":  repeats(ok, "X-More: "+strings.Repeat("x", 1000)+"\r\n", endless),
		"endless-header":   repeats(ok+"X-More: ", strings.Repeat("x", 1000), endless),
		"endless-1xx":      repeats("", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", endless),
		"endless-string":   repeats(ok+isJSON+"\r\n"+begun, strings.Repeat("x", 10_000), endless),
		"endless-space":    repeats(ok+isJSON+"\r\n", strings.Repeat(" ", 10_000), endless),
		"endless-nesting":  repeats(ok+isJSON+"\r\n"+`{"jsonrpc":"2.0","id":{id},"result":`, strings.Repeat("[", 10_000), endless),
		"endless-events":   repeats(ok+isSSE+"\r\n", strings.Replace(noise, "here", strings.Repeat("here", 1000), 1), endless),
		"endless-event":    repeats(ok+isSSE+"\r\ndata: "+begun, strings.Repeat("x", 10_000), endless),
		"endless-comment":  repeats(ok+isSSE+"\r\n", ": "+strings.Repeat("x", 10_000), endless),
	})
	s := newStage(t, play{
		servers: []*httpServer{bad.Server},
		gateway: []string{"server bad " + bad.URL + "/mcp", block("server hurried "+bad.URL+"/mcp", "timeout 1s")},
		site: []string{block("mcp_gateway", "separator __", "mcp_path /limited/mcp", "rpc_path /limited/api/mcp-gateway", "response_limit 4MiB",
			block("server bad "+bad.URL+"/mcp", "timeout 30s"))},
	})
	for _, f := range []fault{
		{name: "does not answer", server: "hurried", tool: "silent", ends: everywhere("timeout")},
		{name: "hangs up before it has answered", tool: "closes", ends: everywhere("connect_error")},
		{name: "speaks another protocol", tool: "no-http", ends: everywhere("connect_error")},
		{name: "promises a longer body than it has", tool: "length-too-long", ends: byDoor("502 connect_error", broken, "200 connect_error")},
		{name: "promises a shorter body than it has", tool: "length-too-short", ends: byDoor("502 invalid_json or 502 connect_error", "200 no JSON or 502 connect_error", "200 invalid_json or 200 connect_error")}, // for whoever gets the connection with what is left,
		{name: "promises two lengths", tool: "two-lengths", ends: everywhere("connect_error")},
		{name: "sends chunks that are none", tool: "bad-chunk", ends: byDoor("502 connect_error", broken, "200 connect_error")},
		{name: "hangs up in a chunk", tool: "chunks-cut", ends: byDoor("502 connect_error", broken, "200 connect_error")},
		{name: "hangs up in an event", tool: "sse-cut", ends: byDoor("502 connect_error", broken, "200 connect_error")},
		{name: "ends a stream without an answer", tool: "sse-ends", ends: byDoor("502 invalid_response", "200 ended", "200 invalid_response")},
		{name: "sends a page", tool: "html", ends: byDoor("502 invalid_json", "200 no JSON", "200 invalid_json")},
		{name: "answers somebody else", tool: "wrong-id", ends: byDoor("200 "+another, "200 "+another, "200 invalid_response")},
		{name: "redirects", tool: "redirects", ends: byDoor("502 http_error", "502 http_error", "200 http_error")},
		{name: "sends informational responses without end", server: "hurried", tool: "endless-1xx", calls: 2, ends: everywhere("timeout")},
		// At /rpc the time is for the whole answer. What has begun breaks off.
		{name: "sends a string without end", server: "hurried", tool: "endless-string", ends: byDoor("502 timeout", "", "")},
		{name: "sends white space without end", tool: "endless-space", ends: byDoor("502 invalid_json", "", "")},
		{name: "sends brackets without end", server: "hurried", tool: "endless-nesting", ends: byDoor(broken+" or 502 timeout", "", "")},
		{name: "sends events without end", server: "hurried", tool: "endless-events", ends: byDoor("502 timeout", "", "")},
		{name: "sends an event without end", server: "hurried", tool: "endless-event", ends: byDoor("502 timeout", "", "")},
		{name: "sends a comment without end", server: "hurried", tool: "endless-comment", ends: byDoor("502 timeout", "", "")},
		{name: "sends a string beyond response_limit", gateway: "/limited", tool: "endless-string", calls: 4, ends: byDoor("502 invalid_response", broken, broken), budget: 160},
		{name: "sends white space beyond response_limit", gateway: "/limited", tool: "endless-space", calls: 4, ends: byDoor("502 invalid_json", broken, "200 invalid_response"), budget: 160},
		{name: "sends brackets beyond response_limit", gateway: "/limited", tool: "endless-nesting", calls: 4, ends: byDoor(broken, broken, broken), budget: 160},
		{name: "sends events beyond response_limit", gateway: "/limited", tool: "endless-events", calls: 4, ends: byDoor("502 invalid_response", broken+" or 200 invalid_response", "200 invalid_response"), budget: 160},
		{name: "sends an event beyond response_limit", gateway: "/limited", tool: "endless-event", calls: 4, ends: byDoor("502 invalid_response", broken, broken), budget: 160},
		{name: "sends a comment beyond response_limit", gateway: "/limited", tool: "endless-comment", calls: 4, ends: byDoor("502 invalid_response", "200 invalid_response", "200 invalid_response"), budget: 160},
		// Caddy takes 10 MiB of headers.
		{name: "sends headers without end", tool: "endless-headers", calls: 1, ends: everywhere("connect_error"), budget: 256},
		{name: "sends a header without end", tool: "endless-header", calls: 1, ends: everywhere("connect_error"), budget: 256},
	} {
		f.server, f.counts = cmp.Or(f.server, "bad"), bad
		s.endures(t, f)
	}
}

// A link between Caddy and a server is bad: toxiproxy is in between.
func TestUpstreamLinkFails(t *testing.T) {
	const size = 60_000
	far := newServer(t, map[string]func(*exchange){
		"big": func(x *exchange) { answer(x.w, x.id, text(strings.Repeat("x", size))) },
		"events": func(x *exchange) {
			x.w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(x.w, strings.Repeat(noise, 100))
			_, _ = fmt.Fprintf(x.w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", x.id, text(strings.Repeat("x", size)))
		},
	})
	link := newLink(t, far.Listener.Addr().String())
	s := newStage(t, play{
		servers: []*httpServer{far.Server},
		gateway: []string{"server far-away http://" + link.Listen + "/mcp", block("server hurried http://"+link.Listen+"/mcp", "timeout 10s")},
	})
	for _, f := range []fault{
		{name: "refuses connections", begin: link.down, tool: "big", ends: everywhere("connect_error")},
		{name: "is cut in mid-body", begin: link.with("limit_data", `{"bytes":20000}`), tool: "big", ends: byDoor("502 connect_error", broken, "200 connect_error")},
		{name: "is cut in mid-stream", begin: link.with("limit_data", `{"bytes":30000}`), tool: "events", ends: byDoor("502 connect_error", broken, "200 connect_error")},
		{name: "stalls", server: "hurried", begin: link.with("timeout", `{"timeout":0}`), tool: "big", ends: everywhere("timeout")},
		{name: "is slow to answer", begin: link.with("latency", `{"latency":300,"jitter":200}`), tool: "big", ends: byDoor("200 result", "200 result", "200 result")},
		{name: "is too slow for the whole answer", server: "hurried", begin: link.with("bandwidth", `{"rate":5}`), calls: 1, tool: "big", ends: byDoor("502 timeout", "200 result", "200 result")},
		{name: "sends a few bytes at a time", begin: link.with("slicer", `{"average_size":500,"size_variation":100,"delay":10}`), tool: "big", ends: byDoor("200 result", "200 result", "200 result")},
		{name: "is slow to close", begin: link.with("slow_close", `{"delay":500}`), tool: "big", ends: byDoor("200 result", "200 result", "200 result")},
		{name: "resets connections", begin: link.with("reset_peer", `{"timeout":0}`), tool: "big", ends: everywhere("connect_error")},
		{name: "resets connections after a while", begin: link.with("reset_peer", `{"timeout":100}`), tool: "big", ends: everywhere("connect_error")},
	} {
		f.server, f.counts = cmp.Or(f.server, "far-away"), far
		s.endures(t, f)
	}
}

// A link is a way to a server that can be made a bad one.
type link struct{ *toxiproxy.Proxy }

func newLink(t *testing.T, to string) *link {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{toxiproxy.NewProxy(server, "link", "127.0.0.1:0", to)}
	if err := l.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Stop)
	return l
}

// with makes the link toxic on the way back.
func (l *link) with(kind, attributes string) func(*ordeal) func() {
	return func(o *ordeal) func() {
		o.Helper()
		toxic := fmt.Sprintf(`{"name":%q,"type":%[1]q,"stream":"downstream","attributes":%s}`, kind, attributes)
		if _, err := l.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
			o.Fatal(err)
		}
		return func() { l.Toxics.ResetToxics(context.Background()) }
	}
}

// down closes the link.
func (l *link) down(o *ordeal) func() {
	l.Stop()
	return func() {
		if err := l.Start(); err != nil {
			o.Error(err)
		}
	}
}

// Answers that are small until they are decompressed. The masks see them decompressed;
// where nothing is masked they are passed on, or held up to a bound.
func TestUpstreamSendsBombs(t *testing.T) {
	size := more(96<<20, 1<<30)
	bad := newServer(t, map[string]func(*exchange){
		"string":  bomb(isJSON, begun, "x", done, size),
		"events":  bomb(isSSE, "", strings.Replace(noise, "here", strings.Repeat("here", 10_000), 1), "data: "+begun+done+"\n\n", size),
		"event":   bomb(isSSE, "data: "+begun, "x", done+"\n\n", size),
		"nesting": bomb(isJSON, `{"jsonrpc":"2.0","id":{id},"result":`, "[", "", size),
		"space":   bomb(isJSON, "", " ", begun+done, size),
	})
	s := newStage(t, play{
		servers: []*httpServer{bad.Server},
		gateway: []string{block("server bad "+bad.URL+"/mcp", "timeout 10m")},
		site: []string{
			block("mcp_gateway", "separator __", "mcp_path /masked/mcp", "rpc_path /masked/api/mcp-gateway", "mask", block("server bad "+bad.URL+"/mcp", "timeout 10m")),
			block("mcp_gateway", "separator __", "mcp_path /limited/mcp", "rpc_path /limited/api/mcp-gateway", "response_limit 4MiB", block("server bad "+bad.URL+"/mcp", "timeout 10m")),
		},
	})
	const passed = "200 passed on"
	for _, f := range []fault{
		{name: "a string, masked", gateway: "/masked", tool: "string", ends: byDoor("200 result", "200 result", "200 result")},
		{name: "an event, masked", gateway: "/masked", tool: "event", ends: byDoor("200 result", "200 result", "200 result")},
		{name: "a string beyond response_limit", gateway: "/limited", tool: "string", calls: 4, ends: byDoor("502 invalid_response", broken, broken)},
		{name: "an event beyond response_limit", gateway: "/limited", tool: "event", calls: 4, ends: byDoor("502 invalid_response", broken, broken)},
		{name: "events", tool: "events", ends: byDoor("200 result", "200 result", "200 result")},
		{name: "a string", tool: "string", ends: byDoor("200 result", passed, passed)},
		{name: "an event", tool: "event", ends: eras("200 result", "200 result", "200 result", passed)},
		{name: "brackets", tool: "nesting", ends: byDoor(broken, passed, broken)},
		{name: "white space", tool: "space", ends: byDoor("502 invalid_json", passed, "200 invalid_response"), budget: 512},
	} {
		f.server, f.calls = "bad", 1
		s.endures(t, f)
	}
}

// bomb answers with so many bytes of the same, compressed, between a beginning and an
// end.
func bomb(header, beginning, again, end string, size int) func(*exchange) {
	part := []byte(strings.Repeat(again, 1+(1<<20)/len(again)))
	return func(x *exchange) {
		conn, _ := x.raw()
		defer conn.Close()
		_, _ = io.WriteString(conn, ok+header+gzipped+"Connection: close\r\n\r\n")
		zw, _ := gzip.NewWriterLevel(conn, gzip.BestSpeed) // which is a level
		_, err := io.WriteString(zw, strings.ReplaceAll(beginning, "{id}", string(x.id)))
		for sent := 0; err == nil && sent < size; sent += len(part) {
			_, err = zw.Write(part)
		}
		_, _ = io.WriteString(zw, strings.ReplaceAll(end, "{id}", string(x.id)))
		_ = zw.Close()
	}
}
