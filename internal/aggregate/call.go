package aggregate

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
func (t *turn) callTool() *jsonrpc.Failure {
	name := t.m.Text(jsonrpc.Name)
	if tool := t.a.ownTool(name); tool != nil {
		if name == callToolName {
			return tool(t) // which is about the tool that it calls
		}
		if failure := t.admit(mcp.Target{Kind: mcp.Tool, Name: name}); failure != nil {
			return failure
		}
		return tool(t)
	}
	return t.callNamed(jsonrpc.Name, tools)
}

// callNamed passes on a request for something that has a name (A8 to A10).
func (t *turn) callNamed(f jsonrpc.Field, k kind) *jsonrpc.Failure {
	if t.m.Kind(f) != jsonspan.String {
		return invalid("name: it is missing, or no string")
	}
	s, name, failure := t.whose(t.m.Text(f), k)
	if failure != nil {
		return failure
	}
	t.result.Name = name
	target := mcp.Target{Server: s.Name, Kind: kinds[k].target, Name: name}
	if t.a.transparent() {
		return t.pass(s, target, nil)
	}
	return t.pass(s, target, []jsonspan.Edit{t.m.Replace(f, jsonrpc.Quote(name))})
}

// whose returns the server that has something, and what it is called there.
func (t *turn) whose(shown string, k kind) (*Server, string, *jsonrpc.Failure) {
	s, name := t.a.config.Servers[0], shown
	if !t.a.transparent() {
		server, rest, ok := t.a.config.Naming.Split(shown, func(server string) bool { return t.a.servers[server] != nil })
		if !ok {
			return nil, "", invalid("name: there is no " + strings.TrimSuffix(kinds[k].member, "s") + " " + shortened(shown))
		}
		if s, name = t.a.servers[server], rest; !t.sees(s) {
			return s, name, nil // and nobody asks it
		}
		shown = s.Name + t.a.config.Naming.Separator + rest // however it was spelled
		if t.a.config.Naming.MayBeShort(shown) {
			// Its original is known from the list that it was read in.
			list, _, failure := t.client.link(s).listing(t.r.Context(), t, k)
			if failure != nil {
				return nil, "", failure.AsAnswer()
			}
			if original, ok := list.short[shown]; ok {
				name = original
			}
		}
	}
	if k == tools && !s.shows(name) {
		return nil, "", invalid("name: there is no tool " + shortened(shown))
	}
	return s, name, nil
}

// readResource reads a resource (A12, A13).
func (t *turn) readResource() *jsonrpc.Failure {
	if t.a.config.ReadOwn != nil {
		result, ours := t.a.config.ReadOwn(t.r, t.m.Text(jsonrpc.URI))
		if ours {
			if failure := t.admit(mcp.Target{Kind: mcp.Resource, Name: t.m.Text(jsonrpc.URI)}); failure != nil {
				return failure
			}
		}
		if ours && result != nil {
			return t.answer(result)
		} else if ours {
			return t.noResource("uri: it is not known, or not any more")
		}
	}
	return t.callURI(jsonrpc.URI)
}

// callURI passes on a request for a resource.
func (t *turn) callURI(f jsonrpc.Field) *jsonrpc.Failure {
	s, target, edits, failure := t.owner(f)
	if failure != nil {
		return failure
	}
	return t.pass(s, target, edits)
}

// owner returns whose resource a request is for, which one it is there, and the edits
// that give the request that URI.
func (t *turn) owner(f jsonrpc.Field) (*Server, mcp.Target, []jsonspan.Edit, *jsonrpc.Failure) {
	given := t.m.Text(f)
	s, uri := t.a.locate(given)
	switch {
	case t.a.transparent() && s == nil:
		s := t.a.config.Servers[0]
		return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: given}, nil, nil
	case t.m.Kind(f) != jsonspan.String:
		return nil, mcp.Target{}, nil, invalid("uri: it is missing, or no string")
	case s == nil:
		return nil, mcp.Target{}, nil, t.noResource("uri: it is none of this server")
	}
	t.led = led{uri, given}
	return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}, []jsonspan.Edit{t.m.Replace(f, jsonrpc.Quote(uri))}, nil
}

