package upstream

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// An EndpointKind is a kind of endpoint that clients use.
type EndpointKind uint8

// Kinds of endpoints.
const (
	Aggregate EndpointKind = iota // all servers as one, over Streamable HTTP
	Single                        // one server, over Streamable HTTP
	RPC                           // one server, one JSON-RPC message per POST
)

// An Exchange is one HTTP request to a server, with its response.
//
// The routes of the server write the response to the receiver, which enforces limits. It then
// passes through the filter, if the client may not see all of it, and the mask, and reaches the
// reply, which writes it in the form of the endpoint. The exchange itself is the Handler that the
// mask calls.
//
// At Aggregate, [Shared.NewExchange] makes an exchange and [Exchange.Send] runs it. Elsewhere it is
// made from its exported fields, and [Exchange.Pass] runs it.
type Exchange struct {
	Shared  *Shared
	Server  *Server
	Kind    EndpointKind
	Resumed bool                // the response is the rest of the stream of a call
	IsOwn   bool                // it is a request of the gateway itself
	Writer  http.ResponseWriter // of the client, or the Reader at Aggregate
	Began   time.Time

	*PostedMessage
	Caller  access.Caller
	Path    string   // path of the client's request
	Goal    string   // what the client looks for in the response; "" if unknown
	Traffic *Traffic // traffic of the call; nil for other requests

	// SealState, if not nil, returns what clients get instead of the state of a server request.
	SealState func(state []byte) string

	// Results.
	Before http.Header // headers for a failure: from before the routes ran, or from the handler that refused
	Ending
	ClientGone bool // the client cannot be written to

	isListening    bool             // the client opened a GET stream, at Single
	answered       bool             // the server has responded
	pendingAnswers atomic.Int32     // responses to server requests that are being sent
	failure        *jsonrpc.Failure // why the response is missing or rejected

	inspection *Inspection   // on behalf of an operator; nil for clients
	call       *ActiveCall   // the client's call, if it can be canceled
	routed     *http.Request // request as the routes got it, if the gateway may answer server requests
	session    unlogged.Session
	ctx        exchangeContext
	limits     timeLimits
	receiver   responseReceiver
	reply      reply
	reader     *streamable.Reader // target of reply, at Aggregate
}

// A reply receives the response of an exchange.
type reply interface {
	http.ResponseWriter

	// prepare sets headers that make the server respond in a form the reply can read.
	prepare(*http.Request)

	// complete ends a complete response. If it returns a failure, the caller sends that instead.
	complete() *jsonrpc.Failure

	// breakOff ends an incomplete or missing response. If it returns a failure, the caller can
	// still send that. Otherwise it has sent what it could, or panics to abort the connection.
	breakOff(*jsonrpc.Failure) *jsonrpc.Failure

	// done reports whether the client has its response.
	done() bool

	// timeLeft is called when the server has been silent for its timeout. It returns how much of
	// the timeout is left if the time in which the server waited for the client does not count.
	timeLeft(timeout time.Duration) time.Duration

	// release returns pooled resources.
	release()
}

// NewExchange returns an exchange of the aggregate, whose response goes to reader. m is the message
// to post; nil for none. An inspection is nil for clients.
func (shared *Shared) NewExchange(
	s *Server, c access.Caller, reader *streamable.Reader, m *jsonrpc.Message, inspection *Inspection,
) *Exchange {
	all := new(struct { // one allocation
		Exchange
		posted PostedMessage
		reply  readerReply
	})
	x := &all.Exchange
	*x = Exchange{
		Shared: shared, Server: s, Kind: Aggregate, Writer: reader, Began: time.Now(), PostedMessage: &all.posted,
		Caller: c, reader: reader, reply: &all.reply, inspection: inspection,
	}
	if inspection.WantsRaw() {
		x.Caller = x.Caller.Unredacted()
	}
	all.reply = readerReply{Reader: reader, x: x}
	if m != nil {
		x.Message = *m
	}
	return x
}

// Join makes the exchange a part of a call: it is canceled with the call, and cancels the call at
// its timeout. It returns the context of the request.
func (x *Exchange) Join(call *ActiveCall) context.Context {
	x.call, x.limits.cancel, x.ctx = call, call.Cancel, exchangeContext{call.Context, x}
	return &x.ctx
}

// context returns the context of the call, or of the request if there is no call.
func (x *Exchange) context(r *http.Request) context.Context {
	if x.call != nil {
		return x.call.Context
	}
	return r.Context()
}

