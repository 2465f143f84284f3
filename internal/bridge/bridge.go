// Package bridge connects a client that speaks MCP on stdin and stdout to a server of the
// Streamable HTTP transport.
//
// Messages pass unchanged. The bridge adds and removes what HTTP needs besides them: the session
// and the stream of the legacy era, and the headers of the modern era, in which closing the
// connection cancels a request.
package bridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

const (
	maxLine    = 64 << 20  // bytes of a message from the client
	maxMessage = 256 << 20 // bytes of a message to the client
	maxActive  = 256       // requests that the server handles at once
	maxCalls   = 4096      // requests without a response
	maxHeld    = 256 << 20 // bytes of these requests
	maxOneWay  = 64        // notifications and responses that the server has not accepted yet

	deliverTimeout = 30 * time.Second // for the server to accept a notification or response
	orderTime      = time.Second      // for that before the next message is sent
	deleteTimeout  = 5 * time.Second  // for the server to end a session
	lingerTime     = time.Second      // for a stream to end after its response
)

// A Bridge forwards messages between the streams of a client and an endpoint.
type Bridge struct {
	// Transport makes the HTTP requests. It must report when it has written one, as
	// net/http's does (see [net/http/httptrace]), so that a cancellation does not arrive
	// before its request.
	Transport http.RoundTripper

	// URL of the endpoint.
	URL string

	// Log, if not nil, is called with errors that neither side receives. It must be safe for
	// concurrent use.
	Log func(message string, err error)
}

