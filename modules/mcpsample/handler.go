// Package mcpsample offers the sample MCP server as a Caddy handler.
package mcpsample

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	caddy.RegisterModule(Sample{})
}

// Sample is a sample MCP server, to try this project with nothing else
// installed: put it where a real server would stand, connect a client and watch
// what the gateway and the masks do with its results. It is never for
// production: it is not maintained as a server, and its data are made up.
//
// It speaks Streamable HTTP without sessions (POST only; GET and DELETE get
// 405), the revisions of MCP from 2024-11-05 to 2025-11-25, and takes messages
// of up to 1 MiB. It answers every request it is given, so the handlers after
// it do not run.
//
// Tool | Result
// -----|-------
// `read_log` | The log of an imaginary service as text, as many lines as the argument `lines` says (1 to 200000). Default: 2000
// `read_image` | A PNG picture as image content
// `list_files` | A short list as structured content
// `echo` | The argument `text`
//
// The answers are the same each time. There is nothing to configure.
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

// ServeHTTP answers as the sample server and never calls the next handler.
func (s *Sample) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	s.server.ServeHTTP(w, r)
	return nil
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Sample)(nil)
	_ caddyhttp.MiddlewareHandler = (*Sample)(nil)
	_ caddyfile.Unmarshaler       = (*Sample)(nil)
)
