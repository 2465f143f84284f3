package stdio

import (
	"errors"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A receiver reads the messages of a child from its stdout.
type receiver struct {
	child      *child
	server     *server
	noiseLog   rate.Sometimes // limits log lines about output that is not a message
	tooLongLog rate.Sometimes // limits log lines about messages that are too long
}

func newReceiver(c *child) *receiver {
	return &receiver{
		child:      c,
		server:     c.server,
		noiseLog:   rate.Sometimes{First: 10, Interval: time.Minute},
		tooLongLog: rate.Sometimes{First: 10, Interval: time.Minute},
	}
}

// run reads messages until the end of stdout.
func (r *receiver) run() {
	frames := newFrameReader(r, r.server.pool.config.MaxMessage)
	releasePipe := func() {}
	frames.onLong = sync.OnceFunc(func() { releasePipe = widen(r.child.stdout) })
	defer func() { releasePipe() }()
	var m jsonrpc.Message
	for {
		frame, block, err := frames.next()
		tooLong, isTooLong := errors.AsType[*tooLongError](err)
		switch {
		case err == nil && m.Read(frame) == nil:
			if r.server.pool.config.Framing == Newline && (m.Has(jsonrpc.Version) || m.Has(jsonrpc.Result)) {
				frames.noteValid()
			}
			r.receive(&m, block)
		case isTooLong:
			r.tooLongLog.Do(func() {
				r.child.log().Warn("message on stdout is too long, skipped", zap.ByteString("id", tooLong.id),
					zap.Int("max_line", frames.max))
			})
			r.failSkipped(&tooLong.skippedMessage, jsonrpc.ResponseTooLarge(r.server.name), err)
		case err == nil || errors.Is(err, errNoise):
			r.server.pool.observe.Noise(r.server.name)
			r.noiseLog.Do(func() {
				line := string(frame[:min(len(frame), 512)])
				r.child.log().Warn("line on stdout is not a message", zap.String("line", line))
			})
			if err == nil { // it looks like a message
				l := new(skippedMessage)
				_, _ = l.idWatcher().Write(frame)
				r.failSkipped(l, jsonrpc.InvalidResponse(r.server.name), errNoise)
			}
		default:
			return
		}
	}
}

// Read implements io.Reader.
func (r *receiver) Read(p []byte) (int, error) {
	n, err := r.child.stdout.Read(p)
	if n > 0 {
		r.child.calls.noteRead()
	}
	return n, err
}

// failSkipped fails the call that waits for a skipped response, or refuses a skipped
// request.
func (r *receiver) failSkipped(l *skippedMessage, failure *jsonrpc.Failure, cause error) {
	if l.isRequest {
		if l.id != nil {
			r.respond(jsonrpc.ErrorResponse(l.id, jsonrpc.CodeInvalidRequest, "the request cannot be forwarded"))
		}
	} else if call := r.child.takeCall(l.id); call != nil {
		call.fail(failure, cause)
	}
}

// receive handles a message of the child. A long message is in a block; its bytes do not change
// before the block is freed.
func (r *receiver) receive(m *jsonrpc.Message, b *block) {
	switch {
	case m.IsRequest():
		r.handleServerRequest(m)
	case m.IsNotification():
		r.forwardNotification(m)
	default:
		r.deliverResponse(m, b)
	}
}

// deliverResponse delivers a response to the call that waits for it, with the id of the client.
func (r *receiver) deliverResponse(m *jsonrpc.Message, b *block) {
	complete := m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error) // some servers write "error":null into results
	if !complete && !m.Has(jsonrpc.Version) {                 // most likely a log line in JSON
		r.server.pool.observe.Noise(r.server.name)
		return
	}
	if r.child.calls.abandoned.takePong(m.Literal(jsonrpc.ID)) {
		return
	}
	call := r.child.takeCall(m.Literal(jsonrpc.ID))
	if call == nil { // late, repeated, or with an unknown id
		r.server.noteDropped()
		return
	}
	id := call.request.Literal(jsonrpc.ID)
	if !complete {
		call.fail(jsonrpc.InvalidResponse(r.server.name), errNoise)
		return
	}
	response := letter{message: replaceFields(m, id, jsonrpc.ID, jsonrpc.ListenID), block: b, code: m.ErrorNumber()}
	if !call.inbox.End(response) {
		b.free()
		call.fail(jsonrpc.TooMuchUnread(), errUnread)
	}
}

