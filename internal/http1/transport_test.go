package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// TestSentByThisPackage checks which requests this package sends itself.
func TestSentByThisPackage(t *testing.T) {
	plain := func(*http.Request) {}
	for _, tt := range []struct {
		name     string
		settings *http.Transport
		change   func(*http.Request)
		sends    bool
	}{
		{"a POST", &http.Transport{}, plain, true},
		{"a GET", &http.Transport{}, func(r *http.Request) { r.Method, r.Body, r.ContentLength = "GET", nil, 0 }, true},
		{"an empty body", &http.Transport{}, func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 }, true},
		{"a socket", &http.Transport{}, func(r *http.Request) { r.URL.Host, r.Host = "/run/server.sock", "server" }, true},
		{"a host without a port", &http.Transport{}, func(r *http.Request) { r.URL.Host = "server" }, true},
		{"TE", &http.Transport{}, func(r *http.Request) { r.Header.Set("Te", "trailers") }, true},
		{"https", &http.Transport{}, func(r *http.Request) { r.URL.Scheme = "https" }, false},
		{"CONNECT", &http.Transport{}, func(r *http.Request) { r.Method = "CONNECT" }, false},
		{"a body of unknown length", &http.Transport{}, func(r *http.Request) { r.ContentLength = -1 }, false},
		{"a length without a body", &http.Transport{}, func(r *http.Request) { r.Body = nil }, false},
		{"a body with length 0", &http.Transport{}, func(r *http.Request) { r.ContentLength = 0 }, false},
		{"a large body", &http.Transport{}, func(r *http.Request) { r.ContentLength = maxRequest + 1 }, false},
		{"an upgrade", &http.Transport{}, func(r *http.Request) { r.Header.Set("Upgrade", "websocket") }, false},
		{"a Connection header", &http.Transport{}, func(r *http.Request) { r.Header.Set("Connection", "close") }, false},
		{"100-continue", &http.Transport{}, func(r *http.Request) { r.Header.Set("Expect", "100-continue") }, false},
		{"an incremental body", &http.Transport{}, func(r *http.Request) { r.Header.Set("Incremental", "?1") }, false},
		{"trailers", &http.Transport{}, func(r *http.Request) { r.Trailer = http.Header{"X": nil} }, false},
		{"a transfer encoding", &http.Transport{}, func(r *http.Request) { r.TransferEncoding = []string{"chunked"} }, false},
		{"Request.Close", &http.Transport{}, func(r *http.Request) { r.Close = true }, false},
		{"an invalid header", &http.Transport{}, func(r *http.Request) { r.Header["X"] = []string{"a\nb"} }, false},
		{"an invalid header name", &http.Transport{}, func(r *http.Request) { r.Header["X Y"] = []string{"a"} }, false},
		{"a trace with an unsupported hook", &http.Transport{}, func(r *http.Request) {
			*r = *r.WithContext(httptrace.WithClientTrace(r.Context(),
				&httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {}}))
		}, false},
		{"a proxy", &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"})}, plain, false},
		{"a proxy that is not used", &http.Transport{Proxy: http.ProxyURL(nil)}, plain, true},
		{"a proxy that fails", &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return nil, errors.New("no") }},
			plain, false},
		{"no keep-alive", &http.Transport{DisableKeepAlives: true}, plain, false},
		{"a limit of connections", &http.Transport{MaxConnsPerHost: 1}, plain, false},
		{"a limit of idle connections", &http.Transport{MaxIdleConns: 1}, plain, false},
		{"h2c", &http.Transport{Protocols: h2c()}, plain, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://server:1/", strings.NewReader("hello"))
			tt.change(r)
			if got := New(tt.settings).sendsItself(r); got != tt.sends {
				t.Errorf("sent by this package: %v", got)
			}
		})
	}
}

func h2c() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// TestOneWrite checks that a request is one write, even if net/http could not know that its body is
// in memory.
func TestOneWrite(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	defer server.Close()
	var writes atomic.Int32
	transport := New(&http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return &countingConn{c.(*net.TCPConn), &writes}, err
	}})
	defer transport.CloseIdleConnections()
	sent := &closing{Reader: io.MultiReader(strings.NewReader("hel"), strings.NewReader("lo"))}
	r := post(t, server.URL, sent)
	r.ContentLength = 5
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); string(body) != "hello" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	if n := writes.Load(); n != 1 {
		t.Errorf("%d writes", n)
	}
	if !sent.closed {
		t.Error("the body of the request was not closed")
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = w.Write(body)
}

