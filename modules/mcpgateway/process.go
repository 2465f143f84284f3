package mcpgateway

import (
	"cmp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

// What commands say of the process that they load a configuration in.
var (
	onStdio       bool                      // it is the command mcp-stdio
	stdioClient   = access.OperatorIdentity // who comes in by pipenet
	forOneCommand bool                      // it is another command of the operator
)

// SoleClient says that this process serves one client, on its standard input and output. No rules apply to
// it unless it has a name. It is called before a configuration is loaded.
func SoleClient(client string) {
	onStdio = true
	stdioClient = cmp.Or(client, access.OperatorIdentity)
	mcpstdio.SoleClient()
}

// ForOneCommand says that this process runs gateways for one command of the operator: they start servers
// only if it needs them. It is called before a configuration is loaded.
func ForOneCommand() {
	forOneCommand = true
	mcpstdio.SoleClient()
}
