// Package bridge makes a server of MCP's Streamable HTTP transport one that speaks on
// two streams, as clients have it that start their servers as processes.
//
// Messages pass as they are. What HTTP needs besides them the bridge adds and takes
// off again: the session and the stream of the legacy era, the headers of the modern
// one, and the connection that a modern request is canceled by.
package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

const (
	maxLine    = 64 << 20  // bytes of a message from the client
	maxMessage = 256 << 20 // bytes of a message to the client
	maxActive  = 256       // requests that are with the server at once
	maxCalls   = 4096      // requests that have no answer yet
	maxHeld    = 256 << 20 // their bytes

	deliverTimeout = 30 * time.Second // for the server to accept what has no answer
	deleteTimeout  = 5 * time.Second  // for the server to end a session
	lingerTime     = time.Second      // for a stream to end after its answer
)

// A Bridge carries messages between a client's streams and an endpoint.
type Bridge struct {
	// Transport makes the HTTP requests. It must tell when it has written one, as
	// that of net/http does (see [net/http/httptrace]): what a client says of a
	// request, such as that it is canceled, must not arrive before it.
	Transport http.RoundTripper

	// URL is that of the endpoint.
	URL string

	// Log, if there is one, is told what neither side is. It may be called by many
	// at once.
	Log func(message string, err error)
}

// Run carries messages, one on a line, from in to the endpoint and from there to out.
//
// When in ends, Run waits for the answers that are still to come, ends the session and
// returns nil. When ctx is done or out cannot be written to, it does not wait, and
// returns why. Then nothing of it is left but a Read or Write that does not return;
// whoever has to, closes in and out.
func (b *Bridge) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &run{
		Bridge: b,
		ctx:    ctx,
		stop:   stop,
		out:    make(chan []byte),
		active: make(chan struct{}, maxActive),
		calls:  map[string]*call{},
		asked:  map[string]*call{},
	}
	lines := make(chan line)
	go readLines(in, lines, ctx.Done())
	written := make(chan struct{})
	go func() {
		defer close(written)
		r.write(out)
	}()

	err := r.forward(lines)
	r.dismiss()
	r.running.Wait()
	if r.session != nil {
		r.session.close() // which ends its stream, if the server is quick
		r.session.cancel()
	}
	r.listening.Wait()
	close(r.out)
	select {
	case <-written:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// A run is a Bridge at work.
type run struct {
	*Bridge
	ctx  context.Context
	stop context.CancelCauseFunc
	out  chan []byte

	session   *session // of the legacy era; nil before initialize has succeeded
	running   sync.WaitGroup
	listening sync.WaitGroup
	active    chan struct{} // one for each request that is with the server

	mu     sync.Mutex
	calls  map[string]*call // by id
	count  int              // of calls, including those whose id was used again
	held   int              // their bytes
	asked  map[string]*call // questions of the server, by their ids: the calls that wait for answers
	ended  bool             // the client has said all, and will answer nothing
	params mcp.ParamHeaders
}

// write writes lines. It does nothing else, so that nobody waits for a client that
// does not read when there is no point in it any more.
func (r *run) write(out io.Writer) {
	for text := range r.out {
		if _, err := out.Write(text); err != nil {
			r.stop(fmt.Errorf("write message: %w", err))
			return
		}
	}
}

// say sends a message, whose bytes it takes over, to the client.
func (r *run) say(message []byte) {
	if r.ctx.Err() != nil {
		return
	}
	message = bytes.TrimSpace(message)
	select {
	case r.out <- append(jsonspan.AppendLine(message[:0], message), '\n'):
	case <-r.ctx.Done():
	}
}

func (r *run) log(message string, err error) {
	if r.Log != nil && r.ctx.Err() == nil {
		r.Log(message, err)
	}
}

// forward takes lines until there are no more.
func (r *run) forward(lines <-chan line) error {
	for {
		select {
		case <-r.ctx.Done():
			return nil
		case l := <-lines:
			switch {
			case l.err == io.EOF:
				return nil
			case errors.Is(l.err, errTooLong):
				r.say(jsonrpc.PayloadTooLarge().Append(nil, nil))
			case l.err != nil:
				return fmt.Errorf("read message: %w", l.err)
			default:
				r.take(l.text)
			}
		}
	}
}

// take sends a message to the server. It returns when the next one may be sent.
func (r *run) take(text []byte) {
	m := new(jsonrpc.Message)
	if failure := m.ReadRequest(text); failure != nil {
		r.say(failure.Append(nil, nil))
		return
	}
	switch {
	case m.IsRequest():
		r.request(m)
	case m.Is(jsonrpc.Method, "notifications/cancelled"):
		r.cancel(m)
	case m.Has(jsonrpc.Method), m.Has(jsonrpc.Result), m.Has(jsonrpc.Error):
		r.answered(m)
		r.deliver(m)
	default:
		r.say(jsonrpc.InvalidRequest("the message is neither a request nor an answer").Append(nil, m.Literal(jsonrpc.ID)))
	}
}

// deliver sends a message that has no answer, and waits until it is accepted.
func (r *run) deliver(m *jsonrpc.Message) {
	ctx, cancel := context.WithTimeout(r.ctx, deliverTimeout)
	defer cancel()
	res, err := r.send(ctx, http.MethodPost, m.Raw, r.header(m, r.session))
	if err != nil {
		r.log("message not delivered", err)
		return
	}
	discard(res)
	switch {
	case r.session.lost(res):
		r.log("message not delivered", errSessionEnded)
	case res.StatusCode/100 != 2:
		r.log("message not delivered", statusError(res.StatusCode))
	case m.Is(jsonrpc.Method, "notifications/initialized") && r.session != nil && !m.Has(jsonrpc.ProtocolVersion):
		r.session.listen()
	}
}

// header returns the headers of a message that is sent, in a session or in none.
func (r *run) header(m *jsonrpc.Message, s *session) http.Header {
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	header.Set("Accept", "application/json, text/event-stream")
	if !m.Has(jsonrpc.ProtocolVersion) {
		s.sign(header)
		return header
	}
	mcp.SetModern(header, m, m.Text(jsonrpc.ProtocolVersion))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.params.Set(header, m)
	return header
}

// send makes an HTTP request.
func (r *run) send(ctx context.Context, method string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = header
	return r.Transport.RoundTrip(req)
}

// discard closes a response that says nothing. It reads a little of it first, so that
// the connection can be used again.
func discard(res *http.Response) {
	const little = 64 << 10
	_, _ = io.CopyN(io.Discard, res.Body, little)
	res.Body.Close()
}

// statusError is an HTTP status as an error.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", int(e)) }
