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

// A call is a request that one server answers, or the gateway in its place.
type call struct {
	*visit
	ctx   context.Context // ends when the client cancels the call
	link  *link           // to the server; nil until that is known
	name  string          // of what is called, as the server knows it
	found bool            // what is called is not what was posted, but named in it
	alias alias           // of the resource that it is about
}

func (v *visit) newCall() *call { return &call{visit: v, ctx: v.r.Context()} }

// origin returns the origin of what the gateway does for the call.
func (c *call) origin() origin { return origin{c.ctx, c.g, c.r} }

// translator returns what translates names in the answer.
func (c *call) translator() translator { return translator{c.g, c.link, c.alias} }

// callTool calls a tool: of a server, or of the gateway itself.
func (c *call) callTool() *jsonrpc.Failure {
	name := c.message.Text(jsonrpc.Name)
	if tool := c.g.own.tool(name); tool != nil {
		if name == callToolName {
			return tool(ownCall{c}) // which is about the tool that it calls
		}
		if failure := c.admit(mcp.Target{Kind: mcp.Tool, Name: name}); failure != nil {
			return failure
		}
		return tool(ownCall{c})
	}
	return c.callNamed(jsonrpc.Name, tools)
}

// callNamed passes on a request for something that has a name (A8 to A10).
func (c *call) callNamed(f jsonrpc.Field, k kind) *jsonrpc.Failure {
	if c.message.Kind(f) != jsonspan.String {
		return invalid("name: it is missing, or no string")
	}
	s, name, failure := c.whose(c.message.Text(f), k)
	if failure != nil {
		return failure
	}
	c.name, c.tool = name, mcp.Shortened(name)
	target := mcp.Target{Server: s.Name, Kind: kinds[k].target, Name: name}
	if c.g.transparent() {
		return c.pass(s, target, nil)
	}
	return c.pass(s, target, []jsonspan.Edit{c.message.Replace(f, jsonrpc.Quote(name))})
}