// forward sends r to the server.
func (x *Exchange) forward(r *http.Request) *jsonrpc.Failure {
	target, failure := x.target(r)
	if failure == nil && x.namesTasks() {
		failure = x.Shared.Tasks.check(&x.Caller, x.Server, x.PostedMessage)
	}
	if failure == nil && x.Kind != Aggregate { // sessions there are the gateway's
		failure = x.binding().claimIDs(r.Header)
	}
	if failure != nil {
		return failure
	}
	x.address(r, target)
	if r.Method == http.MethodPost {
		if x.Server.Answer(rootsList).Action == Respond {
			x.declareRoots(r)
		}
		x.propagate(r)
	}
	if len(x.Server.Answers) > 0 {
		x.cacheNames() // before answers read them in other goroutines
		x.routed = r.Clone(x.context(r))
		x.routed.Body, x.routed.GetBody = http.NoBody, nil
	}
	x.reply.prepare(r)
	if x.Kind != Aggregate {
		x.Before = maps.Clone(x.Writer.Header())
	}
	if x.call == nil {
		var ctx context.Context
		ctx, x.limits.cancel = context.WithCancelCause(r.Context())
		defer x.limits.cancel(nil)
		x.ctx = exchangeContext{ctx, x}
		r = r.WithContext(&x.ctx)
	}
	x.limitTime(r.Method)
	defer x.limits.stop()
	x.receiver.x = x
	defer x.reply.release()
	return x.conclude(x.run(r))
}

// address directs r to the target, and removes headers that the server may not get. It gets
// credentials only if it is configured to.
func (x *Exchange) address(r *http.Request, target *url.URL) {
	streamable.Direct(r, target)
	x.Server.Routes.Describe(r, x.placeholder)
	if x.Server.ForwardAuth {
		DropHeaders(r.Header, OverridingHeaders)
	} else {
		DropHeaders(r.Header, x.Shared.Private)
	}
}

// target returns the URL of the request: the configured one, or the endpoint that a server with
// HTTP+SSE announced.
func (x *Exchange) target(r *http.Request) (*url.URL, *jsonrpc.Failure) {
	if x.Kind == Single && r.Method == http.MethodPost && strings.HasPrefix(r.URL.RawQuery, endpointParam+"=") {
		return x.binding().openEndpoint(r.URL.Query().Get(endpointParam))
	}
	return x.Server.Target, nil
}

// limitTime starts the time limits of the exchange. A stream that a client opened to listen has no
// timeout, but ends when the client must open it again.
func (x *Exchange) limitTime(method string) {
	isLongLived := x.answersAnyRequest(method) || x.Message.Is(jsonrpc.Method, mcp.MethodListen)
	switch {
	case isLongLived && x.Kind == Aggregate: // its reader ends it
		return
	case isLongLived && x.Kind == Single:
		x.limits.endWith(x.Server.Streams)
		if x.Caller.MustReauthenticate() {
			x.limits.endWith(x.Shared.Reauthenticate)
		}
		return
	}
	x.receiver.limit = x.Shared.ResponseLimit
	timeout := max(x.Server.Timeout, x.inspection.Timeout())
	if x.Kind == Aggregate && x.isHandshakeOrList() {
		timeout = max(timeout, x.Shared.JoinTimeout)
	}
	x.limits.isTotal = x.Kind == RPC
	x.limits.start(timeout, x.reply)
}

// run runs the routes of the server. They panic when a connection breaks during the body. That
// becomes an error, because the client may still get a response.
func (x *Exchange) run(r *http.Request) (err error) {
	defer func() {
		switch reason := recover(); {
		case reason == nil:
		case reason == http.ErrAbortHandler:
			err = errAborted
		case x.Kind == Aggregate: // other servers go on, and this may be a separate goroutine
			x.Shared.Logger.Error("handler of MCP server panicked",
				zap.String("mcp_server", x.Server.Name), zap.Any("panic", reason), zap.Stack("stack"))
			err = errAborted
		default:
			panic(reason)
		}
	}()
	if !x.isMasked() {
		return x.ServeHTTP(x.reply, r)
	}
	about := MaskRequest{x.maskTarget(x.Server.Name), x.Goal, x.Caller.Label, x.Traffic.report()}
	return x.Server.Mask.Serve(x.reply, r, about, x)
}

// isMasked reports whether the response is masked. At the MCP endpoints, responses pass unchanged
// unless configured otherwise (A44, O25). The mask itself does not change lists.
func (x *Exchange) isMasked() bool {
	switch {
	case x.Server.Mask == nil, x.Kind != RPC && !x.Server.MaskMCP, x.inspection.WantsRaw():
		return false
	case x.Kind != Aggregate:
		return true
	}
	switch method, _ := x.knownMethod(); method {
	case "tools/call", "resources/read", "prompts/get":
		return true
	}
	return x.Resumed && !x.Message.IsRequest()
}

