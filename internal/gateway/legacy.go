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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A client of the modern era calls a server of the legacy one. When the server asks a question
// during the call, the client gets a result that asks for input, and makes the call again
// with its answers. Meanwhile the call to the server stays open.

// How many calls can be held open for clients that owe an answer, and for each of them:
// by its identity or, if that is unknown, by its address.
const maxHeldCalls, maxHeldOfOne = 1_000, 32

// heldCallLimits also bound the bytes of their messages.
var heldCallLimits = quota.Limits{
	Entries: maxHeldCalls, OwnerEntries: maxHeldOfOne, Bytes: 128 << 20, OwnerBytes: 32 << 20,
}

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

	annotations mcp.Annotations  // of the tool that is called
	traffic     upstream.Traffic // of its exchanges, until done is closed

	questions map[string][]byte // that have been asked, with the ids that the server gave them
	expires   *time.Timer
	hearing   atomic.Pointer[streamable.Reader] // of the server
}

// A heldMessage is what a held call has for its client: a message of the server or, in place of that,
// one of the others.
type heldMessage struct {
	message jsonrpc.Message
	names   []foundName

	large    *largeHeld
	question *heldQuestion
	failure  *jsonrpc.Failure // why there is no answer
}

// A largeHeld is an answer that is too large to be held, as it comes.
type largeHeld struct {
	heldReader
	id    []byte // of the request, as the server knows it
	typed bool   // it says itself what type of result it is
}

// A heldReader is what a large answer is read from.
type heldReader interface {
	io.Reader
	CloseWithError(error) error
}

// A heldQuestion is one for the client.
type heldQuestion struct {
	Key, Method string
	Params      []byte
	State       string // with which the client goes on
}

// A heldSource is where what a held call has for its client comes from.
type heldSource interface {
	// next returns what comes next. If it returns false, the client has left.
	next(c *call) (said heldMessage, ok bool)

	// end is called when the client has got an answer, or cannot get all of it. It returns the error code
	// of the answer.
	end(c *call, whole bool) (errorCode int)
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
		if failure := held.reply(c.behalf(), c.Message.Literal(jsonrpc.InputResponses)); failure != nil {
			held.abandon()
			return c.failed(failure)
		}
	case c.Message.Has(jsonrpc.RequestState):
		return unknownState()
	default:
		m, failure := withoutModernMeta(&c.Message)
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
	c.PassedOn = true
	return c.follow(held)
}

func unknownState() *jsonrpc.Failure { return invalid("requestState: not known, or not anymore") }

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
	if c.found || c.client.knownList(c.g, c.Server, mcp.Tools) == nil && !mcp.HasParams(c.HTTP.Header) {
		return nil // nothing is known that it could have to repeat
	}
	c.setParams(c.HTTP.Header, m)
	return c.paramHeaders().Check(c.HTTP.Header, m)
}

// heldAt returns under which key a call is held that the request goes on with, and by which replica: ""
// where there are none.
func (c *call) heldAt() (key, replica string) {
	if c.Message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return "", ""
	}
	state, _ := c.g.sealer.Open("call", c.Message.Text(jsonrpc.RequestState))
	key, replica, _ = strings.Cut(string(state), " ")
	return key, replica
}

// takeUp returns the call that the request goes on with.
func (c *call) takeUp() *heldCall {
	key, _ := c.heldAt()
	return c.g.takeUp(key, func(held *heldCall) bool {
		return held.client == c.client && held.link == c.link && held.about == c.About()
	})
}

// hold makes a call that can outlive the request.
func (c *call) hold(m *jsonrpc.Message) (*heldCall, *jsonrpc.Failure) {
	l := c.link
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.visit.ctx))
	r := c.g.of(l).Routes.Derive(ctx, c.HTTP, false) // which is there when the request is not
	httpbody.EmptyAs(r, http.MethodPost)
	held := &heldCall{
		behalf:    behalf{ctx: ctx, g: c.g, r: r},
		client:    c.client,
		link:      l,
		cancel:    cancel,
		about:     c.About(),
		goal:      c.goal,
		messages:  make(chan heldMessage),
		answering: make(chan struct{}),
		done:      make(chan struct{}),
		questions: map[string][]byte{},

		annotations: c.Caller.Annotations,
	}
	level := c.Message.Text(jsonrpc.LogLevel)
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
		if _, can := l.state(); can&mcp.HasLogging != 0 {
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
		r := held.g.of(l).Routes.Derive(ctx, held.r, true)
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
			case held.messages <- heldMessage{large: &largeHeld{from, h.RequestID, h.LargeHas(jsonrpc.ResultType)}}:
				return &rewriting{largePaths.Rewrite(to, func(int, jsonspan.Kind, []byte) []byte { return nil }), to}
			case <-ctx.Done():
				return nil
			}
		}
		x := held.g.exchange(l, h, &numbered)
		x.Goal, x.Caller.Annotations, x.Traffic = held.goal, held.annotations, &held.traffic
		failure = x.Send(r)
		switch {
		case answered:
			failure = nil
		case failure == nil:
			failure = h.Failure(l.server)
		}
		return h, session, failure
	})
}

