package gateway

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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// An exchange is one HTTP request to a server, and its response.
//
// The response comes from the routes of the server. It passes the arrival, which keeps the
// limits; the filter, if some of it is not for the client; the mask; and reaches the reply,
// which makes of it what the endpoint serves. The exchange itself is the Handler that the
// mask calls.
type exchange struct {
	g      *Gateway
	server *Server
	kind   EndpointKind
	w      http.ResponseWriter // of the client, or the Reader at the aggregate
	began  time.Time

	*posted
	caller  caller
	path    string    // of the client's request
	goal    string    // what the client looks for in the answer; "" if it does not say
	resumed bool      // the response is the rest of the stream of a call
	flight  *inFlight // the call of the client that the message is, if it can be canceled
	traffic *traffic  // of the call; nil for other requests

	sent    *http.Request // as the routes got it, if the server may be answered in place of the client
	before  http.Header   // of the response, before the routes ran; nil at Aggregate
	session unlogged.Session
	ctx     exchangeContext
	cancel  context.CancelCauseFunc // ends ctx
	limits  []func() bool           // of the time of streams; each is a function that ends it
	arrival arrival
	reply   reply
	reader  *streamable.Reader // that reply writes to, at Aggregate
	listens bool               // the client has opened a stream to listen, at Single

	answering atomic.Int32     // messages that are being sent to the server besides
	verdict   *jsonrpc.Failure // why the rest of the answer is not wanted, and in the end why there is none
	left      bool             // the client cannot be written to
	operator  *Operator        // on whose behalf it is; nil for clients
	own       bool             // it is a request of the gateway itself

	// sealState, if it is not nil, returns what stands for the state of a question of the server.
	sealState func(state []byte) string

	answered bool // the server has answered
	ending
}

// A reply receives the response to an exchange.
type reply interface {
	http.ResponseWriter

	// prepare has the server answer in a form that can be read.
	prepare(*http.Request)

	// complete says that the response is complete. What it returns is to be answered in
	// place of that.
	complete() *jsonrpc.Failure

	// breakOff says that there is no response, or not all of it. What it returns can still
	// be answered; otherwise it has made the best of it, or panics so that the client can
	// tell.
	breakOff(*jsonrpc.Failure) *jsonrpc.Failure

	// done reports whether the client has its answer.
	done() bool

	// timeLeft returns how much of its timeout a server still has that has been silent for
	// all of it, because it had to wait for the client.
	timeLeft(timeout time.Duration) time.Duration

	// release gives back what was borrowed.
	release()
}

// newExchange returns an exchange of the aggregate, whose response goes to a Reader. m is the
// message that is posted; nil if none is.
func (g *Gateway) newExchange(l *link, to *streamable.Reader, m *jsonrpc.Message) *exchange {
	all := new(struct { // in one piece of memory
		exchange
		posted posted
		reply  readerReply
	})
	x := &all.exchange
	*x = exchange{
		g: g, server: g.of(l), kind: Aggregate, w: to, began: time.Now(), posted: &all.posted,
		caller: g.rules.callerOf(l.client), reader: to, reply: &all.reply, operator: l.client.operator,
	}
	if x.operator.wantsRaw() {
		x.caller = x.caller.unredacted()
	}
	all.reply = readerReply{Reader: to, x: x}
	if m != nil {
		x.message = *m
	}
	return x
}

// join makes the exchange a part of a call: it ends with the call, and a call that takes too long
// is over. It returns the context of the request.
func (x *exchange) join(call *inFlight) context.Context {
	x.flight, x.cancel, x.ctx = call, call.cancel, exchangeContext{call.ctx, x}
	return &x.ctx
}

// context returns the context of what a request is sent for: the call, or the request itself.
func (x *exchange) context(r *http.Request) context.Context {
	if x.flight != nil {
		return x.flight.ctx
	}
	return r.Context()
}

