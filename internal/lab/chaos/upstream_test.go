//go:build linux

package chaos

import (
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
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
		// 500 bytes every 100 ms: the toxic for bandwidth delays up to 32 KiB at once
		{name: "is too slow for the whole response", server: "hurried", start: link.toxic("slicer",
			`{"average_size":500,"size_variation":100,"delay":100000}`), calls: 1, tool: "big",
			want: byEndpoint("502 timeout", "200 result", "200 result")},
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

// TestChildFails has child processes fail: A35 to A39, A41.
func TestChildFails(t *testing.T) {
	lines := byLength(500, 2_000)
	s := newTestbed(t, testbedConfig{
		gateway: []string{
			block(child("bad", "--modern"), "max_line 1MiB", "stop_grace 200ms"),
			block(child("hurried", "--modern"), "timeout 1s", "stop_grace 200ms"),
			block(child("dying", "--exit-at-start", "3"), "timeout 10s", "start_timeout 2s"),
			block(child("dumb", "--hang-init"), "timeout 10s", "start_timeout 1s", "stop_grace 200ms"),
		},
		neverReady: []string{"dying", "dumb"},
		site: []string{block("mcp_gateway", "separator __", "mcp_path /checked/mcp", "rpc_path /checked/api/mcp-gateway",
			"health_interval 300ms", "health_timeout 1s",
			block(child("hanging"), "timeout 30s", "stop_grace 200ms"))},
	})
	all := byEndpoint("200 result", "200 result", "200 result")
	for _, f := range []fault{
		{name: "is killed during a call", start: killRepeatedly("bad"), tool: "hang", want: gatewayError("connect_error")},
		{name: "exits during a call", tool: "die", arguments: `{"code":3}`, calls: 1, want: gatewayError("connect_error")},
		{name: "never responds", server: "hurried", tool: "hang", want: gatewayError("timeout")},
		{name: "is suspended", server: "hurried", start: suspendServer("hurried"), tool: "echo",
			want: gatewayError("timeout")},
		{name: "hangs and fails its health check", gateway: "/checked", start: suspendServer("hanging"), server: "hanging",
			tool: "echo", calls: 1, want: gatewayError("connect_error")},
		{name: "writes lines that are not messages", tool: "noise", arguments: noiseArguments(lines), want: all},
		{name: "writes much to stderr", tool: "stderr", arguments: noiseArguments(lines), want: all},
		{name: "writes a line longer than max_line", tool: "big", arguments: `{"n":2000000}`,
			want: gatewayError("invalid_response")},
		{name: "writes half a line", server: "hurried", tool: "half", want: gatewayError("timeout")},
		{name: "closes its output and keeps running", tool: "mute", calls: 1, want: gatewayError("connect_error")},
		{name: "responds with an unknown id", tool: "wrong-id", want: all},
		{name: "responds twice", tool: "late", arguments: `{"ms":50}`, want: all},
		{name: "exits at start", server: "dying", tool: "echo", want: map[endpoint]string{
			rpc: "502 connect_error", oneServerModern: "502 connect_error", joined: "200 connect_error",
			joinedModern: "200 connect_error"}},
		{name: "does not initialize", server: "dumb", tool: "echo", want: map[endpoint]string{
			rpc: "502 connect_error", oneServerModern: "502 connect_error", joined: "200 connect_error",
			joinedModern: "200 connect_error"}},
	} {
		if f.server == "" {
			f.server = "bad"
		}
		s.runCallFault(t, f)
	}
}

// noiseArguments returns the arguments for a tool that writes this many lines.
func noiseArguments(lines int) string {
	return `{"lines":` + strconv.Itoa(lines) + `,"text":"` + strings.Repeat("noise ", 200) + `"}`
}

// signal sends a signal to all processes of a server.
func (s *testbed) signal(server string, signal syscall.Signal) {
	for _, p := range s.processes() {
		if p.name == server {
			_ = syscall.Kill(p.pid, signal)
		}
	}
}

// suspendServer suspends the processes of a server with SIGSTOP until the fault ends or they are
// killed.
func suspendServer(server string) func(*faultRun) func() {
	return func(o *faultRun) func() {
		stop := repeatEvery(20*time.Millisecond, func() { o.signal(server, syscall.SIGSTOP) })
		await.Until(o.T, "all processes of "+server+" to be stopped", func() bool {
			stopped := 0
			for _, p := range o.processes() {
				if p.name == server && p.state != 'T' {
					return false
				} else if p.name == server {
					stopped++
				}
			}
			return stopped > 0
		})
		return func() {
			stop()
			o.signal(server, syscall.SIGCONT)
		}
	}
}

// killRepeatedly kills the processes of a server repeatedly, until the fault ends.
func killRepeatedly(server string) func(*faultRun) func() {
	return func(o *faultRun) func() {
		return repeatEvery(300*time.Millisecond, func() { o.signal(server, syscall.SIGKILL) })
	}
}

// repeatEvery calls do at intervals until end is called.
func repeatEvery(pace time.Duration, do func()) (end func()) {
	over := make(chan struct{})
	var doing sync.WaitGroup
	doing.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for {
			select {
			case <-over:
				return
			case <-ticker.C:
			}
			do()
		}
	})
	return func() {
		close(over)
		doing.Wait()
	}
}

