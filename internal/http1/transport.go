// Package http1 is a client of plain HTTP/1.1 with less overhead for small requests than net/http.
// It sends a request with one write, and reads the response on the caller's goroutine. It handles
// the common case only, and leaves the rest to a standard transport. For callers both behave the
// same.
package http1

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxRequest is the maximum size of a request, with header and body. Socket buffers hold that much,
// so writing does not block even if a server responds before it reads.
const maxRequest = 64 << 10

// A Transport is an http.RoundTripper with the settings of a standard transport. It sends plain
// requests itself (see [Transport.sendsItself]), over connections of its own. The standard
// transport sends the others.
//
// It reads a small request body to its end before it sends the request. So a server gets a request
// only when its body is complete.
type Transport struct {
	standard *http.Transport
	canSend  bool // the settings allow the Transport to send requests itself
	idle     pool
}

// New returns a Transport with the settings of a standard one, which must not be changed
// afterwards.
func New(standard *http.Transport) *Transport {
	t := &Transport{standard: standard, canSend: canPeek && supportsSettings(standard)}
	t.idle.perHost, t.idle.timeout = standard.MaxIdleConnsPerHost, standard.IdleConnTimeout
	if t.idle.perHost == 0 {
		t.idle.perHost = http.DefaultMaxIdleConnsPerHost
	}
	if t.idle.timeout <= 0 {
		t.idle.timeout = 2 * time.Minute
	}
	return t
}

// supportsSettings reports whether a Transport supports the settings of a standard one.
func supportsSettings(standard *http.Transport) bool {
	return !standard.DisableKeepAlives && standard.MaxConnsPerHost == 0 && standard.MaxIdleConns == 0 &&
		//lint:ignore SA1019 it is deprecated, but can be set
		standard.Dial == nil &&
		(standard.Protocols == nil || standard.Protocols.HTTP1() && !standard.Protocols.UnencryptedHTTP2())
}

// CloseIdleConnections closes idle connections. From then on, each connection is closed as soon as
// its response was read.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.standard.CloseIdleConnections()
}

// buffers are buffers for requests that are being written.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.sendsItself(r) {
		return t.standard.RoundTrip(r)
	}
	request := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(request)
	request.Reset()
	gunzips := t.asksForGzip(r)
	if !writeHead(request, r, gunzips) || int64(request.Len())+r.ContentLength > maxRequest {
		return t.standard.RoundTrip(r)
	}
	c, err := t.connect(r)
	if err != nil {
		closeBody(r) // not read, so the caller can send it to another server
		return nil, err
	}
	if err := readBody(request, r); err != nil {
		t.idle.put(c)
		if r.Context().Err() != nil {
			err = context.Cause(r.Context())
		}
		return nil, err
	}
	if time.Since(c.takenAt) > time.Second && !c.isQuiet() {
		// The body took so long that the server has closed the idle connection.
		c.Close()
		if c, err = t.connect(r); err != nil {
			return nil, err
		}
	}
	for {
		res, err := t.exchange(c, request.Bytes(), r)
		if err == nil {
			if gunzips {
				gunzip(res)
			}
			return res, nil
		}
		if !c.reused || !safeToRepeat(r, err) {
			return nil, cause(err)
		}
		if c, err = t.connect(r); err != nil {
			return nil, err
		}
	}
}

// connect returns an idle connection, or a new one.
func (t *Transport) connect(r *http.Request) (*conn, error) {
	ctx := r.Context()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if c := t.idle.take(r.URL.Host); c != nil {
		return c, nil
	}
	dial := t.standard.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	netConn, err := dial(ctx, "tcp", address(r.URL))
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return newConn(netConn, r.URL.Host, t.standard.ReadBufferSize), nil
}

// address returns the address of a URL's server.
func address(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "80")
}

// A noResponseError means that the server sent nothing.
type noResponseError struct {
	error
	sent bool // the server may have received a part of the request
}

// cause returns the error in a noResponseError, or err itself.
func cause(err error) error {
	if e, ok := err.(noResponseError); ok {
		return e.error
	}
	return err
}

// safeToRepeat reports whether a request can be sent again after an error on a reused connection:
// its server may have closed it at that moment. net/http decides the same way.
func safeToRepeat(r *http.Request, err error) bool {
	e, ok := err.(noResponseError)
	return ok && (!e.sent || isIdempotent(r))
}

// exchange sends a request and reads the head of its response. The connection returns to the pool
// when the body of the response was read, and is closed on an error.
func (t *Transport) exchange(c *conn, request []byte, r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, c.abort)
	res, err := t.sendAndRead(c, request, r)
	if err != nil {
		stop()
		c.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, err
	}
	b := &body{src: res.Body, ctx: ctx, conn: c, stop: stop, idle: &t.idle}
	b.reusable = !res.Close && res.StatusCode > 199
	c.keepAlive(res.Header["Keep-Alive"])
	if res.Body == http.NoBody {
		b.end(b.reusable)
		return res, nil
	}
	res.Body = b
	return res, nil
}

