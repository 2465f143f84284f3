package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// relayInEra forwards a call to a server of the same era, again if the server has lost its session.
func relayInEra(c *call) *jsonrpc.Failure {
	failure := c.link.inSession(c.scope(), func(mayRetry bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		rl := &relay{call: c, retryable: mayRetry}
		failure := rl.run(&c.Message)
		return &rl.reader, rl.session, failure
	})
	if failure != nil {
		return c.fail(failure)
	}
	return nil
}

// A relay forwards a call to a server of the same era, or a legacy call to a modern server.
type relay struct {
	call      *call
	session   string
	retryable bool // may be repeated in a new session
	reader    streamable.Reader

	responded      bool
	position       streamable.Position // in the stream of the server
	input          *mcp.InputResult    // input that a modern server requires of a legacy client
	missingHeaders bool                // a modern server requires headers that repeat arguments
}

// run forwards a message and passes on the response. The caller answers with the failure that it
// returns.
func (rl *relay) run(m *jsonrpc.Message) *jsonrpc.Failure {
	failure := rl.attempt(m)
	if rl.missingHeaders {
		// The tool list names the required headers, so it must have changed.
		rl.call.link.forgetLists(rl.call.g, mcp.Tools)
		rl.retryable, rl.missingHeaders = false, false
		failure = rl.attempt(m)
	}
	return failure
}

// attempt sends a message to the server and passes on the response.
func (rl *relay) attempt(m *jsonrpc.Message) *jsonrpc.Failure {
	c, l := rl.call, rl.call.link
	c.sideRequests.Wait() // those of an earlier attempt read the headers that this one changes
	numbered, failure := rl.withUniqueID(m)
	if failure != nil {
		return failure
	}
	m = &numbered
	x := c.g.shared.NewExchange(c.Server, c.Caller, &rl.reader, m, c.client.inspection)
	x.Goal, x.Traffic = c.goal, &c.Traffic
	if c.Elicitation.Confirmed && c.era == mcp.Modern {
		x.SealState = c.Elicitation.ConfirmedState
	}
	// Use the request of the client itself, so that log fields and placeholders set by handlers are
	// visible in it. All other requests are derived from it.
	r := c.HTTP.WithContext(x.Join(&c.active))
	r.ContentLength = -1 // the header may be left from an earlier attempt
	session := l.session.current()
	session.setHeaders(r.Header)
	rl.session = session.Session
	if session.Era == mcp.Modern {
		mcp.SetModern(r.Header, m, mcp.Stateless)
		c.setParams(r.Header, m)
	}
	rl.reader = streamable.Reader{
		OnMessage: rl.onMessage, OnLarge: rl.onLarge, RequestID: m.Literal(jsonrpc.ID), Paths: namePaths,
	}
	if session.Era == mcp.Legacy {
		rl.reader.Position = &rl.position
	}
	defer rl.reader.Borrow()()
	defer l.client.serverRequests.dropOf(&rl.reader)
	c.IsForwarded = true
	x.Post(r)
	failure = x.Send(r)
	switch {
	case rl.reader.IsTruncated():
		c.truncated = true
		return nil
	case rl.responded, rl.input != nil:
		return nil
	case failure != nil:
		return failure
	}
	return rl.reader.Failure(l.serverName)
}

// withUniqueID returns the message with an id that is unique for each attempt. The first attempt
// uses the client's id.
func (rl *relay) withUniqueID(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	if !rl.call.attempted {
		rl.call.attempted = true
		return *m, nil
	}
	id := rl.call.link.ids.next()
	rl.call.repeatedID.Store(&id)
	if rl.call.active.Canceled.Load() {
		rl.call.active.Cancel(nil) // the cancellation named the id of an earlier attempt
	}
	return m.Edited(m.Replace(jsonrpc.ID, id))
}

// eventID returns an event id for the client. It carries the client's id of the call, see
// resumeCall.
func (rl *relay) eventID(id string) string {
	if id == "" {
		return ""
	}
	kind := callStream + ":" + base64.RawURLEncoding.EncodeToString(rl.call.Message.Literal(jsonrpc.ID))
	return rl.call.link.translator(rl.call.g).eventID(kind, id)
}

// sessionForgotten reports whether the server no longer knows the session and the call can be
// repeated.
func (rl *relay) sessionForgotten() bool { return rl.retryable && rl.reader.SessionLost() }

