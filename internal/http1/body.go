package http1

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

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
