package upstream

import (
	"context"
	"errors"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// Servers of 2024-11-05 use another transport: HTTP+SSE. For the aggregate, package httpsse
// translates it to Streamable HTTP, between an exchange and the routes. The format of session ids
// tells these servers apart.

// serveRoutes runs the routes of the server for r.
func (x *Exchange) serveRoutes(w http.ResponseWriter, r *http.Request) error {
	if x.Kind == Aggregate && httpsse.IsSession(httpbody.GetHeader(r.Header, mcp.SessionHeader)) {
		return x.Shared.Retained.httpSSE.Serve(w, r, x.httpSSEUpstream())
	}
	return x.Server.Routes.Serve(w, r, x.Caller.Account())
}

// httpSSEUpstream returns the access to a server with HTTP+SSE, for requests in its sessions.
func (x *Exchange) httpSSEUpstream() httpsse.Upstream {
	server, account := x.Server, x.Caller.Account()
	return httpsse.Upstream{
		Server: server.ID,
		Serve: func(w http.ResponseWriter, r *http.Request) error {
			// Its response and its session are not those of the exchange.
			r = r.WithContext(new(unlogged.Session).In(r.Context()))
			return server.serve(w, r, account)
		},
	}
}

// NoteHTTPSSE records whether the server uses HTTP+SSE.
func (s *Server) NoteHTTPSSE(speaks bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.httpSSE = speaks
}

// SpeaksHTTPSSE reports whether the server is known to use HTTP+SSE.
func (s *Server) SpeaksHTTPSSE() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.httpSSE
}

// OpenHTTPSSE opens a session with a server that uses HTTP+SSE, for an owner. Requests are derived
// from r, which must outlive the exchange, because the stream of the session does. OpenHTTPSSE
// fails with ErrNotHTTPSSE if the server does not use HTTP+SSE.
func (x *Exchange) OpenHTTPSSE(ctx context.Context, owner string, r *http.Request) (
	session string, failure *jsonrpc.Failure,
) {
	server := x.Server
	up := x.httpSSEUpstream()
	up.Name, up.Owner, up.Target, up.Hosts = server.Name, owner, server.Target, server.Hosts
	up.Request = func(ctx context.Context) *http.Request {
		get := server.Routes.Derive(ctx, r, false)
		streamable.Session{Era: mcp.Legacy}.SetGETHeaders(get.Header, "")
		httpbody.EmptyAs(get, http.MethodGet)
		x.address(get, server.Target)
		return get
	}
	session, err := x.Shared.Retained.httpSSE.Open(ctx, up)
	switch {
	case err == nil:
		return session, nil
	case errors.Is(err, httpsse.ErrNotSupported):
		return "", ErrNotHTTPSSE
	case ctx.Err() != nil:
		return "", jsonrpc.Timeout(server.Name)
	}
	return "", x.failureOf(err)
}

// ErrNotHTTPSSE says that a server does not use HTTP+SSE.
var ErrNotHTTPSSE = new(jsonrpc.Failure)
