package gateway

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// invalidParams returns a failure for invalid params, with the HTTP status 200 of responses.
func invalidParams(message string) *jsonrpc.Failure {
	return jsonrpc.InvalidParams(message).WithStatusOK()
}

// A call is a request that one server answers, or the gateway itself.
type call struct {
	*aggregateRequest
	ctx         context.Context // done when the client cancels or disconnects, or the server times out
	link        *link           // nil until the server is known
	name        string          // name of the tool, prompt or resource at the server
	goal        string          // focus: what the client looks for in the result; "" if not given
	viaCallTool bool            // the client named the tool in a call of call_tool

	attempted bool     // the server got a request with the client's id
	alias     uriAlias // URI of the resource as the client named it

	active        upstream.ActiveCall    // for cancellation
	held          atomic.Bool            // the gateway holds the call: the server has nothing to cancel
	repeatedID    atomic.Pointer[[]byte] // id of the repeated call at the server; nil if it is the client's
	loginRequired *jsonrpc.Failure       // set if the server requires a login first
}

func (req *aggregateRequest) newCall() *call {
	req.Caller.Askable = req.client.inspection == nil && req.client.askable(&req.Caller) &&
		(req.era == mcp.Modern || req.out.AcceptsStream())
	c := &call{aggregateRequest: req, ctx: req.ctx}
	req.ListTools = c.listTools
	return c
}

// scope returns the scope for requests to the server of the call.
func (c *call) scope() scope { return scope{ctx: c.ctx, g: c.g, r: c.HTTP, isCall: true} }

// translator returns the translator for the names in the response.
func (c *call) translator() translator {
	return translator{c.g, c.link, c.alias, c.client.inspection.WantsRaw()}
}

// canceled reports whether the client has canceled the call or disconnected.
func (c *call) canceled() bool {
	return c.ctx.Err() != nil && context.Cause(c.ctx) != upstream.ErrTimeout
}

// fail answers with a failure of the server, or notes that a login is required first.
func (c *call) fail(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if failure.IsLoginRequired() && !c.canceled() {
		c.loginRequired = failure
		return nil
	}
	return c.answerFailure(failure)
}

// answerFailure answers with a failure, unless the client no longer waits.
func (c *call) answerFailure(failure *jsonrpc.Failure) *jsonrpc.Failure {
	c.FailWith(failure)
	if c.aggregateRequest.ctx.Err() != nil {
		return nil
	}
	if c.canceled() && !c.out.IsStreaming() {
		// The client ignores the response to a canceled call.
		c.answerAccepted()
		return nil
	}
	method := c.Message.Text(jsonrpc.Method)
	if _, known := mcp.KnownMethod(method); !known && c.era == mcp.Modern && failure.Data.Symbol == "http_error" {
		return jsonrpc.MethodNotFound(mcp.Shortened(method)) // a legacy server may reject unknown methods with an HTTP error
	}
	c.out.Answer(http.StatusOK, &streamable.Event{Data: failure.Append(nil, c.Message.Literal(jsonrpc.ID))})
	return nil
}

// callTool calls a tool of a server or of the gateway itself.
func (c *call) callTool() *jsonrpc.Failure {
	name := c.Message.Text(jsonrpc.Name)
	if tool := c.g.builtin.tool(name); tool != nil {
		if name == callToolName {
			return tool(builtinCall{c}) // admits the call of the named tool instead
		}
		if failure := c.Admit(mcp.Target{Kind: mcp.Tool, Name: name}); failure != nil {
			return failure
		}
		return tool(builtinCall{c})
	}
	return c.callNamed(jsonrpc.Name, mcp.Tools, name)
}

// callNamed forwards a request for a named item (A8 to A10). Field f has the name.
func (c *call) callNamed(f jsonrpc.Field, k mcp.ListKind, name string) *jsonrpc.Failure {
	if c.Message.Kind(f) != jsonspan.String {
		return invalidParams("name: missing or not a string")
	}
	s, name, failure := c.locateNamed(name, k)
	if failure != nil {
		return failure
	}
	c.name, c.Tool = name, mcp.Shortened(name)
	target := mcp.Target{Server: s.Name, Kind: mcp.ListKinds[k].Target, Name: name}
	if c.g.names.areUnchanged() {
		return c.forward(s, target, nil)
	}
	return c.forward(s, target, []jsonspan.Edit{c.Message.Replace(f, jsonrpc.Quote(name))})
}

