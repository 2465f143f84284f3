package stdio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
)

// An exchange is one HTTP request and its response.
type exchange struct {
	pool    *Pool
	req     *http.Request
	version string // of the protocol, as the header has it
	era     mcp.Era
	m       jsonrpc.Message
	session *session
}

// done is the end of the response.
func (x *exchange) done() {
	if x.session != nil {
		x.session.release()
	}
	x.pool.leave(x.req.URL.Host)
}

func (x *exchange) serve() (*http.Response, error) {
	switch x.req.Method {
	case http.MethodPost:
		return x.post()
	case http.MethodGet:
		return x.get(), nil
	case http.MethodDelete:
		return x.delete(), nil
	}
	return x.notAllowed("POST, GET, DELETE"), nil
}

func (x *exchange) notAllowed(allow string) *http.Response {
	res := x.fail(jsonrpc.MethodNotAllowed())
	res.Header.Set("Allow", allow)
	return res
}

func (x *exchange) fail(f *jsonrpc.Failure) *http.Response {
	return respond(x.req, f.Status, f.Append(nil, x.m.Literal(jsonrpc.ID)))
}

func (x *exchange) accepted() *http.Response { return respond(x.req, http.StatusAccepted, nil) }

// join finds the session that the request names.
func (x *exchange) join() *jsonrpc.Failure {
	id := x.req.Header.Get(mcp.SessionHeader)
	if id == "" || x.era == mcp.Modern {
		return nil
	}
	if x.session = x.pool.session(id, x.address(mcp.Legacy)); x.session == nil {
		return jsonrpc.UnknownSession()
	}
	return nil
}

func (x *exchange) address(era mcp.Era) address { return address{x.req.URL.Host, era} }

// post takes a message.
func (x *exchange) post() (*http.Response, error) {
	body, err := httpbody.ReadKept(x.req, int64(x.pool.config.MaxMessage))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read request: %w", err)
	case len(body) > x.pool.config.MaxMessage:
		return x.fail(jsonrpc.PayloadTooLarge()), nil
	}
	if failure := x.m.ReadRequest(body); failure != nil {
		return x.fail(failure), nil
	}
	if failure := x.m.Check(); failure != nil { // there are children that end at what is no message
		return x.fail(failure), nil
	}
	x.era = mcp.EraOf(x.version, &x.m)
	if x.era == mcp.Legacy && x.m.IsRequest() && x.m.Is(jsonrpc.Method, "initialize") {
		return x.initialize()
	}
	if failure := x.join(); failure != nil {
		return x.fail(failure), nil
	}
	switch {
	case x.m.IsNotification():
		return x.notify()
	case !x.m.IsRequest():
		return x.answer(), nil
	case x.era == mcp.Modern:
		if failure := mcp.CheckModern(x.req.Header, &x.m); failure != nil {
			return x.fail(failure), nil
		}
	}
	return x.call()
}

// server returns the server of the session, or that at the address of the request.
func (x *exchange) server(era mcp.Era) (*server, error) {
	if x.session != nil && x.session.server != nil {
		return x.session.server, nil
	}
	return x.pool.server(x.address(era))
}

// child returns the child to talk to. If there is none for the modern era, that for
// the legacy era is asked: it does not mind what more a request has to say.
func (x *exchange) child() (*child, error) {
	c, err := x.ready(x.era)
	if errors.Is(err, errLegacyOnly) || errors.Is(err, errAskLegacy) {
		c, err = x.ready(mcp.Legacy)
	}
	return c, err
}

func (x *exchange) ready(era mcp.Era) (*child, error) {
	s, err := x.server(era)
	if err != nil {
		return nil, err
	}
	return s.ready(x.req.Context())
}

// initialize begins a session. The child has been initialized already or is now.
func (x *exchange) initialize() (*http.Response, error) {
	const longestHello = 17 << 10 // 16 KiB, as where servers are one, and what is added there
	if len(x.m.Literal(jsonrpc.Params)) > longestHello {
		return x.fail(jsonrpc.PayloadTooLarge()), nil
	}
	if !x.pool.serves(x.req.URL.Host) {
		return nil, errStopped
	}
	session, err := x.open()
	if err != nil {
		return nil, err
	}
	if session == nil {
		res := x.fail(jsonrpc.TooManySessions())
		res.Header.Set("Retry-After", "1")
		return res, nil
	}
	x.session = session
	if s, err := x.server(mcp.Legacy); err == nil && s.owner == nil && !x.pool.config.SoleClient && session.canBeAsked(rootsList) {
		s.sayRootsStay()
	}
	c, err := x.child()
	if err != nil {
		x.pool.end(session)
		return nil, err
	}
	if c.hello.answer.Has(jsonrpc.ErrorCode) {
		x.pool.end(session)
		return respond(x.req, http.StatusOK, replaced(c.hello.answer, x.m.Literal(jsonrpc.ID), jsonrpc.ID)), nil
	}
	result := c.hello.answer.Literal(jsonrpc.Result)
	if session.server == nil { // else the two have agreed already
		at := c.hello.version
		version := mcp.Negotiate(x.m.Text(jsonrpc.Requested), string(jsonspan.AppendText(nil, at.Body(result))))
		var edited bytes.Buffer
		_ = jsonspan.Splice(&edited, result, []jsonspan.Edit{{Start: at.Start, End: at.End, New: jsonrpc.Quote(version)}})
		result = edited.Bytes()
	}
	res := respond(x.req, http.StatusOK, jsonrpc.Answer(x.m.Literal(jsonrpc.ID), result))
	res.Header.Set(mcp.SessionHeader, session.id)
	return res, nil
}

