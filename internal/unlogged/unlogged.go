// Package unlogged keeps session ids, and errors caused by clients that disconnect, out of the logs
// of responses.
package unlogged

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
)

const sessionHeader = "Mcp-Session-Id"

// A Session holds the session id of a response while the response is logged, and whether the
// request was canceled.
type Session struct {
	ids      []string
	body     body
	canceled atomic.Bool
}

// SessionKey is the context key of the *Session of a request.
type SessionKey struct{}

// In returns a context with s, so that Hide finds s.
func (s *Session) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, SessionKey{}, s)
}

// Hide moves the session id from the header of a response to the Session in the context, if there
// is one. If the request is canceled, the body then ends as if it were complete, and
// Session.Canceled reports it. Otherwise reverse_proxy would warn of an incomplete body, although a
// client that disconnects is not a fault of the server.
func Hide(ctx context.Context, res *http.Response) {
	s, ok := ctx.Value(SessionKey{}).(*Session)
	if !ok {
		return
	}
	s.ids = res.Header[sessionHeader]
	delete(res.Header, sessionHeader)
	if res.Body != nil && res.Body != http.NoBody && res.StatusCode != http.StatusSwitchingProtocols {
		s.body = body{res.Body, ctx, s}
		res.Body = &s.body
	}
}

// Restore puts the id back into the header of the response.
func (s *Session) Restore(header http.Header) {
	if s.ids != nil {
		header[sessionHeader] = s.ids
	}
}

// Canceled reports whether the body of the response has ended because its request was canceled.
func (s *Session) Canceled() bool { return s.canceled.Load() }

// A body is the body of a response whose request may be canceled.
type body struct {
	io.ReadCloser
	ctx     context.Context
	session *Session
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.ctx.Err() != nil {
		b.session.canceled.Store(true)
		err = io.EOF
	}
	return n, err
}
