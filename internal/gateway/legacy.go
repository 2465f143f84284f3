package gateway

import (
	"context"
	"crypto/rand"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A client of the modern era in front of a server of the legacy one. The server asks
// in mid-call; the client gets a result that asks for input, and makes the call again
// with its answers. Meanwhile the call at the server is held open.

// How many calls can be held open for clients that owe an answer, and for each of them:
// by who it is or, if nobody knows, by its address, whatever it says of itself.
const maxHeldCalls, maxHeldOfOne = 1_000, 32

// A heldCall is a call to a server of the legacy era.
type heldCall struct {
	a      *Gateway
	key    string
	client *client
	link   *link
	cancel context.CancelFunc
	of     *http.Request // on behalf of which it is made

	about     string           // what the client has called, which it goes on with
	id        []byte           // that the server knows it by: many clients call each of theirs 1
	messages  chan heldMessage // of the server
	answering chan struct{}    // closed when the answer comes: nobody is asked any more
	done      chan struct{}    // closed when there are no more
	failure   *jsonrpc.Failure

	questions map[string][]byte // that have been asked, with the ids that the server gave them
	expires   *time.Timer
	hearing   atomic.Pointer[streamable.Reader] // of the server
}

// A heldMessage is a message of a server, or an answer that is too large to be held, as
// it comes.
type heldMessage struct {
	message jsonrpc.Message
	names   []name
	large   *io.PipeReader
	typed   bool // the large one says itself what type of result it is
}

// keep returns a message of the server that outlives the Reader that read it.
func (held *heldCall) keep(m *jsonrpc.Message, names []name) heldMessage {
	kept := heldMessage{message: *m, names: slices.Clone(names)}
	kept.message.Raw = slices.Clone(m.Raw)
	return kept
}

// toLegacy passes the request on to a server of the legacy era, or goes on with one
// that was.
func (q *Request) toLegacy(ctx context.Context, l *link) *jsonrpc.Failure {
	held := q.takeUp(l)
	switch {
	case held != nil:
		if failure := held.reply(ctx, q); failure != nil {
			held.giveUp()
			return q.failed(ctx, failure)
		}
	case q.message.Has(jsonrpc.RequestState):
		return invalid("requestState: not known, or not anymore")
	default:
		m, failure := antiquated(&q.message)
		if failure == nil {
			failure = q.checkParams(ctx, l, &m)
		}
		if failure != nil {
			return failure
		}
		if held, failure = q.hold(l, &m); failure != nil {
			return failure
		}
	}
	q.passedOn = true
	return held.serve(ctx, q)
}

// antiquated returns a request of the modern era as one of the legacy era: without
// what it says of its client, by which servers of both eras would take it for modern.
func antiquated(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	if m.Kind(jsonrpc.Meta) != jsonspan.BeginObject {
		return *m, nil
	}
	meta := m.Literal(jsonrpc.Meta)
	kept := []byte{'{'}
	for member := range jsonspan.Members(meta) {
		if strings.HasPrefix(member.Key, "io.modelcontextprotocol/") {
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
func (q *Request) checkParams(ctx context.Context, l *link, m *jsonrpc.Message) *jsonrpc.Failure {
	if q.found || l.known(q.g, tools) == nil && !mcp.HasParams(q.r.Header) {
		return nil // nothing is known that it could have to repeat
	}
	return q.paramHeaders(ctx, l).Check(q.r.Header, m)
}

// takeUp returns the call that the request goes on with.
func (q *Request) takeUp(l *link) *heldCall {
	if q.message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return nil
	}
	key, ok := q.g.sealer.open("call", q.message.Text(jsonrpc.RequestState))
	if !ok {
		return nil
	}
	q.g.mu.Lock()
	defer q.g.mu.Unlock()
	held := q.g.held[string(key)]
	if held == nil || held.client != q.client || held.link != l || held.about != q.about() {
		return nil
	}
	q.g.unhold(held)
	return held
}

// about returns what a request calls.
func (q *Request) about() string {
	return q.message.Text(jsonrpc.Method) + "\x00" + q.name + "\x00" + q.message.Text(jsonrpc.URI)
}

// hold makes a call that can outlive the request.
func (q *Request) hold(l *link, m *jsonrpc.Message) (*heldCall, *jsonrpc.Failure) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(q.r.Context()))
	held := &heldCall{
		a:         q.g,
		client:    q.client,
		link:      l,
		cancel:    cancel,
		about:     q.about(),
		id:        l.nextID(),
		messages:  make(chan heldMessage),
		answering: make(chan struct{}),
		done:      make(chan struct{}),
		questions: map[string][]byte{},
	}
	held.of = q.g.of(l).Upstream.Derive(ctx, q.r, false) // which is there when the request is not
	emptyBody(held.of, http.MethodPost)
	level := q.message.Text(jsonrpc.LogLevel)
	numbered, failure := held.renumbered(m)
	if failure != nil {
		cancel()
		return nil, failure
	}
	q.g.keep(q.client)
	go func() {
		defer held.a.release(held.client)
		defer held.a.retire(held)
		defer close(held.done)
		defer cancel()
		held.failure = held.run(ctx, held.of, level, &numbered)
	}()
	return held, nil
}

// renumbered returns a request with ids that no other has.
func (held *heldCall) renumbered(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	edits := []jsonspan.Edit{m.Replace(jsonrpc.ID, held.id)}
	if m.Has(jsonrpc.ProgressToken) {
		edits = append(edits, m.Replace(jsonrpc.ProgressToken, held.id))
	}
	return m.Edited(edits...)
}

// run has the server answer.
func (held *heldCall) run(ctx context.Context, of *http.Request, level string, m *jsonrpc.Message) *jsonrpc.Failure {
	a, l := held.a, held.link
	if level != "" {
		if _, can := l.state(); can&hasLogging != 0 {
			_, _ = l.request(ctx, a, of, "logging/setLevel", jsonrpc.Encode(map[string]string{"level": level}))
		}
	}
	return l.inSession(ctx, a, of, func(again bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		var names []name
		h := &streamable.Reader{RequestID: held.id}
		h.Parse = func(m *jsonrpc.Message, data []byte) (failure *jsonrpc.Failure) {
			failure, names = readNames(m, data, names)
			return failure
		}
		held.hearing.Store(h)
		defer held.overhear(ctx)()
		l.listen(ctx)
		r := a.of(l).Upstream.Derive(ctx, of, true)
		session, _ := l.sign(r)
		httpbody.Post(r, m.Raw)
		answered := false
		h.OnMessage = func(e *streamable.Event) error {
			if len(e.Data) == 0 || answered {
				return nil // nobody waits for what comes after the answer
			}
			if e.Message.IsAnswer() {
				if !h.Answers(e.Message, held.id) || h.SessionLost() && again {
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
			case held.messages <- held.keep(e.Message, names):
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
				return to
			case <-ctx.Done():
				return nil
			}
		}
		failure := a.send(l, h, r, m)
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
func (held *heldCall) serve(ctx context.Context, q *Request) *jsonrpc.Failure {
	for {
		select {
		case said := <-held.messages:
			if said.large != nil {
				held.stream(ctx, q, said)
				return nil
			}
			if done, failure := held.pass(q, &said); done {
				return failure
			}
		case <-held.done:
			failure := held.failure
			if failure == nil {
				failure = jsonrpc.InvalidResponse(held.link.server)
			}
			return q.failed(ctx, failure)
		case <-ctx.Done():
			held.giveUp()
			return nil
		}
	}
}

// giveUp cancels the call because the client has hung up, which means that, or has not
// come back. A server of the legacy era does not know what it means to hang up.
func (held *heldCall) giveUp() {
	defer func() {
		held.cancel()
		<-held.done
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(held.of.Context()), rejoinPause)
	defer cancel()
	for _, id := range held.questions {
		_ = held.link.tell(ctx, held.a, held.of, jsonrpc.Refusal(id, jsonrpc.CodeInternalError, "the client has not answered"))
	}
	_ = held.link.tell(ctx, held.a, held.of, jsonrpc.Notification("notifications/cancelled",
		slices.Concat([]byte(`{"requestId":`), held.id, []byte("}"))))
}

// pass passes on a message of the server. It reports whether the request has been
// answered by it.
func (held *heldCall) pass(q *Request, said *heldMessage) (done bool, failure *jsonrpc.Failure) {
	l, m := held.link, &said.message
	switch {
	case m.IsAnswer():
		held.answer(q, said)
		held.settle(q)
		return true, nil
	case m.IsRequest():
		return held.ask(q, m)
	}
	l.noted(q.g, m)
	switch {
	case m.Is(jsonrpc.Method, "notifications/progress"):
		token := q.message.Literal(jsonrpc.ProgressToken) // of the request that waits now
		if token == nil || !m.Has(jsonrpc.Progress) {
			return false, nil
		}
		progress, failure := m.Edited(m.Replace(jsonrpc.Progress, token))
		if failure != nil {
			return false, nil
		}
		q.out.Event(&streamable.Event{Data: l.translated(q.g, &progress)})
	case !m.Is(jsonrpc.Method, "notifications/message"):
		l.spread(q.g, m) // it is for those who listen
	case q.message.Has(jsonrpc.LogLevel):
		q.out.Event(&streamable.Event{Data: l.translated(q.g, m)})
	}
	return false, nil
}

// settle waits a moment for the end of a call that has been answered, because the
// access log tells of what was masked in it. The client has its answer by then.
func (held *heldCall) settle(q *Request) {
	select {
	case <-held.done:
		return
	default:
	}
	q.out.Flush()
	timer := time.NewTimer(50 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-held.done:
	case <-timer.C:
		held.cancel() // there are servers that never end a stream
	}
}

// answer passes on the answer, as one of the modern era and with the id of the
// request that waits for it.
func (held *heldCall) answer(q *Request, said *heldMessage) {
	m := &said.message
	q.errorCode = m.ErrorNumber()
	edits := append(withID(m, q.message.Literal(jsonrpc.ID)), q.renames(held.link, m.Raw, said.names)...)
	if m.Kind(jsonrpc.Result) == jsonspan.BeginObject && !m.Has(jsonrpc.ResultType) {
		edits = append(edits, m.Within(jsonrpc.Result, jsonspan.Insert(m.Literal(jsonrpc.Result), q.completion())))
	}
	q.out.Answer(m.Status(), &streamable.Event{Data: jsonspan.Spliced(m.Raw, edits...)})
}

// completion returns what results of the modern era say in addition.
func (q *Request) completion() []byte {
	if q.message.Is(jsonrpc.Method, "resources/read") {
		return []byte(`"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
	}
	return []byte(`"resultType":"complete"`)
}

// stream passes on an answer that is too large to be held, like answer. One whose id comes
// last, and is another's, keeps it: the client does not take it for its own.
func (held *heldCall) stream(ctx context.Context, q *Request, said heldMessage) {
	from := said.large
	defer context.AfterFunc(ctx, func() { from.CloseWithError(ctx.Err()) })()
	out := q.out.Large(new(streamable.Event), false)
	to := &rewriting{modernPaths.Rewrite(out, held.modernized(q, said.typed)), out}
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.Close()
	}
	switch {
	case err == nil:
		q.errorCode, _ = held.hearing.Load().Outcome()
		held.settle(q)
	case ctx.Err() != nil:
		held.giveUp()
	default:
		q.torn = true
		from.CloseWithError(err)
		held.giveUp()
	}
}

// modernPaths are where an answer of the legacy era changes on its way to a client of
// the modern one.
var modernPaths = jsonspan.CompilePaths(append(slices.Clone(namings), "id", "result")...)

// modernized returns what stands for a literal at one of the modernPaths.
func (held *heldCall) modernized(q *Request, typed bool) func(path int, k jsonspan.Kind, literal []byte) []byte {
	return func(path int, k jsonspan.Kind, literal []byte) []byte {
		switch {
		case path == len(namings):
			if jsonrpc.SameID(literal, held.id) {
				return q.message.Literal(jsonrpc.ID)
			}
		case path > len(namings):
			if k == jsonspan.BeginObject && !typed {
				return slices.Concat([]byte("{"), q.completion(), []byte(","))
			}
		case k == jsonspan.String:
			return q.renamed(held.link, path, literal)
		}
		return nil
	}
}

// ask has the client asked: its request is answered by a result that says so.
func (held *heldCall) ask(q *Request, m *jsonrpc.Message) (done bool, failure *jsonrpc.Failure) {
	method := m.Text(jsonrpc.Method)
	if !mcp.IsQuestion(method) || !q.client.can(method) {
		held.hearing.Load().QuestionAnswered()
		held.link.refuse(q.g, q.r, q.r.Context(), &q.asides, m, "the client has not declared that it can be asked "+mcp.Shortened(method))
		return false, nil
	}
	key := strconv.Itoa(len(held.questions) + 1)
	held.questions[key] = slices.Clone(m.Literal(jsonrpc.ID))
	params := json.RawMessage(m.Literal(jsonrpc.Params))
	if params == nil {
		params = json.RawMessage("{}")
	}
	state, ok := q.g.putAway(held)
	if !ok {
		delete(held.questions, key)
		held.hearing.Load().QuestionAnswered()
		held.link.refuse(q.g, q.r, q.r.Context(), &q.asides, m, "too many calls wait for their clients")
		return false, nil
	}
	return true, q.answerAs(mcp.InputRequired, jsonrpc.Encode(map[string]any{
		"inputRequests": map[string]mcp.InputRequest{key: {Method: method, Params: params}},
		"requestState":  state,
	}))
}

// putAway keeps a call until its client makes it again.
func (a *Gateway) putAway(held *heldCall) (state string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended || !a.holding.Take(held.client.owner, 0) {
		return "", false
	}
	held.key = rand.Text()
	a.held[held.key] = held
	key := held.key
	held.expires = time.AfterFunc(streamable.QuestionTime, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.held[key] == held {
			a.unhold(held)
			a.running.Go(held.giveUp)
		}
	})
	return a.sealer.seal("call", []byte(key)), true
}

// retire gives a place back that a call has which is over, before its client has come
// back.
func (a *Gateway) retire(held *heldCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held[held.key] == held {
		a.unhold(held)
	}
}

// unhold gives the place of a call back. The caller holds the lock.
func (s *State) unhold(held *heldCall) {
	delete(s.held, held.key)
	s.holding.Give(held.client.owner, 0)
	held.expires.Stop()
}

// reply gives the server the answers of the client.
func (held *heldCall) reply(ctx context.Context, q *Request) *jsonrpc.Failure {
	var responses map[string]json.RawMessage
	if json.Unmarshal(q.message.Literal(jsonrpc.InputResponses), &responses) != nil {
		responses = nil
	}
	var failed *jsonrpc.Failure
	for key, id := range held.questions {
		body := jsonrpc.Refusal(id, jsonrpc.CodeInternalError, "the client has not answered")
		if response, ok := responses[key]; ok {
			body = jsonrpc.Answer(id, response)
		}
		if failure := held.link.tell(ctx, q.g, q.r, body); failure != nil {
			failed = failure
		}
		delete(held.questions, key)
		held.hearing.Load().QuestionAnswered()
	}
	return failed
}
