package inbound

import (
	"encoding/json"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A single is a request that one server answers, at Single or RPC.
type single struct{ *Request }

// serve has one server answer the request.
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
	if failure := q.applyOverride(q.Server); failure != nil {
		target := mcp.Target{Server: q.Server.Name}
		if q.Override != nil {
			target.Kind, target.Name = mcp.Tool, q.Override.Tool
		}
		if refused := q.Admit(target); refused != nil {
			return refused
		}
		return failure
	}
	if failure := q.admitAtServer(q.Server); failure != nil {
		return failure
	}
	return q.forward()
}

// forward sends the request to its server, without what is only for the gateway.
func (q single) forward() *jsonrpc.Failure {
	x := &upstream.Exchange{
		Shared: q.gate.Shared, Server: q.Server, Kind: q.Endpoint.Kind, Writer: q.Writer, Began: q.Began,
		Posted: &q.Posted, Caller: q.Caller,
		Path: q.Peer.Path, Traffic: &q.Traffic,
	}
	if q.HTTP.Method == http.MethodPost {
		goal, failure := q.takeFocus()
		if failure != nil {
			return failure
		}
		x.Goal = goal
		if q.Endpoint.Kind == upstream.Single {
			if ok, failure := q.confirm(); !ok {
				return failure
			}
			if q.Confirmed {
				x.SealState = q.ConfirmedState
			}
		}
		q.repeatArguments(x)
		x.Post(q.HTTP)
	}
	q.PassedOn = true
	defer func() {
		q.restore, q.left, q.Ending = x.Before, x.Left, x.Ending
	}()
	return x.Pass(q.HTTP)
}

// applyOverride makes the call of a tool at one server that which the server gets. It fails if clients know no tool
// of this name.
func (q single) applyOverride(s *upstream.Server) *jsonrpc.Failure {
	isCall := q.Message.Is(jsonrpc.Method, "tools/call") && q.Message.Kind(jsonrpc.Name) == jsonspan.String
	if s.Overrides == nil || !isCall {
		return nil
	}
	name := q.Message.Text(jsonrpc.Name)
	o, ok := s.Overrides.Called(name)
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

// repeatArguments sets the headers of a request of the modern era to one server that repeat arguments which the client
// does not see. If it is not known which headers do, it asks for the list of the tools. If there is none, or the
// request is of the legacy era, it removes all such headers.
func (q single) repeatArguments(x *upstream.Exchange) {
	o, r := q.Override, q.HTTP
	if !o.EditsArguments() {
		return
	}
	if !x.IsModern(r) {
		mcp.ParamHeaders(nil).Set(r.Header, &q.Message)
		return
	}
	if o.SetParams(r.Header, &q.Message) {
		return
	}
	if _, failure := q.gate.aggregate.ListTools(r, q.Caller.Identity, q.Server); failure != nil {
		mcp.ParamHeaders(nil).Set(r.Header, &q.Message) // the server will say if there were any
		return
	}
	o.NoteUnlisted()
	o.SetParams(r.Header, &q.Message)
}

// takeFocus takes what the client looks for out of the call of a tool at Single, if the list of the server
// has told clients that the tool takes it.
func (q single) takeFocus() (goal string, failure *jsonrpc.Failure) {
	f := q.Server.Focus
	if q.Endpoint.Kind != upstream.Single || !f.IsGiven(&q.Message) || !q.isFocused(q.Message.Text(jsonrpc.Name)) {
		return "", nil
	}
	goal, q.Message, failure = f.Take(&q.Message)
	return goal, failure
}

// isFocused reports whether clients were told that a tool has the argument. Caddy may have started
// anew since then: if no list of the server is known, it asks for one.
func (q single) isFocused(tool string) bool {
	has, known := q.gate.Shared.State.IsFocused(q.Server, tool)
	if known {
		return has
	}
	focused, failure := q.gate.aggregate.ListTools(q.HTTP, q.Caller.Identity, q.Server)
	if failure != nil {
		return false // as at Aggregate: the server has the last word
	}
	q.gate.Shared.State.NoteFocused(q.Server, focused)
	has, _ = q.gate.Shared.State.IsFocused(q.Server, tool)
	return has
}

// admitAtServer decides whether the client may make the request at one server.
func (q single) admitAtServer(s *upstream.Server) *jsonrpc.Failure {
	target, known := mcp.Target{Server: s.Name}, true
	if q.guarded() {
		target, known = mcp.TargetOf(s.Name, &q.Message)
	}
	if failure := q.Admit(target); failure != nil {
		return failure
	}
	if !known {
		return jsonrpc.InvalidParams("params: ambiguous target")
	}
	return q.admitListening(s)
}

// admitListening decides whether the client may hear of changes of all the resources that it
// wants to listen to at one server. At the aggregate those that it may not are left out.
func (q single) admitListening(s *upstream.Server) *jsonrpc.Failure {
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
		target := mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}
		if decision := q.Caller.Decide(target); decision.Action == acl.Deny {
			return q.DeniedBy(decision, jsonrpc.Refused(target.Server, http.StatusForbidden), target)
		}
	}
	return nil
}

// confirm has the person at a client of one server confirm the call, if a rule wants it. It reports
// whether the call can be made.
func (q single) confirm() (ok bool, _ *jsonrpc.Failure) {
	asked, answer, failure := q.TakeAnswer()
	if failure == nil && asked == ConfirmQuestion {
		failure = q.TakeConfirmation(answer)
	}
	if failure != nil || !q.AwaitsConfirmation() {
		return failure == nil, failure
	}
	result := q.gate.Info.Sign(mcp.InputRequired, q.Ask(ConfirmQuestion, q.Confirmation()))
	out := streamable.NewWriter(q.Writer, q.HTTP.Header)
	out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(q.Message.Literal(jsonrpc.ID), result)})
	q.Outcome = upstream.OutcomeOK
	return false, nil
}

// canBeAsked reports whether the sender of a request to one server can be asked.
func (q single) canBeAsked() bool {
	return q.Caller.Policy() != nil && q.Endpoint.Kind == upstream.Single && q.isModern() && q.Message.IsRequest() &&
		mcp.CanFillForms(q.Message.Literal(jsonrpc.ClientCapabilities))
}

// UnknownTool says that there is no tool of this name.
func UnknownTool(shown string) *jsonrpc.Failure {
	return jsonrpc.InvalidParams("name: there is no tool " + mcp.Shortened(shown)).AsAnswer()
}
