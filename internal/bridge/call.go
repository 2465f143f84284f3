package bridge

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A call is a request of the client and its response.
type call struct {
	run     *run
	message *jsonrpc.Message
	key     string // normalized id
	ctx     context.Context
	cancel  context.CancelFunc

	session      *session // nil for modern requests, and before initialize
	isInitialize bool
	initialized  bool // initialize has succeeded

	position streamable.Position
	answered bool
	linger   *time.Timer     // cancels the call some time after the response
	sent     <-chan struct{} // closed when the next message may be sent
	markSent func()

	// Guarded by the mutex of the run.
	started  bool // the request has been sent, or is about to be
	canceled bool // the client does not want the response anymore
}

// request sends a request. It returns when the server has received it, so that the next message of
// the client arrives after it. If too many requests are active it returns at once, and the request
// is sent later. It waits for the response to initialize, because later messages need it.
func (r *run) request(m *jsonrpc.Message) {
	c := &call{run: r, message: m, key: keyOf(m, jsonrpc.ID), session: r.session}
	switch {
	case m.Has(jsonrpc.ProtocolVersion):
		c.session = nil
	case m.Is(jsonrpc.Method, "initialize"):
		c.session, c.isInitialize = nil, true
	}
	sent, markSent := context.WithCancel(context.Background())
	c.sent, c.markSent = sent.Done(), markSent
	c.ctx, c.cancel = context.WithCancel(r.ctx)
	if !r.add(c) {
		c.cancel()
		r.sendToClient(tooManyRequests.Append(nil, m.Literal(jsonrpc.ID)))
		return
	}
	select {
	case r.active <- struct{}{}:
		c.started = true
	default:
	}
	wait := c.started || c.isInitialize
	r.running.Go(func() {
		defer r.remove(c)
		defer c.cancel()
		defer c.markSent()
		c.serve()
	})
	if !wait {
		return
	}
	select {
	case <-c.sent:
	case <-r.ctx.Done():
		return
	}
	if c.initialized {
		r.replaceSession(c.session)
	}
}

var tooManyRequests = &jsonrpc.Failure{
	Status:  http.StatusTooManyRequests,
	Code:    jsonrpc.CodeInternalError,
	Message: "too many requests without a response",
	Data:    jsonrpc.FailureData{Symbol: "rate_limited"},
}

// keyOf returns an id in a form that is equal for equal ids, however they are encoded.
func keyOf(m *jsonrpc.Message, f jsonrpc.Field) string {
	if m.Kind(f) == jsonspan.String {
		return `"` + m.Text(f)
	}
	return string(m.Literal(f))
}

// add registers a call, if there is room for it.
func (r *run) add(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count >= maxCalls || r.heldBytes+len(c.message.Raw) > maxHeld {
		return false
	}
	r.count++
	r.heldBytes += len(c.message.Raw)
	r.calls[c.key] = c
	return true
}

func (r *run) remove(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	r.heldBytes -= len(c.message.Raw)
	if r.calls[c.key] == c {
		delete(r.calls, c.key)
	}
	maps.DeleteFunc(r.awaitingClient, func(_ string, waiting *call) bool { return waiting == c })
}

// cancel forwards a cancellation. In the modern era, closing the connection cancels a request,
// without a message.
func (r *run) cancel(m *jsonrpc.Message) {
	r.mu.Lock()
	c := r.calls[keyOf(m, jsonrpc.RequestID)]
	unsent := false
	if c != nil {
		c.canceled = true
		unsent = !c.started
	}
	r.mu.Unlock()
	switch {
	case c == nil && r.session == nil:
		return // too late, and without a session the server cannot be told
	case c == nil:
	case unsent, c.message.Has(jsonrpc.ProtocolVersion):
		c.cancel()
		return
	default:
		select {
		case <-c.sent:
		case <-r.ctx.Done():
		}
	}
	r.deliver(m)
}

// endCallsAfterInput ends the calls that need the client after the end of its input: those that it
// has canceled, listeners, and those that wait for the response to a server request.
func (r *run) endCallsAfterInput() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inputEnded = true
	for _, c := range r.awaitingClient {
		c.cancel()
	}
	for _, c := range r.calls {
		if c.canceled || c.message.Is(jsonrpc.Method, mcp.MethodListen) {
			c.canceled = true
			c.cancel()
		}
	}
}

// serve sends the client a response, unless it cancels the request.
func (c *call) serve() {
	if !c.started {
		select {
		case c.run.active <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
	}
	defer func() { <-c.run.active }()
	if !c.run.markStarted(c) {
		return
	}
	if failure := c.exchange(); failure != nil && !c.run.isCanceled(c) {
		c.run.sendToClient(failure.Append(nil, c.message.Literal(jsonrpc.ID)))
	}
}

// markStarted notes that a call is being sent, unless it is canceled.
func (r *run) markStarted(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.started = c.started || !c.canceled
	return c.started
}

func (r *run) isCanceled(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.canceled
}

// exchange sends the request and forwards the response. It returns a failure to send instead.
func (c *call) exchange() *jsonrpc.Failure {
	ctx := c.ctx
	if !c.isInitialize {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				c.markSent()
			}
		}})
	}
	res, err := c.run.post(ctx, c.message, c.session)
	if err != nil {
		c.run.log(c.ctx, "request failed", err)
		return jsonrpc.ConnectError("", jsonrpc.CauseNoRoute)
	}
	if c.isInitialize {
		c.session = newSession(c.run, res.Header.Get(mcp.SessionHeader))
	} else {
		c.markSent()
	}
	failure := c.read(res)
	for !c.answered && failure == nil {
		failure = c.resume()
	}
	return failure
}

