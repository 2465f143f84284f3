package gateway

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Serve answers the request.
func (q *Request) Serve() {
	defer func() {
		if !q.parked {
			q.held.release()
			q.record() // also when reverse_proxy panics because one side has died while the body was sent
		}
	}()
	if failure := q.serve(); failure != nil {
		q.fail(failure)
	}
}

// Refuse answers the request with a failure.
func (q *Request) Refuse(failure *jsonrpc.Failure) {
	defer q.record()
	q.fail(failure)
}

// serve has the request answered, or returns what is to be answered in place of that.
func (q *Request) serve() *jsonrpc.Failure {
	if q.r.TLS != nil && !q.r.TLS.HandshakeComplete {
		return jsonrpc.TooEarly() // no call is to run twice
	}
	if q.r.Method != http.MethodPost { // only what is posted is a message, but there are servers that do not care
		httpbody.Empty(q.r)
	}
	bodyFailure, failure := authentication{q}.run()
	if failure != nil {
		return failure
	}
	dropHopByHop(q.r.Header)
	switch {
	case bodyFailure != nil:
		return bodyFailure
	case q.r.Method == http.MethodPost:
		if failure := q.checkReading(); failure != nil {
			return failure
		}
		if failure := q.stripToken(q.g.config.Auth != nil); failure != nil {
			return failure
		}
		q.linkTrace()
		if _, isCall := q.callKind(); isCall && q.g.config.Record && !q.isUnredacted() {
			q.traffic.answer = new(recording)
		}
	}
	if q.to.Kind == Aggregate {
		return q.serveAggregate()
	}
	return q.serveOne()
}

// serveOne has one server answer the request.
func (q *Request) serveOne() *jsonrpc.Failure {
	switch {
	case q.r.Method == http.MethodPost:
	case q.to.Kind == RPC:
		return jsonrpc.MethodNotAllowed("POST")
	case q.r.Method != http.MethodGet && q.r.Method != http.MethodDelete:
		return jsonrpc.MethodNotAllowed("POST", "GET", "DELETE")
	}
	if q.server == nil {
		return jsonrpc.UnknownServer(mcp.Shortened(q.to.Server))
	}
	q.caller.askable = q.canBeAsked()
	if failure := q.applyOverride(q.server); failure != nil {
		target := mcp.Target{Server: q.server.Name}
		if q.override != nil {
			target.Kind, target.Name = mcp.Tool, q.override.Tool
		}
		if refused := q.admit(target); refused != nil {
			return refused
		}
		return failure
	}
	if failure := q.admitAt(q.server); failure != nil {
		return failure
	}
	return q.forward()
}

// forward passes the request on to its server as it is.
func (q *Request) forward() *jsonrpc.Failure {
	x := &exchange{
		g: q.g, server: q.server, kind: q.to.Kind, w: q.w, began: q.began, posted: &q.posted, caller: q.caller,
		path: q.peer.Path, traffic: &q.traffic,
	}
	if q.r.Method == http.MethodPost {
		if failure := x.takeFocus(q.r); failure != nil {
			return failure
		}
		if q.to.Kind == Single {
			if ok, failure := q.confirmAtSingle(); !ok {
				return failure
			}
			if q.confirmed {
				x.sealState = q.confirmedState
			}
		}
		x.repeatArguments(q.r, q.override)
		x.post(q.r)
	}
	if q.to.Kind == RPC {
		x.reply = &rpcReply{x: x}
	} else {
		x.reply, x.listens = &passthroughReply{x: x, r: q.r}, q.r.Method == http.MethodGet
	}
	q.passedOn = true
	defer x.record(q.httpMethod)
	defer func() {
		q.restore, q.left, q.ending = x.before, x.left, x.ending
	}()
	failure := x.forward(q.r)
	if failure != nil && !x.left {
		x.endWith(failure)
	} else if failure != nil {
		x.outcome = OutcomeCanceled
	}
	return failure
}

// checkReading refuses messages that the server may read differently: in another charset
// and, if anything is decided on them, by other keys or by headers that contradict them.
func (q *Request) checkReading() *jsonrpc.Failure {
	for _, contentType := range q.r.Header["Content-Type"] {
		if !httpbody.IsUTF8(contentType) {
			return jsonrpc.UnsupportedCharset()
		}
	}
	if q.to.Kind != Aggregate && !q.guarded() && q.g.config.Auth == nil && q.caller.identity == "" {
		return nil
	}
	_, known := mcp.KnownMethod(q.methodName())
	if failure := q.message.CheckExact(known); failure != nil || q.to.Kind == Aggregate { // which checks the headers itself
		return failure
	}
	return mcp.CheckHeaders(q.r.Header, &q.message)
}
