package integration

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// A source is an upstream whose response to a GET is controlled by the test. Each part is flushed
// at once. It handles POST like a Stub.
type source struct {
	address string
	parts   chan string   // closing it ends the response; "" aborts it
	gone    chan struct{} // receives a value when the client has disconnected
}

func newSource(t *testing.T, contentType string) *source {
	t.Helper()
	s := &source{parts: make(chan string), gone: make(chan struct{}, 1)}
	stub := new(mcptest.Stub)
	s.address = upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			stub.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", contentType)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case part, ok := <-s.parts:
				if !ok {
					return
				}
				if part == "" {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, part)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				s.gone <- struct{}{}
				return
			}
		}
	}))
	return s
}

// send sends a part of the response.
func (s *source) send(t *testing.T, part string) {
	t.Helper()
	select {
	case s.parts <- part:
	case <-time.After(patience):
		t.Fatal("the upstream cannot send another part: no client is connected")
	}
}

// event returns an event as MCP servers send it.
func event(data string) string { return "event: message\ndata: " + data + "\n\n" }

// textEvent returns an event with a result of n characters, and cutEvent the event after
// masking.
func textEvent(n int) string            { return event(result(`"` + strings.Repeat("A", n) + `"`)) }
func cutEvent(n, head, tail int) string { return event(result(`"` + cut("A", n, head, tail) + `"`)) }

// nextEvent reads up to the empty line that ends an event. The client's timeout limits the wait.
func nextEvent(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			t.Fatalf("after %.200q: %v", b.String(), err)
		}
		if line == "\n" || line == "\r\n" {
			return b.String()
		}
	}
}

// TestEventsArriveOneByOne uses an upstream that sends each event only after the client has
// received the one before (O16).
func TestEventsArriveOneByOne(t *testing.T) {
	isolate(t)
	long := strings.Repeat("A", 5000)
	events := []struct {
		name, sent, want string
	}{
		{"a short one", textEvent(10), textEvent(10)},
		{"a long one", textEvent(5000), cutEvent(5000, 2000, 2000)},
		{"a very long one", textEvent(1 << 20), cutEvent(1<<20, 2000, 2000)},
		{"all fields but data are unchanged", "id: " + long + "\nevent: x\nretry: 10\n: " + long + "\nfoo: bar\ndata:" +
			result(`"`+long+`"`) + "\n\n",
			"id: " + long + "\nevent: x\nretry: 10\n: " + long + "\nfoo: bar\ndata:" + result(`"`+cut("A", 5000, 2000, 2000)+
				`"`) + "\n\n"},
		{"CRLF", "data: " + result(`"`+long+`"`) + "\r\n\r\n", "data: " + result(`"`+cut("A", 5000, 2000, 2000)+`"`) +
			"\r\n\r\n"},
		{"data over several lines", "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":\ndata: \"" + long + "\"}\n\n",
			"data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":\ndata: \"" + cut("A", 5000, 2000, 2000) + "\"}\n\n"},
		{"a keep-alive comment", ": ping\n\n", ": ping\n\n"},
		{"data that is not JSON", "data: " + long + "\n\n", "data: " + long + "\n\n"},
		{"data that is not JSON-RPC", "data: {\"result\":\"" + long + "\"}\n\n", "data: {\"result\":\"" + long + "\"}\n\n"},
		{"a notification", event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + long + `"}}`),
			event(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + long + `"}}`)},
		{"a long one after all that", textEvent(5000), cutEvent(5000, 2000, 2000)},
	}
	fronts := []struct{ name, directives, accept string }{
		{"O16 plain", "observation_mask", ""},
		{"O16 two hops", "observation_mask\nobservation_mask", ""},
		{"O16 compressed for the client", "encode gzip\nobservation_mask", "gzip"},
	}
	for _, front := range fronts {
		t.Run(front.name, func(t *testing.T) {
			source := newSource(t, "text/event-stream; charset=utf-8")
			url := serve(t, front.directives, proxy(source.address))
			res := open(t, client, "GET", url, "", "Accept-Encoding: "+front.accept)
			var body *bufio.Reader
			for _, event := range events {
				source.send(t, event.sent)
				if body == nil { // the gzip reader needs data
					body = decoded(t, res, front.accept)
				}
				if got := nextEvent(t, body); got != event.want {
					t.Errorf("%s:", event.name)
					same(t, got, event.want)
				}
			}
			close(source.parts)
			if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
				t.Errorf("%q follows the last event: %v", rest, err)
			}
		})
	}
}

