package mcpgateway

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/aggregate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/unlogged"
)

// An upstream is the way to a server from behind the door to all of them.
type upstream struct {
	handler *Handler
	server  *Server
}

// Request implements [aggregate.Upstream].
func (u upstream) Request(ctx context.Context, of *http.Request) *http.Request {
	r := of.WithContext(new(unlogged.Session).In(ctx)) // not that of another request
	r.Body, r.GetBody = http.NoBody, nil               // it will have its own
	r.Header = of.Header.Clone()
	r.URL = new(url.URL)
	*r.URL = *of.URL
	repl := caddy.NewReplacer()
	outer, _ := ctx.Value(outerKey{}).(*outerRequest)
	if outer == nil { // which is not so where serveJoined has begun
		outer = new(outerRequest)
	}
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	r = caddyhttp.PrepareRequest(r, repl, noResponse{}, server)
	repl.Map(outer.placeholder)
	if vars, ok := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any); ok {
		maps.Copy(vars, outer.vars)
	}
	return r
}

// Logged implements [aggregate.Upstream].
func (u upstream) Logged(ctx context.Context, of *http.Request) *http.Request {
	r := u.Request(ctx, of)
	return r.WithContext(context.WithValue(r.Context(), caddyhttp.ExtraLogFieldsCtxKey, ctx.Value(caddyhttp.ExtraLogFieldsCtxKey)))
}

// Pass implements [aggregate.Upstream].
func (upstream) Pass(ctx context.Context, r *http.Request) *http.Request { return r.WithContext(ctx) }

// An outerRequest is what requests to servers inherit from the one of the client that
// they are made for. There are many of them at the same time, and some outlive it, so
// they have placeholders and variables of their own.
type outerRequest struct {
	vars     map[string]any
	identity string // of the client

	mu   sync.Mutex
	repl *caddy.Replacer
}

// outerKey is where an outerRequest is found in a context.
type outerKey struct{}

// outer returns what requests inherit from the one of the client.
func (x *exchange) outer(r *http.Request) *outerRequest {
	outer := &outerRequest{repl: x.repl, identity: x.caller.identity}
	if vars, ok := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any); ok {
		outer.vars = maps.Clone(vars)
	}
	return outer
}

// placeholder returns what handlers in front of the gateway have set. What tells of the
// request itself, each has for its own.
func (o *outerRequest) placeholder(key string) (any, bool) {
	if o.repl == nil || strings.HasPrefix(key, "http.request.") || strings.HasPrefix(key, "http.response.") || strings.HasPrefix(key, "http.vars.") {
		return nil, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.repl.Get(key)
}

// noResponse is the response that placeholders tell of as long as there is none.
type noResponse struct{}

func (noResponse) Header() http.Header         { return http.Header{} }
func (noResponse) Write(p []byte) (int, error) { return len(p), nil }
func (noResponse) WriteHeader(int)             {}

// Send implements [aggregate.Upstream].
func (u upstream) Send(h *streamable.Reader, r *http.Request, m *jsonrpc.Message) *jsonrpc.Failure {
	x := &exchange{handler: u.handler, server: u.server, door: innerDoor, w: h, began: time.Now(), message: *m}
	x.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	x.inner.Reader = h
	x.caller = u.handler.callerIn(r.Context())
	defer x.record(r.Method)
	failure := x.forward(r)
	if failure != nil {
		x.outcome, x.errorCode = failure.Data.Symbol, failure.Code
	}
	return failure
}

// Interface guards
var (
	_ aggregate.Upstream  = upstream{}
	_ http.ResponseWriter = noResponse{}
)
