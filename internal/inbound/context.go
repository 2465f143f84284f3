package inbound

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// InheritedKey is the context key of the [Peer.Inherited] of a request.
type InheritedKey struct{}

// A Context is the context of everything done for a request to the aggregate. Some of that outlives
// the request, so the Context does not hold the request. It computes values on demand.
type Context struct {
	context.Context
	Caller    access.Caller
	Inherited any
}

// Value implements [context.Context].
func (c *Context) Value(key any) any {
	switch key.(type) {
	case stdio.OwnerKey:
		return c.Caller.Budget()
	case InheritedKey:
		return c.Inherited
	}
	return c.Context.Value(key)
}
