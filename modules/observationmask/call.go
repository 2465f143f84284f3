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

// The placeholders that tell what is being called. A gateway sets them before
// its servers' handlers run.
const (
	serverPlaceholder = "http.mcp.server"
	methodPlaceholder = "http.mcp.method"
	toolPlaceholder   = "http.mcp.tool"
)

// A call is what a request asks of an MCP server. Finding that out is left until
// somebody asks: a log, a placeholder, exempt.
type call struct {
	server string
	known  bool        // to a handler in front of this one, which logs it
	told   bool        // that handler is a gateway, and has read the request already
	asked  envelope    // what it found, if told
	about  mcp.Target  // what it found, if it has said so
	body   watchedBody // where to look, if not
}

// An envelope is what a JSON-RPC request says of itself.
type envelope struct {
	jsonrpc, method, name, uri string
}

// begin notes what is known of the call before it is made.
func (c *call) begin(server string, r *http.Request) {
	c.server = server
	c.about = requestOf(r).About
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if repl == nil {
		return
	}
	if c.server == "" {
		c.server, _ = repl.GetString(serverPlaceholder)
	}
	var method string
	if method, c.known = repl.GetString(methodPlaceholder); method != "" {
		tool, _ := repl.GetString(toolPlaceholder)
		c.told, c.asked = true, envelope{jsonrpc: "2.0", method: method, name: tool}
	}
	if !c.known {
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

// watch returns the body of r, made to remember what is read of it. It is not
// read ahead: that would cost streaming and latency.
func (c *call) watch(r *http.Request) io.ReadCloser {
	if c.told && c.asked.method != readMethod || r.Method != http.MethodPost || r.Body == nil || r.ContentLength == 0 {
		return r.Body
	}
	c.body.ReadCloser = r.Body
	return &c.body
}

// read tells what is being called, as far as the body has been read. When a
// response begins it has been: a server that answers has heard the question.
func (c *call) read() envelope {
	if c.told {
		return c.asked
	}
	return c.body.envelope()
}

// isRPC reports whether the request is JSON-RPC.
func (c *call) isRPC() bool {
	asked := c.read()
	return asked.jsonrpc == "2.0" && asked.method != ""
}

// target returns what the request is about, given what was read of it.
func (c *call) target(asked *envelope) mcp.Target {
	if c.about.Kind != mcp.Anything {
		return c.about
	}
	switch asked.method {
	case "tools/call":
		return mcp.Target{Kind: mcp.Tool, Name: asked.name}
	case "prompts/get":
		return mcp.Target{Kind: mcp.Prompt, Name: asked.name}
	case readMethod:
		if c.told {
			return mcp.Target{Kind: mcp.Resource, Name: c.body.envelope().uri}
		}
		return mcp.Target{Kind: mcp.Resource, Name: asked.uri}
	}
	return mcp.Target{Kind: mcp.Other}
}

// readMethod is the method that reads resources. No placeholder says which one it reads.
const readMethod = "resources/read"

// watchLimit is how much of a request is looked at. Clients put the name before
// the arguments.
const watchLimit = 64 << 10

// A watchedBody remembers the beginning of a request body. The transport reads
// it on another goroutine, possibly still while the response arrives.
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

// longestName is the longest that names may be to end up in logs. The protocol
// allows 128 characters.
const longestName = 1 << 10

// envelope returns what the request says of itself, or nothing if it is not a
// JSON-RPC request or is ambiguous.
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
