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

// serveNext passes a request on to the next handler. If no handler answers, Caddy sends an empty
// 200: probes of a wrong path then succeed, and clients that look for an OAuth login fail on the
// empty body. So the gateway answers with 404. Other handlers come first, because an
// authorization server, say, may be in the same site. Preflight requests of CORS stay as they
// are: a header directive is enough of an answer to them.
func (h *Handler) serveNext(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	noted := &notingWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	if err := next.ServeHTTP(noted, r); err != nil || noted.answered || r.Method == http.MethodOptions {
		return err
	}
	return h.serveNotFound(w, r)
}

// A notingWriter notes whether a request was answered.
type notingWriter struct {
	*caddyhttp.ResponseWriterWrapper
	answered bool
}

func (w *notingWriter) WriteHeader(status int) {
	w.answered = w.answered || status >= 200 || status == http.StatusSwitchingProtocols
	w.ResponseWriterWrapper.WriteHeader(status)
}

func (w *notingWriter) Write(p []byte) (int, error) {
	w.answered = true
	return w.ResponseWriterWrapper.Write(p)
}

func (w *notingWriter) ReadFrom(r io.Reader) (int64, error) {
	w.answered = true
	return w.ResponseWriterWrapper.ReadFrom(r)
}

func (w *notingWriter) FlushError() error {
	w.answered = true // flushing sends the header
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *notingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.answered = true
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// A missingPath is the body of a 404. Its first two members are those of an OAuth error: clients
// that try to register themselves for a login show the description to their user.
type missingPath struct {
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

// serveNotFound says that there is nothing at the path of a request, and where the gateway is.
func (h *Handler) serveNotFound(w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	if isOAuthPath(path) && h.auth.describer() == nil {
		return writeJSON(w, http.StatusNotFound, missingPath{Error: notFoundCode, Description: h.withoutLogin()})
	}
	prefix := strings.TrimSuffix(clientPath(r), path) // that handlers in front have stripped
	return writeJSON(w, http.StatusNotFound, missingPath{
		Error:       notFoundCode,
		Description: "nothing is served at this path; the MCP endpoint is " + prefix + h.at(""),
		Endpoints: &endpoints{
			All:    prefix + h.at(""),
			One:    prefix + h.at("{server}"),
			RPC:    prefix + h.belowRPC + "{server}/rpc",
			Health: prefix + h.at(healthSegment),
		},
	})
}

// at returns the escaped path of a segment below mcp_path, or mcp_path itself.
func (h *Handler) at(segment string) string { return strings.TrimSuffix(h.belowMCP+segment, "/") }

// isOAuthPath reports whether clients look for an OAuth login at a path: for metadata, at the root
// or below mcp_path, and without metadata at the paths that earlier revisions of MCP have fixed.
func isOAuthPath(path string) bool {
	switch path {
	case "/register", "/authorize", "/token":
		return true
	}
	return strings.Contains(path, "/.well-known/oauth-") || strings.Contains(path, "/.well-known/openid-configuration")
}

// withoutLogin tells a client that looks for an OAuth login that there is none, and what else to do.
func (h *Handler) withoutLogin() string {
	text := "this gateway has no OAuth login"
	for _, provider := range h.auth.providers {
		if _, ok := provider.(*auth.Token); ok {
			text += ": send the header Authorization: Bearer <token> with a valid token"
		}
	}
	return text
}

// writeJSON answers with a value, which must not be stored.
func writeJSON(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, err := w.Write(append(jsonrpc.Encode(value), '\n'))
	return err
}

// Interface guard
var _ http.ResponseWriter = (*notingWriter)(nil)
