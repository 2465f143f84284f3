package gateway

import (
	"context"
	"crypto/sha256"
	"hash/maphash"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A visit is a request to the aggregate.
type visit struct {
	*Request
	ctx    context.Context // of all that is done for the request
	era    mcp.Era
	client *client
	out    *streamable.Writer
	asides Asides
	torn   bool // a part of the answer was sent, and the rest will never come

	forwarded bool // it came to another replica
}

// targetOfAll returns what a request is about that names nothing.
func (v *visit) targetOfAll() mcp.Target {
	if !v.g.transparent() || v.r.Method != http.MethodPost {
		return mcp.Target{}
	}
	target, _ := mcp.TargetOf(v.g.config.Servers[0].Name, &v.message)
	return target
}

// sees reports whether the client may know of a server.
func (v *visit) sees(s *Server) bool { return v.g.rules.sees(v.caller.identity, s) }

// join finds the session that the request names.
func (v *visit) join() (failure *jsonrpc.Failure) {
	id := httpbody.GetHeader(v.r.Header, mcp.SessionHeader)
	if id == "" {
		if v.r.Method == http.MethodGet {
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
	key := append(make([]byte, 0, 1<<10), v.caller.identity...)
	if v.caller.identity == "" {
		key = append(append(key, '@'), v.peer.Address...)
		if tls := v.r.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			key = append(append(key, 0), tls.PeerCertificates[0].Raw...)
		}
	}
	key = append(key, 0)
	for _, name := range headers {
		key = append(key, name...)
		for _, value := range v.r.Header[name] {
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
	return v.audience(headerNames(nil, v.r.Header, mayChoose), []byte("initialize"), c.introduction.params)
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
	if v.caller.identity == "" {
		sum = maphash.String(fingerprintSeed, v.peer.Address)
		if tls := v.r.TLS; tls != nil && len(tls.PeerCertificates) > 0 {
			sum += maphash.Bytes(fingerprintSeed, tls.PeerCertificates[0].Raw)
		}
	}
	for name, values := range v.r.Header {
		if !mayChoose(name) {
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
		capabilities: v.message.Literal(jsonrpc.ClientCapabilities),
		info:         v.message.Literal(jsonrpc.ClientInfo),
	}
	if len(h.capabilities)+len(h.info) > longestIntroduction {
		return nil, introductionTooLarge("_meta: clientInfo and clientCapabilities")
	}
	var room [8]string
	key := v.audience(headerNames(room[:0], v.r.Header, isIdentifying), h.capabilities, h.info)
	return v.g.State.client(key, func() *client {
		h.capabilities, h.info = slices.Clone(h.capabilities), slices.Clone(h.info) // of a request that ends
		c := newClient(mcp.Modern, mcp.Stateless, v.caller.identity, v.caller.owner(), h.complete())
		c.audience = key
		return c
	}), nil
}

// identifying are the parts of names of headers that say who sends them, by their first letter.
// Others differ from request to request, as those do that proxies and tracing add.
var identifying = func() (byLetter ['z' + 1][]string) {
	for _, part := range []string{
		"auth", "cookie", "credential", "key", "passw", "secret", "session", "token", "jwt",
		"user", "account", "customer", "email", "identity", "org", "principal", "project", "role", "subject", "team",
		"tenant", "workspace",
		"cert", "client-dn", "client-id", "device", "group", "scope", "ssl",
		"x-mcp-", // some servers have clients choose tools by such a header
	} {
		byLetter[part[0]] = append(byLetter[part[0]], part)
	}
	return byLetter
}()

// headerNames appends the names of headers that fit, in order.
func headerNames(names []string, header http.Header, fits func(name string) bool) []string {
	for name := range header {
		if fits(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// mayChoose reports whether a server may choose by a header what it shows to a client: by any but those
// that belong to a single request.
func mayChoose(name string) bool {
	return !ofOneRequest[name] && !hasPrefixFold(name, "mcp-") && !hasPrefixFold(name, "sec-") &&
		!hasPrefixFold(name, "x-b3-") && !hasPrefixFold(name, "x-datadog-")
}

// ofOneRequest are headers that differ between requests of the same client: they describe the message,
// or are for tracing.
var ofOneRequest = headerSet(
	"Accept", "Accept-Encoding", "Cache-Control", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Date",
	"Expect", "Idempotency-Key", "If-Modified-Since", "If-None-Match", "Keep-Alive", "Last-Event-Id", "Origin", "Pragma",
	"Priority", "Referer", "Te", "Transfer-Encoding", "B3", "Baggage", "Cf-Ray", "Request-Id", "Sentry-Trace", "Traceparent",
	"Tracestate", "X-Amzn-Trace-Id", "X-Cloud-Trace-Context", "X-Correlation-Id", "X-Request-Id",
)

// isIdentifying reports whether a header says who sends it.
func isIdentifying(name string) bool {
	switch {
	case ofOneRequest[name], hasPrefixFold(name, "mcp-"), hasPrefixFold(name, "sec-"),
		strings.EqualFold(name, "user-agent"), strings.EqualFold(name, "idempotency-key"):
		return false
	}
	for i := range len(name) {
		first := name[i] | 0x20 // of a letter, in lower case
		if first >= byte(len(identifying)) {
			continue
		}
		if slices.ContainsFunc(identifying[first], func(part string) bool { return hasPrefixFold(name[i:], part) }) {
			return true
		}
	}
	return false
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// session finds the client that has this session. It has to be released.
func (v *visit) session(id string) (*client, *jsonrpc.Failure) {
	g := v.g
	c := g.State.client(id, func() *client {
		t, ok := g.sealer.openTicket(id)
		if !ok || t.Identity != v.caller.identity {
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
	case c.identity != v.caller.identity:
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
func (v *visit) accepted() { v.w.WriteHeader(http.StatusAccepted) }

// answer answers the request with a result of the gateway.
func (v *visit) answer(result []byte) *jsonrpc.Failure { return v.answerAs("complete", result) }

// answerAs answers the request with a result of the gateway, of a type that the modern era has.
func (v *visit) answerAs(resultType string, result []byte) *jsonrpc.Failure {
	if v.era == mcp.Modern {
		result = v.g.info.sign(resultType, result)
	}
	v.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(v.message.Literal(jsonrpc.ID), result)})
	return nil
}

// behalf returns on whose behalf the gateway acts for the client.
func (v *visit) behalf() behalf { return behalf{ctx: v.ctx, g: v.g, r: v.r} }

// all calls f for all servers that the client may know of at the same time.
func (v *visit) all(f func(s *Server)) {
	var calls errgroup.Group
	calls.SetLimit(maxFanOut)
	for _, s := range v.g.rules.seen(v.caller.identity) {
		calls.Go(func() error {
			f(s)
			return nil
		})
	}
	_ = calls.Wait()
}

// linked calls f for all servers that the client has a session with at the same time.
func (v *visit) linked(f func(s *Server, l *link)) {
	v.all(func(s *Server) {
		if l := v.client.linked(s); l != nil && l.isOpen() {
			f(s, l)
		}
	})
}

// meet returns the servers that the client may know of, and what they say of themselves: nil for those
// that cannot be reached, which is logged, or not yet. A server that is known is not asked. The client waits
// as [visit.gather] says.
func (v *visit) meet(waits func() bool) (servers []*Server, met []*about) {
	servers = v.g.rules.seen(v.caller.identity)
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
		if met[i] == nil && (!arrived[i] || s.isOut()) {
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
