package upstream

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/sse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// Servers of 2024-11-05 use another transport: HTTP+SSE. For the aggregate, package httpsse
// translates it to Streamable HTTP, between an exchange and the routes. The format of session ids
// tells these servers apart.

// httpSSEUpstream returns the server as package httpsse needs it, for requests in existing sessions.
func (x *Exchange) httpSSEUpstream() httpsse.Upstream {
	server, account := x.Server, x.Caller.Account()
	return httpsse.Upstream{Server: server.ID, Serve: func(w http.ResponseWriter, r *http.Request) error {
		// The response and its session are not those of the exchange.
		r = r.WithContext(new(unlogged.Session).In(r.Context()))
		return server.serve(w, r, account)
	}}
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

// Servers with HTTP+SSE announce, in the first event of a GET stream, the URL to which messages are
// posted. The gateway replaces it with a URL of its own that contains the server's, sealed. So the
// gateway need not remember it, no other path of the server can be reached, and no other client can
// use it.

// endpointParam is the query parameter with the sealed URL.
const endpointParam = "endpoint"

// openEndpoint returns the URL in a sealed token.
func (b binding) openEndpoint(token string) (*url.URL, *jsonrpc.Failure) {
	failure := jsonrpc.InvalidRequest("unknown endpoint of this MCP server")
	encoded, ok := b.claim(boundEndpoint, token)
	if !ok {
		return nil, failure
	}
	uri, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil {
		return nil, failure
	}
	u, err := url.ParseRequestURI(string(uri))
	if err != nil {
		return nil, failure
	}
	return u, nil
}

// noteEndpoint records the URL to which responses to server requests are posted. It reports whether
// the address is valid.
func (f *filter) noteEndpoint(address []byte) bool {
	ref, err := url.Parse(string(bytes.TrimSpace(address)))
	if err != nil || ref.Opaque != "" || !strings.HasPrefix(ref.Path, "/") {
		return false
	}
	if f.x.routed != nil {
		streamable.Direct(f.x.routed, f.x.Server.Target.ResolveReference(ref))
	}
	return true
}

// An endpointSealer replaces the URL in each event that announces an endpoint. All servers share
// one origin, so an unchanged URL could belong to another server, and the client would post to
// that.
type endpointSealer struct {
	x          *Exchange
	events     sse.Scanner
	fields     sse.Fields // of the event
	held       []byte     // the event, until its kind is known
	out        []byte
	isEndpoint bool // the event announces an endpoint
	forwarding bool // the beginning of the event has been forwarded
}

// longestEndpoint is how many bytes of an event are held back. A longer event is forwarded in
// parts. If it then turns out to announce an endpoint, the stream ends.
const longestEndpoint = 64 << 10

var errInvalidEndpoint = errors.New("MCP server announced an invalid endpoint")

// seal returns the bytes that can be forwarded. They are valid until the next call.
func (s *endpointSealer) seal(p []byte) (_ []byte, err error) {
	s.out = s.out[:0]
	s.events.Each(p, func(kind sse.Kind, part []byte) {
		if err != nil {
			return
		}
		if kind == sse.Dispatch {
			err = s.dispatch()
			return
		}
		if kind == sse.Frame {
			s.read(part)
		}
		s.held = append(s.held, part...)
		if len(s.held) > longestEndpoint || s.forwarding {
			s.forwarding = true
			if s.isEndpoint {
				err = errInvalidEndpoint
				return
			}
			s.emit(s.held)
			return
		}
		// A comment, which keeps the connection open, is not part of an event. A single line end is
		// the rest of one.
		if ends := part[len(part)-1] == '\n' || part[len(part)-1] == '\r'; ends && (s.held[0] == ':' || len(s.held) == 1) {
			s.emit(s.held)
		}
	})
	return s.out, err
}

// rest returns the held bytes of a body that has ended. It may not have been an event stream.
func (s *endpointSealer) rest() []byte {
	s.read([]byte{'\n'})
	if s.isEndpoint {
		return nil
	}
	return s.held
}

// read parses the next bytes outside of data. An event that has named an endpoint once stays one.
func (s *endpointSealer) read(frame []byte) {
	s.fields.Read(frame)
	s.isEndpoint = s.isEndpoint || isEndpointEvent(s.fields.Type)
}

// isEndpointEvent reports whether an event of this name announces an endpoint. It is more lenient
// than the standard, as some clients are.
func isEndpointEvent(name string) bool {
	return strings.EqualFold(strings.TrimSpace(name), endpointParam)
}

// dispatch ends an event. It replaces the URL of an endpoint.
func (s *endpointSealer) dispatch() error {
	if !s.isEndpoint {
		s.emit(s.held)
	} else {
		sealed, ok := s.sealed(dataOf(s.held))
		if !ok {
			return errInvalidEndpoint
		}
		s.emit([]byte("event: " + endpointParam + "\ndata: " + sealed + "\n\n"))
	}
	s.fields.Reset()
	s.isEndpoint, s.forwarding = false, false
	return nil
}

// sealed returns the URL of the gateway for one of the server. It reports false if the address is
// not a valid URL.
func (s *endpointSealer) sealed(address string) (string, bool) {
	ref, err := url.Parse(strings.TrimSpace(address))
	if err != nil || ref.Opaque != "" {
		return "", false
	}
	uri := base64.RawURLEncoding.EncodeToString([]byte(s.x.Server.Target.ResolveReference(ref).RequestURI()))
	return s.x.Path + "?" + endpointParam + "=" + s.x.binding().bind(boundEndpoint, uri), true
}

// emit forwards bytes instead of the held ones.
func (s *endpointSealer) emit(p []byte) {
	s.out = append(s.out, p...)
	s.held = s.held[:0]
}

// dataOf returns the data of an event.
func dataOf(event []byte) string {
	var events sse.Scanner
	var data []byte
	events.Each(event, func(kind sse.Kind, part []byte) {
		if kind == sse.Data {
			data = append(data, part...)
		}
	})
	return string(data)
}
