// Command ds is an MCP server over stdio for tests, with every bad habit as a
// flag; see [fakemcp.RunChild].
package main

import (
	"os"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/fakemcp"
)

func main() {
	os.Exit(fakemcp.RunChild(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
