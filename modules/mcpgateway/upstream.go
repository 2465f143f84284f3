package mcpgateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/toolresults"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcphttp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
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

// detached returns a context for a stream that outlives the handler of its request. See
// [gateway.Config]. The context has only a few values of the request's context, which would keep
// the replacer, the response writer and the connection with its buffers in memory.
func detached(parent context.Context) context.Context {
	d := &detachedContext{
		Context: context.Background(),
		local:   parent.Value(http.LocalAddrContextKey),
		server:  parent.Value(caddyhttp.ServerCtxKey),
	}
	if i, ok := parent.Value(inbound.InheritedKey{}).(*inherited); ok {
		d.inherited = i.detached()
	}
	if token := login.Subject(parent); token != "" {
		return login.WithSubject(d, token)
	}
	return d
}

// A detachedContext holds several values. There may be one for each client, and one context per
// value would take more memory.
type detachedContext struct {
	context.Context
	local, server, inherited any
}

func (c *detachedContext) Value(key any) any {
	switch key {
	case http.LocalAddrContextKey:
		return c.local
	case caddyhttp.ServerCtxKey:
		return c.server
	case inbound.InheritedKey{}:
		return c.inherited
	}
	return nil
}

// detached returns a copy of i that holds the values of placeholders instead of the replacer.
func (i *inherited) detached() *inherited {
	if i.repl == nil {
		return i
	}
	d := &inherited{vars: i.vars}
	for _, name := range i.names.all() {
		if value, ok := i.placeholder(name); ok {
			d.values = append(d.values, namedValue{name, value})
		}
	}
	return d
}

// placeholderNames holds the names of the placeholders that the routes of servers use: those in
// their configuration, and others that their handlers have requested.
type placeholderNames struct {
	configured []string

	mu        sync.Mutex
	requested []string
}

// maxRequested limits the number of requested names.
const maxRequested = 100

var placeholderPattern = regexp.MustCompile(`\{([^{}"\\]+)\}`)

// newPlaceholderNames returns the placeholders in a configuration, without global ones such as
// env.HOME.
func newPlaceholderNames(config []byte) *placeholderNames {
	n, common := new(placeholderNames), caddy.NewReplacer()
	for _, match := range placeholderPattern.FindAllSubmatch(config, -1) {
		name := string(match[1])
		if _, known := common.Get(name); !known && !slices.Contains(n.configured, name) {
			n.configured = append(n.configured, name)
		}
	}
	return n
}

// add records that a handler has requested a placeholder.
func (n *placeholderNames) add(name string) {
	if n == nil || slices.Contains(n.configured, name) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.requested) < maxRequested && !slices.Contains(n.requested, name) {
		n.requested = append(n.requested, name)
	}
}

func (n *placeholderNames) all() []string {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Concat(n.configured, n.requested)
}

// upstreams holds the upstreams in the routes of a server, without duplicates and without those
// that are known only at request time.
type upstreams struct {
	children []child
	proxied  []*reverseproxy.Upstream // without child processes
	checked  []*reverseproxy.Upstream // subset of proxied with active health checks
	pools    []*mcphttp.Transport     // hold the connections to proxied
	tls      bool                     // connections use TLS
}

// A child is an upstream with one or more child processes.
type child struct {
	pool    *stdio.Pool
	host    string
	program string
}

// findUpstreams returns the upstreams in provisioned routes.
func findUpstreams(routes caddyhttp.RouteList) upstreams {
	var found upstreams
	for _, handler := range handlersIn(routes) {
		if proxy, ok := handler.(*reverseproxy.Handler); ok {
			found.addProxy(proxy)
		}
	}
	return found
}

// handlersIn returns the handlers in provisioned routes, also in subroutes.
func handlersIn(routes caddyhttp.RouteList) (all []caddyhttp.MiddlewareHandler) {
	for _, route := range routes {
		for _, handler := range route.Handlers {
			if subroute, ok := handler.(*caddyhttp.Subroute); ok {
				all = append(all, handlersIn(subroute.Routes)...)
			} else {
				all = append(all, handler)
			}
		}
	}
	return all
}