// onMessage passes on a message of the server.
func (rl *relay) onMessage(e *streamable.Event) error {
	c, l, m := rl.call, rl.call.link, e.Message
	out := streamable.Event{ID: rl.eventID(e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		if c.client.takesEmptyEvents() {
			c.out.Event(&out)
		}
	case m.IsResponse():
		rl.onResponse(e, &out)
	case m.IsRequest():
		rl.onServerRequest(m, &out)
	default:
		unsolicited{c.scope(), l}.note(m)
		out.Data = l.translator(c.g).message(m)
		c.out.Event(&out)
	}
	return nil
}

// onResponse passes on the response.
func (rl *relay) onResponse(e *streamable.Event, out *streamable.Event) {
	c, m, id := rl.call, e.Message, rl.call.Message.Literal(jsonrpc.ID)
	if !rl.reader.IsResponseTo(m, rl.reader.RequestID) || rl.responded {
		return // to another request
	}
	if rl.sessionForgotten() {
		return
	}
	if rl.missingHeaders = rl.retryable && c.needsParams() && m.IsHeaderMismatch(); rl.missingHeaders {
		return
	}
	out.Data = jsonspan.Spliced(m.Raw, append(m.WithID(id), c.translator().rename(m.Raw, rl.reader.Found)...)...)
	rl.reader.NoteResponse(m)
	if c.era == mcp.Legacy && m.Is(jsonrpc.ResultType, mcp.InputRequired) {
		if rl.input = new(mcp.InputResult); json.Unmarshal(m.Literal(jsonrpc.Result), rl.input) == nil {
			return
		}
		rl.input = nil // not valid; the client gets it unchanged
	}
	rl.responded = true
	c.ErrorCode, _ = rl.reader.Outcome()
	status := http.StatusOK
	if c.era == mcp.Modern {
		status = m.Status()
		if rl.reader.Status() >= 400 && rl.reader.Status() < 500 {
			status = rl.reader.Status()
		}
	}
	c.out.Answer(status, out)
}

// onLarge streams a response that is too large for memory.
func (rl *relay) onLarge(id string) io.WriteCloser {
	c := rl.call
	if rl.responded {
		return nil
	}
	rl.responded = true
	to := c.out.Large(&streamable.Event{ID: rl.eventID(id)}, rl.reader.IsStream())
	clientID := c.Message.Literal(jsonrpc.ID)
	return &relayedLarge{rewriting{largePaths.Rewrite(to, func(path int, k jsonspan.Kind, literal []byte) []byte {
		switch {
		case path == len(namings):
			return clientID
		case k == jsonspan.String:
			return c.translator().replacement(path, literal)
		}
		return nil
	}), to}, c}
}

// A relayedLarge is a large response to the client of a call.
type relayedLarge struct {
	rewriting
	call *call
}

// Write cancels the call if the client has disconnected: that is not a failure of the server. Over
// HTTP/3, a write can fail before the request ends.
func (r *relayedLarge) Write(p []byte) (int, error) {
	n, err := r.rewriting.Write(p)
	if r.call.out.Err() != nil {
		r.call.active.Cancel(nil)
	}
	return n, err
}

// onServerRequest sends a server request to the client, in the response to the call (A23). If the
// client does not support it, the server gets an error at once (A25).
func (rl *relay) onServerRequest(m *jsonrpc.Message, out *streamable.Event) {
	l, method := rl.call.link, mcp.Shortened(m.Text(jsonrpc.Method))
	if !l.client.introduction.supports(method) {
		unsolicited{rl.call.scope(), l}.refuse(&rl.call.sideRequests, m, "the client does not support "+method)
		return
	}
	id := l.translator(rl.call.g).id(m.Literal(jsonrpc.ID))
	out.Data = l.translator(rl.call.g).message(m)
	l.client.serverRequests.note(id, &rl.reader)
	switch sent := rl.call.out.Event(out); {
	case sent:
	case rl.call.out.Err() != nil:
		rl.call.active.Cancel(nil) // the client disconnected and may resume the stream
	default:
		l.client.serverRequests.settle(id)
		unsolicited{rl.call.scope(), l}.refuse(&rl.call.sideRequests, m, "the client does not accept event streams")
	}
}

// A rewriting is a large response whose names are rewritten.
type rewriting struct {
	*jsonspan.Rewriter
	to io.Closer
}

// Close completes the response. An invalid response stays incomplete.
func (r *rewriting) Close() error {
	if err := r.Rewriter.Close(); err != nil {
		return err
	}
	return r.to.Close()
}

// needsParams reports whether the gateway must repeat arguments in headers. Modern clients do that
// themselves, for the arguments that they see, and the server checks it.
func (c *call) needsParams() bool {
	return c.Message.Is(jsonrpc.Method, "tools/call") &&
		(c.era == mcp.Legacy || c.viaCallTool || c.Override.HidesArguments())
}

// setParams repeats arguments in headers where the client cannot.
func (c *call) setParams(header http.Header, m *jsonrpc.Message) {
	switch {
	case !c.needsParams():
	case c.era == mcp.Legacy || c.viaCallTool:
		c.paramHeaders().Set(header, m)
	default:
		c.paramHeaders().SetOnly(header, m, c.Override.HidesArgument)
	}
}

// paramHeaders returns the arguments that must be repeated in headers. It requests the tool list if
// it is not cached.
func (c *call) paramHeaders() mcp.ParamHeaders {
	if !c.Message.Is(jsonrpc.Method, "tools/call") {
		return nil
	}
	if list := c.toolList(); list != nil {
		return list.Params
	}
	return nil // the server refuses the call if headers are missing
}

// toolList returns the tools of the server that the client sees. It requests them if they are not
// cached, and returns nil if that fails.
func (c *call) toolList() *catalog.List {
	if list := c.client.knownList(c.g, c.Server, mcp.Tools); list != nil {
		return list
	}
	ctx, cancel := context.WithTimeout(c.ctx, listTimeout)
	defer cancel()
	list, _, failure := c.client.newListQuery(c.scope().withContext(ctx), c.Server, mcp.Tools).get()
	if failure != nil {
		return nil
	}
	return list
}

// listTimeout is how long a call waits for the tool list. Most calls do not need it.
const listTimeout = 2 * time.Second

// resumeCall resumes the stream of a call that a client has lost. kind is the stream kind in its
// event ids, see relay.eventID.
func (req *aggregateRequest) resumeCall(kind, server, last string) *jsonrpc.Failure {
	_, encoded, _ := strings.Cut(kind, ":")
	clientID, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(clientID) == 0 {
		return unknownEventID()
	}
	owner := req.g.servers[server]
	if owner == nil || !req.sees(owner) {
		return unknownEventID()
	}
	req.Server = owner
	l := req.client.linkTo(owner)
	if failure := l.open(req.scope()); failure != nil {
		return failure
	}
	l.session.markUsed()
	if call := req.client.calls.get(clientID); call != nil && call.link == l {
		call.active.Cancel(nil) // the client noticed first that its connection is broken, and resumes here
	} else if call == nil {
		req.g.replicaSync.callResumed(req.client, clientID, owner.ID)
	}
	s := &stream{req: req.newStreamRequest()} // without listeners
	s.ctx, s.cancel = context.WithCancelCause(req.ctx)
	defer s.req.sideRequests.Wait()
	defer s.work.wait()
	defer s.end()
	c := &resumedCall{stream: s, r: req.HTTP, link: l, kind: kind, clientID: clientID}
	return c.run(last)
}

// A resumedCall is the rest of the stream of a call.
type resumedCall struct {
	*stream
	r        *http.Request // request that resumes the stream
	link     *link
	kind     string // stream kind in the event ids
	clientID []byte // the client's id of the call; the server may have another one
	reader   streamable.Reader
}

// run passes on the stream after an event.
func (c *resumedCall) run(last string) *jsonrpc.Failure {
	req := &c.req
	begin := sync.OnceFunc(func() {
		req.out.Begin()
		c.work.runAsync(c.keepOpen)
	})
	c.reader = streamable.Reader{Position: &streamable.Position{ID: last}, Paths: namePaths, OnMessage: c.onMessage}
	c.reader.OnHeader = func(status int) bool {
		if status == http.StatusOK {
			begin()
		}
		return status == http.StatusOK
	}
	r, _ := c.link.newRequest(scope{ctx: c.ctx, g: req.g, r: c.r})
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-Id", last)
	x := req.g.exchange(c.link, &c.reader, nil)
	x.Resumed = true
	failure := x.Send(r)
	switch {
	case req.out.IsStreaming():
		return nil
	case c.reader.Status()/100 == 4:
		return jsonrpc.InvalidRequest("Last-Event-ID: the MCP server cannot resume after this event")
	}
	return failure
}

// onMessage passes on a message of the server.
func (c *resumedCall) onMessage(e *streamable.Event) error {
	req, l, m := &c.req, c.link, e.Message
	out := streamable.Event{ID: l.translator(req.g).eventID(c.kind, e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		if req.client.takesEmptyEvents() {
			req.out.Event(&out)
		}
	case m.IsResponse():
		c.reader.NoteResponse(m)
		edits := append(m.WithID(c.clientID), l.translator(req.g).rename(m.Raw, c.reader.Found)...)
		out.Data = jsonspan.Spliced(m.Raw, edits...)
		req.out.Event(&out)
		time.AfterFunc(upstream.StreamGrace, c.end) // some servers do not end the stream
	default:
		u := unsolicited{scope{ctx: c.ctx, g: req.g, r: c.r}, l}
		u.note(m)
		if !c.deliver(req.g, l, m, out.ID) && m.IsRequest() {
			u.refuse(&req.sideRequests, m, "the client does not support "+mcp.Shortened(m.Text(jsonrpc.Method)))
		}
	}
	return nil
}