// follow passes on to the client what a call has for it, until there is an answer, or a question that
// the client has to answer first: then another request goes on with the call.
func (c *call) follow(from heldSource) (failure *jsonrpc.Failure) {
	whole := false
	for {
		said, ok := from.next(c)
		switch {
		case !ok:
		case said.question != nil:
			return c.askInput(said.question)
		case said.failure != nil:
			failure, whole = c.failed(said.failure), true
		case said.large != nil:
			whole = c.stream(said.large)
		case said.message.IsAnswer():
			c.answerHeld(&said)
			whole = true
		default:
			c.noticeHeld(&said.message)
			continue
		}
		code := from.end(c, whole)
		if said.large != nil && whole {
			c.ErrorCode = code
		}
		return failure
	}
}

// next implements heldSource.
func (held *heldCall) next(c *call) (said heldMessage, ok bool) {
	return held.listen(c.ctx, c.visit.behalf(), &c.asides)
}

// listen returns what comes next for the client. If it returns false, ctx has ended: the client has left.
func (held *heldCall) listen(ctx context.Context, o behalf, asides *upstream.Asides) (said heldMessage, ok bool) {
	for {
		select {
		case said = <-held.messages:
			switch m := &said.message; {
			case said.large != nil || m.IsAnswer():
				return said, true
			case m.IsRequest():
				if said.question = held.ask(o, asides, m); said.question != nil {
					return said, true
				}
			default:
				held.link.unsolicited(o).note(m)
				if m.Is(jsonrpc.Method, "notifications/progress") || m.Is(jsonrpc.Method, "notifications/message") {
					return said, true
				}
				held.link.unsolicited(o).broadcast(m) // it is for those who listen
			}
		case <-held.done:
			if said.failure = held.failure; said.failure == nil {
				said.failure = jsonrpc.InvalidResponse(held.link.server)
			}
			return said, true
		case <-ctx.Done():
			return said, false
		}
	}
}

// end implements heldSource.
func (held *heldCall) end(c *call, whole bool) (errorCode int) {
	if whole {
		held.awaitEnd(c.out.Flush)
	} else {
		held.abandon()
	}
	c.Traffic.Add(&held.traffic)
	return held.errorCode()
}

// errorCode returns that of the answer.
func (held *heldCall) errorCode() int {
	h := held.hearing.Load()
	if h == nil {
		return 0
	}
	code, _ := h.Outcome()
	return code
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

// noticeHeld passes on a notification that belongs to the call.
func (c *call) noticeHeld(m *jsonrpc.Message) {
	switch {
	case m.Is(jsonrpc.Method, "notifications/progress"):
		token := c.Message.Literal(jsonrpc.ProgressToken) // of the request that waits now
		if token == nil || !m.Has(jsonrpc.Progress) {
			return
		}
		progress, failure := m.Edited(m.Replace(jsonrpc.Progress, token))
		if failure != nil {
			return
		}
		m = &progress
	case !c.Message.Has(jsonrpc.LogLevel):
		return
	}
	c.out.Event(&streamable.Event{Data: c.link.translator(c.g).message(m)})
}

// awaitEnd waits a moment for the end of a call that has been answered, because the
// access log, and who hears of the call, tell of what was masked in it. The client has its answer by then.
func (held *heldCall) awaitEnd(flush func()) {
	select {
	case <-held.done:
		return
	default:
	}
	flush()
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-held.done:
	case <-timer.C:
		held.cancel() // there are servers that never end a stream
		<-held.done
	}
}

// answerHeld passes on the answer, as one of the modern era and with the id of the
// request that waits for it.
func (c *call) answerHeld(said *heldMessage) {
	m := &said.message
	c.ErrorCode = m.ErrorNumber()
	edits := append(m.WithID(c.Message.Literal(jsonrpc.ID)), c.translator().rename(m.Raw, said.names)...)
	if m.Kind(jsonrpc.Result) == jsonspan.BeginObject && !m.Has(jsonrpc.ResultType) {
		edits = append(edits, m.Within(jsonrpc.Result, jsonspan.Insert(m.Literal(jsonrpc.Result), c.completion())))
	}
	c.out.Answer(m.Status(), &streamable.Event{Data: jsonspan.Spliced(m.Raw, edits...)})
}

