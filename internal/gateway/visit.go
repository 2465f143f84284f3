package gateway

import (
	"context"
	"crypto/sha256"
	"hash/maphash"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A visit is a request to the aggregate.
type visit struct {
	*inbound.Request
	g      *Gateway
	ctx    context.Context // of all that is done for the request
	era    mcp.Era
	client *client
	out    *streamable.Writer
	asides upstream.Asides
	torn   bool // a part of the answer was sent, and the rest will never come

	forwarded bool // it came to another replica
}

// targetOfAll returns what a request is about that names nothing.
func (v *visit) targetOfAll() mcp.Target {
	if !v.g.transparent() || v.HTTP.Method != http.MethodPost {
		return mcp.Target{}
	}
	target, _ := mcp.TargetOf(v.g.config.Servers[0].Name, &v.Message)
	return target
}

// sees reports whether the client may know of a server.
func (v *visit) sees(s *upstream.Server) bool { return v.g.rules.Sees(v.Caller.Identity, s.Name) }

// join finds the session that the request names.
func (v *visit) join() (failure *jsonrpc.Failure) {
	id := httpbody.GetHeader(v.HTTP.Header, mcp.SessionHeader)
	if id == "" {
		if v.HTTP.Method == http.MethodGet {
			// Clients of the first revision, and people with a browser, try this.
			failure = jsonrpc.MethodNotAllowed("POST")
			failure.Message += ": this address is for MCP clients, not for browsers"
			return failure
		}
		return jsonrpc.InvalidRequest("the header Mcp-Session-Id is missing: initialize first")
	}
	v.client, failure = v.session(id)
	return failure
}

// audience returns the key of the audience that the client belongs to: those of the same identity that
// say the same of themselves, and send the same headers of these names. Without an identity, they
// come from the same address with the same certificate, too.
func (v *visit) audience(headers []string, said ...[]byte) string {
	key := append(make([]byte, 0, 1<<10), v.Caller.Identity...)
	if v.Caller.Identity == "" {
		key = append(append(key, '@'), v.Peer.Address...)
		if tls := v.HTTP.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			key = append(append(key, 0), tls.PeerCertificates[0].Raw...)
		}
	}
	key = append(key, 0)
	for _, name := range headers {
		key = append(key, name...)
		for _, value := range v.HTTP.Header[name] {
			key = append(append(key, 0), value...)
		}
		key = append(key, '\n')
	}
	for _, part := range said {
		key = append(append(key, part...), 0)
	}
	sum := sha256.Sum256(key)
	return string(sum[:])
}

// legacyAudience returns the key of the audience of a client that has introduced itself by initialize.
// A server may choose what it shows by any header, so clients that share lists send the same ones.
func (v *visit) legacyAudience(c *client) string {
	names := upstream.HeaderNames(nil, v.HTTP.Header, upstream.MayChoose)
	return v.audience(names, []byte("initialize"), c.introduction.params)
}

// A headerValue is one of the values of a header.
type headerValue struct {
	name, value string
	number      int
}

var fingerprintSeed = maphash.MakeSeed()

// fingerprint returns a hash of who has sent the request and with which headers. If legacyAudience of two
// requests in a session differs, so does this, which takes less time: each request is compared with the
// one that began the session.
func (v *visit) fingerprint() (sum uint64) {
	if v.Caller.Identity == "" {
		sum = maphash.String(fingerprintSeed, v.Peer.Address)
		if tls := v.HTTP.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			sum += maphash.Bytes(fingerprintSeed, tls.PeerCertificates[0].Raw)
		}
	}
	for name, values := range v.HTTP.Header {
		if !upstream.MayChoose(name) {
			continue
		}
		for i, value := range values {
			sum += maphash.Comparable(fingerprintSeed, headerValue{name, value, i})
		}
	}
	return sum
}

// begin notes with which headers a client has begun its session.
func (v *visit) begin(c *client) {
	c.fingerprint = v.fingerprint()
	c.joinAudience(v.g, v.legacyAudience(c))
}

// modernClient finds the client that a request of the modern era comes from. All of an audience are
// one client. It has to be released.
func (v *visit) modernClient() (*client, *jsonrpc.Failure) {
	h := introduction{
		capabilities: v.Message.Literal(jsonrpc.ClientCapabilities),
		info:         v.Message.Literal(jsonrpc.ClientInfo),
	}
	if len(h.capabilities)+len(h.info) > longestIntroduction {
		return nil, introductionTooLarge("_meta: clientInfo and clientCapabilities")
	}
	var room [8]string
	key := v.audience(upstream.HeaderNames(room[:0], v.HTTP.Header, upstream.IsIdentifying), h.capabilities, h.info)
	return v.g.State.client(key, func() *client {
		h.capabilities, h.info = slices.Clone(h.capabilities), slices.Clone(h.info) // of a request that ends
		c := newClient(mcp.Modern, mcp.Stateless, v.Caller.Identity, v.Caller.Owner(), h.complete())
		c.audience = key
		return c
	}), nil
}

