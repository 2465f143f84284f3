package inbound

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Serve serves the request.
func (q *Request) Serve() {
	defer func() {
		if !q.parked {
			q.held.release()
			q.record() // also if reverse_proxy panics because a connection broke
		}
	}()
	if failure := q.serve(); failure != nil {
		q.fail(failure)
	}
}

// Refuse sends a failure.
func (q *Request) Refuse(failure *jsonrpc.Failure) {
	defer q.record()
	q.fail(failure)
}

// serve serves the request, or returns the failure to send.
func (q *Request) serve() *jsonrpc.Failure {
	if q.HTTP.TLS != nil && !q.HTTP.TLS.HandshakeComplete {
		return jsonrpc.TooEarly() // a replayed call must not run
	}
	if q.HTTP.Method != http.MethodPost { // only a POST has a message, but some servers read any body
		httpbody.Empty(q.HTTP)
	}
	bodyFailure, failure := authentication{q}.run()
	if failure != nil {
		return failure
	}
	upstream.DropHopByHop(q.HTTP.Header)
	switch {
	case bodyFailure != nil:
		return bodyFailure
	case q.HTTP.Method == http.MethodPost:
		if failure := q.checkAmbiguity(); failure != nil {
			return failure
		}
		if failure := q.stripToken(q.gate.config.Auth != nil); failure != nil {
			return failure
		}
		q.linkTrace()
		if _, isCall := q.callKind(); isCall && q.gate.config.Record && !q.isUnredacted() {
			q.Traffic.Answer = new(upstream.Recording)
		}
	}
	switch {
	case q.Endpoint.Kind != upstream.Aggregate:
		return single{q}.serve()
	case q.operator != nil:
		return q.operator.Serve(q)
	}
	return q.gate.aggregate.Serve(q)
}

// checkAmbiguity refuses messages that the server may parse differently: in another charset and, if
// decisions depend on them, with keys in another case or contradicting headers.
func (q *Request) checkAmbiguity() *jsonrpc.Failure {
	for _, contentType := range q.HTTP.Header["Content-Type"] {
		if !httpbody.IsUTF8(contentType) {
			return jsonrpc.UnsupportedCharset()
		}
	}
	if q.Endpoint.Kind != upstream.Aggregate && !q.targetMatters() &&
		q.gate.config.Auth == nil && q.Caller.Identity == "" {
		return nil
	}
	_, known := mcp.KnownMethod(q.MethodName())
	failure := q.Message.CheckExact(known)
	if failure != nil || q.Endpoint.Kind == upstream.Aggregate { // the aggregate checks the headers itself
		return failure
	}
	return mcp.CheckHeaders(q.HTTP.Header, &q.Message)
}