// completion returns what results of the modern era say in addition.
func (c *call) completion() []byte {
	if c.Message.Is(jsonrpc.Method, "resources/read") {
		return []byte(`"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
	}
	return []byte(`"resultType":"complete"`)
}

// stream passes on an answer that is too large to be held, like answerHeld. It reports whether that
// was all of it. One whose id comes last, and is another's, keeps it: the client does not take it for its own.
func (c *call) stream(from *largeHeld) (whole bool) {
	ctx := c.ctx
	defer context.AfterFunc(ctx, func() { _ = from.CloseWithError(ctx.Err()) })()
	out := c.out.Large(new(streamable.Event), false)
	to := &rewriting{modernPaths.Rewrite(out, c.modernizedLarge(from)), out}
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.Close()
	}
	if err != nil && ctx.Err() == nil {
		c.torn = true
		_ = from.CloseWithError(err)
	}
	return err == nil
}

// modernPaths are where an answer of the legacy era changes on its way to a client of
// the modern one.
var modernPaths = jsonspan.CompilePaths(namingPaths("id", "result")...)

// modernizedLarge returns what stands for a literal at one of the modernPaths.
func (c *call) modernizedLarge(from *largeHeld) func(path int, k jsonspan.Kind, literal []byte) []byte {
	return func(path int, k jsonspan.Kind, literal []byte) []byte {
		switch {
		case path == len(namings):
			if jsonrpc.SameID(literal, from.id) {
				return c.Message.Literal(jsonrpc.ID)
			}
		case path > len(namings):
			if k == jsonspan.BeginObject && !from.typed {
				return slices.Concat([]byte("{"), c.completion(), []byte(","))
			}
		case k == jsonspan.String:
			return c.translator().renamed(path, literal)
		}
		return nil
	}
}

// ask returns a question of the server as it is put to the client, nil if the client cannot be asked. The
// call is put away until the client answers.
func (held *heldCall) ask(o behalf, asides *upstream.Asides, m *jsonrpc.Message) *heldQuestion {
	method := m.Text(jsonrpc.Method)
	refuse := func(why string) *heldQuestion {
		held.hearing.Load().QuestionAnswered()
		held.link.unsolicited(o).refuse(asides, m, why)
		return nil
	}
	if !mcp.IsQuestion(method) || !held.client.can(method) {
		return refuse("the client has not declared that it can be asked " + mcp.Shortened(method))
	}
	q := &heldQuestion{Key: strconv.Itoa(len(held.questions) + 1), Method: method, Params: m.Literal(jsonrpc.Params)}
	if q.Params == nil {
		q.Params = []byte("{}")
	}
	held.questions[q.Key] = slices.Clone(m.Literal(jsonrpc.ID))
	key, ok := o.g.putAway(held)
	if !ok {
		delete(held.questions, q.Key)
		return refuse("too many calls wait for their clients")
	}
	q.State = o.g.sealer.Seal("call", []byte(o.g.named(key)))
	return q
}

// askInput asks the client a question of the server: the request is answered by a result that says so.
func (c *call) askInput(q *heldQuestion) *jsonrpc.Failure {
	state := q.State
	if c.Confirmed {
		state = c.ConfirmedState(jsonrpc.Quote(state))
	}
	wants := mcp.InputRequest{Method: q.Method, Params: q.Params}
	return c.answerAs(mcp.InputRequired, mcp.NewInputResult(q.Key, wants, state))
}

// reply gives the server the answers of the client.
func (held *heldCall) reply(o behalf, answers []byte) *jsonrpc.Failure {
	var responses map[string]json.RawMessage
	if json.Unmarshal(answers, &responses) != nil {
		responses = nil
	}
	var failed *jsonrpc.Failure
	for key, id := range held.questions {
		body := jsonrpc.Refusal(id, jsonrpc.CodeInternalError, "the client has not answered")
		if response, ok := responses[key]; ok {
			body = jsonrpc.Answer(id, response)
		}
		if failure := held.link.tell(o, body); failure != nil {
			failed = failure
		}
		delete(held.questions, key)
		held.hearing.Load().QuestionAnswered()
	}
	return failed
}