func post(t *testing.T, url string, body io.ReadCloser) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type countingConn struct {
	*net.TCPConn
	writes *atomic.Int32
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

// TestLargeRequest checks that requests around the size limit are not truncated.
func TestLargeRequest(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	defer server.Close()
	transport := New(&http.Transport{})
	defer transport.CloseIdleConnections()
	for _, size := range []int{1, 4 << 10, maxRequest - 200, maxRequest - 1, maxRequest, maxRequest + 1, 5 << 20} {
		want := strings.Repeat("x", size)
		r := post(t, server.URL, io.NopCloser(strings.NewReader(want)))
		r.ContentLength = int64(size)
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(res.Body); string(got) != want || err != nil {
			t.Errorf("%d bytes of %d, %v", len(got), size, err)
		}
		res.Body.Close()
	}
}

// TestLargeHeader checks that a request with a large header uses the standard transport.
func TestLargeHeader(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	defer server.Close()
	transport := New(&http.Transport{})
	defer transport.CloseIdleConnections()
	for size, idle := range map[int]int{0: 1, maxRequest: 0} {
		transport.idle.idle = nil
		r := post(t, server.URL, io.NopCloser(strings.NewReader("hello")))
		r.ContentLength = 5
		r.Header.Set("X", strings.Repeat("x", size))
		res, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "hello" || err != nil {
			t.Errorf("%q, %v", body, err)
		}
		if n := len(transport.idle.idle[r.URL.Host]); n != idle {
			t.Errorf("%d idle connections after a header of %d bytes", n, size)
		}
	}
}

// TestCancelAtTheEnd cancels a request whose response has arrived but was not read. The connection
// must not be reused.
func TestCancelAtTheEnd(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(echo))
	defer server.Close()
	transport := New(&http.Transport{})
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	r := post(t, server.URL, io.NopCloser(strings.NewReader("hello"))).WithContext(ctx)
	r.ContentLength = 5
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if body, err := io.ReadAll(res.Body); string(body) != "hello" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
	if n := len(transport.idle.idle[r.URL.Host]); n != 0 {
		t.Error("the connection was kept")
	}
}

// TestCloseWhileReading closes a body while another goroutine reads it.
func TestCloseWhileReading(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
		case <-release:
		}
	}))
	defer server.Close()
	defer close(release)
	transport := New(&http.Transport{})
	defer transport.CloseIdleConnections()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := res.Body.Read(make([]byte, 1))
		failed <- err
	}()
	res.Body.Close()
	if err := <-failed; err == nil {
		t.Error("a closed body could be read")
	}
	if len(transport.idle.idle) > 0 {
		t.Error("the connection was kept")
	}
}

// TestSlowBody sends a body that takes longer than the idle timeout of the server.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	firstClosed := make(chan struct{})
	go func() {
		for i, text := range []string{other, ok} {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(c, text)
			}
			c.Close()
			if i == 0 {
				close(firstClosed)
			}
		}
	}()
	transport := New(&http.Transport{})
	defer transport.CloseIdleConnections()
	idle := newConn(dial(t, listener), listener.Addr().String(), 0)
	transport.idle.put(idle)
	r := post(t, "http://"+listener.Addr().String(), io.NopCloser(io.MultiReader(reader(func() {
		_, _ = io.WriteString(idle.Conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") // the server responds and closes
		<-firstClosed
		time.Sleep(1100 * time.Millisecond)
	}), strings.NewReader("hello"))))
	r.ContentLength = 5
	res, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); string(body) != "ok" || err != nil {
		t.Errorf("%q, %v", body, err)
	}
}

