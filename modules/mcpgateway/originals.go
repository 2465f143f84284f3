package mcpgateway

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/toolresults"
)

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

// Interface guard
var _ gateway.Originals = originals{}
