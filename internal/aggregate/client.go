package aggregate

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A client is whoever talks to us: a session of the legacy era, or all requests of
// the modern era that come from the same client as far as anybody can tell.
type client struct {
	era      mcp.Era
	version  string
	identity string // who it is, if that is known
	hello    hello

	ended atomic.Bool // it has said so

	mu        sync.Mutex
	links     map[string]*link // by the id of the server
	calls     map[string]*inFlight
	questions map[string]chan<- *jsonrpc.Message // of ours, by their ids
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
	info.Name, info.Version = shortened(info.Name), shortened(info.Version)
	return encoded(map[string]any{
		"protocolVersion": version, "capabilities": json.RawMessage(h.capabilities), "clientInfo": info,
	})
}

func newClient(era mcp.Era, version, identity string, h hello) *client {
	return &client{
		era:       era,
		version:   version,
		identity:  identity,
		hello:     h,
		links:     map[string]*link{},
		calls:     map[string]*inFlight{},
		questions: map[string]chan<- *jsonrpc.Message{},
		streams:   map[*stream]bool{},
	}
}

// restore gives a client the links of a ticket.
func (c *client) restore(tickets map[string]linkTicket, servers []*Server) *client {
	for _, s := range servers {
		t, ok := tickets[s.Name]
		if !ok {
			continue
		}
		l := newLink(c, s.Name)
		l.ready, l.greeted = true, true
		l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
		c.links[s.ID] = l
	}
	return c
}

// visitor finds the client that a request of the modern era comes from. Requests
// are of the same client if they say the same of themselves and have the same
// credentials, and come from the same address if they have none.
func (a *Aggregate) visitor(r *http.Request, m *jsonrpc.Message, who Visitor) *client {
	h := hello{
		capabilities: m.Literal(jsonrpc.ClientCapabilities),
		info:         m.Literal(jsonrpc.ClientInfo),
	}
	sum := sha256.New()
	identity := who.Identity
	if identity == "" {
		identity = "@" + who.Address
	}
	for _, part := range [...]string{identity, r.Header.Get("Authorization"), r.Header.Get("Cookie")} {
		_, _ = sum.Write(append([]byte(part), 0))
	}
	_, _ = sum.Write(h.capabilities)
	_, _ = sum.Write([]byte{0})
	_, _ = sum.Write(h.info)
	key := string(sum.Sum(nil))

	a.mu.Lock()
	c, ok := a.clients.Get(key)
	a.mu.Unlock()
	if ok {
		return c
	}
	h.capabilities = append([]byte(nil), h.capabilities...) // of a request that ends
	h.info = append([]byte(nil), h.info...)
	return a.remember(key, newClient(mcp.Modern, mcp.Stateless, who.Identity, h.complete()))
}

// link returns the client's connection to a server.
func (c *client) link(server *Server) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.links[server.ID]
	if l == nil {
		l = newLink(c, server.Name)
		c.links[server.ID] = l
	}
	return l
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
	key := string(id)
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
	return c.calls[string(id)]
}

// can reports whether the client can be asked this.
func (c *client) can(method string) bool { return mcp.CanBeAsked(c.hello.capabilities, method) }
