package httpsse

import (
	"context"
	"net/http"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A roundTrip is a request of Streamable HTTP in a session, with its response.
type roundTrip struct {
	session *session
	w       http.ResponseWriter
	r       *http.Request
	serve   func(http.ResponseWriter, *http.Request) error
	message jsonrpc.Message // of a POST
}

// read reads the message of a POST.
func (x *roundTrip) read() error {
	body, err := httpbody.ReadKept(x.r, maxMessage)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return jsonrpc.PayloadTooLarge()
	}
	if failure := x.message.Read(body); failure != nil {
		return failure
	}
	return nil
}

// fail sends a failure.
func (x *roundTrip) fail(f *jsonrpc.Failure) {
	f.SetHeader(x.w.Header())
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(f.Status)
	_, _ = x.w.Write(f.Append(nil, x.message.Literal(jsonrpc.ID)))
}

// call posts a request, and responds with the messages for it on the stream of the server.
func (x *roundTrip) call() error {
	s := x.session
	c := s.addCall(&x.message)
	if c == nil {
		return jsonrpc.Busy()
	}
	defer s.discardCall(c)
	out := streamable.NewWriter(x.w, x.r.Header)
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	// The response may come before the server has accepted the POST, and other messages must not
	// wait for that.
	posted, done := make(chan postResult, 1), make(chan struct{})
	post := x.prepare(ctx, c.message())
	go func() {
		defer close(done)
		posted <- x.post(post)
	}()
	defer func() {
		defer time.AfterFunc(postLinger, cancel).Stop()
		<-done
	}()
	for {
		select {
		case <-c.mail.More():
		case p := <-posted:
			posted = nil
			if p.err != nil || !p.accepted() {
				return x.postRefused(c, out, p)
			}
			continue
		case <-s.ctx.Done():
			return x.sessionEnded(c, out, posted)
		case <-ctx.Done():
			if s.discardCall(c) {
				s.cancel(c)
			}
			cancel()
			return context.Cause(x.r.Context())
		}
		if done, err := x.deliver(c, out); done {
			if err != nil && s.discardCall(c) {
				s.cancel(c)
			}
			return err
		}
	}
}

// postLinger is how long a POST may take after the response to its message.
const postLinger = time.Second

// deliver sends the messages for a call to the client. It reports whether the call is over: it has
// its response, writing failed, or the client has disconnected. It checks for the latter before
// each message, because a fast server could keep it busy forever.
func (x *roundTrip) deliver(c *call, out *streamable.Writer) (done bool, err error) {
	for {
		if err := context.Cause(x.r.Context()); err != nil {
			return true, err
		}
		l, ok, last := c.mail.Take()
		switch {
		case !ok:
			return false, nil
		case l.failure != nil:
			return true, l.failure
		case l.message == nil: // the client has canceled the call
			if !out.IsStreaming() {
				x.w.WriteHeader(http.StatusAccepted)
			}
			return true, nil
		case last:
			out.Answer(http.StatusOK, &streamable.Event{Type: "message", Data: l.message})
			return true, out.Err()
		case !out.Event(&streamable.Event{Type: "message", Data: l.message}) && l.serverRequestID != nil:
			x.session.refuse(l.serverRequestID, "the client does not accept event streams, or has left")
		}
		if err := out.Err(); err != nil {
			return true, err
		}
	}
}

// sessionEnded ends a call because the session has ended. If the server has not accepted the POST
// yet, it may be about to refuse it, and the client can repeat it in another session.
func (x *roundTrip) sessionEnded(c *call, out *streamable.Writer, posted <-chan postResult) error {
	if posted != nil {
		timer := time.NewTimer(postLinger)
		defer timer.Stop()
		select {
		case p := <-posted:
			if p.err == nil && !p.accepted() {
				return x.postRefused(c, out, p)
			}
		case <-timer.C:
		}
	}
	if done, err := x.deliver(c, out); done { // messages before the end
		return err
	}
	return x.session.failure()
}