// decoded returns a reader of a response that must have this encoding.
func decoded(t *testing.T, res *http.Response, encoding string) *bufio.Reader {
	t.Helper()
	if has := res.Header.Get("Content-Encoding"); has != encoding {
		t.Fatalf("Content-Encoding %q", has)
	}
	if encoding == "" {
		return bufio.NewReader(res.Body)
	}
	r, err := gzip.NewReader(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(r)
}

// TestEventInPieces uses an upstream that sends one event in ten writes (O16).
func TestEventInPieces(t *testing.T) {
	isolate(t)
	const n = 5000
	for _, spelling := range []string{"A", "é", "😀", `\u00e9`, `\ud83d\ude00`, `\"`} {
		for _, eol := range []string{"\n", "\r\n"} {
			t.Run(fmt.Sprintf("O16 %s %q", spelling, eol), func(t *testing.T) {
				stream := strings.ReplaceAll(event(result(`"`+strings.Repeat(spelling, n)+`"`)), "\n", eol)
				address := rawUpstream(t, func(conn net.Conn, _ *bufio.Reader) {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "+
						"chunked\r\n\r\n")
					for i := range 10 {
						piece := stream[i*len(stream)/10 : (i+1)*len(stream)/10]
						_, _ = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(piece), piece)
					}
					_, _ = io.WriteString(conn, "0\r\n\r\n")
				})
				url := serve(t, "observation_mask", proxy(address))
				want := strings.ReplaceAll(event(result(`"`+cut(spelling, n, 2000, 2000)+`"`)), "\n", eol)
				same(t, post(t, url, rpc("x", "{}")).body, want)
			})
		}
	}
}

// rawUpstream accepts connections and calls handle after the first request was read.
func rawUpstream(t *testing.T, handle func(net.Conn, *bufio.Reader)) (address string) {
	t.Helper()
	l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				r := bufio.NewReader(conn)
				req, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, req.Body)
				handle(conn, r)
			}()
		}
	}()
	return l.Addr().String()
}

// TestOversizedStreams checks that bodies over the limit are streamed (O20).
func TestOversizedStreams(t *testing.T) {
	isolate(t)
	t.Run("O20 a body arrives before its end", func(t *testing.T) {
		source := newSource(t, "application/json")
		url := serve(t, mask("buffer_limit 1MiB"), proxy(source.address))
		// Nothing arrives below the limit, not even the headers.
		half := strings.Repeat("A", 2<<20)
		go func() { source.parts <- `{"jsonrpc":"2.0","id":1,"result":"` + half }()
		res := open(t, client, "GET", url, "")
		begun := make([]byte, 1<<20+1)
		if _, err := io.ReadFull(res.Body, begun); err != nil {
			t.Fatal(err)
		}
		source.send(t, half+`"}`)
		close(source.parts)
		rest, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		same(t, string(begun)+string(rest), result(`"`+half+half+`"`))
	})
	t.Run("O20 the limit applies to each event", func(t *testing.T) {
		source := newSource(t, "text/event-stream")
		url := serve(t, mask("buffer_limit 10KB"), proxy(source.address))
		body := bufio.NewReader(open(t, client, "GET", url, "").Body)
		for _, event := range []struct{ sent, want string }{
			{textEvent(9000), cutEvent(9000, 2000, 2000)},
			{textEvent(11000), textEvent(11000)},
			{textEvent(9000), cutEvent(9000, 2000, 2000)},
		} {
			source.send(t, event.sent)
			same(t, nextEvent(t, body), event.want)
		}
	})
}

