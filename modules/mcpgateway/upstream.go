package mcpgateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

// A route is the way to a server: its routes.
type route struct{ server *Server }

// Serve implements [upstream.Routes].
func (u route) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if u.server.login != nil {
		return u.server.login.Serve(w, r, account, u.serve)
	}
	return u.serve(w, r)
}

// serve has the routes answer r.
func (u route) serve(w http.ResponseWriter, r *http.Request) error {
	err := u.server.routes.ServeHTTP(w, r)
	if refusal, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		return &upstream.StatusError{Status: refusal.StatusCode, Err: refusal.Err} // not where in Caddy it came from
	}
	return err
}

// Describe implements [upstream.Routes].
func (route) Describe(r *http.Request, placeholder func(name string) (any, bool)) {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		repl.Map(placeholder)
	}
}

// Derive implements [upstream.Routes].
func (route) Derive(ctx context.Context, of *http.Request, logged bool) *http.Request {
	r := of.WithContext(new(unlogged.Session).In(ctx)) // not that of another request
	r.Body, r.GetBody = http.NoBody, nil               // it will have its own
	r.Header = of.Header.Clone()
	r.URL = new(url.URL)
	*r.URL = *of.URL
	repl := caddy.NewReplacer()
	inherited := inheritedBy(ctx, of)
	server, _ := cmp.Or(ctx.Value(caddyhttp.ServerCtxKey), of.Context().Value(caddyhttp.ServerCtxKey)).(*caddyhttp.Server)
	if server == nil { // which reverse_proxy does not expect
		server = new(caddyhttp.Server)
	}
	r = caddyhttp.PrepareRequest(r, repl, noResponse{}, server)
	repl.Map(inherited.placeholder)
	if vars, ok := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any); ok {
		for _, v := range inherited.vars {
			vars[v.name] = v.value
		}
	}
	if logged {
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ExtraLogFieldsCtxKey, ctx.Value(caddyhttp.ExtraLogFieldsCtxKey)))
	}
	return r
}

// An inherited is what requests to servers inherit from the one of the client that they are
// made for. There are many of them at the same time, and some outlive it, so they have
// placeholders and variables of their own.
type inherited struct {
	vars  []namedValue
	names *placeholderNames

	mu   sync.Mutex
	repl *caddy.Replacer // nil if values has what is inherited

	values []namedValue
}

// A namedValue is a variable or a placeholder. There are few, for which a map takes more memory.
type namedValue struct {
	name  string
	value any
}

// inheritedBy returns what a request inherits that is made for another one. The session of a
// client that has gone is ended in a context of its own.
func inheritedBy(ctx context.Context, of *http.Request) *inherited {
	for _, ctx := range [...]context.Context{ctx, of.Context()} {
		if i, ok := ctx.Value(inbound.InheritedKey{}).(*inherited); ok {
			return i
		}
	}
	return inherit(of)
}

// inherit returns what requests inherit from that of a client.
func inherit(r *http.Request) *inherited {
	i := new(inherited)
	i.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if vars, ok := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any); ok {
		i.vars = make([]namedValue, 0, len(vars))
		for name, value := range vars {
			i.vars = append(i.vars, namedValue{name, value})
		}
	}
	return i
}

// placeholder returns what handlers in front of the gateway have set. Those about the request
// itself each request has for its own.
func (i *inherited) placeholder(key string) (any, bool) {
	for _, prefix := range [...]string{"http.request.", "http.response.", "http.vars."} {
		if strings.HasPrefix(key, prefix) {
			return nil, false
		}
	}
	if i.repl == nil {
		at := slices.IndexFunc(i.values, func(v namedValue) bool { return v.name == key })
		if at < 0 {
			return nil, false
		}
		return i.values[at].value, true
	}
	i.names.add(key)
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.repl.Get(key)
}

// noResponse is the response of a request before there is one, for placeholders.
type noResponse struct{}

func (noResponse) Header() http.Header         { return http.Header{} }
func (noResponse) Write(p []byte) (int, error) { return len(p), nil }
func (noResponse) WriteHeader(int)             {}

// A mask is the observation_mask of a server.
type mask struct{ *observationmask.Handler }

// Serve implements [upstream.Mask].
func (m mask) Serve(w http.ResponseWriter, r *http.Request, request upstream.MaskRequest, next upstream.Handler) error {
	return m.ServeHTTP(w, observationmask.With(r, (*observationmask.Request)(&request)), next)
}

// Interface guards
var (
	_ upstream.Routes     = route{}
	_ upstream.Mask       = mask{}
	_ http.ResponseWriter = noResponse{}
)