// locate returns the server that has a resource which clients know by a URI, and the URI
// it has there.
func (a *Aggregate) locate(shown string) (*Server, string) {
	if !a.transparent() {
		if server, uri, err := mcp.ParseURI(shown); err == nil {
			return a.servers[server], uri
		}
	}
	if a.config.Lead != nil {
		if server, uri, ok := a.config.Lead(shown); ok {
			return a.servers[server], uri
		}
	}
	return nil, ""
}

// noResource says that there is no such resource.
func (t *turn) noResource(message string) *jsonrpc.Failure {
	failure := invalid(message)
	failure.Data.URI = shortened(t.m.Text(jsonrpc.URI))
	return failure
}

// complete passes on what completes an argument of a prompt or a template (A45).
func (t *turn) complete() *jsonrpc.Failure {
	switch {
	case t.m.Has(jsonrpc.RefName) && t.m.Has(jsonrpc.RefURI):
		return invalid("ref: it has both a name and a uri")
	case t.a.transparent():
		s := t.a.config.Servers[0]
		target, _ := mcp.TargetOf(s.Name, t.m)
		return t.pass(s, target, nil)
	case t.m.Kind(jsonrpc.RefName) == jsonspan.String:
		return t.callNamed(jsonrpc.RefName, prompts)
	case t.m.Kind(jsonrpc.RefURI) == jsonspan.String:
		return t.callURI(jsonrpc.RefURI)
	}
	return invalid("ref: it has neither a name nor a uri")
}

// callTask passes on a request about a task to the server that works on it.
func (t *turn) callTask() *jsonrpc.Failure {
	if t.a.transparent() {
		s := t.a.config.Servers[0]
		return t.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, nil)
	}
	server, id, ok := strings.Cut(t.m.Text(jsonrpc.TaskID), mcp.Separator)
	if s := t.a.servers[server]; ok && s != nil {
		return t.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, []jsonspan.Edit{t.m.Replace(jsonrpc.TaskID, jsonrpc.Quote(id))})
	}
	return invalid("taskId: it is none of this server")
}

// pass passes the request on to a server, with edits, and its answer back, if the client
// may have what it is about.
func (t *turn) pass(s *Server, target mcp.Target, edits []jsonspan.Edit) *jsonrpc.Failure {
	t.result.Server = s.Name
	if !t.asked || !t.sees(s) {
		if failure := t.admit(target); failure != nil {
			return failure
		}
	}
	ctx, cancel := context.WithCancel(t.r.Context())
	defer cancel()
	l := t.client.link(s)
	defer t.client.begin(t.m.Literal(jsonrpc.ID), &inFlight{l, cancel})()
	body := t.forwardable(edits...)
	for again := true; ; again = false {
		if failure := l.open(ctx, t.a, t.r); failure != nil {
			return t.failed(ctx, failure)
		}
		switch era, _ := l.state(); {
		case era == t.era:
			return t.relay(ctx, l, body)
		case era == mcp.Legacy:
			return t.toLegacy(ctx, l, body)
		}
		if lost, failure := t.toModern(ctx, l, body, again); !lost {
			return failure
		}
	}
}

// failed answers with a failure of a server, if there is anybody to answer.
func (t *turn) failed(ctx context.Context, failure *jsonrpc.Failure) *jsonrpc.Failure {
	t.result.Code, t.result.Symbol = failure.Code, failure.Data.Symbol
	if t.r.Context().Err() != nil {
		return nil
	}
	if ctx.Err() != nil && !t.out.Streaming() {
		// The client has canceled the call, and does not wait for it.
		t.accepted()
		return nil
	}
	if _, known := mcp.KnownMethod(t.m.Text(jsonrpc.Method)); !known && t.era == mcp.Modern && failure.Data.Symbol == "http_error" {
		return jsonrpc.MethodNotFound(shortened(t.m.Text(jsonrpc.Method))) // of the modern era: a server of the other need not have read it
	}
	t.out.Answer(http.StatusOK, &streamable.Event{Data: failure.Append(nil, t.m.Literal(jsonrpc.ID))})
	return nil
}

// relay passes the request on to a server of the same era.
func (t *turn) relay(ctx context.Context, l *link, body []byte) *jsonrpc.Failure {
	failure := l.inSession(ctx, t.a, t.r, func(again bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		t.asides.Wait() // which have begun with the headers of the request as they are
		rl := &relay{turn: t, link: l, ctx: ctx, again: again}
		if t.found && t.era == mcp.Modern {
			rl.params = t.paramHeaders(ctx, l)
		}
		failure := rl.run(body)
		return &rl.h, rl.session, failure
	})
	if failure != nil {
		return t.failed(ctx, failure)
	}
	return nil
}