// TestUpstreamDies uses upstreams that abort a response. The client must be able to detect that
// the response is incomplete, and Caddy must keep working.
func TestUpstreamDies(t *testing.T) {
	isolate(t)
	truncated := compress(t, "gzip", result(`"`+strings.Repeat("A", 100000)+`"`))
	stub := upstream(t, new(mcptest.Stub))
	halfGzip := upstream(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Whole") != "" {
			new(mcptest.Stub).ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, truncated[:len(truncated)-20])
	}))
	tests := []struct {
		name       string
		directives string
		upstream   string
		request    string
	}{
		{"before anything is masked", "observation_mask", stub, rpc("reset", `{}`)},
		{"in a string that is being masked", "observation_mask", stub, rpc("reset", `{"n":10000}`)},
		{"in a string too long to be held", "observation_mask", stub, rpc("reset", `{"n":5000000}`)},
		{"after more output than is held back", "observation_mask 4000000 2000000 2000000", stub,
			rpc("reset", `{"n":16000000}`)},
		{"below the limit", mask("buffer_limit 1MiB"), stub, rpc("reset", `{"n":10000}`)},
		{"above the limit", mask("buffer_limit 1KiB"), stub, rpc("reset", `{"n":10000}`)},
		{"with the mask off", "observation_mask off", stub, rpc("reset", `{"n":10000}`)},
		{"behind two masks", "observation_mask\nobservation_mask 100 10 10", stub, rpc("reset", `{"n":10000}`)},
		{"behind encode, before anything is masked", "encode gzip\nobservation_mask", stub, rpc("reset", `{}`)},
		{"behind encode", "encode gzip\nobservation_mask", stub, rpc("reset", `{"n":10000}`)},
		{"with half a gzip, decoded by the transport", "observation_mask", halfGzip, rpc("x", `{}`)},
		{"with half a gzip without a request for it", "observation_mask",
			block(halfGzip, block("transport http", "compression off")), rpc("x", `{}`)},
	}
	for _, tt := range tests {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
			t.Run(tt.name+" "+protocol, func(t *testing.T) {
				client := client
				if protocol == "HTTP/2" {
					client = h2cClient(t)
				}
				address := freeAddress(t)
				load(t, h2cOptions+site(address, tt.directives, proxy(tt.upstream)))
				url := "http://" + address
				res, err := client.Do(request(t, t.Context(), "POST", url, tt.request, "Accept-Encoding: gzip"))
				if err == nil {
					defer res.Body.Close()
					var body []byte
					body, err = io.ReadAll(res.Body)
					if err == nil && res.StatusCode < 500 {
						t.Errorf("looks complete: %s, Content-Length %d, %d bytes", res.Status, res.ContentLength, len(body))
					}
				}
				if got := send(t, client, "POST", url, rpc("echo", "1"), "X-Whole: yes"); got.body != result("1") {
					t.Errorf("afterwards got %s %.100s", got.Status, got.body)
				}
			})
		}
	}
	t.Run("in a stream", func(t *testing.T) {
		source := newSource(t, "text/event-stream")
		url := serve(t, "observation_mask", proxy(source.address))
		body := bufio.NewReader(open(t, client, "GET", url, "").Body)
		source.send(t, textEvent(5000))
		same(t, nextEvent(t, body), cutEvent(5000, 2000, 2000))
		source.send(t, "data: {\"jsonrpc\":")
		source.send(t, "")
		if rest, err := io.ReadAll(body); err == nil {
			t.Errorf("looks complete, ending in %q", rest)
		}
		if got := post(t, url, rpc("echo", "1")); got.body != result("1") {
			t.Errorf("afterwards got %s %.100s", got.Status, got.body)
		}
	})
}