// sendAndRead writes a request and reads the head of its response.
func (t *Transport) sendAndRead(c *conn, request []byte, r *http.Request) (*http.Response, error) {
	if n, err := c.Write(request); err != nil {
		return nil, noResponseError{err, n > 0}
	}
	limit := t.standard.MaxResponseHeaderBytes
	if limit == 0 {
		limit = 10 << 20
	}
	var timer *time.Timer
	if timeout := t.standard.ResponseHeaderTimeout; timeout > 0 {
		timer = time.AfterFunc(timeout, c.abort)
	}
	res, err := c.readHead(r, limit)
	if timer != nil && !timer.Stop() {
		return nil, errHeaderTimeout
	}
	if err != nil && c.limit <= 0 {
		return nil, fmt.Errorf("http1: response headers exceed %d bytes", limit)
	}
	c.limit = noLimit
	return res, err
}

// readHead reads the head of the final response, and reports informational responses to the trace.
func (c *conn) readHead(r *http.Request, limit int64) (*http.Response, error) {
	c.limit = limit
	if _, err := c.reader.Peek(1); err != nil {
		return nil, noResponseError{err, true}
	}
	trace := httptrace.ContextClientTrace(r.Context())
	for {
		res, err := http.ReadResponse(c.reader, r)
		if err != nil {
			return nil, fmt.Errorf("http1: connection broken: %w", err)
		}
		if res.StatusCode < 100 || res.StatusCode > 199 || res.StatusCode == http.StatusSwitchingProtocols {
			return res, nil
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
			c.limit = limit // the trace has seen the informational response, and can limit their number
		}
	}
}

// errHeaderTimeout says that a server does not respond in time.
var errHeaderTimeout error = headerTimeout{}

type headerTimeout struct{}

func (headerTimeout) Error() string        { return "http1: timeout awaiting response headers" }
func (headerTimeout) Timeout() bool        { return true }
func (headerTimeout) Temporary() bool      { return true }
func (headerTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

var errClosedBody = errors.New("http1: read on closed response body")

// A body is the body of a response. Its end is the end of the exchange.
type body struct {
	src      io.Reader
	conn     *conn
	idle     *pool
	reusable bool // the connection can be used for another request
	ctx      context.Context
	stop     func() bool // cancels the closing of the connection when ctx is done
	err      error       // of the last Read
	closed   atomic.Bool
	ended    atomic.Bool
}

// end returns the connection to the pool, or closes it. It does so once: Close can be called while
// another goroutine reads.
func (b *body) end(reusable bool) {
	if !b.ended.CompareAndSwap(false, true) {
		return
	}
	if b.stop() && reusable {
		b.idle.put(b.conn)
	} else {
		b.conn.Close()
	}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.closed.Load() {
		return 0, errClosedBody
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.src.Read(p)
	switch {
	case err == io.EOF:
		b.end(b.reusable)
	case err != nil:
		b.end(false)
		if b.ctx.Err() != nil {
			err = context.Cause(b.ctx)
		}
	}
	b.err = err
	return n, err
}

// Close implements io.Closer. If the body was not read to its end, the connection is closed.
func (b *body) Close() error {
	b.closed.Store(true)
	b.end(false)
	return nil
}

// gunzip makes the body of a compressed response decode it.
func gunzip(res *http.Response) {
	if res.Body == http.NoBody || !strings.EqualFold(res.Header.Get("Content-Encoding"), "gzip") {
		return
	}
	res.Body = &gunzipped{body: res.Body}
	res.Header.Del("Content-Encoding")
	res.Header.Del("Content-Length")
	res.ContentLength = -1
	res.Uncompressed = true
}

// A gunzipped body decompresses another body, starting at the first Read.
type gunzipped struct {
	body   io.ReadCloser
	reader *gzip.Reader
	err    error
}

// Read implements io.Reader.
func (d *gunzipped) Read(p []byte) (int, error) {
	if d.reader == nil && d.err == nil {
		d.reader, d.err = gzip.NewReader(d.body)
	}
	if d.err != nil {
		return 0, d.err
	}
	return d.reader.Read(p)
}

// Close implements io.Closer.
func (d *gunzipped) Close() error { return d.body.Close() }

// Interface guards
var (
	_ http.RoundTripper = (*Transport)(nil)
	_ net.Error         = headerTimeout{}
	_ io.ReadCloser     = (*body)(nil)
)
