package mcpgateway

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/unlogged"
)

// An exchange is a request to an MCP server and the answer to it.
//
// The answer comes from the routes of the server, passes the arrival, then the screen if
// there is something to look for, then the mask, then the reply of the door, and goes to
// the client. The exchange itself is the handler that the mask calls.
type exchange struct {
	handler *Handler
	server  *Server // nil if there is none of that name
	door    door
	w       http.ResponseWriter
	began   time.Time

	message jsonrpc.Message // what was posted
	body    requestBody
	held    heldBody // what body takes of the room for all of them
	repl    *caddy.Replacer
	caller  caller
	address string // of the client
	version string // of the protocol, as the header has it
	span    trace.Span
	method  string // as far as anybody has asked
	tool    string

	sent    *http.Request // as the routes of the server got it, if anybody may have to know
	before  http.Header   // of the response, before the routes ran
	looked  bool          // at what the server says, before it goes on
	session unlogged.Session
	arrival arrival
	reply   reply
	rpc     rpcReply    // reply, at /rpc
	stream  streamReply // reply, at /mcp
	inner   innerReply  // reply, where servers are one

	telling   atomic.Int32     // how much the server is being told beside
	verdict   *jsonrpc.Failure // why the rest of the answer is not wanted
	bodyRead  bool             // of the request, or it was begun
	left      bool             // the client cannot be written to
	passedOn  bool             // to one server, which counts it
	outcome   string
	errorCode int // of JSON-RPC, 0 for none
}

// A reply is the client's end of an answer.
type reply interface {
	http.ResponseWriter

	// complete says that the routes have answered. What it returns is to be
	// answered in place of that.
	complete() *jsonrpc.Failure

	// breakOff says that they have not, or not to the end. What it returns can
	// still be answered; else it has made the best of it, or panics so that the
	// client can tell.
	breakOff(*jsonrpc.Failure) *jsonrpc.Failure

	// done reports whether the client has its answer.
	done() bool

	// release gives back what was borrowed.
	release()
}

// serve has the request answered, or returns what is to be answered in place of
// that.
func (x *exchange) serve(name string, r *http.Request) *jsonrpc.Failure {
	x.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	x.server = x.handler.byName[name]
	x.span, x.version = trace.SpanFromContext(r.Context()), r.Header.Get(mcp.VersionHeader)
	if r.TLS != nil && !r.TLS.HandshakeComplete {
		return jsonrpc.TooEarly() // no call is to run twice
	}
	if failure := x.handler.checkOrigin(r); failure != nil {
		return failure
	}
	if r.Method != http.MethodPost { // only what is posted is a message, but there are servers that do not care
		httpbody.Empty(r)
	}
	unread, failure := x.authenticate(r)
	if failure != nil {
		return failure
	}
	dropHopByHop(r.Header)
	switch {
	case unread != nil:
		return unread
	case r.Method == http.MethodPost:
		if failure := x.checkReading(r.Header); failure != nil {
			return failure
		}
		if failure := x.stripToken(); failure != nil {
			return failure
		}
		x.post(r)
		x.linkTrace(r)
	case x.door == joinedDoor: // which knows better what it takes
	case x.door == rpcDoor:
		x.w.Header().Set("Allow", "POST")
		return jsonrpc.MethodNotAllowed()
	case r.Method != http.MethodGet && r.Method != http.MethodDelete:
		x.w.Header().Set("Allow", "POST, GET, DELETE")
		return jsonrpc.MethodNotAllowed()
	}
	if x.door == joinedDoor {
		return x.serveJoined(r)
	}
	if x.server == nil {
		return jsonrpc.UnknownServer(mcp.Shortened(name))
	}
	if failure := x.enter(); failure != nil {
		return failure
	}
	return x.forward(r)
}

// dropHopByHop takes off a request what is for this hop only: what its Connection header
// names. reverse_proxy does so as well, but when the handlers of the server's block have set
// theirs, and then a client could have it take off these.
func dropHopByHop(header http.Header) {
	for _, names := range header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			header.Del(strings.TrimSpace(name))
		}
	}
	header.Del("Connection")
}

// checkReading refuses messages that the server may read differently: in another charset
// and, if anything is decided on them, by other keys or by headers that contradict them.
func (x *exchange) checkReading(header http.Header) *jsonrpc.Failure {
	for _, contentType := range header["Content-Type"] {
		if !httpbody.IsUTF8(contentType) {
			return jsonrpc.UnsupportedCharset()
		}
	}
	if x.door != joinedDoor && !x.guarded() && len(x.handler.providers) == 0 && x.caller.identity == "" {
		return nil
	}
	_, known := mcp.KnownMethod(x.methodName())
	if failure := x.message.CheckExact(known); failure != nil || x.door == joinedDoor { // which checks the headers itself
		return failure
	}
	return mcp.CheckHeaders(header, &x.message)
}

