package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

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
func (x *exchange) serveRoutes(w http.ResponseWriter, r *http.Request) error {
	if x.kind == Aggregate && httpsse.IsSession(httpbody.GetHeader(r.Header, mcp.SessionHeader)) {
		return x.g.httpSSE.Serve(w, r, x.httpSSEUpstream())
	}
	return x.server.Upstream.Serve(w, r, x.caller.account())
}

// httpSSEUpstream returns the way to a server of HTTP+SSE for requests in its sessions.
func (x *exchange) httpSSEUpstream() httpsse.Upstream {
	server, account := x.server, x.caller.account()
	return httpsse.Upstream{
		Server: server.ID,
		Serve: func(w http.ResponseWriter, r *http.Request) error {
			// What it is answered is not the response of the exchange, nor is its session.
			r = r.WithContext(new(unlogged.Session).In(r.Context()))
			return server.serve(w, r, account)
		},
	}
}

// refusesPost reports whether a server that answers a handshake with this status may be one of
// HTTP+SSE, which does not take messages where its stream is.
func refusesPost(status int) bool { return status/100 == 4 && !httpsse.IsInconclusive(status) }

// initializeHTTPSSE begins a session with a server of HTTP+SSE: with the stream of the session,
// and then as with others. It reports whether the server is such a one.
func (c connecting) initializeHTTPSSE(patience time.Duration) (
	result []byte, session string, failure *jsonrpc.Failure, is bool,
) {
	known := c.server.speaksHTTPSSE()
	session, failure = c.openHTTPSSE(patience)
	if c.server.noteHTTPSSE(failure == nil); failure == nil && !known {
		c.g.config.Logger.Info("MCP server speaks HTTP+SSE", zap.String("mcp_server", c.server.Name))
	}
	switch {
	case failure == errNotHTTPSSE:
		return nil, "", nil, false
	case failure != nil && (unreachable(failure) || failure.Data.Symbol == "http_error"):
		return nil, "", failure, known
	case failure != nil: // such as a login, or an invalid endpoint
		return nil, "", failure, true
	}
	if _, result, failure = c.initializeIn(session); failure != nil {
		c.g.httpSSE.End(session)
		return nil, "", failure, true
	}
	return result, session, nil, true
}

// errNotHTTPSSE says that a server does not speak HTTP+SSE.
var errNotHTTPSSE = new(jsonrpc.Failure)

// openHTTPSSE opens the stream of a session with a server of HTTP+SSE. The stream outlives the
// request of the client, and so does what it is derived from.
func (c connecting) openHTTPSSE(patience time.Duration) (session string, failure *jsonrpc.Failure) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	l, server := c.link, c.server
	of := c.within(context.WithoutCancel(c.ctx)).derive(l)
	x := c.g.newExchange(l, new(streamable.Reader), nil)
	up := x.httpSSEUpstream()
	up.Name, up.Owner, up.Target, up.Hosts = server.Name, l.client.owner, server.Target, server.Hosts
	up.Request = func(ctx context.Context) *http.Request {
		r := server.Upstream.Derive(ctx, of, false)
		streamable.Session{Era: mcp.Legacy}.SignGET(r.Header, "")
		emptyBody(r, http.MethodGet)
		x.address(r, server.Target)
		return r
	}
	session, err := c.g.httpSSE.Open(ctx, up)
	switch {
	case err == nil:
		return session, nil
	case errors.Is(err, httpsse.ErrNotSpoken):
		return "", errNotHTTPSSE
	case ctx.Err() != nil:
		return "", jsonrpc.Timeout(server.Name)
	}
	return "", x.failureOf(err)
}

func (s *Server) noteHTTPSSE(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.httpSSE = is
}

// speaksHTTPSSE reports whether the server is known to speak HTTP+SSE.
func (s *Server) speaksHTTPSSE() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.httpSSE
}