// forward has the server answer.
func (x *exchange) forward(r *http.Request) *jsonrpc.Failure {
	target, failure := x.target(r)
	if failure == nil {
		failure = x.claim(r.Header)
	}
	if failure != nil {
		return failure
	}
	x.address(r, target)
	if r.Method == http.MethodPost {
		x.offerRoots(r)
		x.propagate(r)
	}
	if len(x.server.Answers) > 0 {
		x.sent = r.Clone(x.context(r))
		x.sent.Body, x.sent.GetBody = http.NoBody, nil
	}
	x.reply.prepare(r)
	if x.kind != Aggregate {
		x.before = maps.Clone(x.w.Header())
	}
	if x.flight == nil {
		var ctx context.Context
		ctx, x.cancel = context.WithCancelCause(r.Context())
		defer x.cancel(nil)
		x.ctx = exchangeContext{ctx, x}
		r = r.WithContext(&x.ctx)
	}
	x.limitTime(r.Method)
	defer x.endLimits()
	x.arrival.x = x
	defer x.reply.release()
	return x.conclude(x.run(r))
}

// address makes r a request to the server: for an address there, and without what is not for
// the server. It gets credentials only if it is configured to.
func (x *exchange) address(r *http.Request, target *url.URL) {
	streamable.Direct(r, target)
	x.server.Upstream.Describe(r, x.placeholder)
	if x.server.ForwardAuth {
		dropHeaders(r.Header, overrides)
	} else {
		dropHeaders(r.Header, x.g.private)
	}
}

// target returns where the server takes the request: at its configured path, or at the
// endpoint that a server of the protocol's first revision has named.
func (x *exchange) target(r *http.Request) (*url.URL, *jsonrpc.Failure) {
	if x.kind == Single && r.Method == http.MethodPost && strings.HasPrefix(r.URL.RawQuery, endpointParam+"=") {
		return x.binding().openEndpoint(r.URL.Query().Get(endpointParam))
	}
	return x.server.Target, nil
}

// limitTime ends the exchange when its time is over. A stream that a client has opened to
// listen has no limit, but ends when the client must open it anew.
func (x *exchange) limitTime(method string) {
	lasts := x.answersAny(method) || x.message.Is(jsonrpc.Method, mcp.MethodListen)
	switch {
	case lasts && x.kind == Aggregate: // its reader ends it
		return
	case lasts && x.kind == Single:
		end := func() { x.cancel(errEnded) }
		x.limits = append(x.limits, context.AfterFunc(x.server.Streams, end))
		if x.caller.isVolatile() {
			x.limits = append(x.limits, context.AfterFunc(x.g.config.Reauthenticate, end))
		}
		return
	}
	a := &x.arrival
	a.limit, a.timeout = x.g.config.ResponseLimit, max(x.server.Timeout, x.operator.patience())
	if x.joins() {
		a.timeout = max(a.timeout, x.g.config.JoinTimeout)
	}
	left := a.timeout
	if a.heardAt.Load() == 0 {
		a.heardAt.Store(int64(streamable.Clock()))
	} else {
		left = a.silence()
	}
	a.starting.Lock() // expire, which may be called at once, needs the timer
	defer a.starting.Unlock()
	a.timer = time.AfterFunc(left, x.expire)
}

// joins reports whether the gateway shakes hands with the server, or asks it for a list, to make it a part of the
// aggregate. That has a time limit of its own.
func (x *exchange) joins() bool {
	method, _ := x.knownMethod()
	_, isList := kindOf(method)
	return x.kind == Aggregate && (isList || method == "initialize" || method == "server/discover")
}

// expire ends the exchange if the server has been silent for too long.
func (x *exchange) expire() {
	a := &x.arrival
	left := a.silence()
	if left <= 0 {
		left = x.reply.timeLeft(a.timeout)
	}
	if left > 0 {
		a.starting.Lock()
		defer a.starting.Unlock()
		a.timer.Reset(left)
		return
	}
	x.cancel(errTimeout)
}

// endLimits ends the limits of time.
func (x *exchange) endLimits() {
	if x.arrival.timer != nil {
		x.arrival.timer.Stop()
	}
	for _, stop := range x.limits {
		stop()
	}
}

// answersAny reports whether the response may have answers to any requests of the client: it
// is a stream that the client has opened, and not the rest of that of a known call.
func (x *exchange) answersAny(method string) bool {
	return method == http.MethodGet && !x.message.IsRequest()
}