func dial(t *testing.T, listener net.Listener) net.Conn {
	c, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A reader calls a function when it is read. It has no content.
type reader func()

func (r reader) Read([]byte) (int, error) {
	r()
	return 0, io.EOF
}

// TestPool checks how long idle connections are kept.
func TestPool(t *testing.T) {
	for _, tt := range []struct {
		name    string
		header  []string
		after   time.Duration
		closed  bool
		perHost int
	}{
		{"within the timeout", nil, 59 * time.Second, false, 1},
		{"after the timeout", nil, 61 * time.Second, true, 1},
		{"before the server closes it", []string{"timeout=5"}, 3 * time.Second, false, 1},
		{"shortly before the server closes it", []string{"timeout=5, max=100"}, 4 * time.Second, true, 1},
		{"another spelling", []string{"max=5", "x, Timeout = 5"}, 4 * time.Second, true, 1},
		{"a longer timeout of the server", []string{"timeout=600"}, 59 * time.Second, false, 1},
		{"no timeout of the server", []string{"timeout=0"}, 0, true, 1},
		{"an invalid Keep-Alive header", []string{"max=5, timeout"}, 59 * time.Second, false, 1},
		{"a full pool", nil, 0, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pool{perHost: tt.perHost, timeout: time.Minute}
				defer p.close()
				fake := newMemoryConn(nil)
				c := silentConn(fake)
				c.keepAlive(tt.header)
				p.put(c)
				time.Sleep(tt.after)
				synctest.Wait()
				select {
				case <-fake.closed:
					if !tt.closed {
						t.Error("closed")
					}
				default:
					if tt.closed {
						t.Error("open")
					}
				}
			})
		})
	}
}

// silentConn returns a connection that its server keeps open.
func silentConn(fake *memoryConn) *conn {
	c := newConn(fake, "server", 0)
	c.peek = func(uintptr) { c.quiet = true }
	return c
}

// TestServerCloses checks that a connection closed by its server is closed without a request.
func TestServerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{perHost: 2, timeout: time.Minute}
		defer p.close()
		open, closed := newMemoryConn(nil), newMemoryConn(nil)
		p.put(silentConn(open))
		p.put(newConn(closed, "server", 0))
		begin := time.Now()
		<-closed.closed
		if after := time.Since(begin); after > sweepEvery {
			t.Errorf("closed after %v", after)
		}
		<-open.closed
		if after := time.Since(begin); after != time.Minute {
			t.Errorf("the other connection was closed after %v", after)
		}
	})
}

// TestPoolIsSwept checks that each connection is closed in time, while others are added and
// removed.
func TestPoolIsSwept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{perHost: 8, timeout: time.Minute}
		fakes := make([]*memoryConn, 4)
		for i := range fakes {
			fakes[i] = newMemoryConn(nil)
			p.put(silentConn(fakes[i]))
			time.Sleep(10 * time.Second)
		}
		if c := p.pop("server"); c.Conn != fakes[3] {
			t.Error("the pool does not return the connection that was used last")
		}
		for i, fake := range fakes[:3] {
			<-fake.closed
			if i == 2 {
				synctest.Wait()
				p.mu.Lock()
				if len(p.idle) > 0 || !p.sweepAt.IsZero() {
					t.Error("the pool is not empty")
				}
				p.mu.Unlock()
			}
		}
		late := newMemoryConn(nil)
		p.close()
		p.put(silentConn(late))
		<-late.closed
	})
}

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // net/http logs unsolicited responses
	if os.Getenv("SHOW_LOG") != "" {
		log.SetOutput(os.Stderr)
	}
	goleak.VerifyTestMain(m)
}

// A roundTripper is a transport with connections.
type roundTripper interface {
	http.RoundTripper
	CloseIdleConnections()
}

// kinds are the two transports that must behave the same.
var kinds = []struct {
	name string
	of   func(*http.Transport) roundTripper
}{
	{"standard", func(standard *http.Transport) roundTripper { return standard }},
	{"http1", func(standard *http.Transport) roundTripper { return New(standard) }},
}

