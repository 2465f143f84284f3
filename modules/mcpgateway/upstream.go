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

// A route sends requests through the routes of a server.
type route struct{ server *Server }

// Serve implements [upstream.Routes].
func (u route) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if u.server.login != nil {
		return u.server.login.Serve(w, r, account, u.serve)
	}
	return u.serve(w, r)
}

// serve runs the routes of the server.
func (u route) serve(w http.ResponseWriter, r *http.Request) error {
	err := u.server.routes.ServeHTTP(w, r)
	if refusal, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
		return &upstream.StatusError{Status: refusal.StatusCode, Err: refusal.Err} // without Caddy's trace
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
func (route) Derive(ctx context.Context, source *http.Request, logged bool) *http.Request {
	r := source.WithContext(new(unlogged.Session).In(ctx)) // source has the session of another request
	r.Body, r.GetBody = http.NoBody, nil                   // the caller sets a body
	r.Header = source.Header.Clone()
	r.URL = new(url.URL)
	*r.URL = *source.URL
	repl := caddy.NewReplacer()
	inherited := inheritedBy(ctx, source)
	server, _ := cmp.Or(
		ctx.Value(caddyhttp.ServerCtxKey), source.Context().Value(caddyhttp.ServerCtxKey)).(*caddyhttp.Server)
	if server == nil { // reverse_proxy requires one
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
		fields := ctx.Value(caddyhttp.ExtraLogFieldsCtxKey)
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.ExtraLogFieldsCtxKey, fields))
	}
	return r
}

// An inherited holds the placeholders and variables that requests to servers take from the request
// of the client. Several such requests run at the same time, and some outlive the client's request,
// so each gets copies.
type inherited struct {
	vars  []namedValue
	names *placeholderNames

	mu   sync.Mutex
	repl *caddy.Replacer // nil if values is set

	values []namedValue
}

// A namedValue is a variable or a placeholder. A slice of a few takes less memory than a map.
type namedValue struct {
	name  string
	value any
}

// inheritedBy returns what a request inherits that is derived from source. ctx has no such values
// when the gateway ends the session of a disconnected client.
func inheritedBy(ctx context.Context, source *http.Request) *inherited {
	for _, ctx := range [...]context.Context{ctx, source.Context()} {
		if i, ok := ctx.Value(inbound.InheritedKey{}).(*inherited); ok {
			return i
		}
	}
	return inherit(source)
}

// inherit returns what requests inherit from the request of a client.
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

// placeholder returns a placeholder that handlers in front of the gateway have set. Placeholders
// about the request itself are not inherited.
func (i *inherited) placeholder(key string) (any, bool) {
	for _, prefix := range [...]string{"http.request.", "http.response.", "http.vars."} {
		if strings.HasPrefix(key, prefix) {
			return nil, false
		}
	}
	if i.repl == nil {
		index := slices.IndexFunc(i.values, func(v namedValue) bool { return v.name == key })
		if index < 0 {
			return nil, false
		}
		return i.values[index].value, true
	}
	i.names.add(key)
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.repl.Get(key)
}

// noResponse is the response writer of a request that has none yet.
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
