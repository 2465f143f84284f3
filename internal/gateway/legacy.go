package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A client of the modern era calls a server of the legacy one. When the server asks a question
// during the call, the client gets a result that asks for input, and makes the call again
// with its answers. Meanwhile the call to the server stays open.

// How many calls can be held open for clients that owe an answer, and for each of them:
// by its identity or, if that is unknown, by its address.
const maxHeldCalls, maxHeldOfOne = 1_000, 32

// heldCallLimits also bound the bytes of their messages.
var heldCallLimits = quota.Limits{Entries: maxHeldCalls, OwnerEntries: maxHeldOfOne, Bytes: 128 << 20, OwnerBytes: 32 << 20}

// A heldCall is a call to a server of the legacy era.
type heldCall struct {
	behalf // which outlives the request of the client
	key    string
	bytes  int64 // of its message, which may have to be sent again
	client *client
	link   *link
	cancel context.CancelFunc

	about     string           // what the client has called, which it goes on with
	goal      string           // what it looks for in the answer
	messages  chan heldMessage // of the server
	answering chan struct{}    // closed when the answer comes: no more questions are asked
	done      chan struct{}    // closed when there are no more
	failure   *jsonrpc.Failure

	annotations mcp.Annotations // of the tool that is called
	traffic     traffic         // of its exchanges, until done is closed

	questions map[string][]byte // that have been asked, with the ids that the server gave them
	expires   *time.Timer
	hearing   atomic.Pointer[streamable.Reader] // of the server
}

// A heldMessage is a message of a server, or an answer that is too large to be held, as
// it comes.
type heldMessage struct {
	message jsonrpc.Message
	names   []foundName
	large   *io.PipeReader
	typed   bool // the large one says itself what type of result it is
}

// keep returns a message of the server that outlives the Reader that read it.
func (held *heldCall) keep(m *jsonrpc.Message, names []foundName) heldMessage {
	kept := heldMessage{message: *m, names: slices.Clone(names)}
	kept.message.Raw = slices.Clone(m.Raw)
	return kept
}

// toLegacy passes the request on to a server of the legacy era, or goes on with one
// that was.
func (c *call) toLegacy() *jsonrpc.Failure {
	held := c.takeUp()
	switch {
	case held != nil:
		if failure := held.reply(c); failure != nil {
			held.abandon()
			return c.failed(failure)
		}
	case c.message.Has(jsonrpc.RequestState):
		return invalid("requestState: not known, or not anymore")
	default:
		m, failure := withoutModernMeta(&c.message)
		if failure == nil {
			failure = c.checkParams(&m)
		}
		if failure != nil {
			return failure
		}
		if held, failure = c.hold(&m); failure != nil {
			return failure
		}
	}
	c.passedOn = true
	return held.serve(c)
}

// withoutModernMeta returns a request of the modern era as one of the legacy era: without
// what it says of its client, by which servers of both eras would take it for modern.
func withoutModernMeta(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	if m.Kind(jsonrpc.Meta) != jsonspan.BeginObject {
		return *m, nil
	}
	meta := m.Literal(jsonrpc.Meta)
	kept := []byte{'{'}
	for member := range jsonspan.Members(meta) {
		if strings.HasPrefix(member.Key, mcp.MetaPrefix) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, meta[member.Start:member.End]...)
	}
	return m.Edited(m.Replace(jsonrpc.Meta, append(kept, '}')))
}

// checkParams checks that the headers of a call repeat its arguments where its tool says so. A
// server of the legacy era cannot.
func (c *call) checkParams(m *jsonrpc.Message) *jsonrpc.Failure {
	if c.found || c.client.knownList(c.g, c.server, tools) == nil && !mcp.HasParams(c.r.Header) {
		return nil // nothing is known that it could have to repeat
	}
	c.setParams(c.r.Header, m)
	return c.paramHeaders().Check(c.r.Header, m)
}