// post has r pass on the message, as what it was read as. The transport may still read it
// when the answer is there, so its bytes are never used again.
func (x *exchange) post(r *http.Request) {
	raw := x.message.Raw
	x.body.Reset(raw)
	r.Body = &x.body
	r.GetBody = httpbody.Keep(raw)
	r.Header.Set("Content-Type", "application/json")
	if r.ContentLength != int64(len(raw)) {
		r.Header.Set("Content-Length", strconv.Itoa(len(raw)))
	}
	r.ContentLength, r.TransferEncoding = int64(len(raw)), nil
}

// repost has r post the message with edits made.
func (x *exchange) repost(r *http.Request, edits ...jsonspan.Edit) {
	var edited jsonrpc.Message
	if edited.Read(jsonspan.Spliced(x.message.Raw, edits...)) == nil { // else it stays as it is
		x.message = edited
		x.post(r)
	}
}

// A requestBody is a message to be read by a transport.
type requestBody struct{ bytes.Reader }

func (*requestBody) Close() error { return nil }

// forward has the server answer.
func (x *exchange) forward(r *http.Request) *jsonrpc.Failure {
	path, query := clientPath(r), r.URL.RawQuery
	target := x.server.target
	if x.door == mcpDoor && r.Method == http.MethodPost && strings.HasPrefix(query, endpointParam+"=") {
		sealed, failure := x.server.unseal(r.URL.Query().Get(endpointParam), x.caller.identity)
		if failure != nil {
			return failure
		}
		target = sealed
	}
	if failure := x.claimSession(r.Header); failure != nil {
		return failure
	}
	direct(r, target)
	if x.repl != nil {
		x.repl.Map(x.placeholder)
	}
	stripOverrides(r.Header)
	if !x.server.forwardAuth {
		x.handler.stripCredentials(r.Header)
	}
	x.offerRoots(r)
	x.propagate(r)
	if len(x.server.Answers) > 0 {
		x.sent = r.Clone(r.Context())
		x.sent.Body, x.sent.GetBody = http.NoBody, nil
	}
	switch x.door {
	case innerDoor:
		x.inner.x, x.reply = x, &x.inner
	case rpcDoor:
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Del("Accept-Encoding") // the answer is read, and encode in front has seen this
		x.rpc.x, x.reply = x, &x.rpc
	default:
		x.stream.x, x.reply = x, &x.stream
		x.stream.opened = r.Method == http.MethodGet
		x.stream.path = path
	}
	if x.stream.opened {
		r.Header.Del("Accept-Encoding") // the stream is read
	}
	x.before = maps.Clone(x.w.Header())

	owned := x.session.In(r.Context())
	if x.door != innerDoor { // where the outer request has an owner
		owned = stdio.WithOwner(owned, x.budget())
	}
	ctx, cancel := context.WithCancelCause(owned)
	defer cancel(nil)
	x.arrival.x, x.arrival.ctx = x, ctx
	switch lasts := r.Method == http.MethodGet || x.message.Is(jsonrpc.Method, mcp.MethodListen); {
	case lasts && x.door == innerDoor: // whoever listens ends it
	case lasts && x.door == mcpDoor:
		end := func() { cancel(errEnded) }
		defer context.AfterFunc(x.server.streams, end)()
		if x.caller.mustProveAgain() {
			defer context.AfterFunc(x.handler.unproved, end)()
		}
	default:
		x.arrival.timeout = time.Duration(x.server.Timeout)
		x.arrival.timer = time.AfterFunc(math.MaxInt64, func() { // which has a timer to reset before it runs
			if left := x.inner.left(x.arrival.timeout); left > 0 {
				x.arrival.timer.Reset(left)
				return
			}
			cancel(errTimeout)
		})
		x.arrival.timer.Reset(x.arrival.timeout)
		defer x.arrival.timer.Stop()
		x.arrival.limit = x.handler.ResponseLimit
	}
	defer x.reply.release()
	return x.conclude(ctx, x.run(r.WithContext(ctx)))
}

// clientPath is the path of r as the client has sent it, whatever has been taken
// off it on its way here.
func clientPath(r *http.Request) string {
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		return original.URL.EscapedPath()
	}
	return r.URL.EscapedPath()
}

var (
	errTimeout = timeoutError{}                    // why a request is canceled that the client still waits for
	errEnded   = errors.New("the stream is ended") // by us, and the client still listens
	errAborted = errors.New("the response broke off")
)

// timeoutError is a net.Error, lest reverse_proxy takes it for the client's wish.
type timeoutError struct{}