var (
	errTimeout = timeoutError{}                    // why a request is canceled that the client still waits for
	errEnded   = errors.New("the stream is ended") // by us, and the client still listens
)

// timeoutError is a net.Error, so that reverse_proxy does not take it for the client's wish.
type timeoutError struct{}

func (timeoutError) Error() string {
	return "no answer within the timeout of the server, or the response_timeout of the gateway"
}
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// run has the routes of the server answer. They panic when one side dies while the body is
// sent. That is an error here, because it may still be answered.
func (x *exchange) run(r *http.Request) (err error) {
	defer func() {
		switch reason := recover(); {
		case reason == nil:
		case reason == http.ErrAbortHandler:
			err = errAborted
		case x.kind == Aggregate: // there are other servers to serve, and this may be a goroutine of its own
			x.g.config.Logger.Error("handler of MCP server panicked", zap.String("mcp_server", x.server.Name), zap.Any("panic", reason), zap.Stack("stack"))
			err = errAborted
		default:
			panic(reason)
		}
	}()
	if !x.masked() {
		return x.ServeHTTP(x.reply, r)
	}
	return x.server.Mask.Serve(x.reply, r, MaskRequest{x.about(), x.goal, x.caller.label, x.traffic.report()}, x)
}

// masked reports whether the answer is masked. At the endpoints of MCP, answers pass to the
// byte unless the configuration says otherwise (A44, O25). The mask itself lets lists pass.
func (x *exchange) masked() bool {
	switch {
	case x.server.Mask == nil, x.kind != RPC && !x.server.MaskMCP, x.operator.wantsRaw():
		return false
	case x.kind != Aggregate:
		return true
	}
	switch method, _ := x.knownMethod(); method {
	case "tools/call", "resources/read", "prompts/get":
		return true
	}
	return x.resumed && !x.message.IsRequest()
}

// about returns what the exchange is about, for the mask. For an answer that a client resumes,
// or that of a task, it is not known.
func (x *exchange) about() mcp.Target {
	target, ok := mcp.TargetOf(x.server.Name, &x.message)
	if !ok || !x.message.IsRequest() {
		target = mcp.Target{Server: x.server.Name, Kind: mcp.Other}
	}
	return target
}

// ServeHTTP has the routes of the server write to w, which is the mask if there is one.
func (x *exchange) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	filter := newFilter(x, w, r)
	if filter != nil {
		w = filter
	}
	x.arrival.ResponseWriter, x.arrival.filtered = x.bound(r, w), filter != nil
	ended := false
	defer func() {
		x.arrival.broken = !ended // before the mask lets out what it has held back
		if filter != nil {
			filter.notFiltered()
		}
	}()
	err := x.serveRoutes(&x.arrival, r)
	if err == nil && x.session.Canceled() {
		err = errAborted
	}
	if err == nil && filter != nil {
		err = filter.Close()
	}
	ended = err == nil
	return err
}

// conclude ends the exchange, however it went.
func (x *exchange) conclude(err error) *jsonrpc.Failure {
	if err == nil && !x.arrival.gaveUp {
		return x.reply.complete()
	}
	if x.reply.done() {
		return nil
	}
	var failure *jsonrpc.Failure
	switch cause := context.Cause(&x.ctx); {
	case x.verdict != nil:
		failure = x.verdict
	case cause == errTimeout:
		failure = jsonrpc.Timeout(x.server.Name)
		x.verdict = failure
	case cause == errEnded:
		x.outcome = OutcomeOK
		return nil
	case cause != nil || x.left:
		x.left, x.outcome = true, OutcomeCanceled
		if err == errAborted && x.kind != Aggregate {
			panic(http.ErrAbortHandler)
		}
		return nil
	default:
		failure = x.failureOf(err)
	}
	return x.reply.breakOff(failure)
}

