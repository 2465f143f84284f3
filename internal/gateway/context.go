package gateway

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// The contexts below have several values each, in place of one context for each value. A value
// is computed when it is asked for.

// InheritedKey is where a context has the [Peer.Inherited] of the request that it was made for.
type InheritedKey struct{}

// A requestContext is the context of all that is done for a request to the aggregate. Some of it
// outlives the request, so the context does not keep that.
type requestContext struct {
	context.Context
	caller    caller
	inherited any
}

func (c *requestContext) Value(key any) any {
	switch key.(type) {
	case stdio.OwnerKey:
		return c.caller.budget()
	case InheritedKey:
		return c.inherited
	}
	return c.Context.Value(key)
}

// A streamContext is the context of a stream that may outlive its handler.
type streamContext struct {
	context.Context
	s *stream
}

func (c *streamContext) Value(key any) any {
	if _, ok := key.(stdio.OwnerKey); ok {
		return c.s.visit.caller.budget()
	}
	return c.Context.Value(key)
}

// An exchangeContext is the context of a request to a server.
type exchangeContext struct {
	context.Context
	x *exchange
}

func (c *exchangeContext) Value(key any) any {
	switch key.(type) {
	case unlogged.SessionKey:
		return &c.x.session
	case stdio.OwnerKey:
		if c.x.kind != Aggregate { // which has a requestContext
			return c.x.caller.budget()
		}
	}
	return c.Context.Value(key)
}
