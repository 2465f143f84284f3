package gateway

import (
	"context"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// serveAggregate answers a request to all servers.
func (q *Request) serveAggregate() *jsonrpc.Failure {
	ctx := q.r.Context()
	if q.r.Method == http.MethodGet || q.message.Is(jsonrpc.Method, mcp.MethodListen) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(q.g.config.Exiting, cancel)()
	}
	// The message has been read. Requests are derived from q.r that outlive the handler, so it does not change later.
	q.r.Body, q.r.GetBody = http.NoBody, nil
	if q.g.config.Auth != nil && !q.g.forwardsAuth {
		// They have identified the client. Some differ in each request, and would make it
		// another client each time.
		dropHeaders(q.r.Header, q.g.credentials)
	}
	v := &visit{
		Request: q, ctx: &requestContext{ctx, q.caller, q.peer.Inherited}, out: streamable.NewWriter(q.w, q.r.Header),
	}
	if q.traffic.answer != nil {
		v.out.OnAnswer = q.traffic.answer.add
	}
	failure := v.serve()
	switch {
	case v.torn:
		panic(http.ErrAbortHandler) // so that the client can tell
	case failure != nil, q.parked:
	case ctx.Err() != nil && !q.g.exiting():
		q.outcome = OutcomeCanceled
	case q.outcome != "":
	case q.errorCode != 0:
		q.outcome = outcomeError
	default:
		q.outcome = OutcomeOK
	}
	return failure
}

// serve answers the request. What it returns is to be answered.
func (v *visit) serve() *jsonrpc.Failure {
	defer func() {
		v.asides.Wait()
		if v.parked {
			return
		}
		v.out.Close()
		if v.client != nil {
			v.g.release(v.client)
		}
	}()
	failure := v.dispatch()
	if failure != nil && !v.admitted {
		// Report errors only to clients that may make requests, and charge them to their
		// rate limit.
		if refused := v.admit(mcp.Target{}); refused != nil {
			failure = refused
		}
	}
	if failure != nil && v.era == mcp.Legacy && failure.Code == jsonrpc.CodeInvalidParams {
		failure = failure.AsAnswer() // clients of the legacy era read the body, not the status
	}
	if failure != nil && v.out.Streaming() {
		v.out.Answer(failure.Status, &streamable.Event{Data: failure.Append(nil, v.message.Literal(jsonrpc.ID))})
		v.errorCode = failure.Code
		return nil
	}
	return failure
}

// dispatch answers the request by its HTTP method.
func (v *visit) dispatch() *jsonrpc.Failure {
	method := v.calledMethod()
	_, known := mcp.KnownMethod(method)
	named := mcp.HasTarget(method) || !known // a request of an extension may name something, too
	if v.r.Method != http.MethodPost || !v.message.IsRequest() || !named {
		if failure := v.admit(v.targetOfAll()); failure != nil {
			return failure
		}
	}
	switch v.r.Method {
	case http.MethodPost:
		return v.postMessage()
	case http.MethodGet, http.MethodDelete:
		if v.version != "" && !mcp.IsLegacy(v.version) {
			return jsonrpc.MethodNotAllowed("POST") // in the modern era all is posted
		}
		if failure := v.join(); failure != nil {
			return failure
		}
		if v.r.Method == http.MethodGet {
			return v.get()
		}
		return v.delete()
	}
	return jsonrpc.MethodNotAllowed("POST", "GET", "DELETE")
}

// postMessage answers a message.
func (v *visit) postMessage() *jsonrpc.Failure {
	if failure := v.message.Check(); failure != nil {
		return failure
	}
	if v.operator != nil {
		v.client, v.era = v.operator.client, v.operator.client.era
		return v.postRequest(v.calledMethod())
	}
	v.era = mcp.EraOf(v.version, &v.message)
	if v.era == mcp.Modern {
		return v.postModern()
	}
	if v.message.IsRequest() && v.message.Is(jsonrpc.Method, "initialize") {
		return handshake{v}.initialize()
	}
	if failure := v.join(); failure != nil {
		return failure
	}
	switch {
	case v.message.IsNotification():
		clientNotice{v}.pass()
		v.accepted()
		return nil
	case !v.message.IsRequest():
		if failure := (clientNotice{v}).reply(); failure != nil {
			return failure
		}
		v.accepted()
		return nil
	}
	switch method := v.calledMethod(); method {
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
	if !v.message.IsRequest() {
		v.accepted() // none has a meaning over HTTP
		return nil
	}
	if failure := mcp.CheckModern(v.r.Header, &v.message); failure != nil {
		return failure
	}
	if !v.message.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return jsonrpc.UnsupportedVersion(v.message.Text(jsonrpc.ProtocolVersion), mcp.Versions())
	}
	var failure *jsonrpc.Failure
	if v.client, failure = v.modernClient(); failure != nil {
		return failure
	}
	switch method := v.calledMethod(); method {
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
	if k, ok := kindOf(method); ok {
		return lister{v, k}.list()
	}
	switch method {
	case "tools/call":
		return v.newCall().callTool()
	case "prompts/get":
		return v.newCall().callNamed(jsonrpc.Name, prompts, v.message.Text(jsonrpc.Name))
	case "resources/read":
		return v.newCall().readResource()
	case "completion/complete":
		return v.newCall().complete()
	case "resources/directory/read", "skills/get":
		return v.newCall().callURI(jsonrpc.URI)
	}
	return v.newCall().callOther(method)
}
