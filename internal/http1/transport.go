// Package http1 is a client of plain HTTP/1.1 that spends less on a small request than
// net/http: it sends a request by one write, and reads the response on the goroutine of its
// caller. It does the common case only, and leaves the rest to a standard transport. To its
// caller both behave the same.
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
	"net/textproto"
	"net/url"
	"sync"
	"time"
)

// maxRequest is how long a request can be, header and body. The sockets at both ends hold
// as much as that, so that a server can answer before it reads: writing does not wait for it.
const maxRequest = 64 << 10

// A Transport is an http.RoundTripper with the settings of a standard transport. It sends
// those requests itself that are plain (see [Transport.sends]), by connections of its own.
// The standard transport sends the others.
//
// A small request body is read to its end before the request is sent. A server therefore
// hears of a request when all of it has arrived.
type Transport struct {
	standard *http.Transport
	lean     bool // whether any request can be sent with these settings
	idle     pool
}

// New returns a Transport for what a standard one does. The settings of that must not be
// changed afterwards.
func New(standard *http.Transport) *Transport {
	t := &Transport{standard: standard, lean: canPeek && honours(standard)}
	t.idle.perHost, t.idle.timeout = standard.MaxIdleConnsPerHost, standard.IdleConnTimeout
	if t.idle.perHost == 0 {
		t.idle.perHost = http.DefaultMaxIdleConnsPerHost
	}
	if t.idle.timeout <= 0 {
		t.idle.timeout = 2 * time.Minute
	}
	return t
}

// honours reports whether a Transport does what the settings ask for.
func honours(standard *http.Transport) bool {
	return !standard.DisableKeepAlives && standard.MaxConnsPerHost == 0 && standard.MaxIdleConns == 0 &&
		//lint:ignore SA1019 it is deprecated, but can be set
		standard.Dial == nil &&
		(standard.Protocols == nil || standard.Protocols.HTTP1() && !standard.Protocols.UnencryptedHTTP2())
}

// CloseIdleConnections closes the connections that no request uses. From then on a
// connection is closed as soon as its response was read.
func (t *Transport) CloseIdleConnections() {
	t.idle.close()
	t.standard.CloseIdleConnections()
}

// buffers has a buffer for each request that is being written.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.sends(r) {
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
		closeBody(r) // which was not read, so that the caller can send it to another server
		return nil, err
	}
	if err := readBody(request, r); err != nil {
		t.idle.put(c)
		if r.Context().Err() != nil {
			err = context.Cause(r.Context())
		}
		return nil, err
	}
	if time.Since(c.takenAt) > time.Second && !c.silent() {
		// The body took so long that the server has closed the idle connection meanwhile.
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

// An unanswered error is that of an exchange in which the server sent nothing.
type unanswered struct {
	error
	sent bool // whether the server can have got something of the request
}

func cause(err error) error {
	if e, ok := err.(unanswered); ok {
		return e.error
	}
	return err
}

// safeToRepeat reports whether a request can be sent again after an error of a connection
// that was used before: its server may have closed it just when it was taken. net/http
// decides the same way.
func safeToRepeat(r *http.Request, err error) bool {
	e, ok := err.(unanswered)
	return ok && (!e.sent || idempotent(r))
}

// exchange sends a request and reads the head of its response. The connection is given back
// when the body of the response was read, and closed if anything fails.
func (t *Transport) exchange(c *conn, request []byte, r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	stop := context.AfterFunc(ctx, c.abort)
	res, err := t.converse(c, request, r)
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

// converse writes a request and reads the head of its response.
func (t *Transport) converse(c *conn, request []byte, r *http.Request) (*http.Response, error) {
	if n, err := c.Write(request); err != nil {
		return nil, unanswered{err, n > 0}
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

// readHead reads the head of a response, and reports responses before it that are not the
// final one.
func (c *conn) readHead(r *http.Request, limit int64) (*http.Response, error) {
	c.limit = limit
	if _, err := c.reader.Peek(1); err != nil {
		return nil, unanswered{err, true}
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
			c.limit = limit // the caller has looked at these, and can limit their number
		}
	}
}

// errHeaderTimeout is the error of a server that does not answer in time.
var errHeaderTimeout error = headerTimeout{}

type headerTimeout struct{}

func (headerTimeout) Error() string        { return "http1: timeout awaiting response headers" }
func (headerTimeout) Timeout() bool        { return true }
func (headerTimeout) Temporary() bool      { return true }
func (headerTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

var errClosedBody = errors.New("http1: read on closed response body")

// Interface guards
var (
	_ http.RoundTripper = (*Transport)(nil)
	_ net.Error         = headerTimeout{}
	_ io.ReadCloser     = (*body)(nil)
)
