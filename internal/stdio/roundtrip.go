package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
)

// A roundTrip is one HTTP request and its response.
type roundTrip struct {
	pool    *Pool
	req     *http.Request
	era     mcp.Era
	m       *jsonrpc.Message // of a POST
	session *session
	asked   call // that m asks for, if it is one
}

func newRoundTrip(p *Pool, req *http.Request) *roundTrip {
	rt := &roundTrip{pool: p, req: req}
	rt.m = &rt.asked.request
	return rt
}

// done is called at the end of the response.
func (rt *roundTrip) done() {
	if rt.session != nil {
		rt.session.release()
	}
	rt.pool.leave(rt.req.URL.Host)
}

func (rt *roundTrip) serve() (*http.Response, error) {
	if rt.req.Method == http.MethodPost {
		if failure, err := rt.read(); err != nil || failure != nil {
			return rt.fail(failure), err
		}
	}
	asked, failure := streamable.Inspect(rt.req, rt.m)
	if failure != nil {
		return rt.fail(failure), nil
	}
	rt.era = asked.Era
	if asked.Session != "" {
		if rt.session = rt.pool.session(asked.Session, rt.name()); rt.session == nil {
			return rt.fail(jsonrpc.UnknownSession()), nil
		}
	}
	switch asked.Kind {
	case streamable.Initialize:
		return rt.initialize()
	case streamable.Notification:
		return rt.notify()
	case streamable.Answer:
		return rt.answer(), nil
	case streamable.Listen:
		return rt.listen(), nil
	case streamable.End:
		return rt.end(), nil
	}
	return rt.call()
}

// read reads the message of a POST.
func (rt *roundTrip) read() (*jsonrpc.Failure, error) {
	body, err := httpbody.ReadKept(rt.req, int64(rt.pool.config.MaxMessage))
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	if len(body) > rt.pool.config.MaxMessage {
		return jsonrpc.PayloadTooLarge(), nil
	}
	return rt.m.ReadRequest(body), nil
}

// fail answers with a failure. Without one there is no response.
func (rt *roundTrip) fail(f *jsonrpc.Failure) *http.Response {
	if f == nil {
		return nil
	}
	res := respond(rt.req, f.Status, f.Append(nil, rt.m.Literal(jsonrpc.ID)))
	f.SetHeader(res.Header)
	return res
}

func (rt *roundTrip) accepted() *http.Response { return respond(rt.req, http.StatusAccepted) }

// name returns the name of the server that the request is for.
func (rt *roundTrip) name() string { return address{host: rt.req.URL.Host}.name() }

// server returns the server of the session, or one at the address of the request: that for
// clients that declare what this one does. One that declares nothing gets what there is.
func (rt *roundTrip) server(era mcp.Era) (*server, error) {
	p, host := rt.pool, rt.req.URL.Host
	switch {
	case rt.session != nil && rt.session.server != nil:
		return rt.session.server, nil
	case rt.session != nil:
		p.awaitEra(rt.req.Context(), host, rt.session.can, rt.session.owner)
		return p.server(address{host, mcp.Legacy, rt.session.group})
	case era == mcp.Modern:
		s, err := p.server(address{host: host, era: era})
		if err == nil {
			s.noteAsker(rt.m.Literal(jsonrpc.ClientCapabilities), ownerOf(rt.req.Context()))
		}
		return s, err
	}
	return p.sharedServer(host, rt.m.Literal(jsonrpc.ClientCapabilities), ownerOf(rt.req.Context()))
}

// child returns the child for the request. A server that does not know the modern era has
// only one of the legacy era, which ignores what a modern request adds.
func (rt *roundTrip) child() (*child, error) {
	c, err := rt.ready(rt.era)
	if err == nil && rt.era == mcp.Modern && c.server.at.era == mcp.Legacy {
		err = errLegacyOnly // the child may be that of other clients
	}
	if errors.Is(err, errLegacyOnly) || errors.Is(err, errAskLegacy) {
		c, err = rt.ready(mcp.Legacy)
	}
	return c, err
}

func (rt *roundTrip) ready(era mcp.Era) (*child, error) {
	s, err := rt.server(era)
	if err != nil {
		return nil, err
	}
	return s.ready(rt.req.Context())
}

