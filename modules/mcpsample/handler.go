// Package mcpsample implements a sample MCP server as a Caddy handler and a command.
package mcpsample

import (
	"net/http"
	"os"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Sample{})
}

// Sample is a sample MCP server, for trying this project with nothing else installed: use it
// instead of a real server, connect a client and watch what the gateway and the masks do with
// its results. Do not use it in production: its data are made up.
//
// It supports Streamable HTTP without sessions (POST only; GET and DELETE get 405), MCP
// revisions 2024-11-05 to 2025-11-25, and messages of up to 1 MiB. It answers every request, so
// the handlers after it do not run.
//
// Tool | Result
// -----|-------
// `read_log` | The log of an imaginary service as text; `lines` sets its length (1 to 200000, default 2000)
// `read_image` | A PNG picture as image content
// `list_files` | A short list as structured content
// `echo` | The argument `text`
//
// Results are the same each time. It has no settings.
type Sample struct {
	server *Server
}

// CaddyModule returns the Caddy module information.
func (Sample) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_sample",
		New: func() caddy.Module { return new(Sample) },
	}
}

// Provision sets up the server.
func (s *Sample) Provision(caddy.Context) error {
	s.server = NewServer()
	return nil
}

// ServeHTTP serves the sample server and never calls the next handler.
func (s *Sample) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	s.server.ServeHTTP(w, r)
	return nil
}

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

// Interface guards
var (
	_ caddy.Provisioner           = (*Sample)(nil)
	_ caddyhttp.MiddlewareHandler = (*Sample)(nil)
	_ caddyfile.Unmarshaler       = (*Sample)(nil)
)