// takeUp returns the call that the request goes on with.
func (c *call) takeUp() *heldCall {
	if c.message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return nil
	}
	key, ok := c.g.sealer.Open("call", c.message.Text(jsonrpc.RequestState))
	if !ok {
		return nil
	}
	c.g.mu.Lock()
	defer c.g.mu.Unlock()
	held := c.g.held[string(key)]
	if held == nil || held.client != c.client || held.link != c.link || held.about != c.about() {
		return nil
	}
	c.g.unhold(held)
	return held
}

// hold makes a call that can outlive the request.
func (c *call) hold(m *jsonrpc.Message) (*heldCall, *jsonrpc.Failure) {
	l := c.link
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.visit.ctx))
	r := c.g.of(l).Upstream.Derive(ctx, c.r, false) // which is there when the request is not
	emptyBody(r, http.MethodPost)
	held := &heldCall{
		behalf:    behalf{ctx: ctx, g: c.g, r: r},
		client:    c.client,
		link:      l,
		cancel:    cancel,
		about:     c.about(),
		goal:      c.goal,
		messages:  make(chan heldMessage),
		answering: make(chan struct{}),
		done:      make(chan struct{}),
		questions: map[string][]byte{},

		annotations: c.caller.annotations,
	}
	level := c.message.Text(jsonrpc.LogLevel)
	held.bytes = int64(len(m.Raw))
	c.g.keep(c.client)
	go func() {
		defer held.g.release(held.client)
		defer held.g.retire(held)
		defer close(held.done)
		defer cancel()
		held.failure = held.run(level, m)
	}()
	return held, nil
}

// renumbered returns a request with an id that no other has: many clients call each of theirs 1.
func renumbered(m *jsonrpc.Message, id []byte) (jsonrpc.Message, *jsonrpc.Failure) {
	return m.Edited(m.ReplaceAll(id, jsonrpc.ID, jsonrpc.ProgressToken)...)
}