func (u *upstreams) addProxy(proxy *reverseproxy.Handler) {
	transport, isChild := proxy.Transport.(*mcpstdio.Transport)
	if pool, ok := proxy.Transport.(*mcphttp.Transport); ok {
		u.pools = append(u.pools, pool)
	}
	if transport, ok := proxy.Transport.(reverseproxy.TLSTransport); ok {
		u.tls = u.tls || transport.TLSEnabled()
	}
	for _, upstream := range proxy.Upstreams {
		if !isChild {
			u.addProxied(upstream, proxy.HealthChecks)
		} else if host, ok := mcpstdio.Host(upstream.Dial); ok {
			u.addChild(child{transport.Pool(), host, transport.Command[0]})
		}
	}
}

// url returns the URL of requests to a target, without query and credentials. It returns "" unless
// there is exactly one upstream.
func (u *upstreams) url(target *url.URL) string {
	if len(u.proxied) != 1 || len(u.children) > 0 {
		return ""
	}
	address, port := url.URL{Scheme: "http", Host: u.proxied[0].Dial, Path: target.Path}, ":80"
	if u.tls {
		address.Scheme, port = "https", ":443"
	}
	address.Host = strings.TrimSuffix(address.Host, port)
	return address.String()
}

// command returns the program of the child processes, or "". Arguments may contain secrets.
func (u *upstreams) command() string {
	if len(u.children) == 0 {
		return ""
	}
	return u.children[0].program
}

func (u *upstreams) addProxied(upstream *reverseproxy.Upstream, checks *reverseproxy.HealthChecks) {
	if !slices.ContainsFunc(u.proxied, func(other *reverseproxy.Upstream) bool { return other.Dial == upstream.Dial }) {
		u.proxied = append(u.proxied, upstream)
		if checks != nil && checks.Active != nil && checks.Active.IsEnabled() {
			u.checked = append(u.checked, upstream)
		}
	}
}

func (u *upstreams) addChild(c child) {
	if !slices.ContainsFunc(u.children, func(other child) bool { return other.host == c.host && other.pool == c.pool }) {
		u.children = append(u.children, c)
	}
}

// withTransport replaces the transport http, the default of reverse_proxy, by mcp_http in the
// configuration of a handler. mcp_http is faster, and keeps the credentials and sessions of servers
// out of logs.
func withTransport(handler json.RawMessage) json.RawMessage {
	decoder := json.NewDecoder(bytes.NewReader(handler))
	decoder.UseNumber()
	var config any
	if decoder.Decode(&config) != nil {
		return handler // loading it reports the error
	}
	replaceTransports(config)
	replaced, err := json.Marshal(config)
	if err != nil {
		return handler
	}
	return replaced
}

func replaceTransports(config any) {
	switch config := config.(type) {
	case []any:
		for _, value := range config {
			replaceTransports(value)
		}
	case map[string]any:
		if config["handler"] == "reverse_proxy" {
			switch transport, _ := config["transport"].(map[string]any); {
			case config["transport"] == nil:
				config["transport"] = map[string]any{"protocol": mcphttp.Name}
			case transport["protocol"] == "http":
				transport["protocol"] = mcphttp.Name
			}
		}
		for _, value := range config {
			replaceTransports(value)
		}
	}
}

// originals gives access to the originals that clients of a gateway may recover.
type originals struct {
	toolresults.Originals
	handler *Handler
}

// Fetch implements [gateway.Originals].
func (o originals) Fetch(ctx context.Context, client, user, address, handle string) error {
	places := toolresults.Places(user, address)
	for _, s := range o.handler.Servers {
		if s.mask != nil {
			places = append(places, s.mask.Place(client))
		}
	}
	return storepool.Fetch(ctx, handle, places...)
}

// Interface guards
var (
	_ upstream.Routes     = route{}
	_ upstream.Mask       = mask{}
	_ http.ResponseWriter = noResponse{}
	_ gateway.Originals   = originals{}
)