// session finds the client that has this session. It has to be released.
func (v *visit) session(id string) (*client, *jsonrpc.Failure) {
	g := v.g
	c := g.State.client(id, func() *client {
		t, ok := g.sealer.openTicket(id)
		if !ok || t.Identity != v.Caller.Identity {
			return nil // of another client, which is not to be known by what this one sends
		}
		owner := t.Identity
		if owner == "" {
			owner = "@" + t.Address
		}
		c := newClient(mcp.Legacy, t.Version, t.Identity, owner, readIntroduction(t.Hello))
		c.issued = time.Unix(t.Issued, 0)
		v.begin(c)
		return c.restore(t.Links, g.config.Servers)
	})
	switch {
	case c == nil:
		return nil, jsonrpc.UnknownSession()
	case c.identity != v.Caller.Identity:
		g.release(c)
		return nil, jsonrpc.UnknownSession()
	}
	g.elsewhere.recall(v.ctx, c)
	switch {
	case g.hasEnded(c):
		g.release(c)
		return nil, jsonrpc.UnknownSession()
	case !c.apart.Load() && v.fingerprint() != c.fingerprint:
		c.apart.Store(true)
	}
	return c, nil
}

// accepted answers a message that wants no answer.
func (v *visit) accepted() { v.Writer.WriteHeader(http.StatusAccepted) }

// answer answers the request with a result of the gateway.
func (v *visit) answer(result []byte) *jsonrpc.Failure { return v.answerAs("complete", result) }

// answerAs answers the request with a result of the gateway, of a type that the modern era has.
func (v *visit) answerAs(resultType string, result []byte) *jsonrpc.Failure {
	if v.era == mcp.Modern {
		result = v.g.info.Sign(resultType, result)
	}
	v.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(v.Message.Literal(jsonrpc.ID), result)})
	return nil
}

// behalf returns on whose behalf the gateway acts for the client.
func (v *visit) behalf() behalf { return behalf{ctx: v.ctx, g: v.g, r: v.HTTP} }

// all calls f for all servers that the client may know of at the same time.
func (v *visit) all(f func(s *upstream.Server)) {
	var calls errgroup.Group
	calls.SetLimit(maxFanOut)
	for _, s := range v.g.seen(v.Caller.Identity) {
		calls.Go(func() error {
			f(s)
			return nil
		})
	}
	_ = calls.Wait()
}

// linked calls f for all servers that the client has a session with at the same time.
func (v *visit) linked(f func(s *upstream.Server, l *link)) {
	v.all(func(s *upstream.Server) {
		if l := v.client.linked(s); l != nil && l.isOpen() {
			f(s, l)
		}
	})
}

// meet returns the servers that the client may know of, and what they say of themselves: nil for those
// that cannot be reached, which is logged, or not yet. A server that is known is not asked. The client waits
// as [visit.gather] says.
func (v *visit) meet(waits func() bool) (servers []*upstream.Server, met []*about) {
	servers = v.g.seen(v.Caller.Identity)
	met = make([]*about, len(servers))
	known := v.g.audience(v.client)
	arrivals := make(chan func(), len(servers))
	arrived := make([]bool, len(servers))
	var aside *side
	asked := 0
	for i, s := range servers {
		p := known.at(s.ID)
		if met[i] = p.current(s); met[i] != nil {
			continue
		}
		if aside == nil {
			aside = v.beside()
			defer aside.leave()
		}
		asked++
		aside.Go(func() {
			said, _ := p.meet(aside.behalf, v.client, s)
			arrivals <- func() { met[i], arrived[i] = said, true }
			if said != nil {
				v.g.came(s)
			}
		})
	}
	if asked == 0 {
		return servers, met
	}
	v.gather(aside, asked, arrivals, waits)
	for i, s := range servers {
		if met[i] == nil && (!arrived[i] || s.IsOut()) {
			v.leaveOut(s, known.at(s.ID))
		}
	}
	takeAll(arrivals)
	return servers, met
}

// takeAll takes what has arrived by now.
func takeAll(arrivals <-chan func()) {
	for {
		select {
		case take := <-arrivals:
			take()
		default:
			return
		}
	}
}

// always and never say whether a client waits longer for servers than firstWait.
func always() bool { return true }
func never() bool  { return false }

// maxFanOut is how many servers are talked to at the same time for one request.
const maxFanOut = 64