func (timeoutError) Error() string {
	return "no answer within the timeout of the server, or the response_timeout of the gateway"
}
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// run has the routes of the server answer. They panic when one side dies in
// mid-body; that is an error here, because it may still be answered.
func (x *exchange) run(r *http.Request) (err error) {
	defer func() {
		switch reason := recover(); {
		case reason == nil:
		case reason == http.ErrAbortHandler:
			err = errAborted
		case x.door == innerDoor: // there are other servers to serve, and perhaps nobody above to catch it
			x.handler.logger.Error("handler of MCP server panicked", zap.String("mcp_server", x.server.Name), zap.Any("panic", reason), zap.Stack("stack"))
			err = errAborted
		default:
			panic(reason)
		}
	}()
	if !x.masked() {
		return x.ServeHTTP(x.reply, r)
	}
	return x.server.mask.ServeHTTP(x.reply, x.about(r), x)
}

// masked reports whether the answer is to be masked. Where servers are one, answers
// are theirs to the byte unless the configuration says otherwise (A44), and lists
// always.
func (x *exchange) masked() bool {
	if x.door != innerDoor || x.server.mask == nil {
		return x.server.mask != nil
	}
	switch method, _ := x.knownMethod(); method {
	case "tools/call", "resources/read", "prompts/get":
		return x.server.masked
	}
	return x.server.masked && x.inner.Resumed
}

// ServeHTTP has the routes of the server write to w, which is the mask if there is
// one.
func (x *exchange) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	w, screen := x.screened(w, r)
	x.arrival.ResponseWriter, x.looked = x.bound(r, w), screen != nil
	ended := false
	defer func() {
		x.arrival.broken = !ended // before the mask lets out what it has
		if screen != nil {
			x.unscreened(screen.Err())
		}
	}()
	err := x.server.routes.ServeHTTP(&x.arrival, r)
	if err == nil && screen != nil {
		err = screen.Close()
	}
	ended = err == nil
	return err
}

// conclude ends the answer, however it went.
func (x *exchange) conclude(ctx context.Context, err error) *jsonrpc.Failure {
	if err == nil && !x.arrival.gaveUp {
		return x.reply.complete()
	}
	if x.reply.done() {
		return nil
	}
	var failure *jsonrpc.Failure
	switch cause := context.Cause(ctx); {
	case x.verdict != nil:
		failure = x.verdict
	case cause == errTimeout:
		failure = jsonrpc.Timeout(x.server.Name)
	case cause == errEnded:
		x.outcome = outcomeOK
		return nil
	case cause != nil || x.left:
		x.left, x.outcome = true, outcomeCanceled
		if err == errAborted && x.door != innerDoor {
			panic(http.ErrAbortHandler)
		}
		return nil
	default:
		failure = x.whatFailed(err)
	}
	if c := x.handler.logger.Check(zapcore.ErrorLevel, "no answer of MCP server"); c != nil && failure.Status >= 500 {
		c.Write(zap.String("mcp_server", x.server.Name), zap.String("code", failure.Data.Symbol), zap.Error(err))
	}
	return x.reply.breakOff(failure)
}

// whatFailed tells what an error of the routes means to the client.
func (x *exchange) whatFailed(err error) *jsonrpc.Failure {
	if failure, ok := errors.AsType[*jsonrpc.Failure](err); ok {
		return failure
	}
	if refusal, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		switch status := refusal.StatusCode; {
		case status == http.StatusGatewayTimeout:
			return jsonrpc.Timeout(x.server.Name)
		case 400 <= status && status < 499:
			x.before = x.arrival.header // which tell how to do better: WWW-Authenticate, Retry-After
			httpbody.DropDescription(x.before)
			return jsonrpc.Refused(x.server.Name, status)
		}
	}
	return jsonrpc.ConnectError(x.server.Name)
}

// fail answers with a failure in place of whatever the server may have begun.
func (x *exchange) fail(failure *jsonrpc.Failure) {
	x.outcome, x.errorCode = failure.Data.Symbol, failure.Code
	if x.left {
		x.outcome = outcomeCanceled
		return
	}
	header := x.w.Header()
	if x.before != nil {
		clear(header)
		maps.Copy(header, x.before)
	}
	body := failure.Append(nil, x.message.Literal(jsonrpc.ID))
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(failure.Status)
	_, _ = x.w.Write(body)
}

// told notes how an answer of the server has ended.
func (x *exchange) told(outline *jsonrpc.Outline) {
	x.outcome = outcomeOK
	if outline == nil {
		return
	}
	if code, ok := outline.ErrorCode(); ok {
		x.outcome, x.errorCode = outcomeError, code
	}
}

// Interface guard
var _ caddyhttp.Handler = (*exchange)(nil)