// Run forwards messages, one per line, from in to the endpoint and from there to out.
//
// When in ends, Run waits for outstanding responses, ends the session and returns nil. When ctx is
// done or writing to out fails, it does not wait, and returns the error. The caller then closes in
// and out to end a blocked Read or Write.
func (b *Bridge) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := &run{
		Bridge:         b,
		ctx:            ctx,
		stop:           stop,
		out:            make(chan []byte),
		active:         make(chan struct{}, maxActive),
		oneWay:         make(chan struct{}, maxOneWay),
		calls:          map[string]*call{},
		awaitingClient: map[string]*call{},
	}
	lines := make(chan line)
	go readLines(in, lines, ctx.Done())
	written := make(chan struct{})
	go func() {
		defer close(written)
		r.write(out)
	}()

	err := r.forwardLines(lines)
	r.endCallsAfterInput()
	r.running.Wait()
	if r.session != nil {
		r.session.close() // most servers end the stream then
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

// A run is the state of one [Bridge.Run].
type run struct {
	*Bridge
	ctx  context.Context
	stop context.CancelCauseFunc
	out  chan []byte

	session   *session // legacy session; nil before initialize has succeeded
	running   sync.WaitGroup
	listening sync.WaitGroup
	active    chan struct{} // holds a value for each request at the server
	oneWay    chan struct{} // holds a value for each notification or response at the server

	mu             sync.Mutex
	calls          map[string]*call // by id
	count          int              // calls, including those whose id was reused
	heldBytes      int              // bytes of these calls
	awaitingClient map[string]*call // calls that wait for the response to a server request, by its id
	inputEnded     bool             // the client sends no more responses
	params         mcp.ParamHeaders
}

// write writes lines in its own goroutine, so that a client that does not read blocks nothing once
// ctx is done.
func (r *run) write(out io.Writer) {
	for text := range r.out {
		if _, err := out.Write(text); err != nil {
			r.stop(fmt.Errorf("write message: %w", err))
			return
		}
	}
}

// sendToClient sends a copy of a message to the client.
func (r *run) sendToClient(message []byte) {
	if r.ctx.Err() != nil {
		return
	}
	message = bytes.TrimSpace(message)
	line := jsonspan.AppendLine(make([]byte, 0, len(message)+1), message)
	select {
	case r.out <- append(line, '\n'):
	case <-r.ctx.Done():
	}
}

// log logs an error, unless ctx is done, which may be its cause.
func (r *run) log(ctx context.Context, message string, err error) {
	if r.Log != nil && ctx.Err() == nil {
		r.Log(message, err)
	}
}

// forwardLines sends lines to the server until the input ends.
func (r *run) forwardLines(lines <-chan line) error {
	for {
		select {
		case <-r.ctx.Done():
			return nil
		case l := <-lines:
			switch {
			case l.err == io.EOF:
				return nil
			case errors.Is(l.err, errTooLong):
				r.sendToClient(jsonrpc.PayloadTooLarge().Append(nil, nil))
			case l.err != nil:
				return fmt.Errorf("read message: %w", l.err)
			default:
				r.handleMessage(l.text)
			}
		}
	}
}

// handleMessage sends a message to the server. It returns when the next one may be sent.
func (r *run) handleMessage(text []byte) {
	m := new(jsonrpc.Message)
	if failure := m.ReadRequest(text); failure != nil {
		r.sendToClient(failure.Append(nil, nil))
		return
	}
	switch {
	case m.IsRequest():
		r.request(m)
	case m.Is(jsonrpc.Method, "notifications/cancelled"):
		r.cancel(m)
	case m.Has(jsonrpc.Method), m.Has(jsonrpc.Result), m.Has(jsonrpc.Error):
		r.noteClientResponse(m)
		r.deliver(m)
	default:
		failure := jsonrpc.InvalidRequest("the message is neither a request nor a response")
		r.sendToClient(failure.Append(nil, m.Literal(jsonrpc.ID)))
	}
}

// deliver sends a notification or a response. So that the next message arrives after it, it waits
// until the server accepts it, at most orderTime: the gateway accepts many messages only when its
// servers have, and one of these may be busy with a call.
func (r *run) deliver(m *jsonrpc.Message) {
	select {
	case r.oneWay <- struct{}{}:
	case <-r.ctx.Done():
		return
	}
	s, accepted := r.session, make(chan struct{})
	r.running.Go(func() {
		defer func() { <-r.oneWay }()
		defer close(accepted)
		r.postOneWay(m, s)
	})
	timer := time.NewTimer(orderTime)
	defer timer.Stop()
	select {
	case <-accepted:
	case <-timer.C:
	}
}

// postOneWay sends a notification or a response, and waits until the server accepts it.
func (r *run) postOneWay(m *jsonrpc.Message, s *session) {
	ctx, cancel := context.WithTimeout(r.ctx, deliverTimeout)
	defer cancel()
	res, err := r.post(ctx, m, s)
	if err != nil {
		r.log(r.ctx, "message not delivered", err)
		return
	}
	discard(res)
	switch {
	case s.checkLost(res):
		r.log(r.ctx, "message not delivered", errSessionEnded)
	case res.StatusCode/100 != 2:
		r.log(r.ctx, "message not delivered", statusError(res))
	case m.Is(jsonrpc.Method, "notifications/initialized") && s != nil && !m.Has(jsonrpc.ProtocolVersion):
		s.listen()
	}
}

// post sends a message: with the headers of a session, without, or with those of the modern era.
func (r *run) post(ctx context.Context, m *jsonrpc.Message, s *session) (*http.Response, error) {
	header := http.Header{}
	header.Set("Content-Type", "application/json")
	if m.Has(jsonrpc.ProtocolVersion) {
		streamable.Session{Era: mcp.Modern}.SetHeaders(header)
		mcp.SetModern(header, m, m.Text(jsonrpc.ProtocolVersion))
		r.mu.Lock()
		r.params.Set(header, m)
		r.mu.Unlock()
	} else {
		s.setHeaders(header)
	}
	return r.send(ctx, http.MethodPost, m.Raw, header)
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

// discard closes a response whose body does not matter. It reads some of it first, so that the
// connection can be reused.
func discard(res *http.Response) {
	const maxRead = 64 << 10
	_, _ = io.CopyN(io.Discard, res.Body, maxRead)
	res.Body.Close()
}

func statusError(res *http.Response) error { return fmt.Errorf("HTTP status %d", res.StatusCode) }

var errSessionEnded = errors.New("the session has ended")

// A session is a legacy session. A nil session is for messages without one.
type session struct {
	streamable.Session
	run       *run
	ctx       context.Context
	cancel    context.CancelFunc
	listening atomic.Bool
	ended     atomic.Bool // the server does not know it anymore
}

func newSession(r *run, id string) *session {
	s := &session{run: r, Session: streamable.Session{ID: id}}
	s.ctx, s.cancel = context.WithCancel(r.ctx)
	return s
}

// readVersion takes the protocol version from the result of initialize.
func (s *session) readVersion(result []byte) {
	var r struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if err := json.Unmarshal(result, &r); err == nil && !strings.ContainsFunc(r.ProtocolVersion, unicode.IsControl) {
		s.Version = r.ProtocolVersion
	}
}

// setHeaders sets the headers of the session.
func (s *session) setHeaders(header http.Header) {
	if s == nil {
		streamable.Session{}.SetHeaders(header)
		return
	}
	s.SetHeaders(header)
}

// checkLost reports whether a response says that the server does not know the session, and ends the
// session then.
func (s *session) checkLost(res *http.Response) bool {
	if s == nil || s.ID == "" || res.StatusCode != http.StatusNotFound {
		return false
	}
	s.ended.Store(true)
	s.cancel()
	return true
}

// replaceSession makes s the session of all later messages.
func (r *run) replaceSession(s *session) {
	before := r.session
	r.session = s
	if before != nil {
		before.cancel()
		before.close()
	}
}

// close ends the session at the server, even if the run is canceled.
func (s *session) close() {
	if s.ID == "" || s.ended.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), deleteTimeout)
	defer cancel()
	header := http.Header{}
	s.setHeaders(header)
	res, err := s.run.send(ctx, http.MethodDelete, nil, header)
	if err != nil {
		s.run.log(s.run.ctx, "session not ended", err)
		return
	}
	discard(res)
}