// TestReloadWhileThingsFail reloads, with and without a change, while servers fail and clients
// call: G27, A60. Calls end as without a reload, and children of unchanged servers keep running.
// Clients repeat calls that got no response because their connection was closed.
func TestReloadWhileThingsFail(t *testing.T) {
	bad := newServer(t, map[string]func(*exchange){
		"silent": hangs,
		"closes": sends(""),
		"endless-events": sendsRepeatedly(ok+isSSE+"\r\n", strings.Replace(noiseEvent, "here", strings.Repeat("here", 1000),
			1), unlimited),
		"endless-string": sendsRepeatedly(ok+isJSON+"\r\n"+resultStart, strings.Repeat("x", 10_000), unlimited),
	})
	s := newTestbed(t, testbedConfig{
		servers: []*httpServer{bad.Server},
		gateway: []string{"name chaos", "server bad " + bad.URL + "/mcp", block("server hurried "+bad.URL+"/mcp",
			"timeout 1s"), block(child("dying"), "stop_grace 200ms")},
	})
	// A reload may close a connection just when it is used again.
	for _, n := range s.otherClients {
		n.retries = true
	}
	callers := map[endpoint]*testClient{}
	for _, w := range endpoints {
		callers[w] = s.initializedClient(t, w)
		callers[w].retries = true
		for _, server := range []string{"bad", "hurried", "dying"} {
			callers[w].initialize(t, server)
			callers[w].awaitRecovery(t, server)
		}
	}
	near := func() (pids []int) {
		for _, p := range s.processes() {
			if p.name == "near" {
				pids = append(pids, p.pid)
			}
		}
		return pids
	}
	before := near()
	s.runFault(t, "reloads", 192, func(o *faultRun) {
		over := make(chan struct{})
		var running sync.WaitGroup
		for w, c := range callers {
			for tool, class := range map[string]map[endpoint]string{"silent": gatewayError("timeout"),
				"closes": gatewayError("connect_error"), "endless-string": {rpc: "502 timeout"},
				"endless-events": {rpc: "502 timeout"}} {
				if class[w] == "" {
					continue
				}
				server := "hurried"
				if tool == "closes" {
					server = "bad"
				}
				running.Go(func() {
					for {
						got := c.call(o, server, tool, "")
						o.record(w, got)
						if got.class != class[w] {
							o.failOnce(w, "%s ended with %s, want %s: %.300q", tool, got.class, class[w], got.body)
						}
						select {
						case <-over:
							return
						case <-time.After(20 * time.Millisecond):
						}
					}
				})
			}
			running.Go(func() {
				for {
					c.call(o, "dying", "die", `{"code":1}`)
					select {
					case <-over:
						return
					case <-time.After(200 * time.Millisecond):
					}
				}
			})
		}
		for i := range byLength(6, 60) {
			config := s.config
			if i%2 == 0 {
				config = strings.Replace(config, "separator __", "separator __\nrequest_limit 9MiB", 1)
			}
			s.adminRequest(t, "POST", "/load", config)
			o.awaitOtherCalls(5)
		}
		s.adminRequest(t, "POST", "/load", s.config)
		close(over)
		running.Wait()
		for _, c := range callers {
			c.awaitRecovery(t, "dying")
			c.awaitRecovery(t, "bad")
			c.http.CloseIdleConnections()
		}
		if now := near(); !slices.Equal(now, before) {
			o.Errorf("A60 the children were %v, now %v", before, now)
		}
	})
}