// readResource answers resources/read (A12, A13).
func (c *call) readResource() *jsonrpc.Failure {
	read := c.g.builtin.resourceReader(c.Message.Text(jsonrpc.URI))
	if read == nil {
		return c.callURI(jsonrpc.URI)
	}
	if failure := c.Admit(mcp.Target{Kind: mcp.Resource, Name: c.Message.Text(jsonrpc.URI)}); failure != nil {
		return failure
	}
	result, err := read(c.ctx, c.Request)
	if err == errBusy {
		return jsonrpc.Busy()
	}
	if err != nil {
		return jsonrpc.StoreUnavailable("the original is not stored on this replica, and the shared store is unavailable")
	}
	if result == nil {
		return unknownResource(c.Message.Text(jsonrpc.URI), "uri: unknown or expired")
	}
	if c.era == mcp.Modern {
		result = jsonspan.Spliced(result, jsonspan.Insert(result, []byte(`"ttlMs":0,"cacheScope":"private"`)))
	}
	return c.answerResult(result)
}

// callURI forwards a request for the resource in field f.
func (c *call) callURI(f jsonrpc.Field) *jsonrpc.Failure {
	s, target, edits, failure := c.findResource(f)
	if failure != nil {
		return failure
	}
	return c.forward(s, target, edits)
}

// complete forwards completion/complete, for a prompt or a template (A45).
func (c *call) complete() *jsonrpc.Failure {
	switch {
	case c.Message.Has(jsonrpc.RefName) && c.Message.Has(jsonrpc.RefURI):
		return invalidParams("ref: must have a name or a uri, not both")
	case c.g.names.areUnchanged():
		s := c.g.names.only
		target, _ := mcp.TargetOf(s.Name, &c.Message)
		return c.forward(s, target, nil)
	case c.Message.Kind(jsonrpc.RefName) == jsonspan.String:
		return c.callNamed(jsonrpc.RefName, mcp.Prompts, c.Message.Text(jsonrpc.RefName))
	case c.Message.Kind(jsonrpc.RefURI) == jsonspan.String:
		return c.callURI(jsonrpc.RefURI)
	}
	return invalidParams("ref: must have a name or a uri")
}

// callOther forwards a request of an extension to the server whose task or resource it names.
func (c *call) callOther(method string) *jsonrpc.Failure {
	if c.g.names.areUnchanged() {
		s := c.g.names.only
		target, _ := mcp.TargetOf(s.Name, &c.Message)
		return c.forward(s, target, nil)
	}
	if strings.HasPrefix(method, "tasks/") && c.Message.Has(jsonrpc.TaskID) {
		s, id := c.g.names.task(c.Message.Text(jsonrpc.TaskID))
		if s == nil {
			return invalidParams("taskId: unknown task")
		}
		edit := c.Message.Replace(jsonrpc.TaskID, jsonrpc.Quote(id))
		return c.forward(s, mcp.Target{Server: s.Name, Kind: mcp.Other}, []jsonspan.Edit{edit})
	}
	// Known methods that get here do not exist in this era.
	if _, known := mcp.KnownMethod(method); !known && c.Message.Kind(jsonrpc.URI) == jsonspan.String {
		if s, target, edits, failure := c.findResource(jsonrpc.URI); failure == nil {
			target.Kind, target.Name = mcp.Other, ""
			return c.forward(s, target, edits)
		}
	}
	failure := jsonrpc.MethodNotFound(mcp.Shortened(method))
	if c.era == mcp.Legacy {
		failure = failure.WithStatusOK()
	}
	return failure
}

// forward edits the call for the server, checks that the client may make it, sends it, and passes
// on the response. It checks the edited call: rules see the arguments that the server gets.
func (c *call) forward(s *upstream.Server, target mcp.Target, edits []jsonspan.Edit) *jsonrpc.Failure {
	c.Server = s
	invalid := c.edit(edits)
	isLogin := prompter{c}.isLoginTool(s, target)
	if isLogin && c.sees(s) {
		target = mcp.Target{} // the login tool belongs to the gateway
	}
	check := c.Admit
	if c.AdmitAsked {
		check = c.Permit
	}
	refused := check(target)
	if refused != nil && !refused.IsLoginRequired() {
		return refused
	}
	if invalid != nil { // clients that may not make the call need not know why it is invalid
		return invalid
	}
	c.link = c.client.linkTo(s)
	c.active.Context, c.active.Cancel = context.WithCancelCause(c.aggregateRequest.ctx)
	defer c.active.Cancel(nil)
	c.ctx = c.active.Context
	defer c.client.calls.end(c.client.calls.begin(c.Message.Literal(jsonrpc.ID), c), c)
	if failure := c.takeFocus(); failure != nil {
		return failure
	}
	if failure := (prompter{c}).takeResponses(); failure != nil {
		return c.answerFailure(failure)
	}
	switch {
	case isLogin:
		return prompter{c}.withLogin(prompter{c}.callLoginTool)
	case refused != nil: // a login is required to read the tool's annotations
		return prompter{c}.withLogin(func() *jsonrpc.Failure {
			if failure := c.Permit(target); failure != nil {
				return c.fail(failure)
			}
			return c.send()
		})
	}
	return prompter{c}.withLogin(c.send)
}

