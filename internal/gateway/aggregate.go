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

// An aggregate implements [inbound.Aggregate] for a Gateway.
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

// serve answers a request to the aggregate endpoint. The client is set for operators only;
// otherwise the request identifies it.
func (g *Gateway) serve(q *inbound.Request, c *client) *jsonrpc.Failure {
	ctx := q.HTTP.Context()
	if q.HTTP.Method == http.MethodGet || q.Message.Is(jsonrpc.Method, mcp.MethodListen) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(g.config.Exiting, cancel)()
	}
	// The body has been read. Drop it: requests derived from this one may outlive the handler.
	q.HTTP.Body, q.HTTP.GetBody = http.NoBody, nil
	q.DropCredentials()
	req := &aggregateRequest{
		Request: q, g: g, client: c, out: streamable.NewWriter(q.Writer, q.HTTP.Header),
		ctx: &inbound.Context{Context: ctx, Caller: q.Caller, Inherited: q.Peer.Inherited},
	}
	if q.Traffic.Answer != nil {
		req.out.OnAnswer = q.Traffic.Answer.Add
	}
	failure := req.serve()
	switch {
	case req.truncated:
		panic(http.ErrAbortHandler) // shows the client that the response is incomplete
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

// serve answers the request. The caller answers with the failure that it returns.
func (req *aggregateRequest) serve() *jsonrpc.Failure {
	defer func() {
		req.sideRequests.Wait()
		if req.IsParked() {
			return
		}
		req.out.Close()
		if req.client != nil {
			req.g.release(req.client)
		}
	}()
	failure := req.dispatch()
	if failure != nil && !req.AdmitAsked {
		// Report errors only to clients that may make requests, and charge them to their
		// rate limit.
		if refused := req.Admit(mcp.Target{}); refused != nil {
			failure = refused
		}
	}
	if failure != nil && req.era == mcp.Legacy && failure.Code == jsonrpc.CodeInvalidParams {
		failure = failure.WithStatusOK() // legacy clients read the body, not the status
	}
	if failure != nil && req.out.IsStreaming() {
		req.out.Answer(failure.Status, &streamable.Event{Data: failure.Append(nil, req.Message.Literal(jsonrpc.ID))})
		req.ErrorCode = failure.Code
		return nil
	}
	return failure
}

// dispatch answers the request according to its HTTP method.
func (req *aggregateRequest) dispatch() *jsonrpc.Failure {
	method := req.CalledMethod()
	_, known := mcp.KnownMethod(method)
	named := mcp.HasTarget(method) || !known // requests of extensions may have a target, too
	if req.HTTP.Method != http.MethodPost || !req.Message.IsRequest() || !named {
		if failure := req.Admit(req.wholeTarget()); failure != nil {
			return failure
		}
	}
	switch req.HTTP.Method {
	case http.MethodPost:
		return req.postMessage()
	case http.MethodGet, http.MethodDelete:
		if req.Version != "" && !mcp.IsLegacy(req.Version) {
			return jsonrpc.MethodNotAllowed("POST") // modern clients only send POST
		}
		if failure := req.findSession(); failure != nil {
			return failure
		}
		if req.HTTP.Method == http.MethodGet {
			return req.get()
		}
		return req.delete()
	}
	return jsonrpc.MethodNotAllowed("POST", "GET", "DELETE")
}

// postMessage answers a message.
func (req *aggregateRequest) postMessage() *jsonrpc.Failure {
	if failure := req.Message.Check(); failure != nil {
		return failure
	}
	if req.client != nil { // an operator
		req.era = req.client.era
		return req.postRequest(req.CalledMethod())
	}
	req.era = mcp.EraOf(req.Version, &req.Message)
	if req.era == mcp.Modern {
		return req.postModern()
	}
	if req.Message.IsRequest() && req.Message.Is(jsonrpc.Method, "initialize") {
		return handshake{req}.initialize()
	}
	if failure := req.findSession(); failure != nil {
		return failure
	}
	switch {
	case req.Message.IsNotification():
		oneWayMessage{req}.forwardNotification()
		req.answerAccepted()
		return nil
	case !req.Message.IsRequest():
		if failure := (oneWayMessage{req}).forwardResponse(); failure != nil {
			return failure
		}
		req.answerAccepted()
		return nil
	}
	switch method := req.CalledMethod(); method {
	case "ping":
		return req.answerResult([]byte("{}"))
	case "logging/setLevel":
		return req.setLevel()
	case "resources/subscribe", "resources/unsubscribe":
		return req.newCall().subscribe(method == "resources/subscribe")
	default:
		return req.postRequest(method)
	}
}

// postModern answers a message of a modern client.
func (req *aggregateRequest) postModern() *jsonrpc.Failure {
	if !req.Message.IsRequest() {
		req.answerAccepted() // over HTTP, modern notifications and responses have no meaning
		return nil
	}
	if failure := mcp.CheckModern(req.HTTP.Header, &req.Message); failure != nil {
		return failure
	}
	if !req.Message.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return jsonrpc.UnsupportedVersion(req.Message.Text(jsonrpc.ProtocolVersion), mcp.Versions())
	}
	var failure *jsonrpc.Failure
	if req.client, failure = req.modernClient(); failure != nil {
		return failure
	}
	switch method := req.CalledMethod(); method {
	case "server/discover":
		return handshake{req}.discover()
	case mcp.MethodListen:
		return req.listen()
	case "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return jsonrpc.MethodNotFound(method) // legacy only
	case "tasks/list", "tasks/result": // not part of the tasks extension
		if req.g.transparent() {
			return req.newCall().callOther(method)
		}
		return jsonrpc.MethodNotFound(method)
	default:
		return req.postRequest(method)
	}
}

// postRequest answers a request that exists in both eras.
func (req *aggregateRequest) postRequest(method string) *jsonrpc.Failure {
	if k, ok := mcp.ListKindOf(method); ok {
		return lister{req, k}.list()
	}
	switch method {
	case "tools/call":
		return req.newCall().callTool()
	case "prompts/get":
		return req.newCall().callNamed(jsonrpc.Name, mcp.Prompts, req.Message.Text(jsonrpc.Name))
	case "resources/read":
		return req.newCall().readResource()
	case "completion/complete":
		return req.newCall().complete()
	case "resources/directory/read", "skills/get":
		return req.newCall().callURI(jsonrpc.URI)
	}
	return req.newCall().callOther(method)
}