// listen opens the stream for messages outside of calls, and keeps it open.
func (s *session) listen() {
	if s.listening.Swap(true) {
		return
	}
	s.run.listening.Go(func() {
		defer s.cancel()
		var position streamable.Position
		for s.readStream(&position) && position.Wait(s.ctx) {
		}
	})
}

// readStream forwards the messages of the stream until it ends. It reports whether to open it
// again.
func (s *session) readStream(position *streamable.Position) bool {
	res, err := s.get(s.ctx, position)
	if err != nil {
		s.run.log(s.ctx, "session stream not opened", err)
		return true
	}
	defer res.Body.Close()
	switch {
	case s.checkLost(res):
		s.run.log(s.run.ctx, "session stream not opened", errSessionEnded)
		return false
	case res.StatusCode == http.StatusMethodNotAllowed, res.StatusCode == http.StatusNotFound:
		return false // the server has no such stream
	case !isStream(res):
		s.run.log(s.ctx, "session stream not opened", statusError(res))
		return res.StatusCode/100 != 2
	}
	reader := streamable.Reader{Limit: maxMessage, Position: position, OnMessage: func(e *streamable.Event) error {
		if e.HasMessage() {
			s.run.sendToClient(e.Data)
		}
		return nil
	}}
	_ = reader.ReadResponse(res) // a stream may end with any error
	return true
}

// get requests the rest of a stream, after position.
func (s *session) get(ctx context.Context, position *streamable.Position) (*http.Response, error) {
	header := http.Header{}
	s.SetGETHeaders(header, position.ID)
	return s.run.send(ctx, http.MethodGet, nil, header)
}

func isStream(res *http.Response) bool {
	return res.StatusCode == http.StatusOK && httpbody.TypeOf(res.Header.Get("Content-Type")) == httpbody.EventStream
}

// A line is a message or an error.
type line struct {
	text []byte
	err  error // errTooLong, or the end of the input
}

var errTooLong = errors.New("message too long")

// byteOrderMark precedes the output of some programs on Windows.
var byteOrderMark = []byte("\ufeff")

// readLines sends the lines of in that are not blank, then its final error, until done is closed.
func readLines(in io.Reader, lines chan<- line, done <-chan struct{}) {
	src := bufio.NewReaderSize(in, 64<<10)
	for {
		text, err := readLine(src)
		text = bytes.TrimPrefix(bytes.TrimSpace(text), byteOrderMark)
		if len(text) == 0 && err == nil {
			continue
		}
		select {
		case lines <- line{text, err}:
		case <-done:
			return
		}
		if err != nil && err != errTooLong {
			return
		}
	}
}

// readLine reads a line. A line that is too long is read to its end, but not kept.
func readLine(src *bufio.Reader) (text []byte, err error) {
	for tooLong := false; ; {
		piece, err := src.ReadSlice('\n')
		tooLong = tooLong || len(text)+len(piece) > maxLine+len("\r\n")
		if tooLong {
			text = nil
		} else {
			text = append(text, piece...)
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err == nil && tooLong:
			return nil, errTooLong
		case len(text) > 0:
			return text, nil // the next read returns the error
		default:
			return nil, err
		}
	}
}
