package observationmask

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// The placeholders that tell what is being called. A gateway sets them before
// its servers' handlers run.
const (
	serverPlaceholder = "http.mcp.server"
	methodPlaceholder = "http.mcp.method"
	toolPlaceholder   = "http.mcp.tool"
	clientPlaceholder = "http.mcp.client"
)

// A call is what a request asks of an MCP server.
type call struct {
	server string
	repl   *caddy.Replacer
	body   *watchedBody // nil if a gateway has read the request already

	once         sync.Once
	method, tool string
}

func newCall(server string, r *http.Request) *call {
	c := &call{server: server}
	c.repl, _ = r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if c.server == "" {
		c.server = placeholder(c.repl, serverPlaceholder)
	}
	if c.method = placeholder(c.repl, methodPlaceholder); c.method != "" {
		c.tool = placeholder(c.repl, toolPlaceholder)
		c.once.Do(func() {})
	}
	return c
}

// client is whom a response goes to: who the gateway or Caddy's authentication
// says it is, or nobody in particular.
func client(r *http.Request) string {
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if id := placeholder(repl, clientPlaceholder); id != "" {
		return id
	}
	return placeholder(repl, "http.auth.user.id")
}

func placeholder(repl *caddy.Replacer, name string) string {
	if repl == nil {
		return ""
	}
	value, _ := repl.GetString(name)
	return value
}

// watch returns r with a body that tells what is being called as it is read. The
// body is not read ahead: that would cost streaming and latency.
func (c *call) watch(r *http.Request) *http.Request {
	if c.method != "" || r.Method != http.MethodPost || r.Body == nil || r.ContentLength == 0 {
		return r
	}
	c.body = &watchedBody{ReadCloser: r.Body}
	r2 := new(http.Request)
	*r2 = *r
	r2.Body = c.body
	return r2
}

// read finds out what is being called, as far as the body has been read. It is
// called when a response begins, and by then it has: a server that answers has
// heard the question.
func (c *call) read() {
	c.once.Do(func() {
		if c.body != nil {
			c.method, c.tool = c.body.envelope()
		}
		if c.repl != nil && c.method != "" {
			c.repl.Set(serverPlaceholder, c.server)
			c.repl.Set(methodPlaceholder, c.method)
			c.repl.Set(toolPlaceholder, c.tool)
		}
	})
}

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

var envelopePaths = jsonspan.CompilePaths("method", "params.name")

// envelope returns the method and the name in params of the request, or nothing
// if it is not a JSON-RPC request or is ambiguous.
func (b *watchedBody) envelope() (method, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := envelopePaths.Find(b.seen, func(path int, v jsonspan.Value) {
		if v.Kind != jsonspan.String {
			return
		}
		text := string(jsonspan.AppendText(nil, v.Body(b.seen)))
		if path == 0 {
			method = text
		} else {
			name = text
		}
	})
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", ""
	}
	return method, name
}
