package upstream

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A PostedMessage is the message that a request posts.
type PostedMessage struct {
	Message jsonrpc.Message
	body    requestBody
	method  string // cached
	Tool    string
}

// A requestBody is a message as the body of a request.
type requestBody struct{ bytes.Reader }

func (*requestBody) Close() error { return nil }

// MethodName returns the method for logs, possibly shortened.
func (p *PostedMessage) MethodName() string {
	if p.method == "" && p.Message.Has(jsonrpc.Method) {
		if known, ok := p.knownMethod(); ok {
			p.method = known
		} else {
			p.method = mcp.Shortened(p.Message.Text(jsonrpc.Method))
		}
	}
	return p.method
}

// knownMethod returns the method if MCP defines it. Method names need no JSON escapes, so an
// escaped one is unknown.
func (p *PostedMessage) knownMethod() (string, bool) {
	literal := p.Message.Literal(jsonrpc.Method)
	if len(literal) < 2 {
		return "", false
	}
	return mcp.KnownMethod(string(literal[1 : len(literal)-1]))
}

// CalledMethod returns the method as the client sent it.
func (p *PostedMessage) CalledMethod() string {
	if known, ok := p.knownMethod(); ok {
		return known
	}
	return p.Message.Text(jsonrpc.Method)
}

// ToolName returns the name of the called tool or prompt for logs, possibly shortened.
func (p *PostedMessage) ToolName() string {
	if p.Tool == "" {
		p.Tool = mcp.Shortened(p.Message.Text(jsonrpc.Name))
	}
	return p.Tool
}

// RequestID returns the id of the request for logs, possibly shortened.
func (p *PostedMessage) RequestID() string {
	if id := p.Message.Text(jsonrpc.ID); id != "" {
		return mcp.Shortened(id)
	}
	return mcp.Shortened(string(p.Message.Literal(jsonrpc.ID)))
}

// IsRequest reports whether the message is a request and not a part of a handshake. A message
// without an id counts as well, because some servers execute it.
func (p *PostedMessage) IsRequest() bool {
	switch method := p.MethodName(); method {
	case "", "initialize", "server/discover":
		return false
	default:
		return !strings.HasPrefix(method, "notifications/") || p.Message.Has(jsonrpc.ID)
	}
}

// Post makes the message the body of r. A transport may still read it after the response, so its
// bytes are never reused.
func (p *PostedMessage) Post(r *http.Request) {
	raw := p.Message.Raw
	p.body.Reset(raw)
	r.Body = &p.body
	r.GetBody = httpbody.Keep(raw)
	httpbody.SetHeader(r.Header, "Content-Type", "application/json")
	if r.ContentLength != int64(len(raw)) {
		httpbody.SetHeader(r.Header, "Content-Length", strconv.Itoa(len(raw)))
	}
	r.ContentLength, r.TransferEncoding = int64(len(raw)), nil
}

// edit changes the message, and posts it with r.
func (p *PostedMessage) edit(r *http.Request, edit jsonspan.Edit) {
	if edited, failure := p.Message.Edited(edit); failure == nil { // otherwise it stays unchanged
		p.Message = edited
		p.Post(r)
	}
}

// Label returns the method for metrics: one of a fixed set.
func (p *PostedMessage) Label(httpMethod string, kind EndpointKind) string {
	switch {
	case httpMethod == http.MethodGet && kind != RPC:
		return methodStream
	case httpMethod == http.MethodDelete && kind != RPC:
		return methodDelete
	case p.Message.IsResponse():
		return methodAnswer
	}
	if method, ok := p.knownMethod(); ok {
		return method
	}
	return methodOther
}
