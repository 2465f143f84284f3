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

// A modern client calls a legacy server. When the server sends a request during the call, the
// client gets an input-required result, and repeats the call with its responses. In between, the
// call to the server stays open: it is held.

// maxHeldCalls limits the held calls; maxOwnerHeldCalls limits those of one client, by identity or,
// if that is unknown, by address.
const maxHeldCalls, maxOwnerHeldCalls = 1_000, 32

// heldCallLimits also limit the bytes of their messages.
var heldCallLimits = quota.Limits{
	Entries: maxHeldCalls, OwnerEntries: maxOwnerHeldCalls, Bytes: 128 << 20, OwnerBytes: 32 << 20,
}

// A heldCall is a call to a legacy server that may outlive the client's request.
type heldCall struct {
	scope  // outlives the client's request
	key    string
	bytes  int64 // size of the message, which may have to be sent again
	client *client
	link   *link
	cancel context.CancelFunc

	about    string           // Request.About; a request that continues the call must have the same
	goal     string           // focus of the call
	messages chan heldMessage // from the server
	answered chan struct{}    // closed when the response arrives: no server requests are taken after that
	done     chan struct{}    // closed when there are no more messages
	failure  *jsonrpc.Failure

	annotations mcp.Annotations  // of the tool
	traffic     upstream.Traffic // complete when done is closed

	serverRequests map[string][]byte // ids of unanswered server requests, by key of the input request
	expires        *time.Timer
	reader         atomic.Pointer[streamable.Reader] // reads the response of the server
}

// A heldMessage is what a held call has for its client: a message of the server, or one of the
// fields after it.
type heldMessage struct {
	message jsonrpc.Message
	names   []jsonrpc.FoundString

	large    *largeResponse
	question *heldQuestion
	failure  *jsonrpc.Failure // set if the server did not answer
}

// A largeResponse is a response that is too large for memory.
type largeResponse struct {
	heldReader
	id    []byte // id of the request at the server
	typed bool   // the result has a resultType
}

// A heldReader reads a large response.
type heldReader interface {
	io.Reader
	CloseWithError(error) error
}

// A heldQuestion is a server request for the client.
type heldQuestion struct {
	Key, Method string
	Params      []byte
	State       string // requestState with which the client continues the call
}

// A heldSource is a held call, here or at another replica.
type heldSource interface {
	// next returns the next message. It reports false if the client disconnected.
	next(c *call) (msg heldMessage, ok bool)

	// end is called after the response. whole is false if the client could not get all of it. It
	// returns the error code of the response.
	end(c *call, whole bool) (errorCode int)
}

// copyMessage returns a copy that outlives the Reader.
func copyMessage(m *jsonrpc.Message, names []jsonrpc.FoundString) heldMessage {
	copied := heldMessage{message: *m, names: slices.Clone(names)}
	copied.message.Raw = slices.Clone(m.Raw)
	return copied
}

// A legacyRelay forwards the call of a modern client to a legacy server.
type legacyRelay struct{ *call }

