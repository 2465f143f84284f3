package gateway

import (
	"context"
	"iter"
	"maps"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An aggregate is the Gateway as requests see it.
type aggregate struct{ g *Gateway }

// Serve implements inbound.Aggregate.
func (a aggregate) Serve(q *inbound.Request) *jsonrpc.Failure { return a.g.serve(q, nil) }

// ListTools implements inbound.Aggregate.
func (a aggregate) ListTools(r *http.Request, identity string, s *upstream.Server) (
	focused iter.Seq[string], _ *jsonrpc.Failure,
) {
	list, failure := a.g.newOperator(r, identity).listTools(s)
	if failure != nil {
		return nil, failure
	}
	return maps.Values(list.Focused), nil
}

// Interface guard
var _ inbound.Aggregate = aggregate{}

// serve answers a request to all servers. The client is that of an operator; nil if the request says whose it is.
func (g *Gateway) serve(q *inbound.Request, c *client) *jsonrpc.Failure {
	ctx := q.HTTP.Context()
	if q.HTTP.Method == http.MethodGet || q.Message.Is(jsonrpc.Method, mcp.MethodListen) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(g.config.Exiting, cancel)()
	}
	// The body has been read. Requests that may outlive the handler are derived from this one, so it is dropped now.
	q.HTTP.Body, q.HTTP.GetBody = http.NoBody, nil
	q.DropCredentials()
	v := &visit{
		Request: q, g: g, client: c, out: streamable.NewWriter(q.Writer, q.HTTP.Header),
		ctx: &inbound.Context{Context: ctx, Caller: q.Caller, Inherited: q.Peer.Inherited},
	}
	if q.Traffic.Answer != nil {
		v.out.OnAnswer = q.Traffic.Answer.Add
	}
	failure := v.serve()
	switch {
	case v.torn:
		panic(http.ErrAbortHandler) // so that the client can tell
	case failure != nil, q.IsParked():
	case ctx.Err() != nil && !g.exiting():
		q.Outcome = upstream.OutcomeCanceled
	case q.Outcome != "":
	case q.ErrorCode != 0:
		q.Outcome = upstream.OutcomeError
	default:
		q.Outcome = upstream.OutcomeOK
	}
	return failure
}

// serve answers the request. What it returns is to be answered.
func (v *visit) serve() *jsonrpc.Failure {
	defer func() {
		v.asides.Wait()
		if v.IsParked() {
			return
		}
		v.out.Close()
		if v.client != nil {
			v.g.release(v.client)
		}
	}()
	failure := v.dispatch()
	if failure != nil && !v.AdmitAsked {
		// Report errors only to clients that may make requests, and charge them to their
		// rate limit.
		if refused := v.Admit(mcp.Target{}); refused != nil {
			failure = refused
		}
	}
	if failure != nil && v.era == mcp.Legacy && failure.Code == jsonrpc.CodeInvalidParams {
		failure = failure.AsAnswer() // clients of the legacy era read the body, not the status
	}
	if failure != nil && v.out.Streaming() {
		v.out.Answer(failure.Status, &streamable.Event{Data: failure.Append(nil, v.Message.Literal(jsonrpc.ID))})
		v.ErrorCode = failure.Code
		return nil
	}
	return failure
}

// dispatch answers the request by its HTTP method.
func (v *visit) dispatch() *jsonrpc.Failure {
	method := v.CalledMethod()
	_, known := mcp.KnownMethod(method)
	named := mcp.HasTarget(method) || !known // a request of an extension may name something, too
	if v.HTTP.Method != http.MethodPost || !v.Message.IsRequest() || !named {
		if failure := v.Admit(v.targetOfAll()); failure != nil {
			return failure
		}
	}
	switch v.HTTP.Method {
	case http.MethodPost:
		return v.postMessage()
	case http.MethodGet, http.MethodDelete:
		if v.Version != "" && !mcp.IsLegacy(v.Version) {
			return jsonrpc.MethodNotAllowed("POST") // in the modern era all is posted
		}
		if failure := v.join(); failure != nil {
			return failure
		}
		if v.HTTP.Method == http.MethodGet {
			return v.get()
		}
		return v.delete()
	}
	return jsonrpc.MethodNotAllowed("POST", "GET", "DELETE")
}

// postMessage answers a message.
func (v *visit) postMessage() *jsonrpc.Failure {
	if failure := v.Message.Check(); failure != nil {
		return failure
	}
	if v.client != nil { // of an operator
		v.era = v.client.era
		return v.postRequest(v.CalledMethod())
	}
	v.era = mcp.EraOf(v.Version, &v.Message)
	if v.era == mcp.Modern {
		return v.postModern()
	}
	if v.Message.IsRequest() && v.Message.Is(jsonrpc.Method, "initialize") {
		return handshake{v}.initialize()
	}
	if failure := v.join(); failure != nil {
		return failure
	}
	switch {
	case v.Message.IsNotification():
		clientNotice{v}.pass()
		v.accepted()
		return nil
	case !v.Message.IsRequest():
		if failure := (clientNotice{v}).reply(); failure != nil {
			return failure
		}
		v.accepted()
		return nil
	}
	switch method := v.CalledMethod(); method {
	case "ping":
		return v.answer([]byte("{}"))
	case "logging/setLevel":
		return v.setLevel()
	case "resources/subscribe", "resources/unsubscribe":
		return v.newCall().subscribe(method == "resources/subscribe")
	default:
		return v.postRequest(method)
	}
}

// postModern answers a message of the modern era.
func (v *visit) postModern() *jsonrpc.Failure {
	if !v.Message.IsRequest() {
		v.accepted() // none has a meaning over HTTP
		return nil
	}
	if failure := mcp.CheckModern(v.HTTP.Header, &v.Message); failure != nil {
		return failure
	}
	if !v.Message.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return jsonrpc.UnsupportedVersion(v.Message.Text(jsonrpc.ProtocolVersion), mcp.Versions())
	}
	var failure *jsonrpc.Failure
	if v.client, failure = v.modernClient(); failure != nil {
		return failure
	}
	switch method := v.CalledMethod(); method {
	case "server/discover":
		return handshake{v}.discover()
	case mcp.MethodListen:
		return v.listen()
	case "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return jsonrpc.MethodNotFound(method) // of the legacy era
	case "tasks/list", "tasks/result": // which the tasks extension does without
		if v.g.transparent() {
			return v.newCall().callOther(method)
		}
		return jsonrpc.MethodNotFound(method)
	default:
		return v.postRequest(method)
	}
}

// postRequest answers a request that both eras have.
func (v *visit) postRequest(method string) *jsonrpc.Failure {
	if k, ok := mcp.ListKindOf(method); ok {
		return lister{v, k}.list()
	}
	switch method {
	case "tools/call":
		return v.newCall().callTool()
	case "prompts/get":
		return v.newCall().callNamed(jsonrpc.Name, mcp.Prompts, v.Message.Text(jsonrpc.Name))
	case "resources/read":
		return v.newCall().readResource()
	case "completion/complete":
		return v.newCall().complete()
	case "resources/directory/read", "skills/get":
		return v.newCall().callURI(jsonrpc.URI)
	}
	return v.newCall().callOther(method)
}
