package http1

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A peer is the server's end of a connection.
type peer struct {
	*net.TCPConn
	reader *bufio.Reader
	number int             // number of connections before
	client <-chan struct{} // closed when the client is about to send its second request
	acted  chan struct{}   // closed when the server waits for client
	gone   chan struct{}   // closed when the client has closed the connection
	seen   func(string)
}

// request reads a request, and reports whether there was one.
func (p *peer) request() bool {
	r, err := http.ReadRequest(p.reader)
	if err != nil {
		return false
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return false
	}
	p.seen(fmt.Sprintf("%d:%s", p.number, r.Method))
	return true
}

func (p *peer) write(s string) { _, _ = io.WriteString(p.TCPConn, s) }

// closing waits until the client closes the connection.
func (p *peer) closing() {
	close(p.acted)
	_, _ = io.Copy(io.Discard, p.reader)
	close(p.gone)
}

// answer responds to each request with the same text.
func answer(text string) func(*peer) {
	return func(p *peer) {
		for p.request() {
			p.write(text)
		}
	}
}

// once responds to a request with a text, and closes the connection.
func once(text string) func(*peer) {
	return func(p *peer) {
		if p.request() {
			p.write(text)
		}
	}
}

// unasked responds to a request, and calls act before the next request.
func unasked(act func(*peer)) func(*peer) {
	return func(p *peer) {
		p.request()
		p.write(ok)
		if p.number > 0 {
			p.request()
			p.write(ok)
			return
		}
		act(p)
		p.closing()
	}
}

const (
	ok    = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	other = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"
)

func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	w.Close()
	return b.String()
}

// A fault is a server that may misbehave, with the outcome of two requests to it: a POST and then a
// GET, unless set otherwise.
type fault struct {
	name     string
	method   string // of the first request; POST
	second   string // method of the second request; GET
	header   http.Header
	settings *http.Transport
	wrap     func(*net.TCPConn) net.Conn // wraps the client's end of a connection
	serve    func(*peer)
	stage    func(*stage)
	noticed  bool   // the idle connection fails before the second request, and net/http notices it
	want     string // outcome of both requests
	standard string // outcome with net/http, if different
	why      string // reason for the difference
}

// A stage lets a fault act on the side of the client.
type stage struct {
	request  *http.Request
	response func(*http.Response)
	cancel   context.CancelFunc
	dial     func(ctx context.Context, network, address string) (net.Conn, error)
}

