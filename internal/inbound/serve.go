package inbound

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
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
	if q.HTTP.TLS != nil && !q.HTTP.TLS.HandshakeComplete {
		return jsonrpc.TooEarly() // no call is to run twice
	}
	if q.HTTP.Method != http.MethodPost { // only what is posted is a message, but there are servers that do not care
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
		if failure := q.checkReading(); failure != nil {
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

// checkReading refuses messages that the server may read differently: in another charset
// and, if anything is decided on them, by other keys or by headers that contradict them.
func (q *Request) checkReading() *jsonrpc.Failure {
	for _, contentType := range q.HTTP.Header["Content-Type"] {
		if !httpbody.IsUTF8(contentType) {
			return jsonrpc.UnsupportedCharset()
		}
	}
	if q.Endpoint.Kind != upstream.Aggregate && !q.guarded() && q.gate.config.Auth == nil && q.Caller.Identity == "" {
		return nil
	}
	_, known := mcp.KnownMethod(q.MethodName())
	failure := q.Message.CheckExact(known)
	if failure != nil || q.Endpoint.Kind == upstream.Aggregate { // which checks the headers itself
		return failure
	}
	return mcp.CheckHeaders(q.HTTP.Header, &q.Message)
}
