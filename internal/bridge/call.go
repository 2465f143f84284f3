package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A call is a request of the client and the answer to it.
type call struct {
	run     *run
	message *jsonrpc.Message
	key     string // its id
	ctx     context.Context
	hangUp  context.CancelFunc

	session *session // nil for modern requests, and before there is one
	opens   bool     // it is an initialize
	opened  bool     // and has succeeded

	state    atomic.Int32
	canceled atomic.Bool   // the client does not want the answer any more
	sent     chan struct{} // closed when what comes next may be sent
	markSent func()
}

// The states of a call.
const (
	waiting int32 = iota // for others to be answered
	begun                // it is with the server, or on its way
	dropped              // it was canceled before that
)

// request sends a request. It returns when the server has it, so that whatever the
// client sends next comes after it; but if too many are with the server, it is sent
// later. What follows on initialize needs what that brings.
func (r *run) request(m *jsonrpc.Message) {
	c := &call{run: r, message: m, key: keyOf(m, jsonrpc.ID), session: r.session, sent: make(chan struct{})}
	switch modern := m.Has(jsonrpc.ProtocolVersion); {
	case modern:
		c.session = nil
	case m.Is(jsonrpc.Method, "initialize"):
		c.session, c.opens = nil, true
	}
	c.markSent = sync.OnceFunc(func() { close(c.sent) })
	c.ctx, c.hangUp = context.WithCancel(r.ctx)
	if !r.add(c) {
		c.hangUp()
		r.say(tooManyRequests.Append(nil, m.Literal(jsonrpc.ID)))
		return
	}
	select {
	case r.active <- struct{}{}:
		c.state.Store(begun)
	default:
	}
	now := c.state.Load() == begun
	r.running.Go(func() {
		defer r.remove(c)
		defer c.hangUp()
		defer c.markSent()
		c.serve()
	})
	if !now && !c.opens {
		return
	}
	select {
	case <-c.sent:
	case <-r.ctx.Done():
		return
	}
	if c.opens && c.opened {
		r.replaceSession(c.session)
	}
}

var tooManyRequests = &jsonrpc.Failure{
	Status:  http.StatusTooManyRequests,
	Code:    jsonrpc.CodeInternalError,
	Message: "too many requests have no answer yet",
	Data:    jsonrpc.FailureData{Symbol: "rate_limited"},
}

// keyOf returns an id such that the same are equal however they are spelled.
func keyOf(m *jsonrpc.Message, f jsonrpc.Field) string {
	if m.Kind(f) == jsonspan.String {
		return `"` + m.Text(f)
	}
	return string(m.Literal(f))
}

// add makes c one of the calls, if there is room for it.
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

// cancel passes on that a request is canceled. In the modern era that is done by
// hanging up, and nothing is sent.
func (r *run) cancel(m *jsonrpc.Message) {
	r.mu.Lock()
	c := r.calls[keyOf(m, jsonrpc.RequestID)]
	r.mu.Unlock()
	switch {
	case c == nil && r.session == nil:
		return // it is too late, and there is nobody to tell
	case c == nil:
	case c.state.CompareAndSwap(waiting, dropped), c.message.Has(jsonrpc.ProtocolVersion):
		c.canceled.Store(true)
		c.hangUp()
		return
	default:
		c.canceled.Store(true)
		select {
		case <-c.sent:
		case <-r.ctx.Done():
		}
	}
	r.deliver(m)
}

// dismiss ends the calls that nobody will wait for once the client has said all.
func (r *run) dismiss() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, c := range r.asked {
		c.hangUp()
	}
	for _, c := range r.calls {
		if c.canceled.Load() || c.message.Is(jsonrpc.Method, mcp.MethodListen) {
			c.canceled.Store(true)
			c.hangUp()
		}
	}
}

// serve has the client get an answer, unless it does not want one.
func (c *call) serve() {
	if c.state.Load() != begun {
		select {
		case c.run.active <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
	}
	defer func() { <-c.run.active }()
	if c.state.CompareAndSwap(waiting, begun); c.state.Load() == dropped {
		return
	}
	if failure := c.exchange(); failure != nil && !c.canceled.Load() {
		c.run.say(failure.Append(nil, c.message.Literal(jsonrpc.ID)))
	}
}

// exchange sends the request and passes on the answer. What it returns is to be
// answered in its place.
func (c *call) exchange() *jsonrpc.Failure {
	ctx := c.ctx
	if !c.opens {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				c.markSent()
			}
		}})
	}
	res, err := c.run.send(ctx, http.MethodPost, c.message.Raw, c.run.header(c.message, c.session))
	if err != nil {
		c.log("request failed", err)
		return jsonrpc.ConnectError("")
	}
	defer res.Body.Close()
	if c.opens {
		c.session = newSession(c.run, res.Header.Get(mcp.SessionHeader))
	} else {
		c.markSent()
	}
	if res.StatusCode/100 == 2 && httpbody.TypeOf(res.Header.Get("Content-Type")) == httpbody.EventStream {
		return c.stream(res.Body)
	}
	return c.whole(res)
}

func (c *call) log(message string, err error) {
	if c.ctx.Err() == nil {
		c.run.log(message, err)
	}
}

