package mcpgateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An arrival is the server's end of an answer: what its routes write to. It keeps
// the time and the limit, which count what the server sends and not what is left
// of it.
type arrival struct {
	caddyhttp.ResponseWriterWrapper
	x   *exchange
	ctx context.Context

	timer    *time.Timer // ends the request; nil for those that may last
	timeout  time.Duration
	limit    int64 // how many bytes may come; 0 for any number
	size     int64 // how many have
	status   int
	begun    bool // the status has come
	gaveUp   bool // reverse_proxy has, because the request was canceled
	informed int  // how many informational responses have come
	broken   bool // the routes have not come to their end, or to a bad one
}

// statusClientLeft is how reverse_proxy notes that a request was canceled.
const statusClientLeft = 499

// maxInformed is how many informational responses a client gets.
const maxInformed = 100

// WriteHeader takes the status.
func (a *arrival) WriteHeader(status int) {
	if status == statusClientLeft && a.ctx.Err() != nil {
		// Nobody is there to get it, unless it was us who canceled.
		if a.gaveUp = true; context.Cause(a.ctx) != errTimeout && a.x.door != innerDoor {
			a.x.w.WriteHeader(status)
		}
		return
	}
	if status < 200 {
		if a.x.bindsSessions() {
			a.Header().Del(mcp.SessionHeader) // which is for the answer alone
		}
		if a.informed++; a.informed <= maxInformed { // of which there may be any number, and which say nothing of the call
			a.ResponseWriter.WriteHeader(status)
		}
		return
	}
	a.heard()
	if id := a.Header().Get(mcp.SessionHeader); id != "" && !a.begun && a.x.bindsSessions() {
		a.Header().Set(mcp.SessionHeader, a.x.bindSession(id))
	}
	if a.begun = true; a.status == 0 {
		a.status = status
	}
	if a.x.door == rpcDoor && (status == http.StatusOK || status == http.StatusForbidden) &&
		httpbody.TypeOf(a.Header().Get("Content-Type")) == httpbody.Other {
		// Some say text/plain, some nothing. Whether it is JSON-RPC will show, and
		// until then the mask shall take it for that.
		a.Header().Set("Content-Type", "application/json")
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write takes the next bytes of the body.
func (a *arrival) Write(p []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	if !isComment(p) {
		a.heard()
	}
	if a.size += int64(len(p)); a.limit > 0 && a.size > a.limit {
		a.x.verdict = jsonrpc.ResponseTooLarge(a.x.server.Name)
		return 0, errResponseLimit
	}
	return a.ResponseWriter.Write(p)
}

// ReadFrom keeps io.Copy from finding the ReadFrom of the writer below.
func (a *arrival) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{a}, r)
}

// heard notes that the server is alive. At /rpc the time is for the whole answer.
func (a *arrival) heard() {
	if a.timer != nil && a.x.door != rpcDoor {
		a.timer.Reset(a.timeout)
	}
}

// isComment reports whether this is what servers send into event streams to keep
// connections open. It says nothing of the call.
func isComment(p []byte) bool {
	return len(p) > 0 && p[0] == ':' && !bytes.Contains(p, []byte("data:"))
}

var errResponseLimit = errors.New("the answer of the MCP server exceeds response_limit")

// Interface guards
var (
	_ http.ResponseWriter = (*arrival)(nil)
	_ io.ReaderFrom       = (*arrival)(nil)
)
