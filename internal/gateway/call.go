package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// invalid refuses what is named in a request.
func invalid(message string) *jsonrpc.Failure { return jsonrpc.InvalidParams(message).AsAnswer() }

// callTool calls a tool: of a server, or of the gateway itself.
func (q *Request) callTool() *jsonrpc.Failure {
	name := q.message.Text(jsonrpc.Name)
	if tool := q.g.own.tool(name); tool != nil {
		if name == callToolName {
			return tool(q) // which is about the tool that it calls
		}
		if failure := q.admit(mcp.Target{Kind: mcp.Tool, Name: name}); failure != nil {
			return failure
		}
		return tool(q)
	}
	return q.callNamed(jsonrpc.Name, tools)
}

// callNamed passes on a request for something that has a name (A8 to A10).
func (q *Request) callNamed(f jsonrpc.Field, k kind) *jsonrpc.Failure {
	if q.message.Kind(f) != jsonspan.String {
		return invalid("name: it is missing, or no string")
	}
	s, name, failure := q.whose(q.message.Text(f), k)
	if failure != nil {
		return failure
	}
	q.name = name
	target := mcp.Target{Server: s.Name, Kind: kinds[k].target, Name: name}
	if q.g.transparent() {
		return q.pass(s, target, nil)
	}
	return q.pass(s, target, []jsonspan.Edit{q.message.Replace(f, jsonrpc.Quote(name))})
}

// whose returns the server that has something, and what it is called there.
func (q *Request) whose(shown string, k kind) (*Server, string, *jsonrpc.Failure) {
	s, name := q.g.config.Servers[0], shown
	if !q.g.transparent() {
		server, rest, ok := q.g.config.Naming.Split(shown, func(server string) bool { return q.g.servers[server] != nil })
		if !ok {
			return nil, "", invalid("name: there is no " + strings.TrimSuffix(kinds[k].member, "s") + " " + mcp.Shortened(shown))
		}
		if s, name = q.g.servers[server], rest; !q.sees(s) {
			return s, name, nil // and nobody asks it
		}
		shown = s.Name + q.g.config.Naming.Separator + rest // however it was spelled
		if q.g.config.Naming.MayBeShort(shown) {
			// Its original is known from the list that it was read in.
			list, _, failure := q.client.link(s).listing(q.r.Context(), q, k)
			if failure != nil {
				return nil, "", failure.AsAnswer()
			}
			if original, ok := list.short[shown]; ok {
				name = original
			}
		}
	}
	if k == tools && !s.shows(name) {
		return nil, "", invalid("name: there is no tool " + mcp.Shortened(shown))
	}
	return s, name, nil
}

// readResource reads a resource (A12, A13).
func (q *Request) readResource() *jsonrpc.Failure {
	result, ours := q.g.own.read(q, q.message.Text(jsonrpc.URI))
	if !ours {
		return q.callURI(jsonrpc.URI)
	}
	if failure := q.admit(mcp.Target{Kind: mcp.Resource, Name: q.message.Text(jsonrpc.URI)}); failure != nil {
		return failure
	}
	if result == nil {
		return q.noResource("uri: not known, or not anymore")
	}
	return q.answer(result)
}

// callURI passes on a request for a resource.
func (q *Request) callURI(f jsonrpc.Field) *jsonrpc.Failure {
	s, target, edits, failure := q.findResource(f)
	if failure != nil {
		return failure
	}
	return q.pass(s, target, edits)
}

// findResource returns whose resource a request is for, which one it is there, and the edits
// that give the request that URI.
func (q *Request) findResource(f jsonrpc.Field) (*Server, mcp.Target, []jsonspan.Edit, *jsonrpc.Failure) {
	given := q.message.Text(f)
	s, uri := q.g.locate(given)
	switch {
	case q.g.transparent() && s == nil:
		s := q.g.config.Servers[0]
		return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: given}, nil, nil
	case q.message.Kind(f) != jsonspan.String:
		return nil, mcp.Target{}, nil, invalid("uri: it is missing, or no string")
	case s == nil:
		return nil, mcp.Target{}, nil, q.noResource("uri: it is none of this server")
	}
	q.led = led{uri, given}
	return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}, []jsonspan.Edit{q.message.Replace(f, jsonrpc.Quote(uri))}, nil
}

// locate returns the server that has a resource which clients know by a URI, and the URI
// it has there.
func (a *Gateway) locate(shown string) (*Server, string) {
	if !a.transparent() {
		if server, uri, err := mcp.ParseURI(shown); err == nil {
			return a.servers[server], uri
		}
	}
	return a.own.lead(shown)
}

// noResource says that there is no such resource.
func (q *Request) noResource(message string) *jsonrpc.Failure {
	failure := invalid(message)
	failure.Data.URI = mcp.Shortened(q.message.Text(jsonrpc.URI))
	return failure
}

