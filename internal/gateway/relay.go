package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A relay is a request that is passed on.
type relay struct {
	*call
	session string
	again   bool // it can be tried once more
	h       streamable.Reader
	nameReader

	answered bool
	at       streamable.Position // in the stream of the server
	input    *mcp.InputResult    // before the server goes on
	unheaded bool                // the server misses headers that repeat arguments
}

// run has the server answer a message. What it returns is to be answered in place of that.
func (rl *relay) run(m *jsonrpc.Message) *jsonrpc.Failure {
	failure := rl.send(m)
	if rl.unheaded {
		// The list of tools says which headers there are to be. It must have changed.
		rl.link.forgetLists(rl.g, mcp.Tools)
		rl.again, rl.unheaded = false, false
		failure = rl.send(m)
	}
	return failure
}

// send sends the server a message, and passes its answer on.
func (rl *relay) send(m *jsonrpc.Message) *jsonrpc.Failure {
	c, l := rl.call, rl.link
	numbered, failure := rl.numbered(m)
	if failure != nil {
		return failure
	}
	m = &numbered
	x := c.g.exchange(l, &rl.h, m)
	x.Goal, x.Caller.Annotations, x.Traffic = c.goal, c.Caller.Annotations, &c.Traffic
	if c.Confirmed && c.era == mcp.Modern {
		x.SealState = c.ConfirmedState
	}
	// A call is the request of the client itself, so that log fields and placeholders that
	// handlers set are those of the client. All other requests are derived from it.
	r := c.HTTP.WithContext(x.Join(&c.flight.Flight))
	r.ContentLength = -1 // its header may be that of another attempt
	var era mcp.Era
	if rl.session, era = l.setSessionHeaders(r); era == mcp.Modern {
		mcp.SetModern(r.Header, m, mcp.Stateless)
		c.setParams(r.Header, m)
	}
	rl.h = streamable.Reader{OnMessage: rl.heard, OnLarge: rl.large, RequestID: m.Literal(jsonrpc.ID), Parse: rl.parse}
	if era == mcp.Legacy {
		rl.h.Position = &rl.at
	}
	defer rl.h.Borrow()()
	defer l.client.dropQuestions(&rl.h)
	c.PassedOn = true
	x.Post(r)
	failure = x.Send(r)
	switch {
	case rl.h.Torn():
		c.torn = true
		return nil
	case rl.answered, rl.input != nil:
		return nil
	case failure != nil:
		return failure
	}
	return rl.h.Failure(l.server)
}

// numbered returns the message with an id that no other attempt of the call has. The first has
// that of the client.
func (rl *relay) numbered(m *jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Failure) {
	if !rl.attempted {
		rl.attempted = true
		return *m, nil
	}
	id := rl.link.nextID()
	rl.flight.id.Store(&id)
	if rl.flight.Canceled.Load() {
		rl.flight.Cancel(nil) // the server was told of the attempt before
	}
	return m.Edited(m.Replace(jsonrpc.ID, id))
}

// eventID returns the id of an event for the client. It carries the id by which the client knows the
// call, see resumeCall.
func (rl *relay) eventID(id string) string {
	if id == "" {
		return ""
	}
	kind := callStream + ":" + base64.RawURLEncoding.EncodeToString(rl.Message.Literal(jsonrpc.ID))
	return rl.link.translator(rl.g).eventID(kind, id)
}

// forgotten reports whether the server did not know the session, and the call can be
// made again in another one.
func (rl *relay) forgotten() bool { return rl.again && rl.h.SessionLost() }