// initialize begins a session. It initializes the child unless another client has.
func (rt *roundTrip) initialize() (*http.Response, error) {
	const longestHello = 17 << 10 // the gateway's limit of 16 KiB, and what it adds
	if len(rt.m.Literal(jsonrpc.Params)) > longestHello {
		return rt.fail(jsonrpc.PayloadTooLarge()), nil
	}
	if !rt.pool.serves(rt.req.URL.Host) {
		return nil, errStopped
	}
	session, err := rt.open()
	if err != nil {
		return nil, err
	}
	if session == nil {
		return rt.fail(jsonrpc.TooManySessions()), nil
	}
	rt.session = session
	if s, err := rt.server(mcp.Legacy); err == nil && s.owner == nil && !rt.pool.config.SoleClient && session.canBeAsked(rootsList) {
		s.sayRootsStay()
	}
	c, err := rt.child()
	if refused, ok := errors.AsType[*refusedError](err); ok && session.group.can != nothing {
		return rt.refuse(refused.answer), nil // maybe because of what the client has said
	}
	if err != nil {
		rt.pool.end(session)
		return nil, err
	}
	if c.hello.answer.Has(jsonrpc.ErrorCode) {
		return rt.refuse(c.hello.answer), nil
	}
	result := c.hello.answer.Literal(jsonrpc.Result)
	if session.server == nil { // a child of its own has negotiated with the client
		at := c.hello.version
		version := mcp.Negotiate(rt.m.Text(jsonrpc.Requested), string(jsonspan.AppendText(nil, at.Body(result))))
		result = jsonspan.Spliced(result, jsonspan.Edit{Start: at.Start, End: at.End, New: jsonrpc.Quote(version)})
	}
	res := respond(rt.req, http.StatusOK, jsonrpc.Answer(rt.m.Literal(jsonrpc.ID), result))
	res.Header.Set(mcp.SessionHeader, session.id)
	return res, nil
}

// refuse ends a session that the server does not want.
func (rt *roundTrip) refuse(answer *jsonrpc.Message) *http.Response {
	rt.pool.end(rt.session)
	return respond(rt.req, http.StatusOK, replaced(answer, rt.m.Literal(jsonrpc.ID), jsonrpc.ID)...)
}

// open begins a session when it is its owner's turn. It returns nil if the owner has begun
// too many lately, or if there is no room.
func (rt *roundTrip) open() (*session, error) {
	p, ctx := rt.pool, rt.req.Context()
	owner := ownerOf(ctx)
	if p.config.Isolation == PerSession {
		if can, err := p.starts.wait(ctx, owner, min(startWait, p.config.StartTimeout)); !can {
			return nil, err
		}
	}
	return p.open(rt.m, rt.req.URL.Host, owner), nil
}

// answer takes the answer to a question of the server.
func (rt *roundTrip) answer() *http.Response {
	if rt.session == nil || !rt.m.IsAnswer() || !rt.session.answer(rt.req.Context(), rt.m) {
		return rt.fail(jsonrpc.InvalidRequest("this answers nothing that was asked"))
	}
	return rt.accepted()
}

// notify takes a notification. It starts no child.
func (rt *roundTrip) notify() (*http.Response, error) {
	method := rt.m.Text(jsonrpc.Method)
	if method == "notifications/initialized" { // the child already has it
		return rt.accepted(), nil
	}
	for _, c := range rt.children() {
		switch {
		case method == "notifications/cancelled":
			rt.cancel(c)
		case c.server.owner == nil && !rt.concerns(c, method):
		default:
			if err := c.send(rt.req.Context(), rt.m.Raw); err != nil && rt.req.Context().Err() != nil {
				return nil, err
			}
		}
	}
	return rt.accepted(), nil
}

// concerns reports whether a shared child gets a notification of a client. It does not get
// changes of the client's roots, and progress only with questions of its own.
func (rt *roundTrip) concerns(c *child, method string) bool {
	switch method {
	case "notifications/roots/list_changed":
		return rt.pool.config.SoleClient
	case "notifications/progress":
		return rt.session != nil && rt.session.awaits(c, rt.m.Literal(jsonrpc.Progress))
	}
	return true
}

