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

// detached returns the context of a request without its handler, for a stream that outlives
// it. See [gateway.Config]. The context leads to all that Caddy and net/http keep for a
// request: the replacer knows the response writer, and that the connection with its buffers.
func detached(from context.Context) context.Context {
	d := &detachedContext{
		Context: context.Background(),
		local:   from.Value(http.LocalAddrContextKey),
		server:  from.Value(caddyhttp.ServerCtxKey),
	}
	if i, ok := from.Value(inbound.InheritedKey{}).(*inherited); ok {
		d.inherited = i.detached()
	}
	if token := login.Subject(from); token != "" {
		return login.WithSubject(d, token)
	}
	return d
}

// A detachedContext has several values, in place of one context for each: there may be as many
// as clients.
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

// detached returns the same without the replacer.
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

// placeholderNames are the names of placeholders that the routes of servers use: those in
// their configuration, and others that their handlers have asked for.
type placeholderNames struct {
	configured []string

	mu    sync.Mutex
	asked []string
}

// maxAsked is how many other names are remembered.
const maxAsked = 100

var placeholderPattern = regexp.MustCompile(`\{([^{}"\\]+)\}`)

// newPlaceholderNames returns the names in a configuration. Those that any replacer knows, such
// as env.HOME, are not inherited.
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

// add notes that a handler has asked for a placeholder.
func (n *placeholderNames) add(name string) {
	if n == nil || slices.Contains(n.configured, name) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.asked) < maxAsked && !slices.Contains(n.asked, name) {
		n.asked = append(n.asked, name)
	}
}

// all returns all names.
func (n *placeholderNames) all() []string {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Concat(n.configured, n.asked)
}