// whole passes on a response that is one message.
func (c *call) whole(res *http.Response) *jsonrpc.Failure {
	body, err := io.ReadAll(io.LimitReader(res.Body, maxMessage+1))
	lost := c.session.lost(res) && !c.opens
	switch {
	case err != nil:
		c.log("response broke off", err)
		return jsonrpc.ConnectError("")
	case len(body) > maxMessage:
		return jsonrpc.ResponseTooLarge("")
	}
	var m jsonrpc.Message
	failure := m.Read(body)
	switch {
	case c.isAnswer(&m):
		c.answer(&m)
		return nil
	case m.Has(jsonrpc.Error) && m.Kind(jsonrpc.ID) == jsonspan.Null:
		// Whoever has refused the request had not read it, but the client waits.
		c.run.say(withID(&m, c.message.Literal(jsonrpc.ID)))
		return nil
	case lost:
		return jsonrpc.UnknownSession()
	case res.StatusCode/100 != 2:
		return jsonrpc.HTTPError("", res.StatusCode)
	case failure != nil && failure.Code == jsonrpc.CodeParseError:
		return jsonrpc.InvalidJSON("")
	}
	return jsonrpc.InvalidResponse("")
}

// withID returns a message with another id.
func withID(m *jsonrpc.Message, id []byte) []byte {
	var b bytes.Buffer
	_ = jsonspan.Splice(&b, m.Raw, []jsonspan.Edit{m.Replace(jsonrpc.ID, id)}) // into memory
	return b.Bytes()
}

// stream passes on a response that is a stream of events. If it ends before the
// answer, the rest is asked for, if the server has said how.
func (c *call) stream(body io.Reader) *jsonrpc.Failure {
	const maxTries = 10 // in a row that bring nothing
	var at position
	answered, failure := c.follow(body, &at)
	for tries := 0; !answered && failure == nil; tries++ {
		if c.session == nil || at.id == "" || c.canceled.Load() || tries == maxTries || !backoff.Sleep(c.ctx, max(at.retry, reconnect.Pause(tries))) {
			return jsonrpc.ConnectError("")
		}
		before := at.count
		res, err := c.run.send(c.ctx, http.MethodGet, nil, c.session.listenHeader(&at))
		if err != nil {
			c.log("stream not resumed", err)
			continue
		}
		switch {
		case isStream(res):
			answered, failure = c.follow(res.Body, &at)
		case c.session.lost(res):
			failure = jsonrpc.UnknownSession()
		case res.StatusCode/100 != 5:
			failure = jsonrpc.ConnectError("")
		}
		res.Body.Close()
		if at.count > before {
			tries = -1
		}
	}
	return failure
}

// follow passes on the messages of a stream, and reports whether the answer was one
// of them.
func (c *call) follow(body io.Reader, at *position) (answered bool, failure *jsonrpc.Failure) {
	for events := newEventReader(body, at); ; {
		e, err := events.next()
		switch {
		case err == io.EOF:
			return answered, nil
		case err != nil:
			if !answered {
				c.log("stream broke off", err)
			}
			return answered, nil
		case e.tooLarge && !answered:
			return false, jsonrpc.ResponseTooLarge("")
		}
		m := c.run.message(e)
		switch {
		case m == nil:
		case c.isAnswer(m):
			c.answer(m)
			if !answered { // what follows belongs to nothing
				answered = true
				defer time.AfterFunc(lingerTime, c.hangUp).Stop()
			}
		default:
			if m.IsRequest() {
				c.run.asks(c, m)
			}
			c.run.say(m.Raw)
		}
	}
}

// asks notes that the server waits for an answer of the client before it goes on with a
// call. If there will be none, nobody waits for the call.
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

// message returns the message that an event carries, or nil.
func (r *run) message(e event) *jsonrpc.Message {
	if e.tooLarge {
		r.log("message from the server dropped", errTooLong)
		return nil
	}
	if !e.message || len(bytes.TrimSpace(e.data)) == 0 {
		return nil
	}
	m := new(jsonrpc.Message)
	if failure := m.Read(e.data); failure != nil {
		r.log("event from the server dropped", failure)
		return nil
	}
	return m
}

// isAnswer reports whether m is what the client waits for. There are servers that
// write "error":null into results.
func (c *call) isAnswer(m *jsonrpc.Message) bool {
	return !m.Has(jsonrpc.Method) && (m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error)) &&
		jsonrpc.SameID(m.Literal(jsonrpc.ID), c.message.Literal(jsonrpc.ID))
}

// answer passes on the answer, and learns what later requests need of it.
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
}

// learn notes which arguments of tools go into headers, too, from a page of the list
// of tools.
func (r *run) learn(m *jsonrpc.Message, result []byte) {
	var params struct {
		Cursor string `json:"cursor"`
	}
	_ = json.Unmarshal(m.Literal(jsonrpc.Params), &params) // the server has understood it
	r.mu.Lock()
	defer r.mu.Unlock()
	if params.Cursor == "" || r.params == nil {
		r.params = mcp.ParamHeaders{}
	}
	if _, err := r.params.Add(result); err != nil {
		r.log("list of tools not understood", err)
	}
}
