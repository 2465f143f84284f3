package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/park"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A stream may last for days and is idle most of the time. Where possible, its handler returns once
// the stream is open, and the connection is parked. So a stream has its own context, which holds
// nothing of the handler.

// initContext sets the context of the stream. It is done when the client disconnects or the stream
// ends.
func (s *stream) initContext(req *aggregateRequest) {
	handler, canPark := req.ctx, park.Prepare(req.Writer, req.HTTP)
	values := context.WithoutCancel(handler)
	if canPark {
		values = &streamContext{req.g.config.Detach(handler), s}
	}
	s.ctx, s.cancel = context.WithCancelCause(values)
	detach := context.AfterFunc(handler, func() {
		if req.g.exiting() {
			s.end()
		} else {
			s.clientLeft()
		}
	})
	if canPark {
		s.detach = detach
	}
}

func (s *stream) end() { s.endWith(nil) }

// clientLeft ends the stream because the client disconnected. It does not block.
func (s *stream) clientLeft() { s.endWith(errClientLeft) }

func (s *stream) endWith(cause error) {
	s.cancel(cause)
	if parked := s.parked.Swap(nil); parked != nil {
		go parked.finish()
	}
}

var errClientLeft = errors.New("the client has left")

// hasClientLeft reports whether the stream ended because the client disconnected.
func (s *stream) hasClientLeft() bool { return context.Cause(s.ctx) == errClientLeft }

// park lets the handler of q return while the stream stays open. It reports whether that is
// possible.
func (s *stream) park(q *inbound.Request) bool {
	state := s.req.g.State
	if s.detach == nil || !q.CanPark() || !state.parked.add() {
		return false
	}
	var rest *park.Response
	s.req.out.Move(func(w http.ResponseWriter) http.ResponseWriter {
		if rest = park.Take(w, s.clientLeft); rest == nil {
			return nil
		}
		return rest
	})
	if rest == nil {
		state.parked.done()
		return false
	}
	state.clients.noteParked(s.req.client)
	s.detach()
	s.detach = nil // it refers to the handler
	s.parked.Store(&parkedStream{
		stream: s, rest: rest, comments: keepAlive(s.req.out), record: q.Park(), began: q.Began,
	})
	if s.ctx.Err() != nil { // the stream ended before parked was set
		s.end()
	}
	return true
}

// A parkedStream is a stream whose handler has returned.
type parkedStream struct {
	*stream
	rest     *park.Response
	comments *time.Timer // sends keep-alive comments
	record   upstream.Record
	began    time.Time
}

// finish ends the response and does the handler's cleanup.
func (p *parkedStream) finish() {
	req := &p.req
	defer req.g.State.parked.done()
	p.rest.End()
	p.comments.Stop()
	if p.wants != nil {
		p.answerListen()
	}
	p.close()
	req.out.Close()
	p.rest.Close()
	req.g.clients.release(req.client)
	p.record.Outcome, p.record.Duration = upstream.OutcomeOK, time.Since(p.began)
	if p.hasClientLeft() {
		p.record.Outcome = upstream.OutcomeCanceled
	}
	req.g.config.Observer.RequestDone(p.record)
}

// parkedStreams counts the parked streams.
type parkedStreams struct {
	mu      sync.Mutex
	drained bool // no more streams may be parked
	open    sync.WaitGroup
}

// add counts a stream to park, until done. It reports false on exit.
func (p *parkedStreams) add() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.drained {
		p.open.Add(1)
	}
	return !p.drained
}

func (p *parkedStreams) done() { p.open.Done() }

// drain waits until all parked streams have ended, and prevents new ones.
func (p *parkedStreams) drain() {
	p.mu.Lock()
	p.drained = true
	p.mu.Unlock()
	p.open.Wait()
}

// A streamContext is the context of a stream that can outlive its handler.
type streamContext struct {
	context.Context
	s *stream
}

func (c *streamContext) Value(key any) any {
	if _, ok := key.(stdio.OwnerKey); ok {
		return c.s.req.caller.Budget()
	}
	return c.Context.Value(key)
}

// A streamRequest is what a stream keeps of the request that opened it. It holds nothing of the
// handler, which may return before the stream ends.
type streamRequest struct {
	g            *Gateway
	request      savedRequest // for requests to servers
	caller       access.Caller
	client       *client
	out          *streamable.Writer
	sideRequests upstream.SideRequests
}

// newStreamRequest returns the streamRequest of the request.
func (req *aggregateRequest) newStreamRequest() streamRequest {
	return streamRequest{g: req.g, request: saveRequest(req.HTTP), caller: req.Caller, client: req.client, out: req.out}
}

// A savedRequest is a request without body and context, in less memory. Most streams never use it,
// because another stream of the audience listens.
type savedRequest struct {
	method, uri, proto, host, remote string

	url    *url.URL
	tls    *tls.ConnectionState
	header []headerField
}

// A headerField is a header and its values.
type headerField struct {
	name   string
	values []string
}

// saveRequest returns the savedRequest of r. It leaves out the session id, which is long and not
// sent to servers.
func saveRequest(r *http.Request) savedRequest {
	saved := savedRequest{method: r.Method, uri: r.RequestURI, proto: r.Proto, host: r.Host, remote: r.RemoteAddr,
		url: r.URL, tls: r.TLS, header: make([]headerField, 0, len(r.Header))}
	for name, values := range r.Header {
		if name != mcp.SessionHeader {
			// Clone: all values may share one array, which would keep the session id in memory.
			saved.header = append(saved.header, headerField{name, slices.Clone(values)})
		}
	}
	return saved
}

// size returns the approximate memory use.
func (s *savedRequest) size() int64 {
	size := 1<<9 + len(s.uri) + len(s.host)
	for _, field := range s.header {
		size += fieldSize(field.name, field.values)
	}
	return int64(size)
}

// fieldSize returns the bytes of a header.
func fieldSize(name string, values []string) int {
	size := len(name)
	for _, value := range values {
		size += len(value)
	}
	return size
}

// withContext returns the request with a context.
func (s *savedRequest) withContext(ctx context.Context) *http.Request {
	r := &http.Request{Method: s.method, RequestURI: s.uri, Proto: s.proto, Host: s.host, RemoteAddr: s.remote,
		URL: s.url, TLS: s.tls, Header: make(http.Header, len(s.header)), Body: http.NoBody}
	r.ProtoMajor, r.ProtoMinor, _ = http.ParseHTTPVersion(s.proto)
	for _, field := range s.header {
		r.Header[field.name] = slices.Clone(field.values)
	}
	return r.WithContext(ctx)
}
