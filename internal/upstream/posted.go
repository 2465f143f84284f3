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

// A Posted is the message that a request posts.
type Posted struct {
	Message jsonrpc.Message
	body    requestBody
	method  string // once it was asked for
	Tool    string
}

// A requestBody is a message to be read by a transport.
type requestBody struct{ bytes.Reader }

func (*requestBody) Close() error { return nil }

// MethodName returns the method as logs have it.
func (p *Posted) MethodName() string {
	if p.method == "" && p.Message.Has(jsonrpc.Method) {
		if known, ok := p.knownMethod(); ok {
			p.method = known
		} else {
			p.method = mcp.Shortened(p.Message.Text(jsonrpc.Method))
		}
	}
	return p.method
}

// knownMethod returns the method if the protocol defines it. Names of methods need no
// escapes, so one with escapes is not known.
func (p *Posted) knownMethod() (string, bool) {
	literal := p.Message.Literal(jsonrpc.Method)
	if len(literal) < 2 {
		return "", false
	}
	return mcp.KnownMethod(string(literal[1 : len(literal)-1]))
}

// CalledMethod returns the method as the client has written it.
func (p *Posted) CalledMethod() string {
	if known, ok := p.knownMethod(); ok {
		return known
	}
	return p.Message.Text(jsonrpc.Method)
}

// ToolName returns the name of what is called as logs have it.
func (p *Posted) ToolName() string {
	if p.Tool == "" {
		p.Tool = mcp.Shortened(p.Message.Text(jsonrpc.Name))
	}
	return p.Tool
}

// RequestID returns the id of the request as logs have it.
func (p *Posted) RequestID() string {
	if id := p.Message.Text(jsonrpc.ID); id != "" {
		return mcp.Shortened(id)
	}
	return mcp.Shortened(string(p.Message.Literal(jsonrpc.ID)))
}

// IsRequest reports whether the message is a request and not part of a handshake. Some
// servers run requests without an id, too.
func (p *Posted) IsRequest() bool {
	switch method := p.MethodName(); method {
	case "", "initialize", "server/discover":
		return false
	default:
		return !strings.HasPrefix(method, "notifications/") || p.Message.Has(jsonrpc.ID)
	}
}

// Post makes r post the message. A transport may still read it when the answer is there, so
// its bytes are never used again.
func (p *Posted) Post(r *http.Request) {
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

// edit makes r post the message with an edit.
func (p *Posted) edit(r *http.Request, edit jsonspan.Edit) {
	if edited, failure := p.Message.Edited(edit); failure == nil { // else it stays as it is
		p.Message = edited
		p.Post(r)
	}
}

// Label returns the method of a request as metrics have it.
func (p *Posted) Label(httpMethod string, kind EndpointKind) string {
	switch {
	case httpMethod == http.MethodGet && kind != RPC:
		return methodStream
	case httpMethod == http.MethodDelete && kind != RPC:
		return methodDelete
	case p.Message.IsAnswer():
		return methodAnswer
	}
	if method, ok := p.knownMethod(); ok {
		return method
	}
	return methodOther
}
