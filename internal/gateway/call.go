package gateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// invalid refuses what is named in a request.
func invalid(message string) *jsonrpc.Failure { return jsonrpc.InvalidParams(message).AsAnswer() }

// A call is a request that one server answers, or the gateway in its place.
type call struct {
	*visit
	ctx   context.Context // ends when the client cancels the call, or the time of the server is over
	link  *link           // to the server; nil until that is known
	name  string          // of what is called, as the server knows it
	goal  string          // what the client looks for in the answer; "" if it does not say
	found bool            // what is called is not what was posted, but named in it

	attempted bool     // the server has got it, with the id of the client
	alias     uriAlias // of the resource that it is about

	flight   inFlight         // the call itself, to be canceled
	required *jsonrpc.Failure // the server wants a login first
}

func (v *visit) newCall() *call {
	v.Caller.Askable = v.client.inspection == nil && v.client.askable(&v.Caller) &&
		(v.era == mcp.Modern || v.out.AcceptsStream())
	c := &call{visit: v, ctx: v.ctx}
	v.ListTools = c.listTools
	return c
}

// behalf returns on whose behalf the gateway acts for the call.
func (c *call) behalf() behalf { return behalf{ctx: c.ctx, g: c.g, r: c.HTTP, calls: true} }

// translator returns what translates names in the answer.
func (c *call) translator() translator {
	return translator{c.g, c.link, c.alias, c.client.inspection.WantsRaw()}
}

// canceled reports whether the client has canceled the call, or has left.
func (c *call) canceled() bool {
	return c.ctx.Err() != nil && context.Cause(c.ctx) != upstream.ErrTimeout
}

// failed answers with a failure of a server, unless a login mends that.
func (c *call) failed(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if failure.IsLoginRequired() && !c.canceled() {
		c.required = failure
		return nil
	}
	return c.answerFailure(failure)
}

// answerFailure answers with a failure, if the client still waits.
func (c *call) answerFailure(failure *jsonrpc.Failure) *jsonrpc.Failure {
	c.FailWith(failure)
	if c.visit.ctx.Err() != nil {
		return nil
	}
	if c.canceled() && !c.out.Streaming() {
		// The client does not wait for it.
		c.accepted()
		return nil
	}
	method := c.Message.Text(jsonrpc.Method)
	if _, known := mcp.KnownMethod(method); !known && c.era == mcp.Modern && failure.Data.Symbol == "http_error" {
		return jsonrpc.MethodNotFound(mcp.Shortened(method)) // a server of the legacy era need not have read it
	}
	c.out.Answer(http.StatusOK, &streamable.Event{Data: failure.Append(nil, c.Message.Literal(jsonrpc.ID))})
	return nil
}

// callTool calls a tool: of a server, or of the gateway itself.
func (c *call) callTool() *jsonrpc.Failure {
	name := c.Message.Text(jsonrpc.Name)
	if tool := c.g.own.tool(name); tool != nil {
		if name == callToolName {
			return tool(ownCall{c}) // which is about the tool that it calls
		}
		if failure := c.Admit(mcp.Target{Kind: mcp.Tool, Name: name}); failure != nil {
			return failure
		}
		return tool(ownCall{c})
	}
	return c.callNamed(jsonrpc.Name, mcp.Tools, name)
}

// callNamed passes on a request for something that has a name (A8 to A10), which is that in a
// field.
func (c *call) callNamed(f jsonrpc.Field, k mcp.ListKind, name string) *jsonrpc.Failure {
	if c.Message.Kind(f) != jsonspan.String {
		return invalid("name: it is missing, or no string")
	}
	s, name, failure := c.locateNamed(name, k)
	if failure != nil {
		return failure
	}
	c.name, c.Tool = name, mcp.Shortened(name)
	target := mcp.Target{Server: s.Name, Kind: mcp.ListKinds[k].Target, Name: name}
	if c.g.transparent() {
		return c.pass(s, target, nil)
	}
	return c.pass(s, target, []jsonspan.Edit{c.Message.Replace(f, jsonrpc.Quote(name))})
}