// open begins a session, when it is its owner's turn. There is none if its owner has begun
// too many of late, or if there is no room.
func (x *exchange) open() (*session, error) {
	p, ctx := x.pool, x.req.Context()
	owner := ownerOf(ctx)
	if p.config.Isolation == PerSession {
		if can, err := p.starts.wait(ctx, owner, min(startWait, p.config.StartTimeout)); !can {
			return nil, err
		}
	}
	return p.open(&x.m, x.address(mcp.Legacy), owner), nil
}

// answer takes the answer to a question of the server.
func (x *exchange) answer() *http.Response {
	if x.session == nil || !x.m.IsAnswer() || !x.session.answer(x.req.Context(), &x.m) {
		return x.fail(jsonrpc.InvalidRequest("this answers nothing that was asked"))
	}
	return x.accepted()
}

// notify takes a notification. It starts nobody.
func (x *exchange) notify() (*http.Response, error) {
	method := x.m.Text(jsonrpc.Method)
	if method == "notifications/initialized" { // the child has heard it
		return x.accepted(), nil
	}
	for _, c := range x.children() {
		switch {
		case method == "notifications/cancelled":
			x.cancel(c)
		case c.server.owner == nil && !x.concerns(c, method):
		default:
			if err := c.send(x.req.Context(), x.m.Raw); err != nil && x.req.Context().Err() != nil {
				return nil, err
			}
		}
	}
	return x.accepted(), nil
}

// concerns reports whether a notification of one of its clients is for a shared child:
// not that the client has other roots, and of progress only with what it was asked.
func (x *exchange) concerns(c *child, method string) bool {
	switch method {
	case "notifications/roots/list_changed":
		return x.pool.config.SoleClient
	case "notifications/progress":
		return x.session != nil && x.session.awaits(c, x.m.Literal(jsonrpc.Progress))
	}
	return true
}

// cancel ends the call that the client has cancelled, if it waits for this child.
// Without a session nobody can say whose it is.
func (x *exchange) cancel(c *child) {
	if x.session == nil {
		return
	}
	if call := c.called(x.session, x.m.Literal(jsonrpc.RequestID)); call != nil {
		var params struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(x.m.Literal(jsonrpc.Params), &params) // a reason need not be given
		c.cancel(call, params.Reason)
	}
}

// children returns the children that the client's calls may be with: its own, or
// all of the server's name.
func (x *exchange) children() (children []*child) {
	servers := x.pool.named(x.address(x.era).name(), x.era)
	if x.session != nil && x.session.server != nil {
		servers = []*server{x.session.server}
	}
	for _, s := range servers {
		children = append(children, s.working(x.session)...)
	}
	if children == nil && x.era == mcp.Modern { // a legacy child serves its clients
		x.era = mcp.Legacy
		return x.children()
	}
	return children
}

// call makes a request and waits for what comes of it first.
func (x *exchange) call() (*http.Response, error) {
	c, err := x.child()
	if err != nil {
		return nil, err
	}
	ctx := x.req.Context()
	if x.era == mcp.Modern && x.m.Is(jsonrpc.Method, "tools/call") {
		failure, err := x.checkParams(c)
		if err != nil {
			return nil, err
		}
		if failure != nil {
			return x.fail(failure), nil
		}
	}
	if c.server.owner == nil && c.server.at.era == mcp.Legacy && x.m.Is(jsonrpc.Method, setLevelMethod) {
		return x.setLevel(c)
	}
	done, failure := x.subscribes(c.server)
	if failure != nil {
		return x.fail(failure), nil
	}
	if done {
		return respond(x.req, http.StatusOK, jsonrpc.Answer(x.m.Literal(jsonrpc.ID), []byte("{}"))), nil
	}
	call := &call{request: x.m, session: x.session}
	switch err := c.begin(ctx, call); {
	case errors.Is(err, errLent): // and another takes its place
		return x.call()
	case err != nil:
		return nil, err
	}
	l, last, err := x.first(call)
	if err != nil {
		c.giveUp(call, err)
		return nil, err
	}
	if last {
		return x.answered(call, l.message)
	}
	var st *stream
	st = newStream(ctx, call.inbox, func() {
		x.pool.unlisten(st)
		c.giveUp(call, context.Cause(ctx))
		x.done()
	})
	st.load(l)
	if x.m.Is(jsonrpc.Method, mcp.MethodListen) {
		x.pool.listen(st)
	}
	return respondStream(x.req, st), nil
}

