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

// A call is a request of the client and its answer.
type call struct {
	run     *run
	message *jsonrpc.Message
	key     string // its id
	ctx     context.Context
	hangUp  context.CancelFunc

	session *session // nil for modern requests, and before there is one
	opens   bool     // it is an initialize
	opened  bool     // and has succeeded

	at       streamable.Position
	answered bool
	linger   *time.Timer     // hangs up some time after the answer
	sent     <-chan struct{} // closed when the next message may be sent
	markSent func()

	// Guarded by the mutex of the run.
	begun    bool // it is with the server, or on its way
	canceled bool // the client does not want the answer anymore
}

// request sends a request. It returns when the server has it, so that the next message of
// the client arrives after it. If too many requests are with the server it returns at once,
// and the request is sent later. It waits for the answer to initialize, which later
// messages need.
func (r *run) request(m *jsonrpc.Message) {
	c := &call{run: r, message: m, key: keyOf(m, jsonrpc.ID), session: r.session}
	switch {
	case m.Has(jsonrpc.ProtocolVersion):
		c.session = nil
	case m.Is(jsonrpc.Method, "initialize"):
		c.session, c.opens = nil, true
	}
	sent, markSent := context.WithCancel(context.Background())
	c.sent, c.markSent = sent.Done(), markSent
	c.ctx, c.hangUp = context.WithCancel(r.ctx)
	if !r.add(c) {
		c.hangUp()
		r.say(tooManyRequests.Append(nil, m.Literal(jsonrpc.ID)))
		return
	}
	select {
	case r.active <- struct{}{}:
		c.begun = true
	default:
	}
	wait := c.begun || c.opens
	r.running.Go(func() {
		defer r.remove(c)
		defer c.hangUp()
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
	if c.opened {
		r.replaceSession(c.session)
	}
}

var tooManyRequests = &jsonrpc.Failure{
	Status:  http.StatusTooManyRequests,
	Code:    jsonrpc.CodeInternalError,
	Message: "too many requests have no answer yet",
	Data:    jsonrpc.FailureData{Symbol: "rate_limited"},
}

// keyOf returns an id in a form that is equal for equal ids, however they are spelled.
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
	if r.count >= maxCalls || r.held+len(c.message.Raw) > maxHeld {
		return false
	}
	r.count++
	r.held += len(c.message.Raw)
	r.calls[c.key] = c
	return true
}

func (r *run) remove(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count--
	r.held -= len(c.message.Raw)
	if r.calls[c.key] == c {
		delete(r.calls, c.key)
	}
	maps.DeleteFunc(r.asked, func(_ string, asks *call) bool { return asks == c })
}

// cancel passes on that a request is canceled. In the modern era that is done by hanging
// up, without a message.
func (r *run) cancel(m *jsonrpc.Message) {
	r.mu.Lock()
	c := r.calls[keyOf(m, jsonrpc.RequestID)]
	unsent := false
	if c != nil {
		c.canceled = true
		unsent = !c.begun
	}
	r.mu.Unlock()
	switch {
	case c == nil && r.session == nil:
		return // it is too late, and there is no session to tell it in
	case c == nil:
	case unsent, c.message.Has(jsonrpc.ProtocolVersion):
		c.hangUp()
		return
	default:
		select {
		case <-c.sent:
		case <-r.ctx.Done():
		}
	}
	r.deliver(m)
}

// dismiss ends the calls that need the client after the end of its input: those it has
// canceled, those that listen, and those that ask it something.
func (r *run) dismiss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, c := range r.asked {
		c.hangUp()
	}
	for _, c := range r.calls {
		if c.canceled || c.message.Is(jsonrpc.Method, mcp.MethodListen) {
			c.canceled = true
			c.hangUp()
		}
	}
}

