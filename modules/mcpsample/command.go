package mcpsample

import (
	"os"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-sample",
		Short: "Runs the sample MCP server on standard input and output",
		Long: `
Runs the sample MCP server of the directive mcp_sample as a child process would: on
standard input and output. Use it to try mcp_stdio with nothing else installed. It
ends when its input ends.`,
		Func: func(caddycmd.Flags) (int, error) {
			if err := NewServer().ServeStdio(os.Stdin, os.Stdout); err != nil {
				return caddy.ExitCodeFailedStartup, err
			}
			return caddy.ExitCodeSuccess, nil
		},
	})
}
