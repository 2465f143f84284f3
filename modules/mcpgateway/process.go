package mcpgateway

import (
	"cmp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// How commands use this process. They are set before a configuration is loaded.
var (
	onStdio       bool                      // the command is mcp-stdio
	stdioClient   = access.OperatorIdentity // identity of requests through pipenet
	forOneCommand bool                      // the command is another one of the operator
)

// SoleClient makes this process serve one client, on standard input and output. Rules apply only if
// the client has a name. Call it before a configuration is loaded.
func SoleClient(client string) {
	onStdio = true
	stdioClient = cmp.Or(client, access.OperatorIdentity)
	mcpstdio.SetSoleClient()
}

// ForOneCommand makes this process run gateways for one command of the operator: they start a
// server only when the command needs it. Call it before a configuration is loaded.
func ForOneCommand() {
	forOneCommand = true
	mcpstdio.SetSoleClient()
}
