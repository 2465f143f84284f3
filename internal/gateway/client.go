package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A client is whoever talks to us: a session of the legacy era, or all requests of
// the modern era that come from the same client as far as anybody can tell.
type client struct {
	key   string // in State
	using int    // by how many; guarded by State.mu

	era      mcp.Era
	version  string
	identity string    // who it is, if that is known
	owner    string    // of what is kept for it
	issued   time.Time // when its session began
	hello    hello

	ended atomic.Bool // it has said so

	mu        sync.Mutex
	links     map[string]*link // by the id of the server
	calls     map[string]*inFlight
	questions map[string]question // that it has been asked, by their ids
	streams   map[*stream]bool
	level     string // of the log messages it wants
}

// A hello is what a client says of itself.
type hello struct {
	params       []byte // of initialize, in the legacy era
	capabilities []byte
	info         []byte
}

// helloOf reads the params of an initialize request.
func helloOf(params []byte) hello {
	var p struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Info         json.RawMessage `json:"clientInfo"`
	}
	_ = json.Unmarshal(params, &p) // what is wrong is missing
	return hello{params, p.Capabilities, p.Info}.complete()
}

// helloTooLarge refuses a client that has too much to say of itself, and names where.
func helloTooLarge(where string) *jsonrpc.Failure {
	failure := jsonrpc.PayloadTooLarge()
	failure.Message = where + " have more than 16 KiB"
	return failure
}

// complete fills in what the protocol demands.
func (h hello) complete() hello {
	if len(h.capabilities) == 0 || h.capabilities[0] != '{' {
		h.capabilities = []byte("{}")
	}
	if len(h.info) == 0 || h.info[0] != '{' {
		h.info = []byte(`{"name":"unknown","version":"0"}`)
	}
	return h
}

// brief returns the params of initialize with no more than is needed: pictures of
// clients come with them.
func (h hello) brief(version string) []byte {
	var info struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}
	_ = json.Unmarshal(h.info, &info) // what is wrong is missing
	info.Name, info.Version = mcp.Shortened(info.Name), mcp.Shortened(info.Version)
	return jsonrpc.Encode(map[string]any{
		"protocolVersion": version, "capabilities": json.RawMessage(h.capabilities), "clientInfo": info,
	})
}

func newClient(era mcp.Era, version, identity, owner string, h hello) *client {
	return &client{
		era:       era,
		version:   version,
		identity:  identity,
		owner:     owner,
		hello:     h,
		links:     map[string]*link{},
		calls:     map[string]*inFlight{},
		questions: map[string]question{},
		streams:   map[*stream]bool{},
	}
}

// size returns about how much memory a client takes that does nothing.
func (c *client) size() int64 {
	size := 1<<10 + len(c.hello.params) + len(c.hello.capabilities) + len(c.hello.info)
	for _, l := range c.allLinks() {
		size += l.size()
	}
	return int64(size)
}

// hasMore reports whether a client has told us what its session id does not carry.
func (c *client) hasMore() bool {
	return c.logLevel() != "" || slices.ContainsFunc(c.allLinks(), func(l *link) bool { return l.subscriptions.size() > 0 })
}

// restore gives a client the links of a ticket.
func (c *client) restore(tickets map[string]linkTicket, servers []*Server) *client {
	for _, s := range servers {
		t, ok := tickets[s.Name]
		if !ok || t.Server != s.brief() {
			continue
		}
		l := newLink(c, s)
		l.ready, l.initialized = true, true
		l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
		c.links[s.ID] = l
	}
	return c
}

