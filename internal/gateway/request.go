package gateway

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// An EndpointKind is one of the ways in.
type EndpointKind uint8

const (
	Aggregate EndpointKind = iota // all servers as one, over Streamable HTTP
	Single                        // one server, over Streamable HTTP
	RPC                           // one server, by POST of one JSON-RPC message
)

// An Endpoint is where a request comes in.
type Endpoint struct {
	Kind   EndpointKind
	Server string // name or alias; "" at the aggregate
}

// A Request is a request of a client, and the response to it.
type Request struct {
	g          *Gateway
	w          http.ResponseWriter
	r          *http.Request
	httpMethod string
	to         Endpoint
	peer       Peer
	began      time.Time
	span       trace.Span
	version    string // of the protocol, as the header has it

	posted
	held     heldBody // what the body takes of the room for all of them
	bodyRead bool     // or begun to be read
	caller   caller
	admitted bool    // admit was asked
	server   *Server // that the request is for, as far as it is known and just one

	// At the aggregate.
	era    mcp.Era
	client *client
	name   string // of what is called, as its server knows it
	found  bool   // what is called is not what was posted, but named in it
	led    led    // to the resource that it is about
	out    *streamable.Writer
	asides Asides

	restore   http.Header // of the response, before a server has changed it; nil if none has
	passedOn  bool        // to one server, whose exchange is recorded
	torn      bool        // a part of the answer was sent, and the rest will never come
	left      bool        // the client cannot be written to
	outcome   string
	errorCode int // of JSON-RPC, 0 for none
}

// NewRequest returns a request that came in at an endpoint, to be served.
func (g *Gateway) NewRequest(w http.ResponseWriter, r *http.Request, to Endpoint, from Peer) *Request {
	return &Request{
		g: g, w: w, r: r, httpMethod: r.Method, to: to, peer: from, began: time.Now(),
		span: trace.SpanFromContext(r.Context()), version: r.Header.Get(mcp.VersionHeader), server: g.servers[to.Server],
	}
}

// Serve answers the request.
func (q *Request) Serve() {
	defer q.record() // also when reverse_proxy panics because one side has died while the body was sent
	defer q.held.release()
	if failure := q.serve(); failure != nil {
		q.fail(failure)
	}
}

// Refuse answers the request with a failure.
func (q *Request) Refuse(failure *jsonrpc.Failure) {
	defer q.record()
	q.fail(failure)
}

// serve has the request answered, or returns what is to be answered in place of that.
func (q *Request) serve() *jsonrpc.Failure {
	if q.r.TLS != nil && !q.r.TLS.HandshakeComplete {
		return jsonrpc.TooEarly() // no call is to run twice
	}
	if q.r.Method != http.MethodPost { // only what is posted is a message, but there are servers that do not care
		httpbody.Empty(q.r)
	}
	unread, failure := q.authenticate()
	if failure != nil {
		return failure
	}
	dropHopByHop(q.r.Header)
	switch {
	case unread != nil:
		return unread
	case q.r.Method == http.MethodPost:
		if failure := q.checkReading(); failure != nil {
			return failure
		}
		if failure := q.stripToken(); failure != nil {
			return failure
		}
		q.linkTrace()
	}
	if q.to.Kind == Aggregate {
		return q.serveAggregate()
	}
	return q.serveOne()
}

// serveOne has one server answer the request.
func (q *Request) serveOne() *jsonrpc.Failure {
	switch {
	case q.r.Method == http.MethodPost:
	case q.to.Kind == RPC:
		return q.notAllowed("POST")
	case q.r.Method != http.MethodGet && q.r.Method != http.MethodDelete:
		return q.notAllowed("POST, GET, DELETE")
	}
	if q.server == nil {
		return jsonrpc.UnknownServer(mcp.Shortened(q.to.Server))
	}
	if failure := q.admitAt(q.server); failure != nil {
		return failure
	}
	return q.forward()
}

// forward passes the request on to its server as it is.
func (q *Request) forward() *jsonrpc.Failure {
	x := &exchange{
		g: q.g, server: q.server, kind: q.to.Kind, w: q.w, began: q.began, owner: q.budget(),
		posted: posted{message: q.message, method: q.method, tool: q.tool}, caller: q.caller, path: q.peer.Path,
	}
	if q.r.Method == http.MethodPost {
		x.post(q.r)
	}
	q.passedOn = true
	defer x.record(q.httpMethod)
	defer func() {
		q.message, q.restore, q.left, q.outcome, q.errorCode = x.message, x.before, x.left, x.outcome, x.errorCode
	}()
	failure := x.forward(q.r)
	if failure != nil && !x.left {
		x.outcome, x.errorCode = failure.Data.Symbol, failure.Code
	} else if failure != nil {
		x.outcome = OutcomeCanceled
	}
	return failure
}

