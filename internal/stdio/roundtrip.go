package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

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
	m       *jsonrpc.Message // message of a POST
	session *session
	call    call // the call, if m is a request
}

func newRoundTrip(p *Pool, req *http.Request) *roundTrip {
	rt := &roundTrip{pool: p, req: req}
	rt.m = &rt.call.request
	return rt
}

// finish is called at the end of the response.
func (rt *roundTrip) finish() {
	if rt.session != nil {
		rt.session.release()
	}
	rt.pool.inFlight.end(rt.req.URL.Host)
}

func (rt *roundTrip) serve() (*http.Response, error) {
	if rt.req.Method == http.MethodPost {
		if failure, err := rt.read(); err != nil || failure != nil {
			return rt.fail(failure), err
		}
	}
	info, failure := streamable.Inspect(rt.req, rt.m)
	if failure == nil && len(rt.m.Literal(jsonrpc.ClientCapabilities)) > maxIntroduction {
		failure = jsonrpc.InvalidParams("clientCapabilities: too large")
	}
	if failure != nil {
		return rt.fail(failure), nil
	}
	rt.era = info.Era
	if info.Session != "" {
		rt.session = rt.pool.sessions.get(info.Session, nameAt(rt.req.URL.Host))
		if rt.session == nil {
			return rt.fail(jsonrpc.UnknownSession()), nil
		}
	}
	switch info.Kind {
	case streamable.Initialize:
		return rt.initialize()
	case streamable.Notification:
		return rt.serveNotification()
	case streamable.Answer:
		return rt.serveResponse(), nil
	case streamable.Listen:
		return rt.serveGet(), nil
	case streamable.End:
		return rt.serveDelete(), nil
	}
	return rt.serveCall()
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

// fail returns a response with a failure, or nil without one.
func (rt *roundTrip) fail(f *jsonrpc.Failure) *http.Response {
	if f == nil {
		return nil
	}
	res := respond(rt.req, f.Status, f.Append(nil, rt.m.Literal(jsonrpc.ID)))
	f.SetHeader(res.Header)
	return res
}

func (rt *roundTrip) respondAccepted() *http.Response { return respond(rt.req, http.StatusAccepted) }

// server returns the server of the session, or the one at the address of the request for the
// capabilities of the client. A client that declares nothing gets any server that runs.
func (rt *roundTrip) server(era mcp.Era) (*server, error) {
	p, host := rt.pool, rt.req.URL.Host
	switch {
	case rt.session != nil && rt.session.server != nil:
		return rt.session.server, nil
	case rt.session != nil:
		rt.session.awaitEra(rt.req.Context(), host)
		return p.server(address{host, mcp.Legacy, rt.session.group})
	case era == mcp.Modern:
		s, err := p.server(address{host: host, era: era})
		if err == nil {
			s.noteRequester(rt.m.Literal(jsonrpc.ClientCapabilities), ownerOf(rt.req.Context()))
		}
		return s, err
	}
	return p.sharedServer(host, rt.m.Literal(jsonrpc.ClientCapabilities), ownerOf(rt.req.Context()))
}

// child returns the child for the request. A server that does not support the modern era has only
// legacy children, which ignore what a modern request adds.
func (rt *roundTrip) child() (*child, error) {
	c, err := rt.readyChild(rt.era)
	if err == nil && rt.era == mcp.Modern && c.server.address.era == mcp.Legacy {
		err = errLegacyOnly // the child may belong to other clients
	}
	if errors.Is(err, errLegacyOnly) || errors.Is(err, errAskLegacy) {
		c, err = rt.readyChild(mcp.Legacy)
	}
	return c, err
}

func (rt *roundTrip) readyChild(era mcp.Era) (*child, error) {
	s, err := rt.server(era)
	if err != nil {
		return nil, err
	}
	return s.ready(rt.req.Context())
}

// maxIntroduction is the size limit of what a client says about itself: the gateway's limit of
// 16 KiB, and what it adds.
const maxIntroduction = 17 << 10

// initialize begins a session. It initializes the child unless another client already has.
func (rt *roundTrip) initialize() (*http.Response, error) {
	if len(rt.m.Literal(jsonrpc.Params)) > maxIntroduction {
		return rt.fail(jsonrpc.PayloadTooLarge()), nil
	}
	if !rt.pool.hosts.inUse(rt.req.URL.Host) {
		return nil, errStopped
	}
	session, err := rt.openSession()
	if err != nil {
		return nil, err
	}
	if session == nil {
		return rt.fail(jsonrpc.TooManySessions()), nil
	}
	rt.session = session
	if s, err := rt.server(mcp.Legacy); err == nil && s.owner == nil && !rt.pool.config.SoleClient &&
		session.canBeAsked(rootsList) {
		s.logRootsIgnored()
	}
	c, err := rt.child()
	if refused, ok := errors.AsType[*refusedError](err); ok && session.group.capabilities != noCapabilities {
		return rt.refuseSession(refused.answer), nil // maybe because of the client's capabilities
	}
	if err != nil {
		session.end()
		return nil, err
	}
	if c.handshake.answer.Has(jsonrpc.ErrorCode) {
		return rt.refuseSession(c.handshake.answer), nil
	}
	result := c.handshake.answer.Literal(jsonrpc.Result)
	if session.server == nil { // a child of a single session has negotiated with the client itself
		at := c.handshake.version
		version := mcp.Negotiate(rt.m.Text(jsonrpc.Requested), string(jsonspan.AppendText(nil, at.Body(result))))
		result = jsonspan.Spliced(result, jsonspan.Edit{Start: at.Start, End: at.End, New: jsonrpc.Quote(version)})
	}
	res := respond(rt.req, http.StatusOK, jsonrpc.ResultResponse(rt.m.Literal(jsonrpc.ID), result))
	res.Header.Set(mcp.SessionHeader, session.id)
	return res, nil
}

// refuseSession ends a session that the server has refused.
func (rt *roundTrip) refuseSession(answer *jsonrpc.Message) *http.Response {
	rt.session.end()
	return respond(rt.req, http.StatusOK, replaceFields(answer, rt.m.Literal(jsonrpc.ID), jsonrpc.ID)...)
}

// openSession begins a session when the rate limit of its owner allows it. It returns nil if the
// owner has begun too many lately, or if there is no room.
func (rt *roundTrip) openSession() (*session, error) {
	p, ctx := rt.pool, rt.req.Context()
	owner := ownerOf(ctx)
	if p.config.Isolation == PerSession {
		if can, err := p.sessions.starts.wait(ctx, owner, min(startWait, p.config.StartTimeout)); !can {
			return nil, err
		}
	}
	return p.sessions.open(rt.m, rt.req.URL.Host, owner), nil
}

// serveResponse forwards the response to a server request.
func (rt *roundTrip) serveResponse() *http.Response {
	if rt.session == nil || !rt.m.IsResponse() || !rt.session.serverRequests.answer(rt.req.Context(), rt.m) {
		return rt.fail(jsonrpc.InvalidRequest("this response matches no open request"))
	}
	return rt.respondAccepted()
}

// serveNotification forwards a notification. It starts no child.
func (rt *roundTrip) serveNotification() (*http.Response, error) {
	method := rt.m.Text(jsonrpc.Method)
	if method == "notifications/initialized" { // the child already has it
		return rt.respondAccepted(), nil
	}
	for _, c := range rt.children() {
		switch {
		case method == "notifications/cancelled":
			rt.cancelCall(c)
		case c.server.owner == nil && !rt.sharedChildWants(c, method):
		default:
			if err := c.input.send(rt.req.Context(), rt.m.Raw); err != nil && rt.req.Context().Err() != nil {
				return nil, err
			}
		}
	}
	return rt.respondAccepted(), nil
}

// sharedChildWants reports whether a shared child gets a notification of a client. It does not get
// changes of the client's roots, and it gets progress only for its own requests.
func (rt *roundTrip) sharedChildWants(c *child, method string) bool {
	switch method {
	case "notifications/roots/list_changed":
		return rt.pool.config.SoleClient
	case "notifications/progress":
		return rt.session != nil && rt.session.serverRequests.awaitsProgress(c, rt.m.Literal(jsonrpc.Progress))
	}
	return true
}

// cancelCall ends the call that the client has canceled, if this child has it. Without a session an
// id does not identify a call.
func (rt *roundTrip) cancelCall(c *child) {
	if rt.session == nil {
		return
	}
	if call := c.calls.byClientID(rt.session, rt.m.Literal(jsonrpc.RequestID)); call != nil {
		var params struct {
			Reason string `json:"reason"`
		}
		_ = json.Unmarshal(rt.m.Literal(jsonrpc.Params), &params) // the reason is optional
		c.cancel(call, params.Reason)
	}
}

// children returns the children that may have calls of the client: that of its session, those of
// its group, or all with the server's name.
func (rt *roundTrip) children() (children []*child) {
	var servers []*server
	switch {
	case rt.session == nil:
		servers = rt.pool.serversNamed(nameAt(rt.req.URL.Host), rt.era, nil)
	case rt.session.server != nil:
		servers = []*server{rt.session.server}
	default:
		servers = rt.pool.serversNamed(nameAt(rt.req.URL.Host), mcp.Legacy, rt.session.group)
	}
	for _, s := range servers {
		children = append(children, s.childrenFor(rt.session)...)
	}
	if children == nil && rt.era == mcp.Modern { // a legacy child serves modern clients as well
		rt.era = mcp.Legacy
		return rt.children()
	}
	return children
}

// serveCall sends a request and waits for the first message that the client accepts.
func (rt *roundTrip) serveCall() (*http.Response, error) {
	c, err := rt.child()
	if err != nil {
		return nil, err
	}
	ctx := rt.req.Context()
	if rt.era == mcp.Modern && rt.m.Is(jsonrpc.Method, "tools/call") {
		failure, err := c.headers.check(rt.req, rt.m)
		if err != nil {
			return nil, err
		}
		if failure != nil {
			return rt.fail(failure), nil
		}
	}
	if c.server.owner == nil && c.server.address.era == mcp.Legacy && rt.m.Is(jsonrpc.Method, setLevelMethod) {
		return rt.setLevel(c)
	}
	done, failure := rt.trackSubscription(c.server)
	if failure != nil {
		return rt.fail(failure), nil
	}
	if done {
		return respond(rt.req, http.StatusOK, jsonrpc.ResultResponse(rt.m.Literal(jsonrpc.ID), []byte("{}"))), nil
	}
	call := &rt.call
	call.session = rt.session
	switch err := c.sendCall(ctx, call); {
	case errors.Is(err, errDedicated): // another child replaces it
		return rt.serveCall()
	case err != nil:
		return nil, err
	}
	l, last, err := call.first(ctx, rt.req.Header)
	if err != nil {
		c.giveUp(call, err)
		return nil, err
	}
	if last {
		return rt.respondToCall(call, l)
	}
	var st *stream
	if rt.session != nil && rt.era == mcp.Legacy && rt.session.keepsCalls() {
		events := rt.session.events.add(c, call)
		st = rt.callStream(events)
		events.startStream(st, l)
	} else {
		st = newStream(ctx, call.inbox, func() bool {
			c.giveUp(call, context.Cause(ctx))
			rt.finish()
			return false
		})
	}
	st.load(l)
	if rt.m.Is(jsonrpc.Method, mcp.MethodListen) {
		rt.pool.addListening(st)
	}
	return respondStream(rt.req, st), nil
}

// acceptsStream reports whether the client accepts an event stream. A client without an Accept
// header does.
func acceptsStream(header http.Header) bool {
	accept := strings.Join(header["Accept"], ",")
	return accept == "" || strings.Contains(accept, "*/*") || streamable.AcceptsStream(header)
}

// respondToCall returns the HTTP response for a call without messages before its response.
func (rt *roundTrip) respondToCall(call *call, answer letter) (*http.Response, error) {
	if answer.message == nil { // the client has canceled the call
		return rt.respondAccepted(), nil
	}
	if call.err != nil { // the handler that forwards the request reports it
		return nil, call.err
	}
	status := http.StatusOK
	if rt.era == mcp.Modern {
		status = jsonrpc.StatusOf(answer.code)
	}
	return respondWith(rt.req, status, answer, call.inbox), nil
}

// trackSubscription notes which resources a client of a shared child subscribes to. It reports
// whether the request is done: the child keeps a subscription while another client has it.
func (rt *roundTrip) trackSubscription(s *server) (done bool, failure *jsonrpc.Failure) {
	switch {
	case rt.m.Is(jsonrpc.Method, "resources/subscribe"):
		if rt.session != nil && !rt.session.subscriptions.add(rt.m.Text(jsonrpc.URI)) {
			return false, jsonrpc.TooManySubscriptions().WithStatusOK()
		}
	case rt.m.Is(jsonrpc.Method, "resources/unsubscribe"):
		uri := rt.m.Text(jsonrpc.URI)
		if rt.session != nil {
			rt.session.subscriptions.remove(uri)
		}
		return s.clients().isSubscribed(uri), nil
	}
	return false, nil
}

// serveGet opens the stream of the session.
func (rt *roundTrip) serveGet() *http.Response {
	if rt.session == nil || !streamable.AcceptsStream(rt.req.Header) {
		return rt.fail(jsonrpc.MethodNotAllowed("POST"))
	}
	if res := rt.resume(); res != nil {
		return res
	}
	var st *stream
	st = newStream(rt.req.Context(), rt.session.streamInbox, func() bool {
		rt.session.clearStream(st)
		for _, l := range rt.session.streamInbox.Leave() {
			if l.serverRequest != nil {
				l.serverRequest.refuse("the client has left")
			}
		}
		rt.session.release()
		return false
	})
	rt.session.streamInbox.Join()
	st.buf = net.Buffers{streamable.Comment} // sends the header
	rt.session.setStream(st)
	rt.pool.addListening(st)
	rt.pool.inFlight.end(rt.req.URL.Host) // an idle pool may have open streams
	return respondStream(rt.req, st)
}

// serveDelete ends the session.
func (rt *roundTrip) serveDelete() *http.Response {
	if rt.session == nil {
		return rt.fail(jsonrpc.MethodNotAllowed("POST", "GET"))
	}
	rt.session.end()
	return respond(rt.req, http.StatusNoContent)
}

// paramHeaders knows which arguments of a child's tools headers repeat.
type paramHeaders struct {
	child *child
	known atomic.Pointer[mcp.ParamHeaders] // nil if unknown
}

// check checks that headers repeat the arguments that a tool requires in headers. A child need not
// announce changes of its tools, so only a fresh list can refuse a request.
func (p *paramHeaders) check(req *http.Request, m *jsonrpc.Message) (failure *jsonrpc.Failure, err error) {
	for _, fresh := range []bool{false, true} {
		if fresh {
			p.forget()
		}
		headers, err := p.get(req.Context())
		if err != nil {
			return nil, err
		}
		failure = headers.Check(req.Header, m)
		if failure == nil {
			return nil, nil
		}
	}
	return failure, nil
}

// forget makes check list the tools again.
func (p *paramHeaders) forget() { p.known.Store(nil) }

func (p *paramHeaders) get(ctx context.Context) (mcp.ParamHeaders, error) {
	if known := p.known.Load(); known != nil {
		return *known, nil
	}
	headers, era := mcp.ParamHeaders{}, p.child.server.address.era
	const maxPages = 1000
	cursors := map[string]bool{}
	var cursor *string
	for range maxPages {
		answer, err := p.child.request(ctx, "tools/list", listParams(era, cursor))
		if err != nil {
			return nil, err
		}
		cursor, err = headers.Add(answer.Literal(jsonrpc.Result))
		// A server without a list has no such headers. A repeated cursor ends the list, and in the
		// legacy era an empty one does.
		if err != nil || cursor == nil || cursors[*cursor] || *cursor == "" && era == mcp.Legacy {
			break
		}
		cursors[*cursor] = true
	}
	p.known.Store(&headers)
	return headers, nil
}

// listParams returns the params of a list request. The cursor is nil for the first page.
func listParams(era mcp.Era, cursor *string) []byte {
	params := []byte("{")
	if era == mcp.Modern {
		params = append(params, modernMeta...)
	}
	if cursor != nil {
		if len(params) > 1 {
			params = append(params, ',')
		}
		params = append(append(params, `"cursor":`...), jsonrpc.Quote(*cursor)...)
	}
	return append(params, '}')
}

// modernMeta is a member of the params of every modern request.
var modernMeta = `"_meta":` + string(mcp.RequestMeta([]byte(clientInfo), []byte("{}"), ""))

// clientInfo identifies the gateway in its own requests.
var clientInfo = `{"name":"caddy-mcp-gateway","version":"` + version.Current() + `"}`