// edit edits the message for the server, with these edits and those of the tool's override.
func (c *call) edit(edits []jsonspan.Edit) *jsonrpc.Failure {
	message, failure := c.messageForServer(append(edits, c.g.names.relatedTaskEdits(c.Message.Raw, c.Server.Name)...)...)
	if failure == nil {
		message, failure = c.Override.ToServer(&message)
	}
	if failure == nil {
		c.Message = message
	}
	return failure
}

// send confirms the call, if a rule requires it, and sends it to the server or to the replica that
// holds it.
func (c *call) send() *jsonrpc.Failure {
	var replica, key string
	if c.era == mcp.Modern && c.g.continuations.peers != nil {
		replica, key = legacyRelay{c}.otherHolder()
	}
	if replica == "" {
		if failure := c.learnTool(); failure != nil {
			return failure
		}
	}
	if failure := c.checkParamHeaders(); failure != nil {
		return failure
	}
	if ok, failure := (prompter{c}).confirm(); !ok {
		return failure
	}
	if replica != "" {
		return legacyRelay{c}.continueAt(replica, key)
	}
	return c.sendToServer()
}

// sendToServer sends the call in a session with the server. A server of another era may take more
// than one request, or the call is held.
func (c *call) sendToServer() *jsonrpc.Failure {
	l := c.link
	for mayRetry := true; ; mayRetry = false {
		if failure := l.open(c.scope()); failure != nil {
			return c.fail(failure)
		}
		l.session.markUsed()
		switch era := l.session.current().Era; {
		case era == c.era:
			return relayInEra(c)
		case era == mcp.Legacy:
			return legacyRelay{c}.run()
		}
		if lost, failure := (modernRelay{c}).run(mayRetry); !lost {
			return failure
		}
	}
}

// learnTool loads the definition of the called tool if this replica has not listed the tools of the
// server. Without it, this replica could not detect an invalid tool, or repeat arguments in
// headers, and would answer differently than other replicas.
func (c *call) learnTool() *jsonrpc.Failure {
	if c.g.replicaSync == nil || !c.Message.Is(jsonrpc.Method, "tools/call") ||
		c.client.knownList(c.g, c.Server, mcp.Tools) != nil || c.toolList() == nil {
		return nil
	}
	return checkTool(c.Server, c.g.names.shown(c.Server.Name, mcp.Tools, c.Server.Overrides.ClientName(c.name)), c.name)
}

// checkParamHeaders checks the headers of a modern client that repeat arguments. The gateway itself
// makes those of other clients.
func (c *call) checkParamHeaders() *jsonrpc.Failure {
	if c.era != mcp.Modern || c.viaCallTool {
		return nil
	}
	return c.CheckParams(func() (*catalog.List, *jsonrpc.Failure) {
		list := c.toolList()
		if list == nil {
			return nil, jsonrpc.HeaderMismatch("Mcp-Param-* cannot be checked, because the tools of the server are unknown")
		}
		return list, nil
	})
}

// takeFocus removes the focus argument from a tool call, if the gateway added that argument to the
// tool.
func (c *call) takeFocus() *jsonrpc.Failure {
	f := c.Server.Focus
	if !f.IsGiven(&c.Message) {
		return nil
	}
	list, shown := c.toolList(), c.g.names.shown(c.Server.Name, mcp.Tools, c.Server.Overrides.ClientName(c.name))
	if list == nil || list.Focused[shown] == "" {
		return nil
	}
	var failure *jsonrpc.Failure
	c.goal, c.Message, failure = f.Take(&c.Message)
	return failure
}

// listTools requests the tools of a server, even if they are cached.
func (c *call) listTools(s *upstream.Server) *jsonrpc.Failure {
	ctx, cancel := context.WithTimeout(c.ctx, c.g.config.JoinTimeout)
	defer cancel()
	q := c.client.newListQuery(c.aggregateRequest.scope().withContext(ctx), s, mcp.Tools)
	l := c.client.linkTo(s)
	failure := l.open(q.scope)
	if failure != nil {
		return failure
	}
	if l.session.current().Can&mcp.ListKinds[mcp.Tools].Needs != 0 {
		_, _, failure = q.fetch(l)
	}
	return failure
}

// Account returns the account for an identity, if each client has its own.
func (g *Gateway) Account(identity string) string {
	caller := g.rules.Caller(identity)
	return caller.Account()
}
