package mcpgateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// serveNext forwards a request to the next handler. If no handler responds, it sends a 404. Caddy
// would send an empty 200: probes of a wrong path would succeed, and clients that look for an OAuth
// login would fail to parse the empty body. Other handlers come first, because the same site may
// contain an authorization server, for example. CORS preflight requests keep the empty response,
// because a header directive may have set its headers.
func (h *Handler) serveNext(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	tracked := &trackingWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	if err := next.ServeHTTP(tracked, r); err != nil || tracked.responded || r.Method == http.MethodOptions {
		return err
	}
	return h.serveNotFound(w, r)
}

// A trackingWriter records whether a handler responded.
type trackingWriter struct {
	*caddyhttp.ResponseWriterWrapper
	responded bool
}

func (w *trackingWriter) WriteHeader(status int) {
	w.responded = w.responded || status >= 200 || status == http.StatusSwitchingProtocols
	w.ResponseWriterWrapper.WriteHeader(status)
}

func (w *trackingWriter) Write(p []byte) (int, error) {
	w.responded = true
	return w.ResponseWriterWrapper.Write(p)
}

func (w *trackingWriter) ReadFrom(r io.Reader) (int64, error) {
	w.responded = true
	return w.ResponseWriterWrapper.ReadFrom(r)
}

func (w *trackingWriter) FlushError() error {
	w.responded = true // flushing sends the header
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *trackingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.responded = true
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// A notFoundBody is the body of a 404. Its first two members are those of an OAuth error: clients
// that try to register for a login show the description to their user.
type notFoundBody struct {
	Error       string     `json:"error"`
	Description string     `json:"error_description"`
	Endpoints   *endpoints `json:"endpoints,omitempty"`
}

const notFoundCode = "not_found"

// endpoints are the paths of a gateway.
type endpoints struct {
	All    string `json:"mcp"`
	One    string `json:"server"`
	RPC    string `json:"rpc"`
	Health string `json:"health"`
}

// serveNotFound sends a 404 with the paths of the gateway.
func (h *Handler) serveNotFound(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	if isOAuthPath(path) && h.auth.describer() == nil {
		return writeJSON(w, http.StatusNotFound, notFoundBody{Error: notFoundCode, Description: h.noLoginMessage()})
	}
	prefix := strings.TrimSuffix(clientPath(r), path) // stripped by handlers in front
	return writeJSON(w, http.StatusNotFound, notFoundBody{
		Error:       notFoundCode,
		Description: "unknown path; the MCP endpoint is " + prefix + h.pathOf(""),
		Endpoints: &endpoints{
			All:    prefix + h.pathOf(""),
			One:    prefix + h.pathOf("{server}"),
			RPC:    prefix + h.rpcPrefix + "{server}/rpc",
			Health: prefix + h.pathOf(healthSegment),
		},
	})
}

// pathOf returns the escaped path of a segment below mcp_path, or of mcp_path itself if segment is
// empty.
func (h *Handler) pathOf(segment string) string { return strings.TrimSuffix(h.mcpPrefix+segment, "/") }

// isOAuthPath reports whether clients look for an OAuth login at a path: it is a path of metadata,
// at the root or below mcp_path, or a fixed path of earlier MCP revisions.
func isOAuthPath(path string) bool {
	switch path {
	case "/register", "/authorize", "/token":
		return true
	}
	return strings.Contains(path, "/.well-known/oauth-") || strings.Contains(path, "/.well-known/openid-configuration")
}

// noLoginMessage is the message for clients that look for an OAuth login.
func (h *Handler) noLoginMessage() string {
	text := "this gateway has no OAuth login"
	for _, provider := range h.auth.providers {
		if _, ok := provider.(*auth.Token); ok {
			text += ": send the header Authorization: Bearer <token> with a valid token"
		}
	}
	return text
}

// writeJSON responds with a value that must not be cached.
func writeJSON(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, err := w.Write(append(jsonrpc.Encode(value), '\n'))
	return err
}

// Interface guard
var _ http.ResponseWriter = (*trackingWriter)(nil)