// cancel ends the call that the client has canceled, if this child has it. Without a session
// an id does not identify a call.
func (rt *roundTrip) cancel(c *child) {
	if rt.session == nil {
		return
	}
	if call := c.called(rt.session, rt.m.Literal(jsonrpc.RequestID)); call != nil {
		var params struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(rt.m.Literal(jsonrpc.Params), &params) // a reason need not be given
		c.cancel(call, params.Reason)
	}
}

// children returns the children that may have calls of the client: its own, those of its
// group, or all of the server's name.
func (rt *roundTrip) children() (children []*child) {
	var servers []*server
	switch {
	case rt.session == nil:
		servers = rt.pool.named(rt.name(), rt.era, nil)
	case rt.session.server != nil:
		servers = []*server{rt.session.server}
	default:
		servers = rt.pool.named(rt.name(), mcp.Legacy, rt.session.group)
	}
	for _, s := range servers {
		children = append(children, s.working(rt.session)...)
	}
	if children == nil && rt.era == mcp.Modern { // a legacy child serves its clients
		rt.era = mcp.Legacy
		return rt.children()
	}
	return children
}

// call makes a request and waits for the first message that the client takes.
func (rt *roundTrip) call() (*http.Response, error) {
	c, err := rt.child()
	if err != nil {
		return nil, err
	}
	ctx := rt.req.Context()
	if rt.era == mcp.Modern && rt.m.Is(jsonrpc.Method, "tools/call") {
		failure, err := rt.checkParams(c)
		if err != nil {
			return nil, err
		}
		if failure != nil {
			return rt.fail(failure), nil
		}
	}
	if c.server.owner == nil && c.server.at.era == mcp.Legacy && rt.m.Is(jsonrpc.Method, setLevelMethod) {
		return rt.setLevel(c)
	}
	done, failure := rt.subscribes(c.server)
	if failure != nil {
		return rt.fail(failure), nil
	}
	if done {
		return respond(rt.req, http.StatusOK, jsonrpc.Answer(rt.m.Literal(jsonrpc.ID), []byte("{}"))), nil
	}
	call := &rt.asked
	call.session = rt.session
	switch err := c.begin(ctx, call); {
	case errors.Is(err, errLent): // another child takes its place
		return rt.call()
	case err != nil:
		return nil, err
	}
	l, last, err := rt.first(call)
	if err != nil {
		c.giveUp(call, err)
		return nil, err
	}
	if last {
		return rt.answered(call, l)
	}
	var st *stream
	if rt.session != nil && rt.era == mcp.Legacy && c.keepsCalls(rt.session) {
		events := rt.session.newEvents(c, call)
		st = rt.callStream(events)
		events.begin(st, l)
	} else {
		st = newStream(ctx, call.inbox, func() bool {
			rt.pool.unlisten(st)
			c.giveUp(call, context.Cause(ctx))
			rt.done()
			return false
		})
	}
	st.load(l)
	if rt.m.Is(jsonrpc.Method, mcp.MethodListen) {
		rt.pool.listen(st)
	}
	return respondStream(rt.req, st), nil
}

// first waits for the first message that the client takes. If it does not accept an event
// stream, that is the answer.
func (rt *roundTrip) first(call *call) (l letter, last bool, err error) {
	ctx := rt.req.Context()
	for {
		select {
		case <-call.inbox.More():
		case <-ctx.Done():
			return letter{}, false, context.Cause(ctx)
		}
		if l, _, last = call.inbox.Take(); last || rt.takesStream() {
			return l, last, nil
		}
		if l.question != nil {
			call.session.refuse(l.question, "the client takes no event stream")
		}
	}
}

// takesStream reports whether the client accepts an event stream. A client that sends no
// Accept does.
func (rt *roundTrip) takesStream() bool {
	accept := strings.Join(rt.req.Header["Accept"], ",")
	return accept == "" || strings.Contains(accept, "*/*") || streamable.AcceptsStream(rt.req.Header)
}

// answered makes a response of an answer without messages before it.
func (rt *roundTrip) answered(call *call, answer letter) (*http.Response, error) {
	if answer.message == nil { // the client has cancelled the call
		return rt.accepted(), nil
	}
	if call.err != nil { // the handler that forwards the request answers with it
		return nil, call.err
	}
	status := http.StatusOK
	if rt.era == mcp.Modern {
		status = jsonrpc.StatusOf(answer.code)
	}
	return respondWith(rt.req, status, answer, call.inbox), nil
}