// read forwards the messages of an HTTP response. It returns a failure if the response to the call
// is not among them and cannot follow when the stream is resumed.
func (c *call) read(res *http.Response) *jsonrpc.Failure {
	reader := &streamable.Reader{Limit: maxMessage, Position: &c.position}
	reader.OnMessage = func(e *streamable.Event) error {
		switch {
		case !e.HasMessage():
		case c.isResponse(e.Message):
			c.forwardResponse(e.Message)
		case e.Message.Has(jsonrpc.Error) && e.Message.Kind(jsonrpc.ID) == jsonspan.Null:
			// The server could not parse the request, but the client waits for it.
			c.run.sendToClient(jsonspan.Spliced(e.Data, e.Message.Replace(jsonrpc.ID, c.message.Literal(jsonrpc.ID))))
			c.answered = true
		case !reader.IsStream():
		default:
			if e.Message.IsRequest() {
				c.run.noteServerRequest(c, e.Message)
			}
			c.run.sendToClient(e.Data)
		}
		return nil
	}
	defer func() {
		if c.linger != nil {
			c.linger.Stop()
		}
	}()
	lost := c.session.checkLost(res) && !c.isInitialize
	err := reader.ReadResponse(res)
	fault := reader.Fault("")
	switch {
	case c.answered:
		return nil
	case lost:
		return jsonrpc.UnknownSession()
	case fault != nil:
		return fault
	case err != nil:
		c.run.log(c.ctx, "response ended early", err)
	}
	switch {
	case reader.IsStream() && res.StatusCode/100 == 2:
		return nil
	case err != nil:
		return jsonrpc.ConnectError("", jsonrpc.CauseLost)
	}
	return reader.Failure("")
}

// resume requests the rest of a stream that ended before the response, if the stream had an event
// ID.
func (c *call) resume() *jsonrpc.Failure {
	const maxAttempts = 10 // in a row without a message
	if c.session == nil || c.position.ID == "" || c.run.isCanceled(c) || c.position.Attempts == maxAttempts ||
		!c.position.Wait(c.ctx) {
		return jsonrpc.ConnectError("", jsonrpc.CauseLost)
	}
	res, err := c.session.get(c.ctx, &c.position)
	switch {
	case err != nil:
		c.run.log(c.ctx, "stream not resumed", err)
		return nil
	case isStream(res):
		return c.read(res)
	}
	discard(res)
	switch {
	case c.session.checkLost(res):
		return jsonrpc.UnknownSession()
	case res.StatusCode/100 != 5:
		return jsonrpc.ConnectError("", jsonrpc.CauseLost)
	}
	return nil
}

// noteServerRequest notes that a call waits for the client to answer a server request. After the
// end of the input no response can come, so the call ends.
func (r *run) noteServerRequest(c *call, m *jsonrpc.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.inputEnded:
		c.cancel()
	case len(r.awaitingClient) < maxCalls:
		r.awaitingClient[string(m.Literal(jsonrpc.ID))] = c
	}
}

// noteClientResponse notes that the client has answered a server request.
func (r *run) noteClientResponse(m *jsonrpc.Message) {
	if m.Has(jsonrpc.Method) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.awaitingClient, func(id string, _ *call) bool {
		return jsonrpc.SameID([]byte(id), m.Literal(jsonrpc.ID))
	})
}

// isResponse reports whether m is the response to the call. Some servers write "error":null into
// results.
func (c *call) isResponse(m *jsonrpc.Message) bool {
	return !m.Has(jsonrpc.Method) && (m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error)) &&
		jsonrpc.SameID(m.Literal(jsonrpc.ID), c.message.Literal(jsonrpc.ID))
}

// forwardResponse forwards the response and stores what later requests need from it. It cancels the
// call after lingerTime.
func (c *call) forwardResponse(m *jsonrpc.Message) {
	result := m.Literal(jsonrpc.Result)
	switch {
	case result == nil:
	case c.isInitialize:
		c.initialized = true
		c.session.readVersion(result)
	case c.message.Has(jsonrpc.ProtocolVersion) && c.message.Is(jsonrpc.Method, "tools/list"):
		c.run.learnParamHeaders(c.message, result)
	}
	c.run.sendToClient(m.Raw)
	c.markSent()
	if !c.answered {
		c.answered = true
		c.linger = time.AfterFunc(lingerTime, c.cancel)
	}
}

// learnParamHeaders reads from a page of the tool list which arguments are repeated in headers.
func (r *run) learnParamHeaders(m *jsonrpc.Message, result []byte) {
	var params struct {
		Cursor *string `json:"cursor"` // an empty one is like any other
	}
	_ = json.Unmarshal(m.Literal(jsonrpc.Params), &params) // the server has accepted it
	r.mu.Lock()
	defer r.mu.Unlock()
	if params.Cursor == nil || r.params == nil {
		r.params = mcp.ParamHeaders{}
	}
	if _, err := r.params.Add(result); err != nil {
		r.log(r.ctx, "invalid list of tools", err)
	}
}
