package mcpgateway

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
)

// Requests to a server that no client has made, but the gateway beside one.

// request returns a request of our own to the server, in the session of the one that is
// being served, with all that its routes know of that and before they have changed it.
func (x *exchange) request(ctx context.Context, body []byte) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(x.server.Timeout))
	if ctx.Value(outerKey{}) == nil {
		ctx = context.WithValue(ctx, outerKey{}, x.outer(x.sent))
	}
	r := upstream{x.handler, x.server}.Request(ctx, x.sent)
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Map(x.placeholder)
	}
	for _, name := range [...]string{"Last-Event-Id", "Content-Encoding"} {
		r.Header.Del(name)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	httpbody.Post(r, body)
	return r, cancel
}

// tell sends the server a request of which it need not answer more than that it has it.
func (s *Server) tell(r *http.Request) error {
	w := &statusRecorder{header: http.Header{}}
	if err := s.serve(w, r); err != nil {
		return err
	}
	if w.status/100 != 2 {
		return fmt.Errorf("status %d", w.status)
	}
	return nil
}

// hush waits until servers are told nothing any more, if Caddy exits. After a reload, calls
// of before may still need it.
func (h *Handler) hush() {
	if !caddy.Exiting() {
		return
	}
	for _, s := range h.Servers {
		if s != nil {
			s.asides.Close()
		}
	}
}

// serve has the routes of the server answer a request of our own.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if reason := recover(); reason == http.ErrAbortHandler {
			err = errAborted
		} else if reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	return s.routes.ServeHTTP(w, r)
}

// A statusRecorder takes a response of which only the status matters.
type statusRecorder struct {
	header http.Header
	status int
}

func (w *statusRecorder) Header() http.Header { return w.header }

func (w *statusRecorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

func (w *statusRecorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return len(p), nil
}