// first waits for the first message that the client takes: if it takes no event
// stream, that is the answer.
func (x *exchange) first(call *call) (l letter, last bool, err error) {
	ctx := x.req.Context()
	for {
		select {
		case <-call.inbox.more:
		case <-ctx.Done():
			return letter{}, false, context.Cause(ctx)
		}
		if l, _, last = call.inbox.take(); last || x.takesStream() {
			return l, last, nil
		}
		if l.question != nil {
			call.session.refuse(l.question, "the client takes no event stream")
		}
	}
}

func (x *exchange) takesStream() bool {
	accept := x.accept()
	return accept == "" || strings.Contains(accept, "text/event-stream") || strings.Contains(accept, "*/*")
}

func (x *exchange) accept() string { return strings.Join(x.req.Header.Values("Accept"), ",") }

// answered makes a response of an answer that nothing came before.
func (x *exchange) answered(call *call, answer []byte) (*http.Response, error) {
	if answer == nil { // the client has cancelled it
		return x.accepted(), nil
	}
	if call.err != nil { // whoever forwards the request knows how to tell
		return nil, call.err
	}
	status := http.StatusOK
	if x.era == mcp.Modern {
		var m jsonrpc.Message
		if m.Read(answer) == nil {
			status = m.Status()
		}
	}
	return respond(x.req, status, answer), nil
}

// subscribes notes to which resources a client of a shared child subscribes. It
// reports whether that is all: the child goes on telling of a resource for as long
// as one of its clients wants it, whoever asks it not to.
func (x *exchange) subscribes(s *server) (done bool, failure *jsonrpc.Failure) {
	uri := x.m.Text(jsonrpc.URI)
	switch x.m.Text(jsonrpc.Method) {
	case "resources/subscribe":
		if x.session != nil && !x.session.subscribe(uri) {
			return false, jsonrpc.TooManySubscriptions().AsAnswer()
		}
	case "resources/unsubscribe":
		if x.session != nil {
			x.session.unsubscribe(uri)
		}
		return s.wanted(uri), nil
	}
	return false, nil
}

// get opens the stream of a session.
func (x *exchange) get() *http.Response {
	if x.version != "" && !mcp.IsLegacy(x.version) {
		return x.notAllowed("POST")
	}
	if failure := x.join(); failure != nil {
		return x.fail(failure)
	}
	if x.session == nil || !strings.Contains(x.accept(), "text/event-stream") {
		return x.notAllowed("POST")
	}
	var st *stream
	st = newStream(x.req.Context(), x.session.mail, func() {
		x.pool.unlisten(st)
		x.session.leave(st)
		x.session.release()
	})
	st.buf = []byte(": open\n\n") // so that the header goes out
	x.session.listen(st)
	x.pool.listen(st)
	x.pool.leave(x.req.URL.Host) // nobody waits for its end
	return respondStream(x.req, st)
}

// delete ends a session.
func (x *exchange) delete() *http.Response {
	if x.version != "" && !mcp.IsLegacy(x.version) {
		return x.notAllowed("POST")
	}
	if failure := x.join(); failure != nil {
		return x.fail(failure)
	}
	if x.session == nil {
		return x.notAllowed("POST, GET")
	}
	x.pool.end(x.session)
	return respond(x.req, http.StatusNoContent, nil)
}

// checkParams checks that headers repeat the arguments that a tool wants in them. No
// child has to say that its tools have changed, so nobody is refused by what was
// known before.
func (x *exchange) checkParams(c *child) (failure *jsonrpc.Failure, err error) {
	for _, fresh := range []bool{false, true} {
		if fresh {
			c.params.Store(nil)
		}
		headers, err := c.paramHeaders(x.req.Context())
		if err != nil {
			return nil, err
		}
		if failure = headers.Check(x.req.Header, &x.m); failure == nil {
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

// clientInfo is who a child is asked by, where that is none of the clients.
var clientInfo = `{"name":"caddy-mcp-gateway","version":"` + version.Current() + `"}`