// complete passes on what completes an argument of a prompt or a template (A45).
func (q *Request) complete() *jsonrpc.Failure {
	switch {
	case q.message.Has(jsonrpc.RefName) && q.message.Has(jsonrpc.RefURI):
		return invalid("ref: it has both a name and a uri")
	case q.g.transparent():
		s := q.g.config.Servers[0]
		target, _ := mcp.TargetOf(s.Name, &q.message)
		return q.pass(s, target, nil)
	case q.message.Kind(jsonrpc.RefName) == jsonspan.String:
		return q.callNamed(jsonrpc.RefName, prompts)
	case q.message.Kind(jsonrpc.RefURI) == jsonspan.String:
		return q.callURI(jsonrpc.RefURI)
	}
	return invalid("ref: it has neither a name nor a uri")
}

// callTask passes on a request about a task to the server that works on it.
func (q *Request) callTask() *jsonrpc.Failure {
	if q.g.transparent() {
		s := q.g.config.Servers[0]
		return q.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, nil)
	}
	server, id, ok := strings.Cut(q.message.Text(jsonrpc.TaskID), mcp.Separator)
	if s := q.g.servers[server]; ok && s != nil {
		return q.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, []jsonspan.Edit{q.message.Replace(jsonrpc.TaskID, jsonrpc.Quote(id))})
	}
	return invalid("taskId: it is none of this server")
}

// pass passes the request on to a server, with edits, and its answer back, if the client may
// have what it is about.
func (q *Request) pass(s *Server, target mcp.Target, edits []jsonspan.Edit) *jsonrpc.Failure {
	q.server = s
	if !q.admitted || !q.sees(s) {
		if failure := q.admit(target); failure != nil {
			return failure
		}
	}
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	l := q.client.link(s)
	defer q.client.begin(q.message.Literal(jsonrpc.ID), &inFlight{l, cancel})()
	message, failure := q.forwardable(edits...)
	if failure != nil {
		return failure
	}
	q.message = message // of which there is no other copy in memory from here on
	for again := true; ; again = false {
		if failure := l.open(ctx, q.g, q.r); failure != nil {
			return q.failed(ctx, failure)
		}
		switch era, _ := l.state(); {
		case era == q.era:
			return q.relay(ctx, l)
		case era == mcp.Legacy:
			return q.toLegacy(ctx, l)
		}
		if lost, failure := q.toModern(ctx, l, again); !lost {
			return failure
		}
	}
}

// failed answers with a failure of a server, if there is anybody to answer.
func (q *Request) failed(ctx context.Context, failure *jsonrpc.Failure) *jsonrpc.Failure {
	q.errorCode, q.outcome = failure.Code, failure.Data.Symbol
	if q.r.Context().Err() != nil {
		return nil
	}
	if ctx.Err() != nil && !q.out.Streaming() {
		// The client has canceled the call, and does not wait for it.
		q.accepted()
		return nil
	}
	if _, known := mcp.KnownMethod(q.message.Text(jsonrpc.Method)); !known && q.era == mcp.Modern && failure.Data.Symbol == "http_error" {
		return jsonrpc.MethodNotFound(mcp.Shortened(q.message.Text(jsonrpc.Method))) // of the modern era: a server of the other need not have read it
	}
	q.out.Answer(http.StatusOK, &streamable.Event{Data: failure.Append(nil, q.message.Literal(jsonrpc.ID))})
	return nil
}

// relay passes the request on to a server of the same era.
func (q *Request) relay(ctx context.Context, l *link) *jsonrpc.Failure {
	failure := l.inSession(ctx, q.g, q.r, func(again bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		q.asides.Wait() // which have begun with the headers of the request as they are
		rl := &relay{request: q, link: l, ctx: ctx, again: again}
		if q.found && q.era == mcp.Modern {
			rl.params = q.paramHeaders(ctx, l)
		}
		failure := rl.run(&q.message)
		return &rl.h, rl.session, failure
	})
	if failure != nil {
		return q.failed(ctx, failure)
	}
	return nil
}

// A relay is a request that is passed on.
type relay struct {
	request *Request
	link    *link
	ctx     context.Context
	session string
	again   bool             // it can be tried once more
	params  mcp.ParamHeaders // of the tools of the server
	h       streamable.Reader
	names   []name // in the message that was read last

	answered  bool
	resumable bool             // the client knows how to ask for the rest
	input     *mcp.InputResult // before the server goes on
}