// A relay is a request that is passed on.
type relay struct {
	turn    *turn
	link    *link
	ctx     context.Context
	session string
	again   bool             // it can be tried once more
	params  mcp.ParamHeaders // of the tools of the server
	h       streamable.Reader

	answered  bool
	resumable bool             // the client knows how to ask for the rest
	input     *mcp.InputResult // before the server goes on
}

// run has the server answer. What it returns is to be answered in place of that.
func (rl *relay) run(body []byte) *jsonrpc.Failure {
	t, l := rl.turn, rl.link
	var m jsonrpc.Message
	if failure := m.Read(body); failure != nil {
		return failure
	}
	s := t.a.of(l)
	r := s.Upstream.Pass(rl.ctx, t.r)
	var era mcp.Era
	if rl.session, era = l.sign(r); era == mcp.Modern {
		mcp.SetModern(r.Header, &m, mcp.Stateless)
		if t.era == mcp.Legacy || t.found {
			rl.params.Set(r.Header, &m)
		}
	}
	httpbody.Post(r, body)
	rl.h = streamable.Reader{OnMessage: rl.heard, OnLarge: rl.large, RequestID: m.Literal(jsonrpc.ID)}
	defer rl.h.Borrow()()
	defer l.client.unasked(&rl.h)
	t.result.Sent = true
	failure := s.Upstream.Send(&rl.h, r, &m)
	switch {
	case rl.h.Torn():
		t.result.Torn = true
		return nil
	case rl.answered, rl.input != nil, failure == nil && rl.resumable: // for the rest of it the client will ask
		return nil
	case failure != nil:
		return failure
	}
	return rl.h.Failure(l.server)
}

// forgotten reports whether the server did not know the session, and the call can be
// made again in another one.
func (rl *relay) forgotten() bool { return rl.again && rl.h.SessionLost() }

// heard passes a message of the server on.
func (rl *relay) heard(e *streamable.Event) error {
	t, l, m := rl.turn, rl.link, &e.Message
	out := streamable.Event{ID: l.eventID(t.a, callStream, e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		rl.resumable = t.client.primed() && t.out.Event(&out) && out.ID != "" || rl.resumable
	case m.IsAnswer():
		rl.answer(e, &out)
	case m.IsRequest():
		l.question(t, rl.ctx, m, &out, &rl.h)
		rl.resumable = rl.resumable || out.ID != ""
	default:
		l.noted(t.a, m)
		out.Data = l.translated(t.a, m)
		rl.resumable = t.out.Event(&out) && out.ID != "" || rl.resumable
	}
	return nil
}

// answer passes the answer on.
func (rl *relay) answer(e *streamable.Event, out *streamable.Event) {
	t, m, id := rl.turn, &e.Message, rl.turn.m.Literal(jsonrpc.ID)
	if !rl.h.Answers(m, id) || rl.answered {
		return // it is of somebody else
	}
	if rl.forgotten() {
		return
	}
	out.Data = t.led.back(t.a, rl.link.server, rl.link.rewritten(t.a, jsonspan.Spliced(m.Raw, withID(m, id)...)))
	rl.h.Settle(m)
	if t.era == mcp.Legacy && m.Is(jsonrpc.ResultType, mcp.InputRequired) {
		if rl.input = new(mcp.InputResult); json.Unmarshal(m.Literal(jsonrpc.Result), rl.input) == nil {
			return
		}
		rl.input = nil // the client may make more of it
	}
	rl.answered = true
	t.result.Code, _ = rl.h.Outcome()
	status := http.StatusOK
	if t.era == mcp.Modern {
		if status = m.Status(); rl.h.Status() >= 400 && rl.h.Status() < 500 {
			status = rl.h.Status()
		}
	}
	t.out.Answer(status, out)
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
	t, l := rl.turn, rl.link
	if rl.answered {
		return nil
	}
	rl.answered = true
	to := t.out.Large(&streamable.Event{ID: l.eventID(t.a, callStream, id)}, rl.h.IsStream())
	if t.a.transparent() && !t.led.elsewhere() {
		return to
	}
	return &rewriting{answerPaths.Rewrite(to, func(path int, k jsonspan.Kind, literal []byte) []byte {
		if k != jsonspan.String {
			return nil
		}
		return t.renamed(l, path, literal)
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