// forwardNotification forwards a notification to the clients that it concerns.
func (r *receiver) forwardNotification(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "notifications/tools/list_changed" {
		r.child.headers.forget()
	}
	switch {
	case method == "notifications/progress":
		call := r.child.calls.byID(m.Literal(jsonrpc.Progress))
		if call != nil && !call.request.Has(jsonrpc.ProgressToken) {
			call = nil // the client did not request progress
		}
		r.deliverNotification(call, m, jsonrpc.Progress, jsonrpc.ProgressToken)
	case m.Has(jsonrpc.SubscriptionID):
		call := r.child.calls.byID(m.Literal(jsonrpc.SubscriptionID))
		r.deliverNotification(call, m, jsonrpc.SubscriptionID, jsonrpc.ID)
	case method == "notifications/cancelled":
		r.server.clients().withdraw(r.child, m)
	case method == mcp.MethodUpdated:
		uri := m.Text(jsonrpc.URI)
		r.server.clients().broadcast(m, func(s *session) bool { return s.subscriptions.has(uri) })
	case strings.HasSuffix(method, "/list_changed"):
		r.server.clients().listChanged(m)
	default:
		call, ambiguous := r.child.calls.infer()
		switch {
		case call != nil && !r.child.level.passes(m, call.session):
		case call != nil || ambiguous:
			r.deliverNotification(call, m)
		default:
			sole := r.server.clients().sole(r.child)
			if sole == nil || r.child.level.passes(m, sole) && !sole.streamInbox.Put(letter{message: frame{m.Raw}}) {
				r.server.noteDropped()
			}
		}
	}
}

// deliverNotification puts a notification into the inbox of a call. With two fields, the first
// one gets the value that the second one has in the client's request.
func (r *receiver) deliverNotification(call *call, m *jsonrpc.Message, fields ...jsonrpc.Field) {
	if call != nil {
		message := frame{m.Raw}
		if len(fields) == 2 {
			message = replaceFields(m, call.request.Literal(fields[1]), fields[0])
		}
		if call.inbox.Put(letter{message: message}) {
			return
		}
	}
	r.server.noteDropped()
}

// replaceFields returns a message in which the fields have another literal. It shares the bytes of
// the message and of the literal.
func replaceFields(m *jsonrpc.Message, literal []byte, fields ...jsonrpc.Field) frame {
	edits := m.ReplaceAll(literal, fields...)
	return appendEdited(make(frame, 0, 2*len(edits)+1), m.Raw, edits)
}

// handleServerRequest forwards a request of the child to the client whose call it belongs to, or
// to the owner of the child, or answers it. A shared child does not get the roots capability
// unless roots are configured, because it would use those of one client for all. If it requests
// roots anyway, within a call, it is dedicated to the client of that call.
func (r *receiver) handleServerRequest(m *jsonrpc.Message) {
	id, method := m.Literal(jsonrpc.ID), m.Text(jsonrpc.Method)
	if method == "ping" {
		r.respond(jsonrpc.ResultResponse(id, []byte("{}")))
		return
	}
	if result, ours := r.server.pool.answer(r.server.address.host, method); ours {
		if result == nil {
			r.respond(jsonrpc.ErrorResponse(id, jsonrpc.CodeMethodNotFound, "this method is not supported"))
		} else {
			r.respond(jsonrpc.ResultResponse(id, result))
		}
		return
	}
	owner := r.server.clients().owner(r.child)
	call, ambiguous := r.child.calls.infer()
	if call == nil && !ambiguous {
		r.child.calls.abandoned.noteLateRequest()
	}
	forward := call != nil && call.session != nil && call.session.canBeAsked(method)
	if owner == nil && method == rootsList {
		forward = forward && !r.server.hasRoots() && r.server.dedicate(r.child, call.session)
		if !forward {
			r.server.logRootsIgnored()
		}
	}
	switch {
	case forward:
		call.session.serverRequests.forward(r.child, call, m)
	case call != nil:
		r.answerForClient(call.session, id, method)
	case owner != nil && owner.canBeAsked(method):
		owner.serverRequests.forward(r.child, nil, m)
	default:
		why := "no client can answer this request now"
		if owner == nil {
			why = "several clients share this server: it can send requests only while exactly one of them " +
				"has a call in flight; use isolation session to give each session its own process"
		}
		r.child.answerLocally(id, method, jsonrpc.CodeMethodNotFound, why)
	}
}

// respond sends the child the response to a server request.
func (r *receiver) respond(response []byte) { r.child.input.trySend(response) }

// answerForClient answers a server request that the client does not support. A client with a
// session has declared that it has no roots; only configured roots override that (A25).
func (r *receiver) answerForClient(s *session, id []byte, method string) {
	why := "the client does not support this request"
	if method == rootsList && r.server.owner == nil {
		why = "several clients share this server: its roots come from its configuration"
	}
	if s != nil && len(r.server.pool.config.Roots) == 0 {
		r.respond(jsonrpc.ErrorResponse(id, jsonrpc.CodeMethodNotFound, why))
		return
	}
	r.child.answerLocally(id, method, jsonrpc.CodeMethodNotFound, why)
}