// readResource reads a resource (A12, A13).
func (c *call) readResource() *jsonrpc.Failure {
	read := c.g.own.reader(c.Message.Text(jsonrpc.URI))
	if read == nil {
		return c.callURI(jsonrpc.URI)
	}
	if failure := c.Admit(mcp.Target{Kind: mcp.Resource, Name: c.Message.Text(jsonrpc.URI)}); failure != nil {
		return failure
	}
	result, err := read(c.ctx, c.Request)
	if err != nil {
		return jsonrpc.StoreUnavailable("the text is not kept here, and others cannot be asked for it")
	}
	if result == nil {
		return c.noResource("uri: not known, or not anymore")
	}
	if c.era == mcp.Modern {
		result = jsonspan.Spliced(result, jsonspan.Insert(result, []byte(`"ttlMs":0,"cacheScope":"private"`)))
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

// complete passes on what completes an argument of a prompt or a template (A45).
func (c *call) complete() *jsonrpc.Failure {
	switch {
	case c.Message.Has(jsonrpc.RefName) && c.Message.Has(jsonrpc.RefURI):
		return invalid("ref: it has both a name and a uri")
	case c.g.transparent():
		s := c.g.config.Servers[0]
		target, _ := mcp.TargetOf(s.Name, &c.Message)
		return c.pass(s, target, nil)
	case c.Message.Kind(jsonrpc.RefName) == jsonspan.String:
		return c.callNamed(jsonrpc.RefName, mcp.Prompts, c.Message.Text(jsonrpc.RefName))
	case c.Message.Kind(jsonrpc.RefURI) == jsonspan.String:
		return c.callURI(jsonrpc.RefURI)
	}
	return invalid("ref: it has neither a name nor a uri")
}

// callOther passes on a request of an extension to the server whose task or resource it names.
func (c *call) callOther(method string) *jsonrpc.Failure {
	if c.g.transparent() {
		s := c.g.config.Servers[0]
		target, _ := mcp.TargetOf(s.Name, &c.Message)
		return c.pass(s, target, nil)
	}
	if strings.HasPrefix(method, "tasks/") && c.Message.Has(jsonrpc.TaskID) {
		return c.callTask()
	}
	// What the protocol knows, and was not answered yet, has no meaning in this era.
	if _, known := mcp.KnownMethod(method); !known && c.Message.Kind(jsonrpc.URI) == jsonspan.String {
		if s, target, edits, failure := c.findResource(jsonrpc.URI); failure == nil {
			target.Kind, target.Name = mcp.Other, ""
			return c.pass(s, target, edits)
		}
	}
	failure := jsonrpc.MethodNotFound(mcp.Shortened(method))
	if c.era == mcp.Legacy {
		failure = failure.AsAnswer()
	}
	return failure
}

// callTask passes on a request about a task to the server that works on it.
func (c *call) callTask() *jsonrpc.Failure {
	if s, id := c.g.locateTask(c.Message.Text(jsonrpc.TaskID)); s != nil {
		edit := c.Message.Replace(jsonrpc.TaskID, jsonrpc.Quote(id))
		return c.pass(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, []jsonspan.Edit{edit})
	}
	return invalid("taskId: it is none of this server")
}

// pass passes the request on to a server, with edits, and its answer back, if the client may
// have what it is about.
func (c *call) pass(s *upstream.Server, target mcp.Target, edits []jsonspan.Edit) *jsonrpc.Failure {
	c.Server = s
	message, failure := c.forwardable(append(edits, c.g.relatedTask(c.Message.Raw, s.Name)...)...)
	if failure == nil {
		message, failure = c.Override.ToServer(&message)
	}
	if failure == nil {
		c.Message = message // of which there is no other copy in memory from here on
	}
	isLogin := c.isLoginTool(s, target)
	if isLogin && c.sees(s) {
		target = mcp.Target{} // it is the gateway's own
	}
	check := c.Admit
	if c.AdmitAsked {
		check = c.Permit
	}
	refused := check(target)
	if refused != nil && !refused.IsLoginRequired() {
		return refused
	}
	if failure != nil {
		return failure
	}
	c.link = c.client.link(s)
	f := &c.flight
	f.link = c.link
	f.Context, f.Cancel = context.WithCancelCause(c.visit.ctx)
	defer f.Cancel(nil)
	c.ctx = f.Context
	defer c.client.end(c.client.begin(c.Message.Literal(jsonrpc.ID), f), f)
	if failure := c.takeFocus(); failure != nil {
		return failure
	}
	if failure := c.takeAnswers(); failure != nil {
		return c.answerFailure(failure)
	}
	switch {
	case isLogin:
		return c.withLogin(c.callLoginTool)
	case refused != nil: // its annotations could not be asked for
		return c.withLogin(func() *jsonrpc.Failure {
			if failure := c.Permit(target); failure != nil {
				return c.failed(failure)
			}
			return c.send()
		})
	}
	return c.withLogin(c.send)
}

// send has the server answer, once the call is confirmed.
func (c *call) send() *jsonrpc.Failure {
	key, replica := c.heldAt()
	elsewhere := replica != "" && c.g.lines != nil && replica != c.g.State.common.Replica
	if !elsewhere {
		if failure := c.learnTool(); failure != nil {
			return failure
		}
	}
	if ok, failure := c.confirm(); !ok {
		return failure
	}
	if elsewhere {
		return c.goOnAt(replica, key)
	}
	l := c.link
	for again := true; ; again = false {
		if failure := l.open(c.behalf()); failure != nil {
			return c.failed(failure)
		}
		l.use()
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

// relay passes the request on to a server of the same era.
func (c *call) relay() *jsonrpc.Failure {
	failure := c.link.inSession(c.behalf(), func(again bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		c.asides.Wait() // which have begun with the headers of the request as they are
		rl := &relay{call: c, again: again}
		failure := rl.run(&c.Message)
		return &rl.h, rl.session, failure
	})
	if failure != nil {
		return c.failed(failure)
	}
	return nil
}

// takeFocus takes what the client looks for out of the call of a tool, if it was the gateway that
// has offered to take it.
func (c *call) takeFocus() *jsonrpc.Failure {
	f := c.Server.Focus
	if !f.IsGiven(&c.Message) {
		return nil
	}
	list := c.toolList()
	if list == nil || list.Focused[c.g.shown(c.Server.Name, mcp.Tools, c.Server.Overrides.Shown(c.name))] == "" {
		return nil
	}
	var failure *jsonrpc.Failure
	c.goal, c.Message, failure = f.Take(&c.Message)
	return failure
}

// listTools asks a server for its tools, also if they are known.
func (c *call) listTools(s *upstream.Server) *jsonrpc.Failure {
	ctx, cancel := context.WithTimeout(c.ctx, c.g.config.JoinTimeout)
	defer cancel()
	q := c.client.newListQuery(c.visit.behalf().within(ctx), s, mcp.Tools)
	l := c.client.link(s)
	failure := l.open(q.behalf)
	if failure != nil {
		return failure
	}
	if _, can := l.state(); can&mcp.ListKinds[mcp.Tools].Needs != 0 {
		_, _, failure = q.fetch(l)
	}
	return failure
}

// confirm has the person at the client confirm the call, if a rule wants it. It reports whether the
// call can be made.
func (c *call) confirm() (ok bool, _ *jsonrpc.Failure) {
	switch {
	case !c.AwaitsConfirmation():
		return true, nil
	case c.era == mcp.Modern:
		return false, c.answerAs(mcp.InputRequired, c.Ask(inbound.ConfirmQuestion, c.Confirmation()))
	}
	size := int64(len(c.Message.Raw))
	if !c.g.holding.Take(c.client.owner, size) {
		return false, jsonrpc.TooManyQuestions(c.link.server)
	}
	defer c.g.holding.Give(c.client.owner, size)
	c.flight.held.Store(true)
	defer c.flight.held.Store(false)
	answer, failure := c.askInStream(inbound.ConfirmQuestion, c.Confirmation())
	switch {
	case c.canceled():
		failure = c.answerFailure(jsonrpc.ConfirmationDeclined(c.link.server))
		c.Outcome = upstream.OutcomeCanceled
		return false, failure
	case failure != nil && failure.Data.Symbol == "timeout":
		failure = c.DeniedBy(c.Decision, jsonrpc.ConfirmationTimeout(c.link.server), c.Target())
	default: // an error that the client answers is no agreement
		failure = c.TakeConfirmation(answer)
	}
	if failure != nil {
		return false, c.answerFailure(failure)
	}
	return true, nil
}

// takeAnswers takes what a client of the modern era has answered to questions of the gateway.
func (c *call) takeAnswers() *jsonrpc.Failure {
	asked, answer, failure := c.TakeAnswer()
	switch {
	case failure != nil:
		return failure
	case asked == inbound.ConfirmQuestion:
		return c.TakeConfirmation(answer)
	case asked == inbound.LoginQuestion && c.Server.Login != nil: // as before a reload
		return c.awaitLogin(answer)
	}
	return nil
}
