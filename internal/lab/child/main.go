// Command child is the MCP server on standard input and output of mcptest, for tests whose own
// program contains Caddy and therefore starts slowly.
package main

import (
	"os"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func main() { os.Exit(mcptest.RunChild(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