// heard passes a message of the server on.
func (rl *relay) heard(e *streamable.Event) error {
	c, l, m := rl.call, rl.link, e.Message
	out := streamable.Event{ID: rl.eventID(e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		if c.client.takesEmptyEvents() {
			c.out.Event(&out)
		}
	case m.IsAnswer():
		rl.answer(e, &out)
	case m.IsRequest():
		rl.question(m, &out)
	default:
		l.unsolicited(c.behalf()).note(m)
		out.Data = l.translator(c.g).message(m)
		c.out.Event(&out)
	}
	return nil
}

// answer passes the answer on.
func (rl *relay) answer(e *streamable.Event, out *streamable.Event) {
	c, m, id := rl.call, e.Message, rl.Message.Literal(jsonrpc.ID)
	if !rl.h.Answers(m, rl.h.RequestID) || rl.answered {
		return // to another request
	}
	if rl.forgotten() {
		return
	}
	if rl.unheaded = rl.again && c.needsParams() && m.IsHeaderMismatch(); rl.unheaded {
		return
	}
	out.Data = jsonspan.Spliced(m.Raw, append(m.WithID(id), c.translator().rename(m.Raw, rl.names)...)...)
	rl.h.Settle(m)
	if c.era == mcp.Legacy && m.Is(jsonrpc.ResultType, mcp.InputRequired) {
		if rl.input = new(mcp.InputResult); json.Unmarshal(m.Literal(jsonrpc.Result), rl.input) == nil {
			return
		}
		rl.input = nil // the client may make more of it
	}
	rl.answered = true
	c.ErrorCode, _ = rl.h.Outcome()
	status := http.StatusOK
	if c.era == mcp.Modern {
		if status = m.Status(); rl.h.Status() >= 400 && rl.h.Status() < 500 {
			status = rl.h.Status()
		}
	}
	c.out.Answer(status, out)
}

// large takes an answer that is too large to be held.
func (rl *relay) large(id string) io.WriteCloser {
	c := rl.call
	if rl.answered {
		return nil
	}
	rl.answered = true
	to := c.out.Large(&streamable.Event{ID: rl.eventID(id)}, rl.h.IsStream())
	clientID := c.Message.Literal(jsonrpc.ID)
	return &rewriting{largePaths.Rewrite(to, func(path int, k jsonspan.Kind, literal []byte) []byte {
		switch {
		case path == len(namings):
			return clientID
		case k == jsonspan.String:
			return c.translator().renamed(path, literal)
		}
		return nil
	}), to}
}

// question puts a question of the server to the client, in the response to the call (A23). If
// the client cannot be asked, the server is told so: it must not wait in vain (A25).
func (rl *relay) question(m *jsonrpc.Message, out *streamable.Event) {
	l, method := rl.link, mcp.Shortened(m.Text(jsonrpc.Method))
	if !l.client.can(method) {
		l.unsolicited(rl.behalf()).refuse(&rl.asides, m, "the client has not declared that it can be asked "+method)
		return
	}
	id := l.translator(rl.g).id(m.Literal(jsonrpc.ID))
	out.Data = l.translator(rl.g).message(m)
	l.client.noteQuestion(id, &rl.h)
	switch asked := rl.out.Event(out); {
	case asked:
	case rl.out.Err() != nil:
		rl.flight.Cancel(nil) // the client has left, and may come back for the rest
	default:
		l.client.questionSettled(id)
		l.unsolicited(rl.behalf()).refuse(&rl.asides, m, "the client cannot be asked: it takes no event streams")
	}
}

// rewriting is a large answer whose names are rewritten.
type rewriting struct {
	*jsonspan.Rewriter
	to io.Closer
}

// Close completes the answer. One that turns out to be broken stays incomplete.
func (r *rewriting) Close() error {
	if err := r.Rewriter.Close(); err != nil {
		return err
	}
	return r.to.Close()
}

// needsParams reports whether the gateway has to repeat arguments in headers, because the client
// cannot. A client of the modern era does so itself with those that it sees, and the server checks it.
func (c *call) needsParams() bool {
	return (c.era == mcp.Legacy || c.found || c.Override.EditsArguments()) && c.Message.Is(jsonrpc.Method, "tools/call")
}

// setParams repeats the arguments of a message in headers that the client cannot repeat.
func (c *call) setParams(header http.Header, m *jsonrpc.Message) {
	switch {
	case !c.needsParams():
	case c.era == mcp.Legacy || c.found:
		c.paramHeaders().Set(header, m)
	default:
		c.paramHeaders().SetOnly(header, m, c.Override.HasArgument)
	}
}

// paramHeaders returns which arguments of tools have to be repeated in headers. It asks for the
// list of the tools if that is not known.
func (c *call) paramHeaders() mcp.ParamHeaders {
	if !c.Message.Is(jsonrpc.Method, "tools/call") {
		return nil
	}
	if list := c.toolList(); list != nil {
		return list.Params
	}
	return nil // the server will say if there were any
}

// toolList returns the tools of the server, as the client knows them. It asks for them if they are not
// known, and returns nil if they cannot be had.
func (c *call) toolList() *catalog.List {
	if list := c.client.knownList(c.g, c.Server, mcp.Tools); list != nil {
		return list
	}
	ctx, cancel := context.WithTimeout(c.ctx, listPatience)
	defer cancel()
	list, _, failure := c.client.newListQuery(c.behalf().within(ctx), c.Server, mcp.Tools).get()
	if failure != nil {
		return nil
	}
	return list
}

// listPatience is how long a call waits for the list that its tool is in. Most tools
// need nothing of it.
const listPatience = 2 * time.Second
