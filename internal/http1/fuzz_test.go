package http1

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

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
			t.Skip() // net/http returns the connection although the request has no Upgrade
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
	f.Add("", "http://server:1/", "", "", "Te", "trailers", "x")
	f.Add("GET", "http://server:1/", "a\r\nB: c", "", "A", "b", "")
	f.Add("GET", "http://server:1/", "a b\x7f", "", "A", "b", "")
	f.Fuzz(func(t *testing.T, method, target, query, host, name, value, data string) {
		if method == http.MethodConnect || strings.HasPrefix(target, "https") || strings.Contains(data, "\r\n\r\n") {
			t.Skip()
		}
		var outcomes [2]string
		for i := range outcomes {
			var body io.Reader
			if data != "" {
				body = strings.NewReader(data)
			}
			r, err := http.NewRequestWithContext(t.Context(), "GET", target, body)
			if err != nil {
				t.Skip()
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