// whose returns the server that has something, and what it is called there.
func (c *call) whose(shown string, k kind) (*Server, string, *jsonrpc.Failure) {
	s, name := c.g.config.Servers[0], shown
	if !c.g.transparent() {
		server, rest, ok := c.g.config.Naming.Split(shown, func(server string) bool { return c.g.servers[server] != nil })
		if !ok {
			return nil, "", invalid("name: there is no " + strings.TrimSuffix(kinds[k].member, "s") + " " + mcp.Shortened(shown))
		}
		if s, name = c.g.servers[server], rest; !c.sees(s) {
			return s, name, nil // and nobody asks it
		}
		shown = s.Name + c.g.config.Naming.Separator + rest // however it was spelled
		if c.g.config.Naming.MayBeShort(shown) {
			// Its original is known from the list that it was read in.
			list, _, failure := c.client.link(s).lists.get(c.visit.origin(), k)
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
func (c *call) readResource() *jsonrpc.Failure {
	result, ours := c.g.own.read(&c.caller, c.message.Text(jsonrpc.URI))
	if !ours {
		return c.callURI(jsonrpc.URI)
	}
	if failure := c.admit(mcp.Target{Kind: mcp.Resource, Name: c.message.Text(jsonrpc.URI)}); failure != nil {
		return failure
	}
	if result == nil {
		return c.noResource("uri: not known, or not anymore")
	}
	return c.answer(result)
}

// callURI passes on a request for a resource.
func (c *call) callURI(f jsonrpc.Field) *jsonrpc.Failure {
	s, target, edits, failure := c.findResource(f)
	if failure != nil {
		return failure
	}
	return c.pass(s, target, edits)
}

// findResource returns whose resource a request is for, which one it is there, and the edits
// that give the request that URI.
func (c *call) findResource(f jsonrpc.Field) (*Server, mcp.Target, []jsonspan.Edit, *jsonrpc.Failure) {
	given := c.message.Text(f)
	s, uri := c.g.locate(given)
	switch {
	case c.g.transparent() && s == nil:
		s := c.g.config.Servers[0]
		return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: given}, nil, nil
	case c.message.Kind(f) != jsonspan.String:
		return nil, mcp.Target{}, nil, invalid("uri: it is missing, or no string")
	case s == nil:
		return nil, mcp.Target{}, nil, c.noResource("uri: it is none of this server")
	}
	c.alias = alias{uri, given}
	return s, mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}, []jsonspan.Edit{c.message.Replace(f, jsonrpc.Quote(uri))}, nil
}

// locate returns the server that has a resource which clients know by a URI, and the URI
// it has there.
func (g *Gateway) locate(shown string) (*Server, string) {
	if !g.transparent() {
		if server, uri, err := mcp.ParseURI(shown); err == nil {
			return g.servers[server], uri
		}
	}
	return g.own.original(shown)
}

// noResource says that there is no such resource.
func (c *call) noResource(message string) *jsonrpc.Failure {
	failure := invalid(message)
	failure.Data.URI = mcp.Shortened(c.message.Text(jsonrpc.URI))
	return failure
}

// complete passes on what completes an argument of a prompt or a template (A45).
func (c *call) complete() *jsonrpc.Failure {
	switch {
	case c.message.Has(jsonrpc.RefName) && c.message.Has(jsonrpc.RefURI):
		return invalid("ref: it has both a name and a uri")
	case c.g.transparent():
		s := c.g.config.Servers[0]
		target, _ := mcp.TargetOf(s.Name, &c.message)
		return c.pass(s, target, nil)
	case c.message.Kind(jsonrpc.RefName) == jsonspan.String:
		return c.callNamed(jsonrpc.RefName, prompts)
	case c.message.Kind(jsonrpc.RefURI) == jsonspan.String:
		return c.callURI(jsonrpc.RefURI)
	}
	return invalid("ref: it has neither a name nor a uri")
}

// callTask passes on a request about a task to the server that works on it.
func (c *call) callTask() *jsonrpc.Failure {
	if c.g.transparent() {
		s := c.g.config.Servers[0]
		return c.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, nil)
	}
	server, id, ok := strings.Cut(c.message.Text(jsonrpc.TaskID), mcp.Separator)
	if s := c.g.servers[server]; ok && s != nil {
		return c.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, []jsonspan.Edit{c.message.Replace(jsonrpc.TaskID, jsonrpc.Quote(id))})
	}
	return invalid("taskId: it is none of this server")
}

// pass passes the request on to a server, with edits, and its answer back, if the client may
// have what it is about.
func (c *call) pass(s *Server, target mcp.Target, edits []jsonspan.Edit) *jsonrpc.Failure {
	c.server = s
	if !c.admitted || !c.sees(s) {
		if failure := c.admit(target); failure != nil {
			return failure
		}
	}
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	l := c.client.link(s)
	c.ctx, c.link = ctx, l
	defer c.client.begin(c.message.Literal(jsonrpc.ID), &inFlight{l, cancel})()
	message, failure := c.forwardable(edits...)
	if failure != nil {
		return failure
	}
	c.message = message // of which there is no other copy in memory from here on
	for again := true; ; again = false {
		if failure := l.open(c.origin()); failure != nil {
			return c.failed(failure)
		}
		switch era, _ := l.state(); {
		case era == c.era:
			return c.relay()
		case era == mcp.Legacy:
			return c.toLegacy()
		}
		if lost, failure := c.toModern(again); !lost {
			return failure
		}
	}
}

// failed answers with a failure of a server, if there is anybody to answer.
func (c *call) failed(failure *jsonrpc.Failure) *jsonrpc.Failure {
	c.endWith(failure)
	if c.r.Context().Err() != nil {
		return nil
	}
	if c.ctx.Err() != nil && !c.out.Streaming() {
		// The client has canceled the call, and does not wait for it.
		c.accepted()
		return nil
	}
	if _, known := mcp.KnownMethod(c.message.Text(jsonrpc.Method)); !known && c.era == mcp.Modern && failure.Data.Symbol == "http_error" {
		return jsonrpc.MethodNotFound(mcp.Shortened(c.message.Text(jsonrpc.Method))) // of the modern era: a server of the other need not have read it
	}
	c.out.Answer(http.StatusOK, &streamable.Event{Data: failure.Append(nil, c.message.Literal(jsonrpc.ID))})
	return nil
}

