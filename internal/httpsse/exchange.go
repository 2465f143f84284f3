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

// An exchange is a request of Streamable HTTP in a session, and its response.
type exchange struct {
	session *session
	w       http.ResponseWriter
	r       *http.Request
	serve   func(http.ResponseWriter, *http.Request) error
	message jsonrpc.Message // of a POST
}

// read reads the message of a POST.
func (x *exchange) read() error {
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

// fail answers with a failure.
func (x *exchange) fail(f *jsonrpc.Failure) {
	f.SetHeader(x.w.Header())
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(f.Status)
	_, _ = x.w.Write(f.Append(nil, x.message.Literal(jsonrpc.ID)))
}

// call passes a request on, and answers it with what comes for it on the stream of the server.
func (x *exchange) call() error {
	s := x.session
	c := s.begin(&x.message)
	if c == nil {
		return jsonrpc.Busy()
	}
	defer s.forget(c)
	out := streamable.NewWriter(x.w, x.r.Header)
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	// The answer may come before the server has taken the request, and other messages are
	// not to wait for that.
	taken, done := make(chan posted, 1), make(chan struct{})
	post := x.prepare(ctx, c.message())
	go func() {
		defer close(done)
		taken <- x.post(post)
	}()
	defer func() {
		defer time.AfterFunc(postLinger, cancel).Stop()
		<-done
	}()
	for {
		select {
		case <-c.mail.More():
		case p := <-taken:
			if taken = nil; p.err != nil || !p.accepted() {
				return x.refused(c, out, p)
			}
			continue
		case <-s.life.Done():
			return x.cut(c, out, taken)
		case <-ctx.Done():
			if s.forget(c) {
				s.cancel(c)
			}
			cancel()
			return context.Cause(x.r.Context())
		}
		if done, err := x.deliver(c, out); done {
			if err != nil && s.forget(c) {
				s.cancel(c)
			}
			return err
		}
	}
}

// postLinger is how long a POST may take after the answer to its message.
const postLinger = time.Second

// deliver gives the client what has come for a call. It reports whether that was all, because
// of an error if there is one: nothing more is taken, or the client has left. A server that sends
// faster than it can be passed on would have it go on for ever.
func (x *exchange) deliver(c *call, out *streamable.Writer) (done bool, err error) {
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
		case l.message == nil: // the client has cancelled the call
			if !out.Streaming() {
				x.w.WriteHeader(http.StatusAccepted)
			}
			return true, nil
		case last:
			out.Answer(http.StatusOK, &streamable.Event{Type: "message", Data: l.message})
			return true, out.Err()
		case !out.Event(&streamable.Event{Type: "message", Data: l.message}) && l.question != nil:
			x.session.refuse(l.question, "the client takes no event stream, or has left")
		}
		if err := out.Err(); err != nil {
			return true, err
		}
	}
}

// cut ends a call because the session has ended. If the server has not taken the request by then
// it may be about to refuse it, and the client can make it again in another session.
func (x *exchange) cut(c *call, out *streamable.Writer, taken <-chan posted) error {
	if taken != nil {
		timer := time.NewTimer(postLinger)
		defer timer.Stop()
		select {
		case p := <-taken:
			if p.err == nil && !p.accepted() {
				return x.refused(c, out, p)
			}
		case <-timer.C:
		}
	}
	if done, err := x.deliver(c, out); done { // what has come before the end
		return err
	}
	return x.session.failure()
}

// refused answers a request that the server has not accepted.
func (x *exchange) refused(c *call, out *streamable.Writer, p posted) error {
	done, err := x.deliver(c, out)
	switch {
	case done: // which it has answered nevertheless
		return err
	case p.err != nil:
		return p.err
	case out.Streaming():
		return jsonrpc.HTTPError(x.session.up.Name, p.status)
	}
	x.pass(p)
	return nil
}

// tell passes a notification on, or an answer to a question.
func (x *exchange) tell() error {
	message := x.message.Raw
	if x.message.Is(jsonrpc.Method, "notifications/cancelled") {
		c := x.session.called(x.message.Literal(jsonrpc.RequestID))
		if c == nil || !x.session.remove(c) {
			x.w.WriteHeader(http.StatusAccepted) // it has been answered
			return nil
		}
		c.mail.End(letter{}) // no answer
		message = jsonspan.Spliced(message, x.message.Replace(jsonrpc.RequestID, c.id()))
	}
	p := x.post(x.prepare(x.r.Context(), message))
	switch {
	case p.err != nil:
		return p.err
	case p.accepted():
		x.w.WriteHeader(http.StatusAccepted)
	default:
		x.pass(p)
	}
	return nil
}

// listen is the stream of what belongs to no call, until it ends or the session does.
func (x *exchange) listen() error {
	s, ctx := x.session, x.r.Context()
	out := streamable.NewWriter(x.w, x.r.Header)
	if !out.AcceptsStream() {
		return jsonrpc.MethodNotAllowed("POST", "DELETE")
	}
	s.mail.Join()
	defer func() {
		for _, l := range s.mail.Leave() {
			if l.question != nil {
				s.refuse(l.question, "the client has left")
			}
		}
	}()
	out.Begin()
	for {
		select {
		case <-s.mail.More():
		case <-s.life.Done():
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// One at a time: a server that sends without a pause is not to keep a client that has left.
		l, ok, _ := s.mail.Take()
		if ok && !out.Event(&streamable.Event{Type: "message", Data: l.message}) && l.question != nil {
			s.refuse(l.question, "the client has left")
		}
		if err := out.Err(); err != nil {
			return err
		}
	}
}

// posted is how the server has taken a message.
type posted struct {
	reply
	err error
}

func (p *posted) accepted() bool { return p.status/100 == 2 }

// prepare makes the request one that posts a message to the endpoint. It returns a copy with
// headers of its own: handlers may change them while others are derived from the request.
func (x *exchange) prepare(ctx context.Context, message []byte) *http.Request {
	streamable.Direct(x.r, x.session.endpoint)
	post := x.r.Clone(ctx)
	post.Header.Del(mcp.SessionHeader)
	httpbody.Post(post, message)
	return post
}

// post posts a message.
func (x *exchange) post(r *http.Request) (p posted) {
	p.reply.header = http.Header{}
	p.err = x.serve(&p.reply, r)
	p.reply.WriteHeader(http.StatusOK) // a handler that writes nothing means that
	return p
}

// pass answers as the server has. One that does not know the endpoint has lost the session.
func (x *exchange) pass(p posted) {
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

// A reply takes the response to a message that was posted: mostly it says nothing.
type reply struct {
	header http.Header
	status int
	body   []byte
}

// maxReply is how much of it is passed on.
const maxReply = 64 << 10

func (w *reply) Header() http.Header { return w.header }

func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

func (w *reply) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.body = append(w.body, p[:min(len(p), maxReply-len(w.body))]...)
	return len(p), nil
}

// Interface guard
var _ http.ResponseWriter = (*reply)(nil)