// TestClientLeaves checks that the upstream request is cancelled when the client disconnects.
func TestClientLeaves(t *testing.T) {
	isolate(t)
	tests := []struct {
		name        string
		contentType string
		sent        string
		arrives     bool // data arrives before the client disconnects
	}{
		{"a stream", "text/event-stream", textEvent(5000), true},
		{"a stream in mid-event", "text/event-stream", textEvent(5000) + "data: {", true},
		{"a body that is held back", "application/json", `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("A", 5000),
			false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			source := newSource(t, tt.contentType)
			url := serve(t, "observation_mask", proxy(source.address))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			left := make(chan error, 1)
			begun := make(chan struct{})
			go func() {
				res, err := client.Do(request(t, ctx, "GET", url, ""))
				if err == nil {
					defer res.Body.Close()
					_, err = res.Body.Read(make([]byte, 1))
					close(begun)
				}
				if err == nil {
					_, err = io.Copy(io.Discard, res.Body)
				}
				left <- err
			}()
			source.send(t, tt.sent)
			if tt.arrives {
				wait(t, begun, "the first byte")
			}
			leave()
			wait(t, source.gone, "the end of the upstream's request")
			if err := <-left; err == nil {
				t.Error("the client saw the end of the response")
			}
		})
	}
}

func wait(t *testing.T, happened <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(patience):
		t.Fatalf("timed out waiting for %s", what)
	}
}

// TestUpgrade passes bytes in both directions through the mask, unchanged although they look like
// results (O18).
func TestUpgrade(t *testing.T) {
	isolate(t)
	echo := rawUpstream(t, func(conn net.Conn, r *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
			"echo\r\nContent-Type: application/json\r\n\r\n")
		_, _ = io.Copy(conn, r)
	})
	url := serve(t, "observation_mask", proxy(echo))

	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+strings.TrimPrefix(url, "http://")+
		"\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != "echo" {
		t.Fatalf("got %s %v", res.Status, res.Header)
	}
	for _, sent := range []string{result(`"` + strings.Repeat("A", 5000) + `"`), "\x00\xff", "bye"} {
		_, _ = io.WriteString(conn, sent)
		received := make([]byte, len(sent))
		if _, err := io.ReadFull(r, received); err != nil {
			t.Fatal(err)
		}
		same(t, string(received), sent)
	}
}

// TestReload replaces the configuration during a stream.
func TestReload(t *testing.T) {
	isolate(t)
	source := newSource(t, "text/event-stream")
	address := freeAddress(t)
	url := "http://" + address
	config := func(numbers string) string {
		return site(address, block("observation_mask "+numbers, "recover", "server reloaded"), proxy(source.address))
	}
	text := strings.Repeat("A", 5000)
	// The store is kept over reloads, so the handle stays the same.
	handle := ""
	masked := func(t *testing.T, got string, head, tail int) {
		t.Helper()
		_, rest, _ := strings.Cut(got, " id=")
		found, _, _ := strings.Cut(rest, "]")
		if handle == "" {
			handle = found
		}
		same(t, got, strings.Repeat("A", head)+marker(5000, head, tail, handle)+strings.Repeat("A", tail))
	}
	observation := func(t *testing.T, message string) string {
		t.Helper()
		_, rest, _ := strings.Cut(message, `"result":"`)
		text, _, ok := strings.Cut(rest, `"}`)
		if !ok {
			t.Fatalf("no result in %.200s", message)
		}
		return text
	}

	load(t, config("100 10 10"))
	body := bufio.NewReader(open(t, client, "GET", url, "").Body)
	source.send(t, event(result(`"`+text+`"`)))
	masked(t, observation(t, nextEvent(t, body)), 10, 10)

	load(t, config("200 20 20"))
	masked(t, observation(t, post(t, url, rpc("big", `{"n":5000}`)).body), 20, 20)
	for range 2 {
		source.send(t, event(result(`"`+text+`"`)))
		masked(t, observation(t, nextEvent(t, body)), 10, 10)
	}
	load(t, config("off"))
	same(t, observation(t, post(t, url, rpc("big", `{"n":5000}`)).body), text)
	source.send(t, event(result(`"`+text+`"`)))
	masked(t, observation(t, nextEvent(t, body)), 10, 10)

	close(source.parts)
	if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
		t.Errorf("%q follows the last event: %v", rest, err)
	}
}

