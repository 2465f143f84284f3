package mcpgateway

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

// checkOrigin refuses requests that a web page of another origin may have caused.
func (h *Handler) checkOrigin(r *http.Request) *jsonrpc.Failure { return h.originPolicy().Admit(r) }

func (h *Handler) originPolicy() clientrequest.Policy {
	return clientrequest.Policy{Directive: "mcp_gateway", Origins: h.Origins, Hosts: h.Hosts}
}
