package observationmask

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// Placeholders that name the call. A gateway sets them before the handlers of its servers run.
const (
	serverPlaceholder = "http.mcp.server"
	methodPlaceholder = "http.mcp.method"
	toolPlaceholder   = "http.mcp.tool"
)

// A call describes a request to an MCP server. The request is parsed only if the log, a placeholder
// or exempt needs it.
type call struct {
	server        string
	logged        bool        // a handler in front of this one logs the call
	fromGateway   bool        // a gateway has read the request and set the placeholders
	envelope      envelope    // from the gateway's placeholders, if fromGateway
	gatewayTarget mcp.Target  // from the gateway's Request, if it has one
	body          watchedBody // body of the request; unused if the gateway has all that is needed
}

// An envelope holds the members of a JSON-RPC request that identify the call.
type envelope struct {
	jsonrpc, method, name, uri string
}

// begin initializes the call before the request is forwarded.
func (c *call) begin(server string, r *http.Request) {
	c.server = server
	c.gatewayTarget = requestOf(r).About
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl == nil {
		return
	}
	if c.server == "" {
		c.server, _ = repl.GetString(serverPlaceholder)
	}
	var method string
	method, c.logged = repl.GetString(methodPlaceholder)
	if method != "" {
		tool, _ := repl.GetString(toolPlaceholder)
		c.fromGateway, c.envelope = true, envelope{jsonrpc: "2.0", method: method, name: tool}
	}
	if !c.logged {
		repl.Map(c.placeholder)
	}
}

func (c *call) placeholder(key string) (any, bool) {
	switch key {
	case serverPlaceholder:
		return c.server, true
	case methodPlaceholder:
		return c.read().method, true
	case toolPlaceholder:
		return c.read().name, true
	}
	return nil, false
}

// watch returns the body of r. If the body is needed, it is wrapped to record its beginning while
// the transport reads it; reading ahead would delay streaming.
func (c *call) watch(r *http.Request) io.ReadCloser {
	read := c.fromGateway && c.envelope.method != readMethod
	if read || r.Method != http.MethodPost || r.Body == nil || r.ContentLength == 0 {
		return r.Body
	}
	c.body.ReadCloser = r.Body
	return &c.body
}

// read returns the envelope, as far as the body has been read. When a response begins, the server
// has normally read the request.
func (c *call) read() envelope {
	if c.fromGateway {
		return c.envelope
	}
	return c.body.envelope()
}

// isRPC reports whether the request is JSON-RPC.
func (c *call) isRPC() bool {
	asked := c.read()
	return asked.jsonrpc == "2.0" && asked.method != ""
}

// target returns the tool, prompt or resource that the request asks for.
func (c *call) target(e *envelope) mcp.Target {
	if c.gatewayTarget.Kind != mcp.Anything {
		return c.gatewayTarget
	}
	switch e.method {
	case "tools/call":
		return mcp.Target{Kind: mcp.Tool, Name: e.name}
	case "prompts/get":
		return mcp.Target{Kind: mcp.Prompt, Name: e.name}
	case readMethod:
		if c.fromGateway {
			return mcp.Target{Kind: mcp.Resource, Name: c.body.envelope().uri}
		}
		return mcp.Target{Kind: mcp.Resource, Name: e.uri}
	}
	return mcp.Target{Kind: mcp.Other}
}

// readMethod is the method that reads a resource. No placeholder contains the URI of the resource,
// so the body is needed even behind a gateway.
const readMethod = "resources/read"

// watchLimit is how many bytes of a request are recorded. That is enough, because clients write the
// name before the arguments.
const watchLimit = 64 << 10

// A watchedBody records the beginning of a request body. The transport reads the body in another
// goroutine, possibly while the response arrives.
type watchedBody struct {
	io.ReadCloser

	mu   sync.Mutex
	seen []byte
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	b.seen = append(b.seen, p[:min(n, watchLimit-len(b.seen))]...)
	b.mu.Unlock()
	return n, err
}

var envelopePaths = jsonspan.CompilePaths("jsonrpc", "method", "params.name", "params.uri")

// longestName is the maximum length in bytes of a name; longer ones are ignored. The protocol
// allows 128 characters.
const longestName = 1 << 10

// envelope parses the recorded bytes. It returns an empty envelope if the request is not JSON or
// has duplicate members.
func (b *watchedBody) envelope() (e envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fields := [...]*string{&e.jsonrpc, &e.method, &e.name, &e.uri}
	err := envelopePaths.Find(b.seen, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && v.End-v.Start <= longestName {
			*fields[path] = string(jsonspan.AppendText(nil, v.Body(b.seen)))
		}
	})
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return envelope{}
	}
	return e
}