// run has the server answer a message. What it returns is to be answered in place of that.
func (rl *relay) run(m *jsonrpc.Message) *jsonrpc.Failure {
	q, l := rl.request, rl.link
	r := q.r.WithContext(rl.ctx)
	var era mcp.Era
	if rl.session, era = l.sign(r); era == mcp.Modern {
		mcp.SetModern(r.Header, m, mcp.Stateless)
		if q.era == mcp.Legacy || q.found {
			rl.params.Set(r.Header, m)
		}
	}
	httpbody.Post(r, m.Raw)
	rl.h = streamable.Reader{OnMessage: rl.heard, OnLarge: rl.large, RequestID: m.Literal(jsonrpc.ID), Parse: rl.parse}
	defer rl.h.Borrow()()
	defer l.client.unasked(&rl.h)
	q.passedOn = true
	failure := q.g.send(l, &rl.h, r, m)
	switch {
	case rl.h.Torn():
		q.torn = true
		return nil
	case rl.answered, rl.input != nil, failure == nil && rl.resumable: // for the rest of it the client will ask
		return nil
	case failure != nil:
		return failure
	}
	return rl.h.Failure(l.server)
}

// parse reads a message of the server, and finds what it names.
func (rl *relay) parse(m *jsonrpc.Message, data []byte) *jsonrpc.Failure {
	var failure *jsonrpc.Failure
	failure, rl.names = readNames(m, data, rl.names)
	return failure
}

// forgotten reports whether the server did not know the session, and the call can be
// made again in another one.
func (rl *relay) forgotten() bool { return rl.again && rl.h.SessionLost() }

// heard passes a message of the server on.
func (rl *relay) heard(e *streamable.Event) error {
	q, l, m := rl.request, rl.link, e.Message
	out := streamable.Event{ID: l.eventID(q.g, callStream, e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		rl.resumable = q.client.primed() && q.out.Event(&out) && out.ID != "" || rl.resumable
	case m.IsAnswer():
		rl.answer(e, &out)
	case m.IsRequest():
		l.question(q, rl.ctx, m, &out, &rl.h)
		rl.resumable = rl.resumable || out.ID != ""
	default:
		l.noted(q.g, m)
		out.Data = l.translated(q.g, m)
		rl.resumable = q.out.Event(&out) && out.ID != "" || rl.resumable
	}
	return nil
}

// answer passes the answer on.
func (rl *relay) answer(e *streamable.Event, out *streamable.Event) {
	q, m, id := rl.request, e.Message, rl.request.message.Literal(jsonrpc.ID)
	if !rl.h.Answers(m, id) || rl.answered {
		return // it is of somebody else
	}
	if rl.forgotten() {
		return
	}
	out.Data = jsonspan.Spliced(m.Raw, append(withID(m, id), q.renames(rl.link, m.Raw, rl.names)...)...)
	rl.h.Settle(m)
	if q.era == mcp.Legacy && m.Is(jsonrpc.ResultType, mcp.InputRequired) {
		if rl.input = new(mcp.InputResult); json.Unmarshal(m.Literal(jsonrpc.Result), rl.input) == nil {
			return
		}
		rl.input = nil // the client may make more of it
	}
	rl.answered = true
	q.errorCode, _ = rl.h.Outcome()
	status := http.StatusOK
	if q.era == mcp.Modern {
		if status = m.Status(); rl.h.Status() >= 400 && rl.h.Status() < 500 {
			status = rl.h.Status()
		}
	}
	q.out.Answer(status, out)
}

// withID returns the edits that give an answer the id of the request, to the byte.
func withID(m *jsonrpc.Message, id []byte) []jsonspan.Edit {
	switch {
	case !m.Has(jsonrpc.ID):
		return []jsonspan.Edit{jsonspan.Insert(m.Raw, append([]byte(`"id":`), id...))}
	case !bytes.Equal(m.Literal(jsonrpc.ID), id):
		return []jsonspan.Edit{m.Replace(jsonrpc.ID, id)}
	}
	return nil
}

// large takes an answer that is too large to be held.
func (rl *relay) large(id string) io.WriteCloser {
	q, l := rl.request, rl.link
	if rl.answered {
		return nil
	}
	rl.answered = true
	to := q.out.Large(&streamable.Event{ID: l.eventID(q.g, callStream, id)}, rl.h.IsStream())
	if q.g.transparent() && !q.led.elsewhere() {
		return to
	}
	return &rewriting{largePaths.Rewrite(to, func(path int, k jsonspan.Kind, literal []byte) []byte {
		if k != jsonspan.String {
			return nil
		}
		return q.renamed(l, path, literal)
	}), to}
}

// rewriting is a large answer whose names are rewritten.
type rewriting struct {
	*jsonspan.Rewriter
	to io.Closer
}

func (r *rewriting) Close() error {
	err := r.Rewriter.Close()
	if closing := r.to.Close(); err == nil {
		err = closing
	}
	return err
}

// literalOf returns an id that a text stands for, as a server wrote it.
func literalOf(text string) ([]byte, bool) {
	literal := []byte(text)
	if !json.Valid(literal) || strings.ContainsAny(text[:1], "{[tfn \t\r\n") {
		return nil, false
	}
	return literal, true
}