// ServeHTTP runs the routes of the server with a response that goes to w: the mask, if there is
// one, or the reply.
func (x *Exchange) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	filter := newFilter(x, w, r)
	if filter != nil {
		w = filter
	}
	if x.Caller.Identity != "" { // tasks of unidentified clients are not bound
		w = watchTasks(x, w, r)
	}
	if x.Kind == Single {
		w = x.binding().bindEvents(w, r)
	}
	x.receiver.ResponseWriter, x.receiver.filtered = w, filter != nil
	ended := false
	defer func() {
		x.receiver.incomplete = !ended // before the mask flushes held data
		if filter != nil {
			filter.noteError()
		}
	}()
	err := x.serveRoutes(&x.receiver, r)
	if err == nil && x.session.Canceled() {
		err = errAborted
	}
	if err == nil && filter != nil {
		err = filter.Close()
	}
	ended = err == nil
	return err
}

// serveRoutes runs the routes of the server for r.
func (x *Exchange) serveRoutes(w http.ResponseWriter, r *http.Request) error {
	if x.Kind == Aggregate && httpsse.IsSession(httpbody.GetHeader(r.Header, mcp.SessionHeader)) {
		return x.Shared.Retained.httpSSE.Serve(w, r, x.httpSSEUpstream())
	}
	return x.Server.Routes.Serve(w, r, x.Caller.Account())
}

// conclude ends the exchange and returns the failure for the client, if any.
func (x *Exchange) conclude(err error) *jsonrpc.Failure {
	if err == nil && !x.receiver.abandoned {
		return x.reply.complete()
	}
	if x.reply.done() {
		return nil
	}
	var failure *jsonrpc.Failure
	switch cause := context.Cause(&x.ctx); {
	case x.failure != nil:
		failure = x.failure
	case cause == ErrTimeout:
		failure = jsonrpc.Timeout(x.Server.Name)
		x.failure = failure
	case cause == errEnded:
		x.Outcome = OutcomeOK
		return nil
	case cause != nil || x.ClientGone:
		x.ClientGone, x.Outcome = true, OutcomeCanceled
		if err == errAborted && x.Kind != Aggregate {
			panic(http.ErrAbortHandler)
		}
		return nil
	default:
		failure = x.failureOf(err)
	}
	return x.reply.breakOff(failure)
}

// failureOf returns the failure that clients get for an error of the routes.
func (x *Exchange) failureOf(err error) *jsonrpc.Failure {
	if failure, ok := errors.AsType[*jsonrpc.Failure](err); ok {
		return failure.Because(err)
	}
	if refusal, ok := errors.AsType[*StatusError](err); ok {
		switch status := refusal.Status; {
		case status == http.StatusGatewayTimeout:
			return jsonrpc.Timeout(x.Server.Name).Because(err)
		case 400 <= status && status < 499:
			x.Before = x.receiver.header // WWW-Authenticate and Retry-After are for the client
			httpbody.DropDescription(x.Before)
			return jsonrpc.Refused(x.Server.Name, status)
		}
	}
	return jsonrpc.ConnectError(x.Server.Name, causeOf(err)).Because(err)
}

// placeholder returns the value of a placeholder of the request to the server.
func (x *Exchange) placeholder(name string) (any, bool) {
	switch name {
	case ServerPlaceholder:
		return x.Server.Name, true
	case MethodPlaceholder:
		return x.MethodName(), true
	case ToolPlaceholder:
		return x.ToolName(), true
	case IDPlaceholder:
		return x.RequestID(), true
	case ClientPlaceholder:
		return x.Caller.Name, true
	}
	return nil, false
}

// endWith records that the exchange failed.
func (x *Exchange) endWith(failure *jsonrpc.Failure) {
	x.Ending.FailWith(failure)
	x.failure = failure
}

// endAnswered records a response of the server. outline is nil if it was not parsed.
func (x *Exchange) endAnswered(outline *jsonrpc.Outline) {
	x.Ending.endAnswered(outline)
	x.answered = outline != nil && outline.IsResponse()
}

// record reports the end of the exchange to the Observer.
func (x *Exchange) record(httpMethod string) {
	if x.Outcome == "" {
		x.Outcome = OutcomePanic
	}
	if !x.inspection.counts(x) {
		return
	}
	r := x.NewRecord(x.Server.Name, httpMethod, x.Kind)
	r.Outcome, r.ErrorCode, r.Duration = x.Outcome, x.ErrorCode, time.Since(x.Began)
	if httpMethod == http.MethodPost && x.Message.IsRequest() && !x.IsOwn && !x.ClientGone {
		if r.Answered = x.answered; !r.Answered {
			r.Fault = x.fault()
		}
	}
	x.Shared.Observer.RequestDone(r)
}

