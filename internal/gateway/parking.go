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

// A stream that a client listens to may last for days, and is silent for most of them. Where
// that is possible, its handler returns once it has begun, and the connection is parked. So
// the stream has a context of its own, which holds nothing of the handler.

// live gives the stream its context: until the client leaves, or the stream is ended.
func (s *stream) live(v *visit) {
	handler, canPark := v.ctx, park.Prepare(v.Writer, v.HTTP)
	values := context.WithoutCancel(handler)
	if canPark {
		values = &streamContext{v.g.config.Detach(handler), s}
	}
	s.ctx, s.cancel = context.WithCancelCause(values)
	detach := context.AfterFunc(handler, func() {
		if v.g.exiting() {
			s.end()
		} else {
			s.leave()
		}
	})
	if canPark {
		s.detach = detach
	}
}

// end ends the stream.
func (s *stream) end() { s.endWith(nil) }

// leave ends the stream because the client has left. It does not block.
func (s *stream) leave() { s.endWith(errLeft) }

func (s *stream) endWith(cause error) {
	s.cancel(cause)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parked != nil {
		go s.parked.finish()
		s.parked = nil
	}
}

var errLeft = errors.New("the client has left")

// left reports whether the stream has ended because the client has left.
func (s *stream) left() bool { return context.Cause(s.ctx) == errLeft }

// park lets the handler of q return while the stream goes on, if that is possible.
func (s *stream) park(q *inbound.Request) bool {
	state := s.visit.g.State
	if s.detach == nil || !q.CanPark() || !state.addParked() {
		return false
	}
	var rest *park.Response
	s.visit.out.Move(func(w http.ResponseWriter) http.ResponseWriter {
		if rest = park.Take(w, s.leave); rest == nil {
			return nil
		}
		return rest
	})
	if rest == nil {
		state.parked.Done()
		return false
	}
	state.parkedBy(s.visit.client)
	s.detach()
	s.detach = nil // which refers to the handler
	s.mu.Lock()
	s.parked = &parkedStream{stream: s, rest: rest, comments: s.keepAlive(), record: q.Park(), began: q.Began}
	s.mu.Unlock()
	if s.ctx.Err() != nil { // it ended before
		s.end()
	}
	return true
}

// A parkedStream is a stream whose handler has returned.
type parkedStream struct {
	*stream
	rest     *park.Response
	comments *time.Timer // sends them
	record   upstream.Record
	began    time.Time
}

// finish ends the response, and does what the handler would have done.
func (p *parkedStream) finish() {
	v := &p.visit
	defer v.g.State.parked.Done()
	p.rest.End()
	p.comments.Stop()
	if p.wants != nil {
		p.answerListen()
	}
	p.close()
	v.out.Close()
	p.rest.Close()
	v.g.release(v.client)
	p.record.Outcome, p.record.Duration = upstream.OutcomeOK, time.Since(p.began)
	if p.left() {
		p.record.Outcome = upstream.OutcomeCanceled
	}
	v.g.config.Observer.RequestDone(p.record)
}

// addParked counts a stream that is to be parked, unless no more may be.
func (s *State) addParked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.parkClosed {
		s.parked.Add(1)
	}
	return !s.parkClosed
}

// parkedBy has a client whose stream is parked not be remembered as an idle one as well, until it is
// released.
func (s *State) parkedBy(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle.Remove(c.key)
}

// waitForParked waits until all parked streams have ended, and parks no more.
func (s *State) waitForParked() {
	s.mu.Lock()
	s.parkClosed = true
	s.mu.Unlock()
	s.parked.Wait()
}

// A streamContext is the context of a stream that may outlive its handler.
type streamContext struct {
	context.Context
	s *stream
}

func (c *streamContext) Value(key any) any {
	if _, ok := key.(stdio.OwnerKey); ok {
		return c.s.visit.caller.Budget()
	}
	return c.Context.Value(key)
}
