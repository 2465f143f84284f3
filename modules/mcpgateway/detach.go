package mcpgateway

import (
	"context"
	"net/http"
	"regexp"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

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