// notAllowed refuses the HTTP method.
func (q *Request) notAllowed(allow string) *jsonrpc.Failure {
	q.w.Header().Set("Allow", allow)
	return jsonrpc.MethodNotAllowed()
}

// fail answers with a failure in place of what a server may have begun to answer.
func (q *Request) fail(failure *jsonrpc.Failure) {
	if !q.bodyRead {
		httpbody.Abandon(q.w, q.r, httpbody.Pace)
	}
	q.endWith(failure)
	if q.left {
		q.outcome = OutcomeCanceled
		return
	}
	header := q.w.Header()
	if q.restore != nil {
		clear(header)
		maps.Copy(header, q.restore)
	}
	body := failure.Append(nil, q.message.Literal(jsonrpc.ID))
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	q.w.WriteHeader(failure.Status)
	_, _ = q.w.Write(body)
}

// owner returns whom something is kept for: the client or, if it is unknown, all at its
// address. A network of IPv6 is one address.
func (q *Request) owner() string {
	if q.caller.identity == "" {
		return "@" + ratelimit.Address(q.peer.Address)
	}
	return q.caller.identity
}

// serveAggregate answers a request to all servers.
func (q *Request) serveAggregate() *jsonrpc.Failure {
	client := q.r.Context()
	if q.r.Method == http.MethodGet || q.message.Is(jsonrpc.Method, mcp.MethodListen) {
		ctx, cancel := context.WithCancel(client)
		defer cancel()
		defer context.AfterFunc(q.g.config.Exiting, cancel)()
		q.r = q.r.WithContext(ctx)
	}
	posted := q.r
	defer func() { posted.Body, posted.GetBody = http.NoBody, nil }() // what is remembered of it does not need them
	q.r = q.r.WithContext(stdio.WithOwner(q.r.Context(), q.budget()))
	if q.g.config.Auth != nil && !q.g.forwardsAuth {
		// They have identified the client. Some differ in each request, and would make it
		// another client each time.
		q.g.stripCredentials(q.r.Header)
	}
	failure := q.aggregate()
	if q.server != nil {
		q.tool = mcp.Shortened(q.name)
	}
	switch {
	case q.torn:
		panic(http.ErrAbortHandler) // so that the client can tell
	case failure != nil:
	case q.r.Context().Err() != nil && !q.g.exiting():
		q.outcome = OutcomeCanceled
	case q.outcome != "":
	case q.errorCode != 0:
		q.outcome = outcomeError
	default:
		q.outcome = OutcomeOK
	}
	return failure
}

// aggregate answers the request for all servers. What it returns is to be answered.
func (q *Request) aggregate() *jsonrpc.Failure {
	q.out = streamable.NewWriter(q.w, q.r.Header)
	defer func() {
		if q.client != nil {
			q.g.release(q.client)
		}
	}()
	defer q.out.Close()
	defer q.asides.Wait()
	failure := q.dispatch()
	if failure != nil && !q.admitted {
		// Report errors only to clients that may make requests, and charge them to their
		// rate limit.
		if refused := q.admit(mcp.Target{}); refused != nil {
			failure = refused
		}
	}
	if failure != nil && q.out.Streaming() {
		q.out.Answer(failure.Status, &streamable.Event{Data: failure.Append(nil, q.message.Literal(jsonrpc.ID))})
		q.errorCode = failure.Code
		return nil
	}
	return failure
}

// dispatch answers the request by its HTTP method.
func (q *Request) dispatch() *jsonrpc.Failure {
	if q.r.Method != http.MethodPost || !q.message.IsRequest() || !mcp.HasTarget(q.message.Text(jsonrpc.Method)) {
		if failure := q.admit(q.general()); failure != nil {
			return failure
		}
	}
	switch q.r.Method {
	case http.MethodPost:
		return q.postMessage()
	case http.MethodGet, http.MethodDelete:
		if q.version != "" && !mcp.IsLegacy(q.version) {
			return q.notAllowed("POST") // in the modern era all is posted
		}
		if failure := q.join(); failure != nil {
			return failure
		}
		if q.r.Method == http.MethodGet {
			return q.get()
		}
		return q.delete()
	}
	return q.notAllowed("POST, GET, DELETE")
}

// general returns what a request is about that names nothing.
func (q *Request) general() mcp.Target {
	if !q.g.transparent() || q.r.Method != http.MethodPost {
		return mcp.Target{}
	}
	target, _ := mcp.TargetOf(q.g.config.Servers[0].Name, &q.message)
	return target
}

// sees reports whether the client may know of a server.
func (q *Request) sees(s *Server) bool { return q.g.sees(q.caller.identity, s) }