// BenchmarkCall measures a small POST and its response, with net/http and with this package. The
// server has no cost.
func BenchmarkCall(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer listener.Close()
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Mon, 02 Jan 2006 15:04:05 " +
		"GMT\r\nMcp-Session-Id: 0123456789abcdef\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				reader := bufio.NewReader(c)
				for {
					for { // only the body ends with }, and the request ends with it
						line, err := reader.ReadSlice('\n')
						if err != nil {
							return
						}
						if bytes.HasSuffix(line, []byte("}\n")) {
							break
						}
					}
					if _, err := c.Write(answer); err != nil {
						return
					}
				}
			}()
		}
	}()
	for _, kind := range kinds {
		b.Run(kind.name, func(b *testing.B) {
			transport := kind.of(&http.Transport{MaxIdleConnsPerHost: 32})
			defer transport.CloseIdleConnections()
			b.ReportAllocs()
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			call := strings.Repeat(" ", 200) + "{}\n"
			buffer := make([]byte, 32<<10)
			for b.Loop() {
				// Like bodies of reverse_proxy, this one hides from net/http that it is in memory.
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String()+"/mcp",
					struct{ io.Reader }{strings.NewReader(call)})
				r.ContentLength = int64(len(call))
				r.Header = http.Header{
					"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"},
					"Mcp-Session-Id": {"0123456789abcdef"},
					"User-Agent":     {"test"}, "X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"localhost"},
					"X-Forwarded-Proto": {"http"}, "Via": {"1.1 Caddy"},
				}
				res, err := transport.RoundTrip(r)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{res.Body}, buffer); n != 1024 || err != nil {
					b.Fatal(n, err)
				}
				res.Body.Close()
			}
		})
	}
}

// A memoryConn is a connection to a server that sends a prepared response after a request.
type memoryConn struct {
	response io.Reader
	got      chan struct{}
	closed   chan struct{}

	mu   sync.Mutex
	wire bytes.Buffer
	end  sync.Once
}

func newMemoryConn(response []byte) *memoryConn {
	return &memoryConn{response: bytes.NewReader(response), got: make(chan struct{}), closed: make(chan struct{})}
}

func (c *memoryConn) Read(p []byte) (int, error) {
	select {
	case <-c.got:
		return c.response.Read(p)
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *memoryConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := complete(c.wire.Bytes())
	c.wire.Write(p)
	if !was && complete(c.wire.Bytes()) {
		close(c.got)
	}
	return len(p), nil
}

// complete reports whether data contains a complete request.
func complete(request []byte) bool {
	head, body, ok := bytes.Cut(request, []byte("\r\n\r\n"))
	_, length, _ := strings.Cut(string(head), "\r\nContent-Length: ")
	length, _, _ = strings.Cut(length, "\r\n")
	n, _ := strconv.Atoi(length)
	return ok && len(body) >= n
}

func (c *memoryConn) request() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wire.String()
}

func (c *memoryConn) Close() error {
	c.end.Do(func() { close(c.closed) })
	return nil
}

func (c *memoryConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *memoryConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *memoryConn) SetDeadline(time.Time) error      { return nil }
func (c *memoryConn) SetReadDeadline(time.Time) error  { return nil }
func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }

// SyscallConn makes the pool keep the connection, but not reuse it.
func (c *memoryConn) SyscallConn() (syscall.RawConn, error) { return nowhere{}, nil }

type nowhere struct{}

func (nowhere) Control(f func(uintptr)) error  { f(0); return nil }
func (nowhere) Read(func(uintptr) bool) error  { return errors.ErrUnsupported }
func (nowhere) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// send sends a request over a connection. It returns the outcome, and whether the connection was
// kept.
func send(r *http.Request, c *memoryConn, lean bool) (outcome string, kept bool) {
	standard := &http.Transport{MaxResponseHeaderBytes: 4000}
	standard.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return c, nil
	}
	defer standard.CloseIdleConnections()
	if !lean {
		idle := make(chan error, 1)
		r = r.WithContext(httptrace.WithClientTrace(r.Context(),
			&httptrace.ClientTrace{PutIdleConn: func(err error) { idle <- err }}))
		outcome = one(standard, r, new(stage), new(strings.Builder))
		select {
		case err := <-idle:
			return outcome, err == nil
		default:
			return outcome, false
		}
	}
	transport := New(standard)
	defer transport.CloseIdleConnections()
	outcome = one(transport, r, new(stage), new(strings.Builder))
	transport.idle.mu.Lock()
	defer transport.idle.mu.Unlock()
	return outcome, len(transport.idle.idle[r.URL.Host]) > 0
}