// visitor finds the client that a request of the modern era comes from. Requests
// are of the same client if they say the same of themselves and have the same
// credentials, whether these are for us or for the servers. Those of nobody in
// particular come from the same address, too. The client has to be released.
func (v *visit) visitor() (*client, *jsonrpc.Failure) {
	h := hello{
		capabilities: v.message.Literal(jsonrpc.ClientCapabilities),
		info:         v.message.Literal(jsonrpc.ClientInfo),
	}
	if len(h.capabilities)+len(h.info) > longestHello {
		return nil, helloTooLarge("_meta: clientInfo and clientCapabilities")
	}
	sum := sha256.New()
	identity := v.caller.identity
	if identity == "" {
		identity = "@" + v.peer.Address
	}
	_, _ = sum.Write([]byte(identity + "\x00"))
	for _, name := range slices.Sorted(maps.Keys(v.r.Header)) {
		if !isIdentifying(name) {
			continue
		}
		_, _ = sum.Write([]byte(name))
		for _, value := range v.r.Header[name] {
			_, _ = sum.Write([]byte("\x00" + value))
		}
		_, _ = sum.Write([]byte("\n"))
	}
	_, _ = sum.Write(h.capabilities)
	_, _ = sum.Write([]byte{0})
	_, _ = sum.Write(h.info)
	return v.g.State.client(string(sum.Sum(nil)), func() *client {
		h.capabilities, h.info = slices.Clone(h.capabilities), slices.Clone(h.info) // of a request that ends
		return newClient(mcp.Modern, mcp.Stateless, v.caller.identity, v.caller.owner(), h.complete())
	}), nil
}

// identifying are the parts of names of headers that say who sends them. Others differ
// from request to request, as those do that proxies and tracing add.
var identifying = []string{
	"auth", "cookie", "credential", "key", "passw", "secret", "session", "token", "jwt",
	"user", "account", "customer", "email", "identity", "org", "principal", "project", "role", "subject", "team", "tenant", "workspace",
}

// isIdentifying reports whether a header says who sends it.
func isIdentifying(name string) bool {
	name = strings.ToLower(name)
	switch {
	case strings.HasPrefix(name, "mcp-"), strings.HasPrefix(name, "sec-"), name == "user-agent", name == "idempotency-key":
		return false
	}
	return slices.ContainsFunc(identifying, func(part string) bool { return strings.Contains(name, part) })
}

// link returns the client's connection to a server.
func (c *client) link(server *Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[server.ID]
	if l == nil {
		l = newLink(c, server)
		c.links[server.ID] = l
	}
	return l
}

// allLinks returns the client's connections to servers.
func (c *client) allLinks() []*link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.links))
}

// An inFlight is a call that has not been answered yet.
type inFlight struct {
	link   *link
	cancel context.CancelFunc
}

// begin notes a call, so that it can be canceled. Ids that are in use already
// belong to the call that was there first.
func (c *client) begin(id []byte, f *inFlight) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(id)
	if c.calls[key] != nil {
		return func() {}
	}
	c.calls[key] = f
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, key)
	}
}

// inFlight returns the call with this id.
func (c *client) inFlight(id []byte) *inFlight {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[keyOf(id)]
}

// keyOf returns what an id says, however it is spelled.
func keyOf(id []byte) string {
	if len(id) < 2 || id[0] != '"' {
		return string(id)
	}
	return string(jsonspan.AppendText([]byte{'"'}, id[1:len(id)-1]))
}

// primed reports whether the client knows events without data. Older ones fail on them.
func (c *client) primed() bool { return c.version >= mcp.Latest }

// can reports whether the client can be asked this.
func (c *client) can(method string) bool { return mcp.CanBeAsked(c.hello.capabilities, method) }

// introduction returns the params of initialize.
func (c *client) introduction() []byte {
	if c.era == mcp.Legacy {
		return c.hello.params
	}
	return slices.Concat([]byte(`{"protocolVersion":"`+mcp.Latest+`","capabilities":`), c.hello.capabilities,
		[]byte(`,"clientInfo":`), c.hello.info, []byte("}"))
}

// meta returns what a request of the modern era says of the client.
func (c *client) meta(level string) []byte {
	return mcp.RequestMeta(c.hello.info, c.hello.capabilities, level)
}

// logLevel returns which log messages the client wants, if it has said.
func (c *client) logLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}