var faults = []fault{
	{name: "a connection serves two requests", serve: answer(ok), want: `200 "ok"; 200 "ok"; 0:POST 0:GET`},
	{name: "a response without a body", serve: answer("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"),
		want: `202 ""; 202 ""; 0:POST 0:GET`},
	{name: "204", serve: answer("HTTP/1.1 204 No Content\r\n\r\n"), want: `204 ""; 204 ""; 0:POST 0:GET`},
	{name: "204 with a Content-Length", serve: answer("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"),
		want: `204 {Content-Length:5} ""; 204 {Content-Length:5} ""; 0:POST 0:GET`},
	{name: "304", method: "GET", serve: answer("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nEtag: x\r\n\r\n"),
		want: `304 {Content-Length:5 Etag:x} ""; 304 {Content-Length:5 Etag:x} ""; 0:GET 0:GET`},
	{name: "HEAD", method: "HEAD", second: "HEAD", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"),
		want: `200 {Content-Length:5} ""; 200 {Content-Length:5} ""; 0:HEAD 0:HEAD`},
	{name: "a chunked body",
		serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"),
		want:  `200 "abcde"; 200 "abcde"; 0:POST 0:GET`},
	{name: "trailers", serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: " +
		"X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\nX-More: 8\r\n\r\n"),
		want: `200 "abc" trailer{X-More:8 X-Sum:7}; 200 "abc" trailer{X-More:8 X-Sum:7}; 0:POST 0:GET`},
	{name: "a trailer that is too long", serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " +
		strings.Repeat("x", 5000) + "\r\n\r\n"),
		want: `200 "" error; 200 "" error; 0:POST 1:GET`},
	{name: "a body that ends with the connection", serve: once("HTTP/1.1 200 OK\r\n\r\nall of it"),
		want: `200 "all of it"; 200 "all of it"; 0:POST 1:GET`},
	{name: "Connection: close", serve: answer("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"),
		want: `200 "ok"; 200 "ok"; 0:POST 1:GET`},
	{name: "HTTP/1.0", serve: answer("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
		want: `200 "ok"; 200 "ok"; 0:POST 1:GET`},
	{name: "HTTP/1.0 with keep-alive",
		serve: answer("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"),
		want:  `200 {Connection:keep-alive} "ok"; 200 {Connection:keep-alive} "ok"; 0:POST 0:GET`},
	{name: "Transfer-Encoding and Content-Length",
		serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
		want:  `200 "abc"; 200 "abc"; 0:POST 0:GET`},
	{name: "Content-Length twice, the same",
		serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok"),
		want:  `200 "ok"; 200 "ok"; 0:POST 0:GET`},

	{name: "conflicting Content-Length",
		serve: answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
		want:  `error; error; 0:POST 1:GET`},
	{name: "a Content-Length that is not a number", serve: answer("HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok"),
		want: `error; error; 0:POST 1:GET`},
	{name: "an unknown Transfer-Encoding",
		serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
		want:  `error; error; 0:POST 1:GET`},
	{name: "not HTTP", serve: answer("SSH-2.0-OpenSSH_9.6\r\n\r\n"), want: `error; error; 0:POST 1:GET`},
	{name: "a bad chunk", serve: answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n0\r\n\r\n"),
		want: `200 "abc" error; 200 "abc" error; 0:POST 1:GET`},
	{name: "a truncated chunk", serve: once("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"),
		want: `200 "abc" cut off; 200 "abc" cut off; 0:POST 1:GET`},
	{name: "a truncated body", serve: once("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc"),
		want: `200 "abc" cut off; 200 "abc" cut off; 0:POST 1:GET`},
	{name: "a truncated header", serve: once("HTTP/1.1 200 OK\r\nX: y\r\n"), want: `cut off; cut off; 0:POST 1:GET`},
	{name: "a truncated line of a header", serve: once("HTTP/1.1 200 OK\r\nContent-"), want: `error; error; 0:POST 1:GET`},
	{name: "too large headers", settings: &http.Transport{MaxResponseHeaderBytes: 1000},
		serve: answer("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2000) +
			"\r\nContent-Length: 0\r\n\r\n"), want: `error; error; 0:POST 1:GET`},
	{name: "no response within the header timeout",
		settings: &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond},
		serve:    func(p *peer) { p.request(); p.closing() }, want: `timeout; timeout; 0:POST 1:GET`},
	{name: "slow headers", settings: &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond},
		serve: func(p *peer) { p.request(); p.write("HTTP/1.1 200 OK\r\n"); p.closing() },
		want:  `timeout; timeout; 0:POST 1:GET`},

	{name: "100", serve: answer("HTTP/1.1 100 Continue\r\n\r\n" + ok), want: `100 200 "ok"; 100 200 "ok"; 0:POST 0:GET`},
	{name: "103", serve: answer("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + ok),
		want: `103 103 200 "ok"; 103 103 200 "ok"; 0:POST 0:GET`},
	{name: "1xx that are too large", settings: &http.Transport{MaxResponseHeaderBytes: 1000},
		serve: answer("HTTP/1.1 103 Early Hints\r\nX: " + strings.Repeat("x", 2000) + "\r\n\r\n" +
			ok), want: `error; error; 0:POST 1:GET`},
	{name: "1xx that are too large in total, with a trace", settings: &http.Transport{MaxResponseHeaderBytes: 6000},
		serve: answer(strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("x", 4000)+"\r\n\r\n", 3) +
			ok), want: `103 103 103 200 "ok"; 103 103 103 200 "ok"; 0:POST 0:GET`},
	{name: "101 without an Upgrade", serve: answer("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
		want: `101 ""; 101 ""; 0:POST 1:GET`},

	{name: "gzip", serve: answer(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s",
		len(gzipped("hello")), gzipped("hello"))),
		want: `200 "hello" uncompressed; 200 "hello" uncompressed; 0:POST 0:GET`},
	{name: "invalid gzip",
		serve: answer("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 15\r\n\r\nthis is not it."),
		want:  `200 "" uncompressed error; 200 "" uncompressed error; 0:POST 0:GET`},
	{name: "gzip requested by the client", header: http.Header{"Accept-Encoding": {"gzip"}},
		serve: answer("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
		want:  `200 {Content-Encoding:gzip} "abc"; 200 {Content-Encoding:gzip} "abc"; 0:POST 0:GET`},
	{name: "gzip with compression disabled", settings: &http.Transport{DisableCompression: true},
		serve: answer("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
		want:  `200 {Content-Encoding:gzip} "abc"; 200 {Content-Encoding:gzip} "abc"; 0:POST 0:GET`},

	{name: "the server closes a new connection", serve: once(""), want: `EOF; EOF; 0:POST 1:GET`},
	{name: "the server closes an idle connection when it gets a POST", second: "POST",
		serve: func(p *peer) { p.request(); p.write(ok); p.request() }, want: `200 "ok"; EOF; 0:POST 0:POST`},
	{name: "the server closes an idle connection when it gets a GET",
		serve: func(p *peer) { p.request(); p.write(ok); p.request() }, want: `200 "ok"; 200 "ok"; 0:POST 0:GET 1:GET`},
	{name: "the server closes an idle connection when it gets a POST with an idempotency key", second: "POST",
		header: http.Header{"Idempotency-Key": {"1"}},
		serve:  func(p *peer) { p.request(); p.write(ok); p.request() }, want: `200 "ok"; 200 "ok"; 0:POST 0:POST 1:POST`},
	{name: "the server resets an idle connection when it gets a POST", second: "POST",
		serve: func(p *peer) { p.request(); p.write(ok); p.request(); _ = p.SetLinger(0) },
		want:  `200 "ok"; reset; 0:POST 0:POST`},
	{name: "the server resets an idle connection when it gets a GET",
		serve: func(p *peer) { p.request(); p.write(ok); p.request(); _ = p.SetLinger(0) },
		want:  `200 "ok"; 200 "ok"; 0:POST 0:GET 1:GET`},
	{name: "a POST cannot be written to an idle connection", second: "POST", serve: answer(ok),
		wrap: func(c *net.TCPConn) net.Conn { return &onceConn{TCPConn: c} },
		want: `200 "ok"; 200 "ok"; 0:POST 1:POST`},
	{name: "the server closes a connection while it is idle", second: "POST", noticed: true,
		serve: unasked(func(p *peer) { _ = p.CloseWrite() }), want: `200 "ok"; 200 "ok"; 0:POST 1:POST`},
	{name: "the server sends an unsolicited response while a connection is idle", second: "POST", noticed: true,
		serve: unasked(func(p *peer) { p.write(other) }), want: `200 "ok"; 200 "ok"; 0:POST 1:POST`},
	{name: "the server sends 408 while a connection is idle", second: "POST", noticed: true,
		serve: unasked(func(p *peer) { p.write("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n") }),
		want:  `200 "ok"; 200 "ok"; 0:POST 1:POST`},
	{name: "a second response follows the first", second: "POST", noticed: true, serve: func(p *peer) {
		p.request()
		if p.number > 0 {
			p.write(ok)
			return
		}
		p.write(ok + other)
		p.closing()
	}, want: `200 "ok"; 200 "ok"; 0:POST 1:POST`},
	{name: "garbage follows the response", second: "POST", noticed: true, serve: func(p *peer) {
		p.request()
		if p.number > 0 {
			p.write(ok)
			return
		}
		p.write("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nabcde")
		p.closing()
	}, want: `204 {Content-Length:5} ""; 200 "ok"; 0:POST 1:POST`},
	{name: "a body that is longer than its Content-Length", second: "POST", noticed: true, serve: func(p *peer) {
		p.request()
		if p.number > 0 {
			p.write(ok)
			return
		}
		p.write(ok + " and more")
		p.closing()
	}, want: `200 "ok"; 200 "ok"; 0:POST 1:POST`},
	{name: "the server answers before it reads the request", serve: func(p *peer) {
		if _, err := p.reader.Peek(1); err == nil {
			p.write("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
		}
		<-p.client
		p.request()
		p.request()
		p.write(ok)
	}, want: `401 "no"; 200 "ok"; 0:POST 0:GET`},
	{name: "the server answers half of a request and closes", serve: func(p *peer) {
		if _, err := p.reader.Peek(1); err == nil {
			p.write("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
		}
		_ = p.CloseWrite()
		p.request()
	}, want: `413 "no"; 413 "no"; 0:POST 1:GET`},
	{name: "the server closes its half with the response", noticed: true, serve: func(p *peer) {
		p.request()
		p.write(ok)
		_ = p.CloseWrite()
		p.closing()
	}, want: `200 "ok"; 200 "ok"; 0:POST 1:GET`},
	{name: "Keep-Alive with a short timeout",
		serve:    answer("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Length: 2\r\n\r\nok"),
		want:     `200 {Keep-Alive:timeout=1} "ok"; 200 {Keep-Alive:timeout=1} "ok"; 0:POST 1:GET`,
		standard: `200 {Keep-Alive:timeout=1} "ok"; 200 {Keep-Alive:timeout=1} "ok"; 0:POST 0:GET`,
		why:      "a request that is sent when the server closes is lost. net/http does not read the header"},
	{name: "Keep-Alive with a timeout",
		serve: answer("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5, max=100\r\nContent-Length: 2\r\n\r\nok"),
		want:  `200 {Keep-Alive:timeout=5, max=100} "ok"; 200 {Keep-Alive:timeout=5, max=100} "ok"; 0:POST 0:GET`},

	{name: "the caller closes a body that it has not read", serve: answer(ok),
		stage: func(s *stage) { s.response = func(res *http.Response) { res.Body.Close() } },
		want:  `200 "" closed; 200 "ok"; 0:POST 1:GET`},
	{name: "the caller closes a body that is empty", serve: answer("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"),
		stage: func(s *stage) { s.response = func(res *http.Response) { res.Body.Close() } },
		want:  `202 ""; 202 ""; 0:POST 0:GET`},
	{name: "the caller cancels before it begins", serve: answer(ok), stage: func(s *stage) { s.cancel() },
		want: `canceled; 200 "ok"; 0:GET`},
	{name: "the caller cancels while the connection is made", serve: answer(ok), stage: func(s *stage) {
		s.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			s.cancel()
			<-ctx.Done()
			return nil, errors.New("dial: operation was canceled") // like DialError of reverse_proxy
		}
	}, want: `canceled; 200 "ok"; 0:GET`},
	{name: "the caller cancels while the request is written", serve: func(p *peer) {
		if p.number == 0 {
			p.closing()
			return
		}
		answer(ok)(p)
	}, stage: func(s *stage) {
		s.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return &stuckConn{c.(*net.TCPConn), s.cancel, make(chan struct{}), sync.Once{}}, err
		}
	}, want: `canceled; 200 "ok"; 1:GET`},
	{name: "the caller cancels while it waits for the response", serve: cancelAfter(""), stage: cancelLater,
		want: `canceled; 200 "ok"; 0:POST 1:GET`},
	{name: "the caller cancels within the header", serve: cancelAfter("HTTP/1.1 200 OK\r\nX: y\r\n"), stage: cancelLater,
		want: `canceled; 200 "ok"; 0:POST 1:GET`},
	{name: "the caller cancels within the body", serve: cancelAfter("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"),
		stage: cancelInBody,
		want:  `200 "ab" canceled; 200 "ok"; 0:POST 1:GET`},
	{name: "the caller cancels within a chunk",
		serve: cancelAfter("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), stage: cancelInBody,
		want: `200 "ab" canceled; 200 "ok"; 0:POST 1:GET`},
	{name: "the caller cancels a body that ends with the connection", serve: cancelAfter("HTTP/1.1 200 OK\r\n\r\nab"),
		stage: cancelInBody,
		want:  `200 "ab" canceled; 200 "ok"; 0:POST 1:GET`},
	{name: "no connection can be made", serve: answer(ok), stage: func(s *stage) {
		s.dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
	}, want: `refused; 200 "ok"; 0:GET`},
	{name: "the body of the request fails", serve: answer(ok), stage: func(s *stage) {
		s.request.Body = io.NopCloser(io.MultiReader(strings.NewReader("he"), failing{}))
	}, want: `body failed; 200 "ok"; 0:GET`,
		standard: `body failed; 200 "ok"; 1:GET`,
		why:      "nothing was written, so that the connection can be used"},
}

// cancelAfter is a server that sends a part of the first response and signals its client, which
// then cancels.
func cancelAfter(some string) func(*peer) {
	return func(p *peer) {
		p.request()
		if p.number > 0 {
			p.write(ok)
			return
		}
		p.write(some)
		p.seen("sent")
		p.closing()
	}
}

// cancelLater cancels after the server has sent everything.
func cancelLater(s *stage) { s.response = nil }

// cancelInBody cancels after two bytes of the body.
func cancelInBody(s *stage) {
	s.request.Header.Set("Test-Cancel", "body")
}

type failing struct{}

var errBody = errors.New("the body fails")

func (failing) Read([]byte) (int, error) { return 0, errBody }

// A stuckConn is a connection whose first write blocks.
type stuckConn struct {
	*net.TCPConn
	writing context.CancelFunc
	closed  chan struct{}
	once    sync.Once
}

func (c *stuckConn) Write([]byte) (int, error) {
	c.writing()
	<-c.closed
	return 0, net.ErrClosed
}

func (c *stuckConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.TCPConn.Close()
}

// ReadFrom hides the method of TCPConn.
func (c *stuckConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// A onceConn is a connection for one request.
type onceConn struct {
	*net.TCPConn
	answered atomic.Bool
}

func (c *onceConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	c.answered.Store(true)
	return n, err
}

func (c *onceConn) Write(p []byte) (int, error) {
	if c.answered.Load() {
		return 0, syscall.EPIPE
	}
	return c.TCPConn.Write(p)
}

func (c *onceConn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{c}, r)
}

// TestSameOutcomeAsStandard sends two requests with net/http and with this package to servers that
// fail in many ways.
func TestSameOutcomeAsStandard(t *testing.T) {
	for _, f := range faults {
		for i, kind := range kinds {
			t.Run(f.name+"/"+kind.name, func(t *testing.T) {
				t.Parallel()
				want := f.want
				if i == 0 && f.standard != "" {
					want = f.standard
				}
				if got := f.run(t, kind.of, i == 0); got != want {
					t.Errorf("\n got %s\nwant %s", got, want)
				}
			})
		}
	}
}

func (f *fault) run(t *testing.T, newTripper func(*http.Transport) roundTripper, standard bool) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		mu      sync.Mutex
		seen    []string
		sent    = make(chan struct{})
		client  = make(chan struct{})
		acted   = make(chan struct{}) // of the first connection
		gone    = make(chan struct{})
		serving sync.WaitGroup
	)
	serving.Go(func() {
		for number := 0; ; number++ {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			p := &peer{TCPConn: c.(*net.TCPConn), reader: bufio.NewReader(c), number: number, client: client, acted: acted,
				gone: gone}
			if number > 0 {
				p.acted, p.gone = make(chan struct{}), make(chan struct{})
			}
			p.seen = func(what string) {
				if what == "sent" {
					close(sent)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, what)
			}
			serving.Go(func() {
				defer p.Close()
				f.serve(p)
			})
		}
	})
	settings := new(http.Transport)
	if f.settings != nil {
		settings = f.settings.Clone()
	}
	var s *stage
	settings.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return s.dial(ctx, network, address)
	}
	transport := newTripper(settings)
	defer serving.Wait()
	defer listener.Close()
	defer transport.CloseIdleConnections()

	var outcomes []string
	for i, method := range []string{f.method, f.second} {
		if method == "" {
			method = []string{http.MethodPost, http.MethodGet}[i]
		}
		ctx, cancel := context.WithCancel(t.Context())
		var early strings.Builder
		traced := httptrace.WithClientTrace(ctx,
			&httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
				fmt.Fprintf(&early, "%d ", code)
				return nil
			}})
		var data io.Reader
		if method == http.MethodPost {
			data = strings.NewReader("hello")
		}
		r, err := http.NewRequestWithContext(traced, method, "http://"+listener.Addr().String()+"/mcp?a=b", data)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(r.Header, f.header)
		s = &stage{request: r, cancel: cancel, dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if err != nil || f.wrap == nil {
				return c, err
			}
			return f.wrap(c.(*net.TCPConn)), nil
		}}
		if i == 0 && f.stage != nil {
			f.stage(s)
		}
		first := i == 0
		if first {
			go func() {
				select {
				case <-sent:
					if r.Header.Get("Test-Cancel") == "" {
						cancel()
					}
				case <-ctx.Done():
				}
			}()
		}
		outcomes = append(outcomes, one(transport, r, s, &early))
		cancel()
		if first {
			close(client)
			if f.noticed {
				<-acted
			}
			if f.noticed && standard {
				<-gone // net/http closes it in the background, this package checks before use
			}
		}
	}
	transport.CloseIdleConnections()
	listener.Close()
	serving.Wait()
	slices.SortStableFunc(seen, func(a, b string) int { return strings.Compare(a[:1], b[:1]) }) // by connection
	return strings.Join(append(outcomes, strings.Join(seen, " ")), "; ")
}

