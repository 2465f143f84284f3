package aggregate

import (
	"context"
	"net/http"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// An Upstream is the way to a server.
type Upstream interface {
	// Request returns a request of our own on behalf of the client of another one,
	// with its headers. It lives as long as ctx.
	Request(ctx context.Context, of *http.Request) *http.Request

	// Logged is Request for one that the log tells of as if it were the client's.
	Logged(ctx context.Context, of *http.Request) *http.Request

	// Pass returns the request of the client itself, to be passed on. Its headers can
	// be changed.
	Pass(ctx context.Context, r *http.Request) *http.Request

	// Send has the server answer a request, which posts this message if it posts
	// one. It returns when the answer is complete, having said so to h, or why it is
	// not. Nobody else uses r any more.
	Send(h *streamable.Reader, r *http.Request, m *jsonrpc.Message) *jsonrpc.Failure
}

// setNoBody makes r one that has nothing to post.
func setNoBody(r *http.Request, method string) {
	r.Method = method
	httpbody.Empty(r)
}