// failureOf returns what an error of the routes means to the client.
func (x *exchange) failureOf(err error) *jsonrpc.Failure {
	if failure, ok := errors.AsType[*jsonrpc.Failure](err); ok {
		return failure.Because(err)
	}
	if refusal, ok := errors.AsType[*StatusError](err); ok {
		switch status := refusal.Status; {
		case status == http.StatusGatewayTimeout:
			return jsonrpc.Timeout(x.server.Name).Because(err)
		case 400 <= status && status < 499:
			x.before = x.arrival.header // WWW-Authenticate and Retry-After are for the client
			httpbody.DropDescription(x.before)
			return jsonrpc.Refused(x.server.Name, status)
		}
	}
	return jsonrpc.ConnectError(x.server.Name, causeOf(err)).Because(err)
}

// placeholder returns the value of a placeholder of the request to the server.
func (x *exchange) placeholder(name string) (any, bool) {
	switch name {
	case ServerPlaceholder:
		return x.server.Name, true
	case MethodPlaceholder:
		return x.methodName(), true
	case ToolPlaceholder:
		return x.toolName(), true
	case IDPlaceholder:
		return x.requestID(), true
	case ClientPlaceholder:
		return x.caller.name, true
	}
	return nil, false
}

// endWith notes that the exchange has failed.
func (x *exchange) endWith(failure *jsonrpc.Failure) {
	x.ending.endWith(failure)
	x.verdict = failure
}

// endAnswered notes an answer of the server; nil for one that is not read.
func (x *exchange) endAnswered(outline *jsonrpc.Outline) {
	x.ending.endAnswered(outline)
	x.answered = outline != nil && outline.IsAnswer()
}

// record reports the end of the exchange.
func (x *exchange) record(httpMethod string) {
	if x.outcome == "" {
		x.outcome = outcomePanic
	}
	if !x.operator.counts(x) {
		return
	}
	answered, fault := x.contact(httpMethod)
	x.g.config.Observer.RequestDone(Record{
		Server: x.server.Name, Method: x.label(httpMethod, x.kind), Called: x.methodName(), Tool: x.toolName(),
		Outcome: x.outcome, ErrorCode: x.errorCode, Duration: time.Since(x.began), Answered: answered, Fault: fault,
	})
}

// send has the server of the aggregate answer r, which is the exchange's from here on. It
// returns when the response is complete, or why it is not. A stream that can be resumed is
// complete when it has the answer.
func (x *exchange) send(r *http.Request) *jsonrpc.Failure {
	defer x.record(r.Method)
	host := r.Host // the routes of a call may set another
	failure := x.readOn(r, host, x.forward(r))
	code, answered := x.reader.Outcome()
	x.answered = answered
	switch {
	case failure != nil:
		x.endWith(failure)
	case x.outcome != "":
	case answered && code != 0: // and broken off after that
		x.outcome, x.errorCode = outcomeError, code
	case answered:
		x.outcome = OutcomeOK
	}
	return failure
}

// Interface guard
var _ Handler = (*exchange)(nil)

// A readerReply gives an answer to a Reader of the aggregate.
type readerReply struct {
	*streamable.Reader
	x    *exchange
	over atomic.Bool // the rest of a stream has brought the answer
}

func (w *readerReply) prepare(*http.Request) {}

func (w *readerReply) complete() *jsonrpc.Failure {
	err := w.Close()
	code, _ := w.Outcome()
	switch w.x.outcome = OutcomeOK; {
	case code != 0:
		w.x.outcome, w.x.errorCode = outcomeError, code
	case outcomeHTTP[w.Status()/100%10] != "":
		w.x.outcome = outcomeHTTP[w.Status()/100%10]
	case err != nil:
		w.x.outcome = "invalid_response"
	}
	return nil
}

func (w *readerReply) breakOff(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if fault := w.Fault(w.x.server.Name); fault != nil {
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
	if w.over.Load() {
		return 0
	}
	return timeout - w.Idle()
}

// Write takes the next bytes of the body. Some servers do not end a resumed stream after the
// answer.
func (w *readerReply) Write(p []byte) (int, error) {
	w.x.traffic.pass(len(p))
	n, err := w.Reader.Write(p)
	if a := &w.x.arrival; w.x.resumed && a.timer != nil && w.done() {
		w.over.Store(true)
		a.limitSilence(streamGrace)
	}
	return n, err
}

// Interface guard
var _ reply = (*readerReply)(nil)
