package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/park"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked != nil {
		go s.parked.finish()
		s.parked = nil
	}
}

var errClientLeft = errors.New("the client has left")

// hasClientLeft reports whether the stream ended because the client disconnected.
func (s *stream) hasClientLeft() bool { return context.Cause(s.ctx) == errClientLeft }

// park lets the handler of q return while the stream stays open. It reports whether that is
// possible.
func (s *stream) park(q *inbound.Request) bool {
	state := s.req.g.State
	if s.detach == nil || !q.CanPark() || !state.addParked() {
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
		state.parked.Done()
		return false
	}
	state.noteParked(s.req.client)
	s.detach()
	s.detach = nil // it refers to the handler
	s.mu.Lock()
	s.parked = &parkedStream{stream: s, rest: rest, comments: s.keepAlive(), record: q.Park(), began: q.Began}
	s.mu.Unlock()
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
	defer req.g.State.parked.Done()
	p.rest.End()
	p.comments.Stop()
	if p.wants != nil {
		p.answerListen()
	}
	p.close()
	req.out.Close()
	p.rest.Close()
	req.g.release(req.client)
	p.record.Outcome, p.record.Duration = upstream.OutcomeOK, time.Since(p.began)
	if p.hasClientLeft() {
		p.record.Outcome = upstream.OutcomeCanceled
	}
	req.g.config.Observer.RequestDone(p.record)
}

// addParked counts a stream to park. It reports false on exit.
func (s *State) addParked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.parkClosed {
		s.parked.Add(1)
	}
	return !s.parkClosed
}

// noteParked removes a client with a parked stream from the idle clients, until it is released.
func (s *State) noteParked(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Remove(c.key)
}

// waitForParked waits until all parked streams have ended, and prevents new ones.
func (s *State) waitForParked() {
	s.mu.Lock()
	s.parkClosed = true
	s.mu.Unlock()
	s.parked.Wait()
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