// relay passes the request on to a server of the same era.
func (c *call) relay() *jsonrpc.Failure {
	failure := c.link.inSession(c.origin(), func(again bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		c.asides.Wait() // which have begun with the headers of the request as they are
		rl := &relay{call: c, again: again}
		if c.found && c.era == mcp.Modern {
			rl.params = c.paramHeaders()
		}
		failure := rl.run(&c.message)
		return &rl.h, rl.session, failure
	})
	if failure != nil {
		return c.failed(failure)
	}
	return nil
}

// A relay is a request that is passed on.
type relay struct {
	*call
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
	c, l := rl.call, rl.link
	r := c.r.WithContext(rl.ctx)
	var era mcp.Era
	if rl.session, era = l.setSessionHeaders(r); era == mcp.Modern {
		mcp.SetModern(r.Header, m, mcp.Stateless)
		if c.era == mcp.Legacy || c.found {
			rl.params.Set(r.Header, m)
		}
	}
	httpbody.Post(r, m.Raw)
	rl.h = streamable.Reader{OnMessage: rl.heard, OnLarge: rl.large, RequestID: m.Literal(jsonrpc.ID), Parse: rl.parse}
	defer rl.h.Borrow()()
	defer l.client.unasked(&rl.h)
	c.passedOn = true
	failure := c.g.newExchange(l, &rl.h, m).send(r)
	switch {
	case rl.h.Torn():
		c.torn = true
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
	c, l, m := rl.call, rl.link, e.Message
	out := streamable.Event{ID: l.translator(c.g).eventID(callStream, e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		rl.resumable = c.client.primed() && c.out.Event(&out) && out.ID != "" || rl.resumable
	case m.IsAnswer():
		rl.answer(e, &out)
	case m.IsRequest():
		rl.question(m, &out)
		rl.resumable = rl.resumable || out.ID != ""
	default:
		l.unsolicited(c.origin()).note(m)
		out.Data = l.translator(c.g).message(m)
		rl.resumable = c.out.Event(&out) && out.ID != "" || rl.resumable
	}
	return nil
}

// answer passes the answer on.
func (rl *relay) answer(e *streamable.Event, out *streamable.Event) {
	c, m, id := rl.call, e.Message, rl.message.Literal(jsonrpc.ID)
	if !rl.h.Answers(m, id) || rl.answered {
		return // it is of somebody else
	}
	if rl.forgotten() {
		return
	}
	out.Data = jsonspan.Spliced(m.Raw, append(withID(m, id), c.translator().rename(m.Raw, rl.names)...)...)
	rl.h.Settle(m)
	if c.era == mcp.Legacy && m.Is(jsonrpc.ResultType, mcp.InputRequired) {
		if rl.input = new(mcp.InputResult); json.Unmarshal(m.Literal(jsonrpc.Result), rl.input) == nil {
			return
		}
		rl.input = nil // the client may make more of it
	}
	rl.answered = true
	c.errorCode, _ = rl.h.Outcome()
	status := http.StatusOK
	if c.era == mcp.Modern {
		if status = m.Status(); rl.h.Status() >= 400 && rl.h.Status() < 500 {
			status = rl.h.Status()
		}
	}
	c.out.Answer(status, out)
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
	c, l := rl.call, rl.link
	if rl.answered {
		return nil
	}
	rl.answered = true
	to := c.out.Large(&streamable.Event{ID: l.translator(c.g).eventID(callStream, id)}, rl.h.IsStream())
	if c.g.transparent() && !c.alias.isSet() {
		return to
	}
	return &rewriting{largePaths.Rewrite(to, func(path int, k jsonspan.Kind, literal []byte) []byte {
		if k != jsonspan.String {
			return nil
		}
		return c.translator().renamed(path, literal)
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
