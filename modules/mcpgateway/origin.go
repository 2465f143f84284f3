package mcpgateway

import (
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/origin"
)

// checkOrigin refuses what a web page may have sent that should not be able to.
func (h *Handler) checkOrigin(r *http.Request) *jsonrpc.Failure {
	return origin.Policy{Directive: "mcp_gateway", Origins: h.Origins, Hosts: h.Hosts}.Admit(r)
}
