package mcpgateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

// A location is what the gateway serves at a path.
type location uint8

const (
	otherPath  location = iota // not served here: the next handler
	endpoint                   // MCP or JSON-RPC
	probe                      // readiness
	metadata                   // OAuth metadata: how clients authenticate
	loginPages                 // pages where people log in to servers
)

// paths are the paths that a gateway serves.
type paths struct {
	mcp, rpc string // escaped prefixes of the paths of servers, with a trailing slash
	login    bool   // there are login pages
	metadata bool   // there is OAuth metadata
}

// newPaths returns the paths of a gateway with mcp_path and rpc_path.
func newPaths(mcp, rpc string) paths { return paths{mcp: pathPrefix(mcp), rpc: pathPrefix(rpc)} }

// pathPrefix returns the prefix of all escaped paths below a path.
func pathPrefix(path string) string {
	return strings.TrimSuffix((&url.URL{Path: path}).EscapedPath(), "/") + "/"
}

// below returns the escaped path of a segment below mcp_path, or of mcp_path itself if segment is
// empty.
func (p paths) below(segment string) string { return strings.TrimSuffix(p.mcp+segment, "/") }

// find returns what is served at a URL: for an endpoint also the endpoint, for metadata also the
// path of the resource.
func (p paths) find(u *url.URL) (loc location, target inbound.Endpoint, resource string) {
	path := u.EscapedPath()
	if path == p.mcp || path == strings.TrimSuffix(p.mcp, "/") {
		return endpoint, inbound.Endpoint{Kind: upstream.Aggregate}, ""
	}
	if rest, ok := strings.CutPrefix(path, p.mcp); ok {
		if p.login && strings.HasPrefix(rest, login.Segment+"/") {
			return loginPages, inbound.Endpoint{}, ""
		}
		rest = strings.TrimSuffix(rest, "/")
		if rest == healthSegment {
			return probe, inbound.Endpoint{}, ""
		}
		return serverEndpoint(upstream.Single, rest)
	}
	if rest, ok := strings.CutPrefix(path, p.rpc); ok {
		if name, ok := strings.CutSuffix(rest, "/rpc"); ok {
			return serverEndpoint(upstream.RPC, name)
		}
	}
	if resource, ok := strings.CutPrefix(path, auth.MetadataPath); ok && p.metadata {
		return p.findMetadata(resource)
	}
	return otherPath, inbound.Endpoint{}, ""
}

// findMetadata returns what is served as the metadata of a resource, which must be an endpoint of
// the gateway. Clients append the path of the resource to [auth.MetadataPath], or nothing.
func (p paths) findMetadata(resource string) (location, inbound.Endpoint, string) {
	switch {
	case resource == "", resource == "/":
		return metadata, inbound.Endpoint{}, strings.TrimSuffix(p.mcp, "/")
	case resource+"/" == p.mcp, strings.HasPrefix(resource, p.mcp), strings.HasPrefix(resource, p.rpc):
		return metadata, inbound.Endpoint{}, resource
	}
	return otherPath, inbound.Endpoint{}, ""
}

// serverEndpoint returns the endpoint of a server. Its name must be a single path segment.
func serverEndpoint(kind upstream.EndpointKind, escaped string) (location, inbound.Endpoint, string) {
	name, err := url.PathUnescape(escaped)
	if err != nil || name == "" || strings.Contains(escaped, "/") {
		return otherPath, inbound.Endpoint{}, ""
	}
	return endpoint, inbound.Endpoint{Kind: kind, Server: name}, ""
}

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
	if isOAuthPath(path) && !h.paths.metadata {
		text := "this gateway has no OAuth login"
		if hasProvider[*auth.Token](&h.auth) {
			text += ": send the header Authorization: Bearer <token> with a valid token"
		}
		return writeJSON(w, http.StatusNotFound, notFoundBody{Error: notFoundCode, Description: text})
	}
	prefix := strings.TrimSuffix(clientPath(r), path) // stripped by handlers in front
	return writeJSON(w, http.StatusNotFound, notFoundBody{
		Error:       notFoundCode,
		Description: "unknown path; the MCP endpoint is " + prefix + h.paths.below(""),
		Endpoints: &endpoints{
			All:    prefix + h.paths.below(""),
			One:    prefix + h.paths.below("{server}"),
			RPC:    prefix + h.paths.rpc + "{server}/rpc",
			Health: prefix + h.paths.below(healthSegment),
		},
	})
}

// isOAuthPath reports whether clients look for an OAuth login at a path: it is a path of metadata,
// at the root or below mcp_path, or a fixed path of earlier MCP revisions.
func isOAuthPath(path string) bool {
	switch path {
	case "/register", "/authorize", "/token":
		return true
	}
	return strings.Contains(path, "/.well-known/oauth-") || strings.Contains(path, "/.well-known/openid-configuration")
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