// run has the server answer.
func (held *heldCall) run(level string, m *jsonrpc.Message) *jsonrpc.Failure {
	l, ctx := held.link, held.ctx
	if level != "" {
		if _, can := l.state(); can&hasLogging != 0 {
			_, _ = l.request(held.behalf, "logging/setLevel", jsonrpc.Encode(map[string]string{"level": level}))
		}
	}
	return l.inSession(held.behalf, func(again bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		var read nameReader
		h := &streamable.Reader{RequestID: l.nextID(), Position: new(streamable.Position), Parse: read.parse}
		numbered, failure := renumbered(m, h.RequestID)
		if failure != nil {
			return h, "", failure
		}
		held.hearing.Store(h)
		defer l.held.begin(held, held.behalf)()
		l.held.await(ctx)
		r := held.g.of(l).Upstream.Derive(ctx, held.r, true)
		session, _ := l.setSessionHeaders(r)
		httpbody.Post(r, numbered.Raw)
		answered := false
		h.OnMessage = func(e *streamable.Event) error {
			if len(e.Data) == 0 || answered {
				return nil // the answer is the last message of a call
			}
			if e.Message.IsAnswer() {
				if !h.Answers(e.Message, h.RequestID) || h.SessionLost() && again {
					return nil
				}
				answered = true
				close(held.answering)
				h.Settle(e.Message)
			}
			if e.Message.IsRequest() {
				h.QuestionAsked()
			}
			select {
			case held.messages <- held.keep(e.Message, read.names):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var to *io.PipeWriter
		defer func() {
			if to != nil {
				to.CloseWithError(io.ErrUnexpectedEOF) // unless all of it has come
			}
		}()
		h.OnLarge = func(string) io.WriteCloser {
			if answered || h.SessionLost() && again {
				return nil
			}
			answered = true
			close(held.answering)
			var from *io.PipeReader
			from, to = io.Pipe()
			select {
			case held.messages <- heldMessage{large: from, typed: h.LargeHas(jsonrpc.ResultType)}:
				return &rewriting{largePaths.Rewrite(to, func(int, jsonspan.Kind, []byte) []byte { return nil }), to}
			case <-ctx.Done():
				return nil
			}
		}
		x := held.g.newExchange(l, h, &numbered)
		x.goal, x.caller.annotations, x.traffic = held.goal, held.annotations, &held.traffic
		failure = x.send(r)
		switch {
		case answered:
			failure = nil
		case failure == nil:
			failure = h.Failure(l.server)
		}
		return h, session, failure
	})
}

// serve passes on to the client what the server says, until there is an answer, or a
// question that the client has to answer first.
func (held *heldCall) serve(c *call) *jsonrpc.Failure {
	over := true // else another request goes on with it
	defer func() {
		if over {
			c.traffic.add(&held.traffic)
		}
	}()
	for {
		select {
		case said := <-held.messages:
			if said.large != nil {
				held.stream(c, said)
				return nil
			}
			if done, failure := held.pass(c, &said); done {
				over = said.message.IsAnswer()
				return failure
			}
		case <-held.done:
			failure := held.failure
			if failure == nil {
				failure = jsonrpc.InvalidResponse(held.link.server)
			}
			return c.failed(failure)
		case <-c.ctx.Done():
			held.abandon()
			return nil
		}
	}
}

// abandon cancels the call because the client has hung up, which means that, or has not
// come back. A server of the legacy era does not know what it means to hang up.
func (held *heldCall) abandon() {
	defer func() {
		held.cancel()
		<-held.done
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(held.r.Context()), partingTime)
	defer cancel()
	for _, id := range held.questions {
		_ = held.link.tell(held.within(ctx), jsonrpc.Refusal(id, jsonrpc.CodeInternalError, "the client has not answered"))
	}
	if h := held.hearing.Load(); h != nil {
		_ = held.link.tell(held.within(ctx), jsonrpc.Notification("notifications/cancelled",
			slices.Concat([]byte(`{"requestId":`), h.RequestID, []byte("}"))))
	}
}

// pass passes on a message of the server. It reports whether the request has been
// answered by it.
func (held *heldCall) pass(c *call, said *heldMessage) (done bool, failure *jsonrpc.Failure) {
	l, m := held.link, &said.message
	switch {
	case m.IsAnswer():
		held.answer(c, said)
		held.awaitEnd(c)
		return true, nil
	case m.IsRequest():
		return held.askClient(c, m)
	}
	l.unsolicited(c.behalf()).note(m)
	switch {
	case m.Is(jsonrpc.Method, "notifications/progress"):
		token := c.message.Literal(jsonrpc.ProgressToken) // of the request that waits now
		if token == nil || !m.Has(jsonrpc.Progress) {
			return false, nil
		}
		progress, failure := m.Edited(m.Replace(jsonrpc.Progress, token))
		if failure != nil {
			return false, nil
		}
		c.out.Event(&streamable.Event{Data: l.translator(c.g).message(&progress)})
	case !m.Is(jsonrpc.Method, "notifications/message"):
		l.unsolicited(c.behalf()).broadcast(m) // it is for those who listen
	case c.message.Has(jsonrpc.LogLevel):
		c.out.Event(&streamable.Event{Data: l.translator(c.g).message(m)})
	}
	return false, nil
}

// awaitEnd waits a moment for the end of a call that has been answered, because the
// access log, and who hears of the call, tell of what was masked in it. The client has its answer by then.
func (held *heldCall) awaitEnd(c *call) {
	select {
	case <-held.done:
		return
	default:
	}
	c.out.Flush()
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-held.done:
	case <-timer.C:
		held.cancel() // there are servers that never end a stream
		<-held.done
	}
}

// answer passes on the answer, as one of the modern era and with the id of the
// request that waits for it.
func (held *heldCall) answer(c *call, said *heldMessage) {
	m := &said.message
	c.errorCode = m.ErrorNumber()
	edits := append(withID(m, c.message.Literal(jsonrpc.ID)), c.translator().rename(m.Raw, said.names)...)
	if m.Kind(jsonrpc.Result) == jsonspan.BeginObject && !m.Has(jsonrpc.ResultType) {
		edits = append(edits, m.Within(jsonrpc.Result, jsonspan.Insert(m.Literal(jsonrpc.Result), c.completion())))
	}
	c.out.Answer(m.Status(), &streamable.Event{Data: jsonspan.Spliced(m.Raw, edits...)})
}

// completion returns what results of the modern era say in addition.
func (c *call) completion() []byte {
	if c.message.Is(jsonrpc.Method, "resources/read") {
		return []byte(`"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
	}
	return []byte(`"resultType":"complete"`)
}

// stream passes on an answer that is too large to be held, like answer. One whose id comes
// last, and is another's, keeps it: the client does not take it for its own.
func (held *heldCall) stream(c *call, said heldMessage) {
	ctx, from := c.ctx, said.large
	defer context.AfterFunc(ctx, func() { from.CloseWithError(ctx.Err()) })()
	out := c.out.Large(new(streamable.Event), false)
	to := &rewriting{modernPaths.Rewrite(out, held.modernized(c, said.typed)), out}
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.Close()
	}
	switch {
	case err == nil:
		c.errorCode, _ = held.hearing.Load().Outcome()
		held.awaitEnd(c)
	case ctx.Err() != nil:
		held.abandon()
	default:
		c.torn = true
		from.CloseWithError(err)
		held.abandon()
	}
}

// modernPaths are where an answer of the legacy era changes on its way to a client of
// the modern one.
var modernPaths = jsonspan.CompilePaths(namingPaths("id", "result")...)

// modernized returns what stands for a literal at one of the modernPaths.
func (held *heldCall) modernized(c *call, typed bool) func(path int, k jsonspan.Kind, literal []byte) []byte {
	return func(path int, k jsonspan.Kind, literal []byte) []byte {
		switch {
		case path == len(namings):
			if jsonrpc.SameID(literal, held.hearing.Load().RequestID) {
				return c.message.Literal(jsonrpc.ID)
			}
		case path > len(namings):
			if k == jsonspan.BeginObject && !typed {
				return slices.Concat([]byte("{"), c.completion(), []byte(","))
			}
		case k == jsonspan.String:
			return c.translator().renamed(path, literal)
		}
		return nil
	}
}

// askClient has the client asked: its request is answered by a result that says so.
func (held *heldCall) askClient(c *call, m *jsonrpc.Message) (done bool, failure *jsonrpc.Failure) {
	method := m.Text(jsonrpc.Method)
	if !mcp.IsQuestion(method) || !c.client.can(method) {
		held.hearing.Load().QuestionAnswered()
		held.link.unsolicited(c.visit.behalf()).refuse(&c.asides, m, "the client has not declared that it can be asked "+mcp.Shortened(method))
		return false, nil
	}
	key := strconv.Itoa(len(held.questions) + 1)
	held.questions[key] = slices.Clone(m.Literal(jsonrpc.ID))
	params := json.RawMessage(m.Literal(jsonrpc.Params))
	if params == nil {
		params = json.RawMessage("{}")
	}
	stateKey, ok := c.g.putAway(held)
	if !ok {
		delete(held.questions, key)
		held.hearing.Load().QuestionAnswered()
		held.link.unsolicited(c.visit.behalf()).refuse(&c.asides, m, "too many calls wait for their clients")
		return false, nil
	}
	state := c.g.sealer.Seal("call", []byte(stateKey))
	if c.confirmed {
		state = c.confirmedState(jsonrpc.Quote(state))
	}
	return true, c.answerAs(mcp.InputRequired, inputResult(key, mcp.InputRequest{Method: method, Params: params}, state))
}

// reply gives the server the answers of the client.
func (held *heldCall) reply(c *call) *jsonrpc.Failure {
	var responses map[string]json.RawMessage
	if json.Unmarshal(c.message.Literal(jsonrpc.InputResponses), &responses) != nil {
		responses = nil
	}
	var failed *jsonrpc.Failure
	for key, id := range held.questions {
		body := jsonrpc.Refusal(id, jsonrpc.CodeInternalError, "the client has not answered")
		if response, ok := responses[key]; ok {
			body = jsonrpc.Answer(id, response)
		}
		if failure := held.link.tell(c.behalf(), body); failure != nil {
			failed = failure
		}
		delete(held.questions, key)
		held.hearing.Load().QuestionAnswered()
	}
	return failed
}