// FuzzResponse compares the result of arbitrary response bytes with that of net/http.
func FuzzResponse(f *testing.F) {
	for _, response := range []string{
		ok, ok + other,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\nmore",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
		"HTTP/1.1 200 OK\r\n\r\nuntil the end",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 304 Not Modified\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\n" + ok,
		"HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nX: " + strings.Repeat("x", 4000) + "\r\n\r\n" + ok,
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 4000) + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: " + strconv.Itoa(len(gzipped("hello"))) + "\r\n\r\n" +
			gzipped("hello"),
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
		"HTTP/1.1 200 OK\r\n X: y\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/2 200\r\n\r\n", "", "\r\n",
	} {
		f.Add([]byte(response), false)
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"), true)
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), true)
	f.Fuzz(func(t *testing.T, response []byte, head bool) {
		if bytes.Contains(response, []byte(" 101 ")) && bytes.Contains(bytes.ToLower(response), []byte("upgrade")) {
			t.Skip("net/http returns the connection although the request has no Upgrade")
		}
		method := http.MethodGet
		if head {
			method = http.MethodHead
		}
		var outcomes [2]string
		var kept [2]bool
		for i := range outcomes {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://server:1/", nil)
			if err != nil {
				t.Fatal(err)
			}
			c := newMemoryConn(response)
			outcomes[i], kept[i] = send(r, c, i == 1)
			c.Close()
		}
		if outcomes[0] != outcomes[1] {
			t.Errorf("net/http: %s\n   http1: %s", outcomes[0], outcomes[1])
		}
		if kept[1] && !kept[0] {
			t.Error("kept a connection that net/http closes")
		}
	})
}

// FuzzRequest compares the bytes of requests with those of net/http.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "http://server:1/mcp?a=b", "", "", "X-Name", "value", "hello")
	f.Add("GET", "http://server/", "", "other:2", "User-Agent", "", "")
	f.Add("GET", "http://server/", "", "", "User-Agent", " ", "")
	f.Add("GET", "http://server/%zz", "", "", "User-Agent", " me ", "")
	f.Add("DELETE", "http://[::1]:1", "", "[fe80::1%25eth0]", "Accept-Encoding", "br", "")
	f.Add("PUT", "http://server:1/a b?c d#e", "", "a/b", "Host", "third", "")
	f.Add("PATCH", "http://server:1?x", "", "bücher.example", "Transfer-Encoding", "chunked", "")
	f.Add("OPTIONS", "http://server:1/*", "", "", "Content-Length", "7", "x")
	f.Add("G T", "http://server:1/", "", "", "A", "b", "")
	f.Add("GET", "http://server:1/", "", "", "A\r\nB", "c", "")
	f.Add("GET", "http://server:1/", "", "", "A", "b\r\nC: d", "")
	f.Add("GET", "http://server:1/", "", "a\r\nB: c", "A", "b", "")
	f.Add("HEAD", "http://server:1//x", "", "", "Range", "bytes=0-1", "")
	f.Add("POST", "http://server:1/", "", "", "Trailer", "X", "x")
	f.Add("POST", "http://server:1/", "", "", "A", "b", "x\r\n\r\ny")
	f.Add("", "http://server:1/", "", "", "Te", "trailers", "x")
	f.Add("GET", "http://server:1/", "a\r\nB: c", "", "A", "b", "")
	f.Add("GET", "http://server:1/", "a b\x7f", "", "A", "b", "")
	f.Fuzz(func(t *testing.T, method, target, query, host, name, value, data string) {
		if method == http.MethodConnect || strings.HasPrefix(target, "https") {
			t.Skip("net/http sends it")
		}
		var outcomes [2]string
		for i := range outcomes {
			var body io.Reader
			if data != "" {
				body = strings.NewReader(data)
			}
			r, err := http.NewRequestWithContext(t.Context(), "GET", target, body)
			if err != nil {
				t.Skip("not a URL")
			}
			r.Method, r.Header[name] = method, []string{value}
			if query != "" {
				r.URL.RawQuery = query
			}
			if host != "" {
				r.Host = host
			}
			c := newMemoryConn([]byte(ok))
			outcome, _ := send(r, c, i == 1)
			c.Close()
			outcomes[i] = fmt.Sprintf("%s\n%s", outcome, c.request())
		}
		if outcomes[0] != outcomes[1] {
			t.Errorf("net/http: %s\n\n   http1: %s", outcomes[0], outcomes[1])
		}
	})
}