// Pass sends r, a request of a client at Single or RPC, to the server.
func (x *Exchange) Pass(r *http.Request) *jsonrpc.Failure {
	if x.Kind == RPC {
		x.reply = &rpcReply{x: x}
	} else {
		x.reply = &passthroughReply{x: x, r: r, endpoints: endpointSealer{x: x}}
		x.isListening = r.Method == http.MethodGet
	}
	defer x.record(r.Method)
	failure := x.forward(r)
	if failure != nil && !x.ClientGone {
		x.endWith(failure)
	} else if failure != nil {
		x.Outcome = OutcomeCanceled
	}
	return failure
}

// Send sends r to a server of the aggregate, and takes over r. It returns when the response is
// complete, or with the failure. A stream that can be resumed is complete when it has the response.
func (x *Exchange) Send(r *http.Request) *jsonrpc.Failure {
	defer x.record(r.Method)
	host := r.Host // the routes may change it
	failure := x.forward(r)
	if x.reader.Position.CanResume() {
		rest := resumption{x: x, last: x, ctx: x.context(r), r: r, host: host}
		failure = rest.run(failure)
	}
	code, answered := x.reader.Outcome()
	x.answered = answered
	switch {
	case failure != nil:
		x.endWith(failure)
	case x.Outcome != "":
	case answered && code != 0: // broken off after the error response
		x.Outcome, x.ErrorCode = OutcomeError, code
	case answered:
		x.Outcome = OutcomeOK
	}
	return failure
}

// A readerReply writes the response to a Reader of the aggregate.
type readerReply struct {
	*streamable.Reader
	x         *Exchange
	responded atomic.Bool // the response has arrived
}

func (w *readerReply) prepare(*http.Request) {}

func (w *readerReply) complete() *jsonrpc.Failure {
	err := w.Close()
	code, _ := w.Outcome()
	w.x.Outcome = OutcomeOK
	switch {
	case code != 0:
		w.x.Outcome, w.x.ErrorCode = OutcomeError, code
	case outcomeHTTP[w.Status()/100%10] != "":
		w.x.Outcome = outcomeHTTP[w.Status()/100%10]
	case err != nil:
		w.x.Outcome = "invalid_response"
	}
	return nil
}

func (w *readerReply) breakOff(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if fault := w.Fault(w.x.Server.Name); fault != nil {
		return fault
	}
	return failure
}

func (w *readerReply) done() bool {
	_, answered := w.Outcome()
	return answered
}

func (w *readerReply) release() {}

func (w *readerReply) timeLeft(timeout time.Duration) time.Duration {
	if w.responded.Load() {
		return 0
	}
	return timeout - w.Idle()
}

// Write limits the time of a stream after the response, because some servers do not end it.
func (w *readerReply) Write(p []byte) (int, error) {
	w.x.Traffic.addSent(len(p))
	n, err := w.Reader.Write(p)
	if limits := &w.x.limits; limits.hasTimeout() && w.done() {
		w.responded.Store(true)
		limits.limitIdle(StreamGrace)
	}
	return n, err
}

// An exchangeContext is the context of a request to a server.
type exchangeContext struct {
	context.Context
	x *Exchange
}

func (c *exchangeContext) Value(key any) any {
	switch key.(type) {
	case unlogged.SessionKey:
		return &c.x.session
	case stdio.OwnerKey:
		if c.x.Kind != Aggregate { // at Aggregate, the context of the whole request has it
			return c.x.Caller.Budget()
		}
	}
	return c.Context.Value(key)
}

// An ActiveCall is a call of a client that is in progress.
type ActiveCall struct {
	Context context.Context // of the call
	Cancel  context.CancelCauseFunc

	Canceled atomic.Bool // the client has canceled, and the server knows
	paused   atomic.Bool // the server ended the stream, and the gateway waits to resume it
}

// NoteCanceled records that the client has canceled the call. Its stream is not resumed.
func (c *ActiveCall) NoteCanceled() {
	c.Canceled.Store(true)
	if c.paused.Load() {
		c.Cancel(nil)
	}
}

// pause records that the gateway waits to resume the stream. c may be nil.
func (c *ActiveCall) pause() (end func()) {
	if c == nil {
		return func() {}
	}
	c.paused.Store(true)
	if c.Canceled.Load() {
		c.Cancel(nil)
	}
	return func() { c.paused.Store(false) }
}