// run forwards the call, or continues a held call.
func (c legacyRelay) run() *jsonrpc.Failure {
	held := c.takeHeld()
	switch {
	case held != nil:
		if failure := held.sendResponses(c.scope(), c.Message.Literal(jsonrpc.InputResponses)); failure != nil {
			held.abandon()
			return c.fail(failure)
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
		held = c.hold(&m)
	}
	c.IsForwarded = true
	return c.passOn(held)
}

func unknownState() *jsonrpc.Failure {
	return invalidParams("requestState: unknown or expired; make the call again without it")
}

// withoutModernMeta returns a modern request without the _meta members of the protocol. With them,
// servers that speak both eras would treat it as modern.
func withoutModernMeta(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	if m.Kind(jsonrpc.Meta) != jsonspan.BeginObject {
		return *m, nil
	}
	meta := m.Literal(jsonrpc.Meta)
	object := []byte{'{'}
	for member := range jsonspan.Members(meta) {
		if strings.HasPrefix(member.Key, mcp.MetaPrefix) {
			continue
		}
		if len(object) > 1 {
			object = append(object, ',')
		}
		object = append(object, meta[member.Start:member.End]...)
	}
	return m.Edited(m.Replace(jsonrpc.Meta, append(object, '}')))
}

// checkParams checks that the headers of a call repeat its arguments as the tool requires. Legacy
// servers do not check that.
func (c legacyRelay) checkParams(m *jsonrpc.Message) *jsonrpc.Failure {
	if c.viaCallTool || c.client.knownList(c.g, c.Server, mcp.Tools) == nil && !mcp.HasParams(c.HTTP.Header) {
		return nil // no requirements are known
	}
	c.setParams(c.HTTP.Header, m)
	return c.paramHeaders().Check(c.HTTP.Header, m)
}

// heldKey returns the key of the held call that the request continues, and the replica that holds
// it. replica is "" if there are no replicas.
func (c legacyRelay) heldKey() (key, replica string) {
	if c.Message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return "", ""
	}
	state, _ := c.g.sealer.Open("call", c.Message.Text(jsonrpc.RequestState))
	key, replica, _ = strings.Cut(string(state), " ")
	return key, replica
}

// takeHeld returns the held call that the request continues, nil if there is none.
func (c legacyRelay) takeHeld() *heldCall {
	key, _ := c.heldKey()
	return c.g.waiting.take(key, func(held *heldCall) bool {
		return held.client == c.client && held.link == c.link && held.about == c.About()
	})
}

// hold starts a call that can outlive the request.
func (c legacyRelay) hold(m *jsonrpc.Message) *heldCall {
	l := c.link
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.aggregateRequest.ctx))
	r := c.g.linkServer(l).Routes.Derive(ctx, c.HTTP, false) // outlives the request
	httpbody.EmptyAs(r, http.MethodPost)
	held := &heldCall{
		scope:          scope{ctx: ctx, g: c.g, r: r},
		bytes:          int64(len(m.Raw)),
		client:         c.client,
		link:           l,
		cancel:         cancel,
		about:          c.About(),
		goal:           c.goal,
		messages:       make(chan heldMessage),
		answered:       make(chan struct{}),
		done:           make(chan struct{}),
		serverRequests: map[string][]byte{},

		annotations: c.Caller.Annotations,
	}
	level := c.Message.Text(jsonrpc.LogLevel)
	c.g.clients.addRef(c.client)
	go func() {
		defer held.g.clients.release(held.client)
		defer held.g.waiting.remove(held)
		defer close(held.done)
		defer cancel()
		held.failure = held.run(level, m)
	}()
	return held
}