// postRefused responds to a request whose POST the server has not accepted.
func (x *roundTrip) postRefused(c *call, out *streamable.Writer, p postResult) error {
	done, err := x.deliver(c, out)
	switch {
	case done: // there is a response nevertheless
		return err
	case p.err != nil:
		return p.err
	case out.IsStreaming():
		return jsonrpc.HTTPError(x.session.upstream.Name, p.status)
	}
	x.forwardResponse(p)
	return nil
}

// postMessage posts a notification, or a response to a server request.
func (x *roundTrip) postMessage() error {
	message := x.message.Raw
	if x.message.Is(jsonrpc.Method, "notifications/cancelled") {
		c := x.session.callByClientID(x.message.Literal(jsonrpc.RequestID))
		if c == nil || !x.session.removeCall(c) {
			x.w.WriteHeader(http.StatusAccepted) // the call has its response already
			return nil
		}
		c.mail.End(letter{}) // without a response
		message = jsonspan.Spliced(message, x.message.Replace(jsonrpc.RequestID, c.id()))
	}
	p := x.post(x.prepare(x.r.Context(), message))
	switch {
	case p.err != nil:
		return p.err
	case p.accepted():
		x.w.WriteHeader(http.StatusAccepted)
	default:
		x.forwardResponse(p)
	}
	return nil
}

// listen sends messages that belong to no call, until the stream or the session ends.
func (x *roundTrip) listen() error {
	s, reqCtx := x.session, x.r.Context()
	out := streamable.NewWriter(x.w, x.r.Header)
	if !out.AcceptsStream() {
		return jsonrpc.MethodNotAllowed("POST", "DELETE")
	}
	s.mail.Join()
	defer func() {
		for _, l := range s.mail.Leave() {
			if l.serverRequestID != nil {
				s.refuse(l.serverRequestID, "the client has left")
			}
		}
	}()
	out.Begin()
	for {
		select {
		case <-s.mail.More():
		case <-s.ctx.Done():
			return nil
		case <-reqCtx.Done():
			return context.Cause(reqCtx)
		}
		// One message at a time, so a fast server does not hide that the client has disconnected.
		l, ok, _ := s.mail.Take()
		if ok && !out.Event(&streamable.Event{Type: "message", Data: l.message}) && l.serverRequestID != nil {
			s.refuse(l.serverRequestID, "the client has left")
		}
		if err := out.Err(); err != nil {
			return err
		}
	}
}

// postResult is the result of posting a message.
type postResult struct {
	responseRecorder
	err error
}

func (p *postResult) accepted() bool { return p.status/100 == 2 }

// prepare returns a request that posts a message to the endpoint. It has its own headers, because
// handlers may change them while other requests are derived from the original.
func (x *roundTrip) prepare(ctx context.Context, message []byte) *http.Request {
	streamable.Direct(x.r, x.session.endpoint)
	post := x.r.Clone(ctx)
	post.Header.Del(mcp.SessionHeader)
	httpbody.Post(post, message)
	return post
}

// post posts a message.
func (x *roundTrip) post(r *http.Request) (p postResult) {
	p.responseRecorder.header = http.Header{}
	p.err = x.serve(&p.responseRecorder, r)
	p.responseRecorder.WriteHeader(http.StatusOK) // default status of a handler that writes nothing
	return p
}

// forwardResponse forwards the response of the server. A server that does not know the endpoint has
// lost the session.
func (x *roundTrip) forwardResponse(p postResult) {
	if p.status == http.StatusNotFound || p.status == http.StatusGone {
		p.status = http.StatusNotFound
		x.session.end(errLost)
	}
	for name, values := range p.header {
		x.w.Header()[name] = values
	}
	httpbody.DropDescription(x.w.Header())
	x.w.WriteHeader(p.status)
	_, _ = x.w.Write(p.body)
}

// A responseRecorder records the response to a posted message, which is usually empty.
type responseRecorder struct {
	header http.Header
	status int
	body   []byte
}

// maxReply is how many bytes of such a response are forwarded.
const maxReply = 64 << 10

func (w *responseRecorder) Header() http.Header { return w.header }

func (w *responseRecorder) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

func (w *responseRecorder) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p[:min(len(p), maxReply-len(w.body))]...)
	return len(p), nil
}
