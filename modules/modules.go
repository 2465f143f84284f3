// Package modules plugs every module and command of this project into Caddy. It is
// the package that xcaddy builds: one blank import per package, nothing else.
package modules

import (
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpconsole"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/command"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcphttp"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner/backends"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore/redis"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/toolresultmask"
)