// seen returns the servers that a client may know of.
func (g *Gateway) seen(identity string) []*Server {
	if len(g.config.Clients) == 0 {
		return g.config.Servers
	}
	return slices.DeleteFunc(slices.Clone(g.config.Servers), func(s *Server) bool { return !g.sees(identity, s) })
}

// join finds the session that the request names.
func (q *Request) join() (failure *jsonrpc.Failure) {
	id := q.r.Header.Get(mcp.SessionHeader)
	if id == "" {
		if q.r.Method == http.MethodGet {
			// Clients of the first revision, and people with a browser, try this.
			return q.notAllowed("POST")
		}
		return jsonrpc.InvalidRequest("the header Mcp-Session-Id is missing: initialize first")
	}
	q.client, failure = q.g.session(id, q.caller.identity)
	return failure
}

// postMessage answers a message.
func (q *Request) postMessage() *jsonrpc.Failure {
	if failure := q.message.Check(); failure != nil {
		return failure
	}
	q.era = mcp.EraOf(q.version, &q.message)
	if q.era == mcp.Modern {
		return q.postModern()
	}
	if q.message.IsRequest() && q.message.Is(jsonrpc.Method, "initialize") {
		return q.initialize()
	}
	if failure := q.join(); failure != nil {
		return failure
	}
	switch {
	case q.message.IsNotification():
		q.notify()
		q.accepted()
		return nil
	case !q.message.IsRequest():
		q.reply()
		q.accepted()
		return nil
	}
	switch method := q.message.Text(jsonrpc.Method); method {
	case "ping":
		return q.answer([]byte("{}"))
	case "logging/setLevel":
		return q.setLevel()
	case "resources/subscribe", "resources/unsubscribe":
		return q.subscribe(method == "resources/subscribe")
	default:
		return q.postRequest(method)
	}
}

// postModern answers a message of the modern era.
func (q *Request) postModern() *jsonrpc.Failure {
	if !q.message.IsRequest() {
		q.accepted() // none has a meaning over HTTP
		return nil
	}
	if failure := mcp.CheckModern(q.r.Header, &q.message); failure != nil {
		return failure
	}
	if !q.message.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return jsonrpc.UnsupportedVersion(q.message.Text(jsonrpc.ProtocolVersion), mcp.Versions())
	}
	var failure *jsonrpc.Failure
	if q.client, failure = q.visitor(); failure != nil {
		return failure
	}
	switch method := q.message.Text(jsonrpc.Method); method {
	case "server/discover":
		return q.discover()
	case mcp.MethodListen:
		return q.listen()
	case "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return jsonrpc.MethodNotFound(method) // of the legacy era
	default:
		return q.postRequest(method)
	}
}

// postRequest answers a request that both eras have.
func (q *Request) postRequest(method string) *jsonrpc.Failure {
	if k, ok := kindOf(method); ok {
		return q.list(k)
	}
	switch method {
	case "tools/call":
		return q.callTool()
	case "prompts/get":
		return q.callNamed(jsonrpc.Name, prompts)
	case "resources/read":
		return q.readResource()
	case "completion/complete":
		return q.complete()
	case "tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
		return q.callTask()
	}
	if q.g.transparent() {
		s := q.g.config.Servers[0]
		return q.pass(s, mcp.Target{Server: s.Name}, nil)
	}
	failure := jsonrpc.MethodNotFound(mcp.Shortened(method))
	if q.era == mcp.Legacy {
		failure = failure.AsAnswer()
	}
	return failure
}

// accepted answers a message that wants no answer.
func (q *Request) accepted() { q.w.WriteHeader(http.StatusAccepted) }

// answer answers the request with a result of ours.
func (q *Request) answer(result []byte) *jsonrpc.Failure { return q.answerAs("complete", result) }

// answerAs answers the request with a result of ours, of a type that the modern era has.
func (q *Request) answerAs(resultType string, result []byte) *jsonrpc.Failure {
	if q.era == mcp.Modern {
		result = q.g.signed(resultType, result)
	}
	q.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(q.message.Literal(jsonrpc.ID), result)})
	return nil
}

// all calls f for all servers that the client may know of at the same time, with its link to
// each.
func (q *Request) all(f func(ctx context.Context, s *Server, l *link)) {
	var calls errgroup.Group
	calls.SetLimit(maxFanOut)
	for _, s := range q.g.seen(q.caller.identity) {
		l := q.client.link(s)
		calls.Go(func() error {
			f(q.r.Context(), s, l)
			return nil
		})
	}
	_ = calls.Wait()
}

// maxFanOut is how many servers are talked to at the same time for one request.
const maxFanOut = 64
