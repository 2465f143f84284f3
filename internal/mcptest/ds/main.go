// Command ds is an MCP server over stdio for tests, with every bad habit as a
// flag; see [mcptest.RunChild].
package main

import (
	"os"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func main() {
	os.Exit(mcptest.RunChild(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