// run sends the call to the server and passes its messages to the messages channel.
func (held *heldCall) run(level string, m *jsonrpc.Message) *jsonrpc.Failure {
	l, ctx := held.link, held.ctx
	if level != "" && l.session.current().Can&mcp.HasLogging != 0 {
		_ = l.request(held.scope, "logging/setLevel", jsonrpc.Encode(map[string]string{"level": level}))
	}
	return l.inSession(held.scope, func(mayRetry bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		reader := &streamable.Reader{RequestID: l.ids.next(), Position: new(streamable.Position), Paths: namePaths}
		// Calls share a session, and many clients start with id 1.
		numbered, failure := m.Edited(m.ReplaceAll(reader.RequestID, jsonrpc.ID, jsonrpc.ProgressToken)...)
		if failure != nil {
			return reader, "", failure
		}
		held.reader.Store(reader)
		defer l.heldCalls.begin(held, held.scope)()
		l.heldCalls.waitStarted(ctx)
		r := held.g.linkServer(l).Routes.Derive(ctx, held.r, true)
		session := l.session.current()
		session.setHeaders(r.Header)
		httpbody.Post(r, numbered.Raw)
		answered := false
		reader.OnMessage = func(e *streamable.Event) error {
			if len(e.Data) == 0 || answered {
				return nil // ignore messages after the response
			}
			if e.Message.IsResponse() {
				if !reader.IsResponseTo(e.Message, reader.RequestID) || reader.SessionLost() && mayRetry {
					return nil
				}
				answered = true
				close(held.answered)
				reader.NoteResponse(e.Message)
			}
			if e.Message.IsRequest() {
				reader.ServerRequestOpened()
			}
			select {
			case held.messages <- copyMessage(e.Message, reader.Found):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var to *io.PipeWriter
		defer func() {
			if to != nil {
				to.CloseWithError(io.ErrUnexpectedEOF) // no effect if the response is complete
			}
		}()
		reader.OnLarge = func(string) io.WriteCloser {
			if answered || reader.SessionLost() && mayRetry {
				return nil
			}
			answered = true
			close(held.answered)
			var from *io.PipeReader
			from, to = io.Pipe()
			large := &largeResponse{from, reader.RequestID, reader.LargeHas(jsonrpc.ResultType)}
			select {
			case held.messages <- heldMessage{large: large}:
				return &rewriting{largePaths.Rewrite(to, func(int, jsonspan.Kind, []byte) []byte { return nil }), to}
			case <-ctx.Done():
				return nil
			}
		}
		x := held.g.exchange(l, reader, &numbered)
		x.Goal, x.Caller.Annotations, x.Traffic = held.goal, held.annotations, &held.traffic
		failure = x.Send(r)
		switch {
		case answered:
			failure = nil
		case failure == nil:
			failure = reader.Failure(l.serverName)
		}
		return reader, session.Session, failure
	})
}

// passOn passes on the messages of a held call until it is answered, or until the client must
// answer a server request. Another request then continues the call.
func (c legacyRelay) passOn(from heldSource) (failure *jsonrpc.Failure) {
	whole := false
	for {
		msg, ok := from.next(c.call)
		switch {
		case !ok:
		case msg.question != nil:
			return c.askInput(msg.question)
		case msg.failure != nil:
			failure, whole = c.fail(msg.failure), true
		case msg.large != nil:
			whole = c.streamLarge(msg.large)
		case msg.message.IsResponse():
			c.answer(&msg)
			whole = true
		default:
			c.forwardNotification(&msg.message)
			continue
		}
		code := from.end(c.call, whole)
		if msg.large != nil && whole {
			c.ErrorCode = code
		}
		return failure
	}
}

// next implements heldSource.
func (held *heldCall) next(c *call) (msg heldMessage, ok bool) {
	return held.receive(c.ctx, c.aggregateRequest.scope(), &c.sideRequests)
}

// receive returns the next message for the client. It reports false if ctx is done: the client
// disconnected.
func (held *heldCall) receive(ctx context.Context, sc scope, sideRequests *upstream.SideRequests) (msg heldMessage,
	ok bool) {
	for {
		select {
		case msg = <-held.messages:
			switch m := &msg.message; {
			case msg.large != nil || m.IsResponse():
				return msg, true
			case m.IsRequest():
				if msg.question = held.askClient(sc, sideRequests, m); msg.question != nil {
					return msg, true
				}
			default:
				unsolicited{sc, held.link}.note(m)
				if m.Is(jsonrpc.Method, "notifications/progress") || m.Is(jsonrpc.Method, "notifications/message") {
					return msg, true
				}
				unsolicited{sc, held.link}.broadcast(m) // for streams of the client
			}
		case <-held.done:
			if msg.failure = held.failure; msg.failure == nil {
				msg.failure = jsonrpc.InvalidResponse(held.link.serverName)
			}
			return msg, true
		case <-ctx.Done():
			return msg, false
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

// errorCode returns the error code of the response, 0 if there is none.
func (held *heldCall) errorCode() int {
	reader := held.reader.Load()
	if reader == nil {
		return 0
	}
	code, _ := reader.Outcome()
	return code
}

// abandon cancels the call, because the client disconnected or did not continue it. Legacy servers
// need a notification for that.
func (held *heldCall) abandon() {
	defer func() {
		held.cancel()
		<-held.done
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(held.r.Context()), disconnectTimeout)
	defer cancel()
	for _, id := range held.serverRequests {
		_ = held.link.send(held.withContext(ctx), jsonrpc.ErrorResponse(id, jsonrpc.CodeInternalError,
			"the client did not answer"))
	}
	if reader := held.reader.Load(); reader != nil {
		_ = held.link.send(held.withContext(ctx), jsonrpc.Notification("notifications/cancelled",
			slices.Concat([]byte(`{"requestId":`), reader.RequestID, []byte("}"))))
	}
}

// forwardNotification forwards a notification that belongs to the call.
func (c legacyRelay) forwardNotification(m *jsonrpc.Message) {
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

// awaitEnd waits up to 50 ms for the end of an answered call, so that the access log and observers
// get its masking statistics. flush sends the response to the client before that.
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
		held.cancel() // some servers never end the stream
		<-held.done
	}
}

// answer passes on the response in the form of the modern era, with the id of the request that
// waits for it.
func (c legacyRelay) answer(msg *heldMessage) {
	m := &msg.message
	c.ErrorCode = m.ErrorNumber()
	edits := append(m.WithID(c.Message.Literal(jsonrpc.ID)), c.translator().rename(m.Raw, msg.names)...)
	if m.Kind(jsonrpc.Result) == jsonspan.BeginObject && !m.Has(jsonrpc.ResultType) {
		edits = append(edits, m.Within(jsonrpc.Result, jsonspan.Insert(m.Literal(jsonrpc.Result), c.completionMembers())))
	}
	c.out.Answer(m.Status(), &streamable.Event{Data: jsonspan.Spliced(m.Raw, edits...)})
}

// completionMembers returns the members that modern results have in addition.
func (c legacyRelay) completionMembers() []byte {
	if c.Message.Is(jsonrpc.Method, "resources/read") {
		return []byte(`"resultType":"complete","ttlMs":0,"cacheScope":"private"`)
	}
	return []byte(`"resultType":"complete"`)
}

// streamLarge passes on a large response, like answer. It reports whether it was complete. If
// the id comes last and does not match, it stays: the client then ignores the response.
func (c legacyRelay) streamLarge(from *largeResponse) (whole bool) {
	ctx := c.ctx
	defer context.AfterFunc(ctx, func() { _ = from.CloseWithError(ctx.Err()) })()
	out := c.out.Large(new(streamable.Event), false)
	to := &rewriting{modernPaths.Rewrite(out, c.replacer(from)), out}
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.Close()
	}
	if err != nil {
		c.truncated = ctx.Err() == nil
		_ = from.CloseWithError(err)
	}
	return err == nil
}

// modernPaths are the places where a legacy response changes for a modern client.
var modernPaths = jsonspan.CompilePaths(namingPaths("id", "result")...)

// replacer returns a function that replaces literals at modernPaths.
func (c legacyRelay) replacer(from *largeResponse) func(path int, k jsonspan.Kind, literal []byte) []byte {
	return func(path int, k jsonspan.Kind, literal []byte) []byte {
		switch {
		case path == len(namings):
			if jsonrpc.SameID(literal, from.id) {
				return c.Message.Literal(jsonrpc.ID)
			}
		case path > len(namings):
			if k == jsonspan.BeginObject && !from.typed {
				return slices.Concat([]byte("{"), c.completionMembers(), []byte(","))
			}
		case k == jsonspan.String:
			return c.translator().replacement(path, literal)
		}
		return nil
	}
}

// askClient returns a server request as input request for the client, nil if the client does not
// support it. It holds the call until the client answers.
func (held *heldCall) askClient(sc scope, sideRequests *upstream.SideRequests, m *jsonrpc.Message) *heldQuestion {
	method := m.Text(jsonrpc.Method)
	refuse := func(why string) *heldQuestion {
		held.reader.Load().ServerRequestClosed()
		unsolicited{sc, held.link}.refuse(sideRequests, m, why)
		return nil
	}
	if !mcp.IsServerRequest(method) || !held.client.introduction.supports(method) {
		return refuse("the client does not support " + mcp.Shortened(method))
	}
	q := &heldQuestion{Key: strconv.Itoa(len(held.serverRequests) + 1), Method: method, Params: m.Literal(jsonrpc.Params)}
	if q.Params == nil {
		q.Params = []byte("{}")
	}
	held.serverRequests[q.Key] = slices.Clone(m.Literal(jsonrpc.ID))
	key, ok := sc.g.waiting.add(held)
	if !ok {
		delete(held.serverRequests, q.Key)
		return refuse("too many calls are waiting for their clients")
	}
	q.State = sc.g.sealer.Seal("call", []byte(sc.g.continuations.withReplica(key)))
	return q
}

// askInput answers the client's request with an input-required result.
func (c legacyRelay) askInput(q *heldQuestion) *jsonrpc.Failure {
	state := q.State
	if c.Elicitation.Confirmed {
		state = c.Elicitation.ConfirmedState(jsonrpc.Quote(state))
	}
	wants := mcp.InputRequest{Method: q.Method, Params: q.Params}
	return c.answerAs(mcp.InputRequired, mcp.NewInputResult(q.Key, wants, state))
}

// sendResponses sends the client's responses to the server.
func (held *heldCall) sendResponses(sc scope, answers []byte) *jsonrpc.Failure {
	var responses map[string]json.RawMessage
	if json.Unmarshal(answers, &responses) != nil {
		responses = nil
	}
	var failed *jsonrpc.Failure
	for key, id := range held.serverRequests {
		body := jsonrpc.ErrorResponse(id, jsonrpc.CodeInternalError, "the client did not answer")
		if response, ok := responses[key]; ok {
			body = jsonrpc.ResultResponse(id, response)
		}
		if failure := held.link.send(sc, body); failure != nil {
			failed = failure
		}
		delete(held.serverRequests, key)
		held.reader.Load().ServerRequestClosed()
	}
	return failed
}

// A legacy client calls a modern server. When the server returns an input-required result, the
// gateway sends requests to the client in the stream of its call, and repeats the call with the
// responses.

// A modernRelay forwards the call of a legacy client to a modern server.
type modernRelay struct{ *call }

// run forwards the call. It reports whether the server has changed its era or session, so that the
// call can be repeated.
func (c modernRelay) run(mayRetry bool) (lost bool, _ *jsonrpc.Failure) {
	first, failure := c.request()
	if failure != nil {
		return false, c.fail(failure)
	}
	message := first
	for round := range upstream.MaxRounds {
		rl := &relay{call: c.call, retryable: mayRetry && round == 0}
		failure := rl.run(&message)
		switch {
		case failure != nil && rl.sessionForgotten():
			c.link.markLost(c.g, rl.session)
			return true, nil
		case failure != nil:
			return false, c.fail(failure)
		case rl.input == nil:
			return false, nil
		}
		responses, failure := prompter(c).ask(rl.input)
		if failure == nil {
			failure = message.Read(mcp.WithInput(&first, responses, rl.input.State))
		}
		if failure != nil {
			return false, c.fail(failure)
		}
	}
	return false, c.fail(jsonrpc.InvalidResponse(c.link.serverName))
}

// request returns the legacy request as a modern one.
func (c modernRelay) request() (jsonrpc.Message, *jsonrpc.Failure) {
	m, failure := withoutModernMeta(&c.Message) // the gateway sets these members
	if failure != nil {
		return m, failure
	}
	meta := c.client.introduction.meta(c.client.logLevel())
	return m.Edited(m.InsertMeta(meta[1 : len(meta)-1]))
}
