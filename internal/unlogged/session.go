// Package unlogged keeps session ids out of logs of responses.
package unlogged

import (
	"context"
	"net/http"
)

const sessionHeader = "Mcp-Session-Id"

// A Session is the session id of a response that is logged without it.
type Session struct{ ids []string }

// SessionKey is where a context has the *Session of its request.
type SessionKey struct{}

// In returns a context for a request, so that the session id of its response is kept in s.
func (s *Session) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, SessionKey{}, s)
}

// Hide moves the session id from the header of a response to the Session of its request's
// context, if there is one.
func Hide(ctx context.Context, header http.Header) {
	if s, ok := ctx.Value(SessionKey{}).(*Session); ok {
		s.ids = header[sessionHeader]
		delete(header, sessionHeader)
	}
}

// Restore puts the id back into the header of the response.
func (s *Session) Restore(header http.Header) {
	if s.ids != nil {
		header[sessionHeader] = s.ids
	}
}
