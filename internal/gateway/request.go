package gateway

import (
	"maps"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An EndpointKind is one of the ways in.
type EndpointKind uint8

const (
	Aggregate EndpointKind = iota // all servers as one, over Streamable HTTP
	Single                        // one server, over Streamable HTTP
	RPC                           // one server, by POST of one JSON-RPC message
)

// An Endpoint is where a request comes in.
type Endpoint struct {
	Kind   EndpointKind
	Server string // name or alias; "" at the aggregate
}

// A Request is a request of a client, and the response to it.
type Request struct {
	g          *Gateway
	w          http.ResponseWriter
	r          *http.Request
	httpMethod string
	to         Endpoint
	peer       Peer
	began      time.Time
	span       trace.Span
	version    string // of the protocol, as the header has it

	posted
	held     heldBody // what the body takes of the room for all of them
	bodyRead bool     // or begun to be read
	caller   caller
	admitted bool    // admit was asked
	server   *Server // that the request is for, as far as it is known and just one

	restore  http.Header // of the response, before a server has changed it; nil if none has
	passedOn bool        // to one server, whose exchange is recorded
	left     bool        // the client cannot be written to
	ending
}

// NewRequest returns a request that came in at an endpoint, to be served.
func (g *Gateway) NewRequest(w http.ResponseWriter, r *http.Request, to Endpoint, from Peer) *Request {
	return &Request{
		g: g, w: w, r: r, httpMethod: r.Method, to: to, peer: from, began: time.Now(),
		span: trace.SpanFromContext(r.Context()), version: r.Header.Get(mcp.VersionHeader), server: g.servers[to.Server],
	}
}

// Serve answers the request.
func (q *Request) Serve() {
	defer q.record() // also when reverse_proxy panics because one side has died while the body was sent
	defer q.held.release()
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
	unread, failure := authentication{q}.run()
	if failure != nil {
		return failure
	}
	dropHopByHop(q.r.Header)
	switch {
	case unread != nil:
		return unread
	case q.r.Method == http.MethodPost:
		if failure := q.checkReading(); failure != nil {
			return failure
		}
		if failure := q.stripToken(q.g.config.Auth != nil); failure != nil {
			return failure
		}
		q.linkTrace()
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
		return q.notAllowed("POST")
	case q.r.Method != http.MethodGet && q.r.Method != http.MethodDelete:
		return q.notAllowed("POST, GET, DELETE")
	}
	if q.server == nil {
		return jsonrpc.UnknownServer(mcp.Shortened(q.to.Server))
	}
	if failure := q.admitAt(q.server); failure != nil {
		return failure
	}
	return q.forward()
}

// forward passes the request on to its server as it is.
func (q *Request) forward() *jsonrpc.Failure {
	x := &exchange{
		g: q.g, server: q.server, kind: q.to.Kind, w: q.w, began: q.began, owner: q.caller.budget(),
		posted: posted{message: q.message, method: q.method, tool: q.tool}, caller: q.caller, path: q.peer.Path,
	}
	if q.r.Method == http.MethodPost {
		x.post(q.r)
	}
	q.passedOn = true
	defer x.record(q.httpMethod)
	defer func() {
		q.message, q.restore, q.left, q.ending = x.message, x.before, x.left, x.ending
	}()
	failure := x.forward(q.r)
	if failure != nil && !x.left {
		x.endWith(failure)
	} else if failure != nil {
		x.outcome = OutcomeCanceled
	}
	return failure
}

// notAllowed refuses the HTTP method.
func (q *Request) notAllowed(allow string) *jsonrpc.Failure {
	q.w.Header().Set("Allow", allow)
	return jsonrpc.MethodNotAllowed()
}

// fail answers with a failure in place of what a server may have begun to answer.
func (q *Request) fail(failure *jsonrpc.Failure) {
	if !q.bodyRead {
		httpbody.Abandon(q.w, q.r, httpbody.Pace)
	}
	q.endWith(failure)
	if q.left {
		q.outcome = OutcomeCanceled
		return
	}
	header := q.w.Header()
	if q.restore != nil {
		clear(header)
		maps.Copy(header, q.restore)
	}
	body := failure.Append(nil, q.message.Literal(jsonrpc.ID))
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	q.w.WriteHeader(failure.Status)
	_, _ = q.w.Write(body)
}
