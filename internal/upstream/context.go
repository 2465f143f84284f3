package upstream

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/unlogged"
)

// An exchangeContext is the context of a request to a server.
type exchangeContext struct {
	context.Context
	x *Exchange
}

func (c *exchangeContext) Value(key any) any {
	switch key.(type) {
	case unlogged.SessionKey:
		return &c.x.session
	case stdio.OwnerKey:
		if c.x.Kind != Aggregate { // at Aggregate, the context of the whole request has it
			return c.x.Caller.Budget()
		}
	}
	return c.Context.Value(key)
}