// one sends a request, and returns its outcome.
func one(transport http.RoundTripper, r *http.Request, s *stage, early *strings.Builder) string {
	res, err := transport.RoundTrip(r)
	if err != nil {
		return early.String() + class(err)
	}
	defer res.Body.Close()
	outcome := early.String() + fmt.Sprint(res.StatusCode)
	if res.ContentLength >= 0 && r.Method != http.MethodHead && res.StatusCode != 204 && res.StatusCode != 304 {
		delete(res.Header, "Content-Length")
	}
	outcome += list(" ", res.Header)
	if s.response != nil {
		s.response(res)
	}
	var data []byte
	if r.Header.Get("Test-Cancel") != "" {
		some := make([]byte, 2)
		if _, err := io.ReadFull(res.Body, some); err == nil {
			data = some
		}
		s.cancel()
	}
	rest, err := io.ReadAll(res.Body)
	outcome += fmt.Sprintf(" %q", append(data, rest...))
	outcome += list(" trailer", res.Trailer)
	if res.Uncompressed {
		outcome += " uncompressed"
	}
	if err != nil {
		outcome += " " + class(err)
	}
	return outcome
}

func list(name string, header http.Header) string {
	if len(header) == 0 {
		return ""
	}
	var fields []string
	for _, key := range slices.Sorted(maps.Keys(header)) {
		fields = append(fields, key+":"+strings.Join(header[key], "|"))
	}
	return name + "{" + strings.Join(fields, " ") + "}"
}

// class returns the class of an error, as far as reverse_proxy and the gateway distinguish them.
func class(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &timeout) && timeout.Timeout() && errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case err == io.EOF:
		return "EOF"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "cut off"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, errBody):
		return "body failed"
	case strings.Contains(err.Error(), "read on closed response body"):
		return "closed"
	case os.Getenv("SHOW_LOG") != "":
		return err.Error()
	}
	return "error"
}