// serve gets the client its answer, unless it cancels the request.
func (c *call) serve() {
	if !c.begun {
		select {
		case c.run.active <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
	}
	defer func() { <-c.run.active }()
	if !c.run.begin(c) {
		return
	}
	if failure := c.exchange(); failure != nil && !c.run.isCanceled(c) {
		c.run.say(failure.Append(nil, c.message.Literal(jsonrpc.ID)))
	}
}

// begin notes that a call goes to the server, unless it is canceled.
func (r *run) begin(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.begun = c.begun || !c.canceled
	return c.begun
}

func (r *run) isCanceled(c *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.canceled
}

// exchange sends the request and passes on the answer. It returns a failure to answer in
// its place.
func (c *call) exchange() *jsonrpc.Failure {
	ctx := c.ctx
	if !c.opens {
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
	if c.opens {
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

// read passes on the messages of a response. It returns a failure if the answer is neither
// one of them nor in the rest of a stream.
func (c *call) read(res *http.Response) *jsonrpc.Failure {
	reader := &streamable.Reader{Limit: maxMessage, Position: &c.at}
	reader.OnMessage = func(e *streamable.Event) error {
		switch {
		case !e.HasMessage():
		case c.isAnswer(e.Message):
			c.answer(e.Message)
		case e.Message.Has(jsonrpc.Error) && e.Message.Kind(jsonrpc.ID) == jsonspan.Null:
			// The server could not read the request, but the client waits for it.
			c.run.say(jsonspan.Spliced(e.Data, e.Message.Replace(jsonrpc.ID, c.message.Literal(jsonrpc.ID))))
			c.answered = true
		case !reader.IsStream():
		default:
			if e.Message.IsRequest() {
				c.run.asks(c, e.Message)
			}
			c.run.say(e.Data)
		}
		return nil
	}
	defer func() {
		if c.linger != nil {
			c.linger.Stop()
		}
	}()
	lost := c.session.lost(res) && !c.opens
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
		c.run.log(c.ctx, "response broke off", err)
	}
	switch {
	case reader.IsStream() && res.StatusCode/100 == 2:
		return nil
	case err != nil:
		return jsonrpc.ConnectError("", jsonrpc.CauseLost)
	}
	return reader.Failure("")
}

// resume asks for the rest of a stream that ended before the answer, if the server has
// said how.
func (c *call) resume() *jsonrpc.Failure {
	const maxAttempts = 10 // in a row that bring nothing
	if c.session == nil || c.at.ID == "" || c.run.isCanceled(c) || c.at.Attempts == maxAttempts || !c.at.Wait(c.ctx) {
		return jsonrpc.ConnectError("", jsonrpc.CauseLost)
	}
	res, err := c.session.get(c.ctx, &c.at)
	switch {
	case err != nil:
		c.run.log(c.ctx, "stream not resumed", err)
		return nil
	case isStream(res):
		return c.read(res)
	}
	discard(res)
	switch {
	case c.session.lost(res):
		return jsonrpc.UnknownSession()
	case res.StatusCode/100 != 5:
		return jsonrpc.ConnectError("", jsonrpc.CauseLost)
	}
	return nil
}

// asks notes that the server asks the client something before it goes on with a call. After
// the end of the input no answer can come, so the call ends.
func (r *run) asks(c *call, m *jsonrpc.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		c.hangUp()
	case len(r.asked) < maxCalls:
		r.asked[string(m.Literal(jsonrpc.ID))] = c
	}
}

// answered notes that the client has answered a question of the server.
func (r *run) answered(m *jsonrpc.Message) {
	if m.Has(jsonrpc.Method) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.asked, func(id string, _ *call) bool { return jsonrpc.SameID([]byte(id), m.Literal(jsonrpc.ID)) })
}

// isAnswer reports whether m answers the call. Some servers write "error":null into
// results.
func (c *call) isAnswer(m *jsonrpc.Message) bool {
	return !m.Has(jsonrpc.Method) && (m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error)) &&
		jsonrpc.SameID(m.Literal(jsonrpc.ID), c.message.Literal(jsonrpc.ID))
}

// answer passes on the answer, and learns from it what later requests need. Then it hangs
// up, a little later.
func (c *call) answer(m *jsonrpc.Message) {
	result := m.Literal(jsonrpc.Result)
	switch {
	case result == nil:
	case c.opens:
		c.opened = true
		c.session.read(result)
	case c.message.Has(jsonrpc.ProtocolVersion) && c.message.Is(jsonrpc.Method, "tools/list"):
		c.run.learn(c.message, result)
	}
	c.run.say(m.Raw)
	c.markSent()
	if !c.answered {
		c.answered = true
		c.linger = time.AfterFunc(lingerTime, c.hangUp)
	}
}

// learn takes from a page of the list of tools which of their arguments are repeated in
// headers.
func (r *run) learn(m *jsonrpc.Message, result []byte) {
	var params struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(m.Literal(jsonrpc.Params), &params) // the server has read it
	r.mu.Lock()
	defer r.mu.Unlock()
	if params.Cursor == "" || r.params == nil {
		r.params = mcp.ParamHeaders{}
	}
	if _, err := r.params.Add(result); err != nil {
		r.log(r.ctx, "list of tools not understood", err)
	}
}
