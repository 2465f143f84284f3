package inbound

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
)

// InheritedKey is where a context has the [Peer.Inherited] of the request that it was made for.
type InheritedKey struct{}

// A Context is the context of all that is done for a request to the aggregate. Some of that outlives the request, so
// the Context does not hold it. It computes its values when they are asked for.
type Context struct {
	context.Context
	Caller    access.Caller
	Inherited any
}

func (c *Context) Value(key any) any {
	switch key.(type) {
	case stdio.OwnerKey:
		return c.Caller.Budget()
	case InheritedKey:
		return c.Inherited
	}
	return c.Context.Value(key)
}
