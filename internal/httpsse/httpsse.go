// Package httpsse translates the HTTP+SSE transport of MCP 2024-11-05 to Streamable HTTP.
//
// A server with HTTP+SSE has one event stream for each session. Its first event, endpoint,
// announces the URL to which messages are posted. Responses and all other messages come on the
// stream. [Pool.Open] opens a stream and returns the id of a session, in which [Pool.Serve] serves
// requests of Streamable HTTP: a POST of a request gets the messages on the stream that belong to
// it, a GET is a stream of messages that belong to no request, and a DELETE ends the session. The
// session also ends with the server's stream, and after a time without requests: then its id is
// unknown, and a client that needs a session opens another.
//
// # One stream, many calls
//
// Requests get new ids and progress tokens for the server, because two HTTP requests with equal ids
// share one stream. Notifications and server requests do not say to which call they belong. They go
// to the only call in progress. With several calls, they go to a GET stream or, if there is none,
// to the latest call. All of these belong to the same client.
package httpsse

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Pool holds the sessions with servers that use HTTP+SSE. It is safe for concurrent use.
type Pool struct {
	running sync.WaitGroup // streams of servers, and messages to them

	mu       sync.Mutex
	sessions map[string]*session
	idle     *quota.Cache[string, *session] // sessions without requests
	sweeping *time.Timer                    // nil if there is nothing to sweep
	closed   bool
}

// idleTime is how long a session without requests is kept.
const idleTime = 30 * time.Minute

// idleLimits limit the sessions without requests. Each has a connection to its server.
var idleLimits = quota.Limits{Entries: 4_000, OwnerEntries: 400}

var sessionsQuota = quota.NewKind("http_sse_sessions")

// NewPool returns an empty Pool. It must be closed.
func NewPool() *Pool { return newPool(idleLimits, idleTime) }

func newPool(limits quota.Limits, ttl time.Duration) *Pool {
	p := &Pool{sessions: map[string]*session{}}
	p.idle = quota.NewCache(sessionsQuota, limits, ttl, func(_ string, s *session) { s.end(errIdle) })
	return p
}

// An Upstream describes how to reach a server.
type Upstream struct {
	Server string // equal for two configurations of the same server
	Name   string // name of the server, in errors
	Owner  string // owner of the session
	Target *url.URL
	Hosts  []string // other host names that the server may use in its URLs

	// Request returns a GET of Target with the context ctx. It is called for requests of the pool
	// itself.
	Request func(ctx context.Context) *http.Request

	// Serve sends a request to the server. It does not panic.
	Serve func(w http.ResponseWriter, r *http.Request) error
}

// ErrNotSupported says that a server does not use HTTP+SSE.
var ErrNotSupported = errors.New("the MCP server did not announce an HTTP+SSE endpoint")

// Reasons why a session ends.
var (
	errIdle    = errors.New("the session was idle for too long")
	errDeleted = errors.New("the client has ended the session")
	errStopped = errors.New("the gateway has ended the session")
	errLost    = errors.New("the MCP server does not know the session anymore")
	errClosed  = errors.New("the MCP server has closed its event stream")
)

// prefix is the prefix of session ids.
const prefix = "http+sse:"

// IsSession reports whether a session id is one of a Pool: of this one, of an earlier one, or of
// another replica.
func IsSession(id string) bool { return strings.HasPrefix(id, prefix) }

// Open opens the event stream of a server. It returns the id of the session when the server has
// announced its endpoint.
func (p *Pool) Open(ctx context.Context, u Upstream) (id string, err error) {
	s := newSession(p, u)
	if !p.start(s) {
		return "", errStopped
	}
	select {
	case <-s.endpointKnown:
	case <-s.ctx.Done():
		return "", context.Cause(s.ctx)
	case <-ctx.Done():
		s.end(context.Cause(ctx))
		return "", context.Cause(ctx)
	}
	p.release(s)
	return s.id, nil
}

// End ends a session.
func (p *Pool) End(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sessions[id]; s != nil {
		s.end(errStopped)
	}
}

// start reads the stream of a session in a goroutine, unless the Pool is closed.
func (p *Pool) start(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	s.id, s.using = prefix+rand.Text(), 1
	p.sessions[s.id] = s
	p.running.Go(func() {
		defer p.remove(s)
		s.read()
	})
	return true
}

// remove removes a session that has ended, and its messages.
func (p *Pool) remove(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s.id)
	p.idle.Remove(s.id)
	s.mail.Discard()
}

// acquire returns the session with an id, and keeps it in use until it is released. It returns nil
// if the server has no such session.
func (p *Pool) acquire(id, server string) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sessions[id]
	if s == nil || s.upstream.Server != server || s.ctx.Err() != nil {
		return nil
	}
	p.idle.Remove(id)
	s.using++
	return s
}

// release ends a request in a session.
func (p *Pool) release(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.using--
	if s.using > 0 || s.ctx.Err() != nil {
		return
	}
	if !p.idle.Put(s.upstream.Owner, s.id, s, 0) {
		s.end(errStopped)
	}
	if p.sweeping == nil && !p.closed {
		p.sweeping = time.AfterFunc(idleTime/10, p.sweep)
	}
}

// sweep ends sessions that were idle for too long.
func (p *Pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle.Expire()
	if p.closed || p.idle.Len() == 0 {
		p.sweeping = nil
		return
	}
	p.sweeping.Reset(idleTime / 10)
}

// Keep ends the sessions with servers for which exists returns false.
func (p *Pool) Keep(exists func(server string) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range maps.Values(p.sessions) {
		if !exists(s.upstream.Server) {
			s.end(errStopped)
		}
	}
}

// Close ends all sessions, and waits for that.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.idle.Close()
	if p.sweeping != nil {
		p.sweeping.Stop()
	}
	open := slices.Collect(maps.Values(p.sessions))
	p.mu.Unlock()
	for _, s := range open {
		s.end(errStopped)
	}
	p.running.Wait()
}

// Serve serves a request of Streamable HTTP in its session. r goes to the server unchanged, except
// for its message and its URL. An error is one of up.Serve, a [jsonrpc.Failure], or the cause of
// the end of r's context.
func (p *Pool) Serve(w http.ResponseWriter, r *http.Request, up Upstream) error {
	s := p.acquire(r.Header.Get(mcp.SessionHeader), up.Server)
	if s != nil {
		defer p.release(s)
	}
	x := &roundTrip{session: s, w: w, r: r, serve: up.Serve}
	if r.Method == http.MethodPost {
		if err := x.read(); err != nil {
			return err
		}
	}
	switch {
	case s == nil:
		x.fail(jsonrpc.UnknownSession())
		return nil
	case r.Method == http.MethodGet:
		return x.listen()
	case r.Method == http.MethodDelete:
		s.end(errDeleted)
		w.WriteHeader(http.StatusNoContent)
		return nil
	case x.message.IsRequest():
		return x.call()
	}
	return x.postMessage()
}