// h2cOptions enable HTTP/2 without TLS.
var h2cOptions = block("", block("servers", "protocols h1 h2c")) + "\n"

func h2cClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

func TestHTTP2(t *testing.T) {
	isolate(t)
	source := newSource(t, "text/event-stream")
	address := freeAddress(t)
	load(t, h2cOptions+site(address, "observation_mask", proxy(source.address)))
	client := h2cClient(t)

	t.Run("JSON", func(t *testing.T) {
		got := send(t, client, "POST", "http://"+address, rpc("big", `{"n":10000}`))
		if got.ProtoMajor != 2 {
			t.Errorf("the protocol is %s, want HTTP/2", got.Proto)
		}
		same(t, got.body, result(`"`+cut("A", 10000, 2000, 2000)+`"`))
		if got.ContentLength != int64(len(got.body)) {
			t.Errorf("Content-Length %d of %d bytes", got.ContentLength, len(got.body))
		}
	})
	t.Run("events", func(t *testing.T) {
		res := open(t, client, "GET", "http://"+address, "")
		if res.ProtoMajor != 2 {
			t.Errorf("the protocol is %s, want HTTP/2", res.Proto)
		}
		body := bufio.NewReader(res.Body)
		for range 3 {
			source.send(t, textEvent(5000))
			same(t, nextEvent(t, body), cutEvent(5000, 2000, 2000))
		}
		close(source.parts)
		if rest, err := io.ReadAll(body); err != nil || len(bytes.TrimSpace(rest)) > 0 {
			t.Errorf("%q follows the last event: %v", rest, err)
		}
	})
}

// A closeWatch records which responses announce that their connection will be closed.
type closeWatch struct {
	http.RoundTripper
	mu              sync.Mutex
	streams, others []bool
}

func (w *closeWatch) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		w.streams = append(w.streams, res.Close)
	} else {
		w.others = append(w.others, res.Close)
	}
	return res, nil
}

// The connection of a stream that a client listens to is closed with the stream. After a reload, it
// would otherwise be closed while the client reuses it. HTTP/2 connections have other streams, so
// they stay open.
func TestStreamsThatCloseTheirConnection(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	load(t, h2cOptions+site(address, gateway("separator __", child("a", "--modern"))))
	for _, protocol := range []struct {
		name   string
		client *http.Client
		closes bool
	}{{"HTTP/1.1", &http.Client{Transport: http.DefaultTransport}, true}, {"HTTP/2", h2cClient(t), false}} {
		for _, era := range []struct {
			name   string
			modern bool
		}{{"legacy", false}, {"modern", true}} {
			for _, path := range []string{"/mcp", "/mcp/a"} {
				t.Run(protocol.name+" "+era.name+" "+path, func(t *testing.T) {
					seen := &closeWatch{RoundTripper: protocol.client.Transport}
					c := newTestClientWith(t, &http.Client{Transport: seen}, "http://"+address+path, era.modern, fullCapabilities)
					c.listenForChanges(t)
					await.Until(t, "the stream", func() bool {
						seen.mu.Lock()
						defer seen.mu.Unlock()
						return len(seen.streams) > 0
					})
					c.ask(t, "tools/list", "", "Accept: application/json, text/plain")
					seen.mu.Lock()
					defer seen.mu.Unlock()
					if seen.streams[0] != protocol.closes || slices.Contains(seen.others, true) {
						t.Errorf("closed after streams: %v, after other responses: %v", seen.streams, seen.others)
					}
				})
			}
		}
	}
}
