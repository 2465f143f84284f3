package gateway

import (
	"context"
	"net/http"

	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// NewRequest returns a request to an endpoint.
func (g *Gateway) NewRequest(
	w http.ResponseWriter, r *http.Request, endpoint inbound.Endpoint, peer inbound.Peer,
) *inbound.Request {
	return g.gate.NewRequest(w, r, endpoint, peer)
}

// An aggregateRequest is a request to the aggregate endpoint.
type aggregateRequest struct {
	*inbound.Request
	g            *Gateway
	ctx          context.Context // of all work for the request
	era          mcp.Era
	client       *client
	out          *streamable.Writer
	sideRequests upstream.SideRequests
	truncated    bool // the response was sent in part, and the rest will not follow

	fromReplica bool // another replica received and forwarded it
}

// wholeTarget returns the target of a request that does not name an item.
func (req *aggregateRequest) wholeTarget() mcp.Target {
	if !req.g.names.areUnchanged() || req.HTTP.Method != http.MethodPost {
		return mcp.Target{}
	}
	target, _ := mcp.TargetOf(req.g.names.only.Name, &req.Message)
	return target
}

// sees reports whether the client may see a server.
func (req *aggregateRequest) sees(s *upstream.Server) bool {
	return req.Caller.Policy().MayAllow(s.Name)
}

// answerAccepted answers a message that gets no JSON-RPC response.
func (req *aggregateRequest) answerAccepted() { req.Writer.WriteHeader(http.StatusAccepted) }

// answerResult answers with a result of the gateway.
func (req *aggregateRequest) answerResult(result []byte) *jsonrpc.Failure {
	return req.answerAs("complete", result)
}

// answerAs answers with a result of the gateway. resultType is for the modern era.
func (req *aggregateRequest) answerAs(resultType string, result []byte) *jsonrpc.Failure {
	if req.era == mcp.Modern {
		result = req.g.info.AddMembers(resultType, result)
	}
	req.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.ResultResponse(req.Message.Literal(jsonrpc.ID), result)})
	return nil
}

// scope returns the scope for requests to servers.
func (req *aggregateRequest) scope() scope { return scope{ctx: req.ctx, g: req.g, r: req.HTTP} }

// forEachServer calls f concurrently for all servers that the client may see.
func (req *aggregateRequest) forEachServer(f func(s *upstream.Server)) {
	var calls errgroup.Group
	calls.SetLimit(maxFanOut)
	for _, s := range req.g.visibleServers(req.Caller.Identity) {
		calls.Go(func() error {
			f(s)
			return nil
		})
	}
	_ = calls.Wait()
}

// forEachOpenLink calls f concurrently for all servers that the client has a session with.
func (req *aggregateRequest) forEachOpenLink(f func(s *upstream.Server, l *link)) {
	req.forEachServer(func(s *upstream.Server) {
		if l := req.client.existingLink(s); l != nil && l.session.isOpen() {
			f(s, l)
		}
	})
}

// serverInfos returns the servers that the client may see and their infos. The info is nil if the
// server failed, which is logged, or is not connected yet. Known infos are not requested again. See
// [background.collect] for waits.
func (req *aggregateRequest) serverInfos(waits func() bool) (servers []*upstream.Server, infos []*serverInfo) {
	servers = req.g.visibleServers(req.Caller.Identity)
	infos = make([]*serverInfo, len(servers))
	audience := req.g.audience(req.client)
	arrived := make([]bool, len(servers))
	var bg *background // nil until a server must be asked
	for i, s := range servers {
		p := audience.profile(s.ID)
		if infos[i] = p.freshInfo(s); infos[i] != nil {
			continue
		}
		if bg == nil {
			bg = newBackground(req, len(servers))
			defer bg.requestAnswered()
		}
		bg.Go(func() {
			info, _ := p.getInfo(bg.scope, req.client, s)
			bg.arrivals <- func() { infos[i], arrived[i] = info, true }
			if info != nil {
				req.g.notify.serverAvailable(s)
			}
		})
	}
	if bg == nil {
		return servers, infos
	}
	bg.collect(req.ctx, waits)
	for i, s := range servers {
		if infos[i] == nil && (!arrived[i] || s.IsUnavailable()) {
			audience.profile(s.ID).noteLeftOut(s)
		}
	}
	bg.collectLate()
	return servers, infos
}

// always and never are values for the waits parameter of [background.collect].
func always() bool { return true }
func never() bool  { return false }

// maxFanOut limits the servers that one request contacts at a time.
const maxFanOut = 64

// An aggregate implements [inbound.Aggregate] for a Gateway.
type aggregate struct{ g *Gateway }

// Serve implements inbound.Aggregate.
func (a aggregate) Serve(q *inbound.Request) *jsonrpc.Failure { return a.serve(q, nil) }

// ListTools implements inbound.Aggregate.
func (a aggregate) ListTools(
	r *http.Request, identity string, s *upstream.Server,
) (*catalog.List, *jsonrpc.Failure) {
	return newOperator(a.g, r, identity).listTools(s)
}

// serve answers a request to the aggregate endpoint. The client is set for operators only;
// otherwise the request identifies it.
func (a aggregate) serve(q *inbound.Request, c *client) *jsonrpc.Failure {
	g := a.g
	ctx := q.HTTP.Context()
	if q.HTTP.Method == http.MethodGet || q.Message.Is(jsonrpc.Method, mcp.MethodListen) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(g.config.Exiting, cancel)()
	}
	// The body has been read. Drop it: requests derived from this one may outlive the handler.
	q.HTTP.Body, q.HTTP.GetBody = http.NoBody, nil
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
			req.g.clients.release(req.client)
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
	if failure := req.findModern(); failure != nil {
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
		if req.g.names.areUnchanged() {
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
