package gateway

import (
	"context"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/park"
)

// A lifetime is how long a client can listen: until it leaves, or Caddy exits. Its handler may
// return earlier, if the stream is parked.
type lifetime struct {
	leave    context.CancelFunc // ends it
	detach   func() bool        // from the handler
	unfollow func() bool        // no longer ends with Caddy
	canPark  bool
	rest     *park.Response // what is still to be written, if the stream is parked
}

// begin begins a lifetime. The context that is returned has the values of the handler's.
func (l *lifetime) begin(handler, exiting context.Context) context.Context {
	ctx, leave := context.WithCancel(context.WithoutCancel(handler))
	l.leave, l.detach, l.unfollow = leave, context.AfterFunc(handler, leave), context.AfterFunc(exiting, leave)
	return ctx
}

// close gives back what a lifetime takes.
func (l *lifetime) close() {
	if l.leave != nil {
		l.detach()
		l.unfollow()
		l.leave()
	}
}

// preparePark prepares the response to r for being parked, if that is possible.
func (l *lifetime) preparePark(w http.ResponseWriter, r *http.Request) {
	l.canPark = park.Prepare(w, r)
}

// parked reports whether the response goes on without its handler.
func (q *Request) parked() bool { return q.lifetime.rest != nil }

// park lets the handler return while the stream goes on, if that is possible. The visit is
// ended when the stream is.
func (s *stream) park() bool {
	v := s.visit
	if !v.lifetime.canPark || !v.g.addParked() {
		return false
	}
	v.out.Move(func(w http.ResponseWriter) http.ResponseWriter {
		v.lifetime.rest = park.Take(w, v.lifetime.leave)
		if !v.parked() {
			return nil
		}
		return v.lifetime.rest
	})
	if !v.parked() {
		v.g.State.parked.Done()
		return false
	}
	v.lifetime.detach()
	context.AfterFunc(s.ctx, func() {
		defer v.g.State.parked.Done()
		v.lifetime.rest.End()
		v.end()
		v.conclude()
		v.finish()
	})
	return true
}

// addParked counts a stream that is to be parked, unless no more may be.
func (s *State) addParked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.full {
		s.parked.Add(1)
	}
	return !s.full
}

// waitForParked waits until all parked streams have ended, and parks no more.
func (s *State) waitForParked() {
	s.mu.Lock()
	s.full = true
	s.mu.Unlock()
	s.parked.Wait()
}
