package mcpgateway

import (
	"cmp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// These variables say which command this process runs. They are set before a configuration is
// loaded.
var (
	onStdio       bool                      // mcp-stdio, which serves one client
	stdioClient   = access.OperatorIdentity // identity of requests through pipenet
	forOneCommand bool                      // another command of the operator
)

// SetSoleClient makes this process serve one client, on standard input and output. Rules apply only
// if client is not empty. It must be called before a configuration is loaded.
func SetSoleClient(client string) {
	onStdio = true
	stdioClient = cmp.Or(client, access.OperatorIdentity)
	mcpstdio.SetSoleClient()
}

// SetOneCommand makes this process run gateways for one command of the operator: they start a
// server only when the command needs it. It must be called before a configuration is loaded.
func SetOneCommand() {
	forOneCommand = true
	mcpstdio.SetSoleClient()
}