// subscribes notes to which resources a client of a shared child subscribes. It
// reports whether that is all: the child goes on telling of a resource for as long
// as one of its clients wants it, whoever asks it not to.
func (rt *roundTrip) subscribes(s *server) (done bool, failure *jsonrpc.Failure) {
	switch {
	case rt.m.Is(jsonrpc.Method, "resources/subscribe"):
		if rt.session != nil && !rt.session.subscribe(rt.m.Text(jsonrpc.URI)) {
			return false, jsonrpc.TooManySubscriptions().AsAnswer()
		}
	case rt.m.Is(jsonrpc.Method, "resources/unsubscribe"):
		uri := rt.m.Text(jsonrpc.URI)
		if rt.session != nil {
			rt.session.unsubscribe(uri)
		}
		return s.wanted(uri), nil
	}
	return false, nil
}

// listen opens the stream of the session.
func (rt *roundTrip) listen() *http.Response {
	if rt.session == nil || !streamable.AcceptsStream(rt.req.Header) {
		return rt.fail(jsonrpc.MethodNotAllowed("POST"))
	}
	if res := rt.resume(); res != nil {
		return res
	}
	var st *stream
	st = newStream(rt.req.Context(), rt.session.mail, func() bool {
		rt.pool.unlisten(st)
		rt.session.leave(st)
		for _, l := range rt.session.mail.Leave() {
			if l.question != nil {
				rt.session.refuse(l.question, "the client has left")
			}
		}
		rt.session.release()
		return false
	})
	rt.session.mail.Join()
	st.buf = net.Buffers{streamable.Comment} // so that the header goes out
	rt.session.listen(st)
	rt.pool.listen(st)
	rt.pool.leave(rt.req.URL.Host) // an idle pool may have open streams
	return respondStream(rt.req, st)
}

// end ends the session.
func (rt *roundTrip) end() *http.Response {
	if rt.session == nil {
		return rt.fail(jsonrpc.MethodNotAllowed("POST", "GET"))
	}
	rt.pool.end(rt.session)
	return respond(rt.req, http.StatusNoContent)
}

// checkParams checks that headers repeat the arguments that a tool wants in them. A child
// need not announce changes of its tools, so a request is refused by a fresh list only.
func (rt *roundTrip) checkParams(c *child) (failure *jsonrpc.Failure, err error) {
	for _, fresh := range []bool{false, true} {
		if fresh {
			c.params.Store(nil)
		}
		headers, err := c.paramHeaders(rt.req.Context())
		if err != nil {
			return nil, err
		}
		if failure = headers.Check(rt.req.Header, rt.m); failure == nil {
			return nil, nil
		}
	}
	return failure, nil
}

// paramHeaders returns which arguments of the child's tools are repeated in headers.
func (c *child) paramHeaders(ctx context.Context) (mcp.ParamHeaders, error) {
	if known := c.params.Load(); known != nil {
		return *known, nil
	}
	headers := mcp.ParamHeaders{}
	const maxPages = 1000
	cursor := ""
	for range maxPages {
		answer, err := c.request(ctx, "tools/list", c.listParams(cursor))
		if err != nil {
			return nil, err
		}
		if cursor, err = headers.Add(answer.Literal(jsonrpc.Result)); err != nil || cursor == "" {
			break // a server without a list has no such headers
		}
	}
	c.params.Store(&headers)
	return headers, nil
}

// listParams are the params of a list request.
func (c *child) listParams(cursor string) []byte {
	params := []byte("{")
	if c.server.at.era == mcp.Modern {
		params = append(params, modernMeta...)
	}
	if cursor != "" {
		if len(params) > 1 {
			params = append(params, ',')
		}
		params = append(append(params, `"cursor":`...), jsonrpc.Quote(cursor)...)
	}
	return append(params, '}')
}

// modernMeta is the member of the params of every request of the modern era.
var modernMeta = `"_meta":` + string(mcp.RequestMeta([]byte(clientInfo), []byte("{}"), ""))

// clientInfo identifies the client of requests of our own.
var clientInfo = `{"name":"caddy-mcp-gateway","version":"` + version.Current() + `"}`
