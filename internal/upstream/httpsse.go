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

// Servers of the protocol's first revision have another transport: HTTP+SSE. Where all servers
// are one, package httpsse makes them servers of Streamable HTTP, below an exchange and above
// their routes. The ids of their sessions tell them apart from others.

// serveRoutes has the routes of the server answer r.
func (x *Exchange) serveRoutes(w http.ResponseWriter, r *http.Request) error {
	if x.Kind == Aggregate && httpsse.IsSession(httpbody.GetHeader(r.Header, mcp.SessionHeader)) {
		return x.Shared.State.httpSSE.Serve(w, r, x.httpSSEUpstream())
	}
	return x.Server.Routes.Serve(w, r, x.Caller.Account())
}

// httpSSEUpstream returns the way to a server of HTTP+SSE for requests in its sessions.
func (x *Exchange) httpSSEUpstream() httpsse.Upstream {
	server, account := x.Server, x.Caller.Account()
	return httpsse.Upstream{
		Server: server.ID,
		Serve: func(w http.ResponseWriter, r *http.Request) error {
			// What it is answered is not the response of the exchange, nor is its session.
			r = r.WithContext(new(unlogged.Session).In(r.Context()))
			return server.serve(w, r, account)
		},
	}
}

// NoteHTTPSSE notes whether the server speaks HTTP+SSE.
func (s *Server) NoteHTTPSSE(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.httpSSE = is
}

// SpeaksHTTPSSE reports whether the server is known to speak HTTP+SSE.
func (s *Server) SpeaksHTTPSSE() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.httpSSE
}

// OpenHTTPSSE opens the stream of a session with a server of HTTP+SSE, for an owner. The stream outlives the exchange,
// and so does what it is derived from. It fails with ErrNotHTTPSSE if the server does not speak that.
func (x *Exchange) OpenHTTPSSE(ctx context.Context, owner string, of *http.Request) (
	session string, failure *jsonrpc.Failure,
) {
	server := x.Server
	up := x.httpSSEUpstream()
	up.Name, up.Owner, up.Target, up.Hosts = server.Name, owner, server.Target, server.Hosts
	up.Request = func(ctx context.Context) *http.Request {
		r := server.Routes.Derive(ctx, of, false)
		streamable.Session{Era: mcp.Legacy}.SignGET(r.Header, "")
		httpbody.EmptyAs(r, http.MethodGet)
		x.address(r, server.Target)
		return r
	}
	session, err := x.Shared.State.httpSSE.Open(ctx, up)
	switch {
	case err == nil:
		return session, nil
	case errors.Is(err, httpsse.ErrNotSpoken):
		return "", ErrNotHTTPSSE
	case ctx.Err() != nil:
		return "", jsonrpc.Timeout(server.Name)
	}
	return "", x.failureOf(err)
}

// ErrNotHTTPSSE says that a server does not speak HTTP+SSE.
var ErrNotHTTPSSE = new(jsonrpc.Failure)
