package inbound

import (
	"encoding/json"
	"maps"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A single is a request for one server, at Single or RPC.
type single struct{ *Request }

// serve admits the request and forwards it.
func (q single) serve() *jsonrpc.Failure {
	switch {
	case q.HTTP.Method == http.MethodPost:
	case q.Endpoint.Kind == upstream.RPC:
		return jsonrpc.MethodNotAllowed("POST")
	case q.HTTP.Method != http.MethodGet && q.HTTP.Method != http.MethodDelete:
		return jsonrpc.MethodNotAllowed("POST", "GET", "DELETE")
	}
	if q.Server == nil {
		return jsonrpc.UnknownServer(mcp.Shortened(q.Endpoint.Server))
	}
	q.Caller.Askable = q.canBeAsked()
	if failure := q.applyOverride(); failure != nil {
		target := mcp.Target{Server: q.Server.Name}
		if q.Override != nil {
			target.Kind, target.Name = mcp.Tool, q.Override.Tool
		}
		if refused := q.Admit(target); refused != nil {
			return refused
		}
		return failure
	}
	if failure := q.admitAtServer(); failure != nil {
		return failure
	}
	return q.forward()
}

// forward sends the request to its server, without the parts for the gateway.
func (q single) forward() *jsonrpc.Failure {
	x := &upstream.Exchange{
		Shared: q.gate.Shared, Server: q.Server, Kind: q.Endpoint.Kind, Writer: q.Writer, Began: q.Began,
		PostedMessage: &q.PostedMessage, Caller: q.Caller,
		Path: q.Peer.Path, Traffic: &q.Traffic,
	}
	if q.HTTP.Method == http.MethodPost {
		goal, failure := q.takeFocus()
		if failure != nil {
			return failure
		}
		x.Goal = goal
		if failure := q.CheckParams(q.listTools); failure != nil {
			return failure
		}
		if q.Endpoint.Kind == upstream.Single {
			if ok, failure := q.confirm(); !ok {
				return failure
			}
			if q.Elicitation.Confirmed {
				x.SealState = q.Elicitation.ConfirmedState
			}
		}
		q.setParamHeaders(x)
		x.Post(q.HTTP)
	}
	q.IsForwarded = true
	defer func() {
		q.headerBefore, q.clientGone, q.Ending = x.Before, x.ClientGone, x.Ending
	}()
	return x.Pass(q.HTTP)
}

// listTools lists the tools of the server for the client.
func (q single) listTools() (*catalog.List, *jsonrpc.Failure) {
	return q.gate.aggregate.ListTools(q.HTTP, q.Caller.Identity, q.Server)
}

// applyOverride rewrites the call of an overridden tool for the server. It fails if clients see no
// tool of this name.
func (q single) applyOverride() *jsonrpc.Failure {
	isCall := q.Message.Is(jsonrpc.Method, "tools/call") && q.Message.Kind(jsonrpc.Name) == jsonspan.String
	if q.Server.Overrides == nil || !isCall {
		return nil
	}
	name := q.Message.Text(jsonrpc.Name)
	o, ok := q.Server.Overrides.ByClientName(name)
	if !ok {
		return UnknownTool(name)
	}
	if o == nil {
		return nil
	}
	q.Override, q.Tool = o, mcp.Shortened(o.Tool)
	message, failure := o.ToServer(&q.Message)
	if failure != nil {
		return failure
	}
	q.Message = message
	mcp.SetName(q.HTTP.Header, &q.Message)
	return nil
}

// setParamHeaders sets the headers of a modern request that repeat arguments which an override
// hides from the client. If the headers are unknown, it lists the tools. If that fails, or the
// request is legacy, it removes all such headers.
func (q single) setParamHeaders(x *upstream.Exchange) {
	o, r := q.Override, q.HTTP
	if !o.HidesArguments() {
		return
	}
	if !x.IsModern(r) {
		mcp.ParamHeaders(nil).Set(r.Header, &q.Message)
		return
	}
	if o.SetParams(r.Header, &q.Message) {
		return
	}
	if _, failure := q.listTools(); failure != nil {
		mcp.ParamHeaders(nil).Set(r.Header, &q.Message) // the server responds with an error if any were needed
		return
	}
	o.NoteUnlisted()
	o.SetParams(r.Header, &q.Message)
}

// takeFocus removes the focus argument from the call of a tool at Single, if the tool was listed
// with it.
func (q single) takeFocus() (goal string, failure *jsonrpc.Failure) {
	f := q.Server.Focus
	if q.Endpoint.Kind != upstream.Single || !f.IsGiven(&q.Message) || !q.isFocused(q.Message.Text(jsonrpc.Name)) {
		return "", nil
	}
	goal, q.Message, failure = f.Take(&q.Message)
	return goal, failure
}

// isFocused reports whether the tool was listed with the focus argument. If no list is known, as
// after a restart, it requests one.
func (q single) isFocused(tool string) bool {
	has, known := q.gate.Shared.Retained.IsFocused(q.Server, tool)
	if known {
		return has
	}
	list, failure := q.listTools()
	if failure != nil {
		return false // as at Aggregate: the server decides
	}
	q.gate.Shared.Retained.NoteFocused(q.Server, maps.Values(list.Focused))
	has, _ = q.gate.Shared.Retained.IsFocused(q.Server, tool)
	return has
}

// admitAtServer decides whether the client may send the request to the server.
func (q single) admitAtServer() *jsonrpc.Failure {
	target, known := mcp.Target{Server: q.Server.Name}, true
	if q.targetMatters() {
		target, known = mcp.TargetOf(q.Server.Name, &q.Message)
	}
	if failure := q.Admit(target); failure != nil {
		return failure
	}
	if !known {
		return jsonrpc.InvalidParams("params: ambiguous target")
	}
	return q.admitListening()
}

// admitListening decides whether the client may subscribe to all resources of a listen request. At
// the aggregate, forbidden ones are left out instead.
func (q single) admitListening() *jsonrpc.Failure {
	if q.Caller.Policy() == nil || !q.Message.Is(jsonrpc.Method, mcp.MethodListen) {
		return nil
	}
	if q.Message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject {
		return jsonrpc.InvalidParams("notifications: missing, or not an object")
	}
	if !q.Message.Has(jsonrpc.Subscriptions) {
		return nil
	}
	var uris []string
	if json.Unmarshal(q.Message.Literal(jsonrpc.Subscriptions), &uris) != nil {
		return jsonrpc.InvalidParams("resourceSubscriptions: not a list of URIs")
	}
	for _, uri := range uris {
		target := mcp.Target{Server: q.Server.Name, Kind: mcp.Resource, Name: uri}
		if decision := q.Caller.Decide(target); decision.Action == acl.Deny {
			return q.DeniedBy(decision, jsonrpc.Refused(target.Server, http.StatusForbidden), target)
		}
	}
	return nil
}

// confirm asks for a confirmation of the call, if a rule requires one. It reports whether the call
// can be made.
func (q single) confirm() (ok bool, _ *jsonrpc.Failure) {
	key, answer, failure := q.Elicitation.TakeResponse()
	if failure == nil && key == ConfirmRequest {
		failure = q.Elicitation.TakeConfirmation(answer)
	}
	if failure != nil || !q.Elicitation.AwaitsConfirmation() {
		return failure == nil, failure
	}
	result := q.gate.Info.AddMembers(mcp.InputRequired, q.Elicitation.Ask(ConfirmRequest, q.Elicitation.Confirmation()))
	out := streamable.NewWriter(q.Writer, q.HTTP.Header)
	out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.ResultResponse(q.Message.Literal(jsonrpc.ID), result)})
	q.Outcome = upstream.OutcomeOK
	return false, nil
}

// canBeAsked reports whether the client of the request can be asked.
func (q single) canBeAsked() bool {
	return q.Caller.Policy() != nil && q.Endpoint.Kind == upstream.Single && q.Message.IsRequest() &&
		mcp.EraOf(q.Version, &q.Message) == mcp.Modern && mcp.CanFillForms(q.Message.Literal(jsonrpc.ClientCapabilities))
}

// UnknownTool returns the failure for a name that no tool has.
func UnknownTool(shown string) *jsonrpc.Failure {
	return jsonrpc.InvalidParams("name: unknown tool " + mcp.Shortened(shown)).WithStatusOK()
}
