package gateway

import (
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A visit is a request to the aggregate.
type visit struct {
	*Request
	era    mcp.Era
	client *client
	out    *streamable.Writer
	asides Asides
	torn   bool // a part of the answer was sent, and the rest will never come
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
	id := v.r.Header.Get(mcp.SessionHeader)
	if id == "" {
		if v.r.Method == http.MethodGet {
			// Clients of the first revision, and people with a browser, try this.
			return jsonrpc.MethodNotAllowed("POST")
		}
		return jsonrpc.InvalidRequest("the header Mcp-Session-Id is missing: initialize first")
	}
	v.client, failure = v.g.session(id, v.caller.identity)
	return failure
}

// modernClient finds the client that a request of the modern era comes from. Requests are of
// the same client if their clientInfo, capabilities and credentials are equal, whether the
// credentials are for the gateway or for servers. Without an identity, they come from the
// same address, too. The client has to be released.
func (v *visit) modernClient() (*client, *jsonrpc.Failure) {
	h := introduction{
		capabilities: v.message.Literal(jsonrpc.ClientCapabilities),
		info:         v.message.Literal(jsonrpc.ClientInfo),
	}
	if len(h.capabilities)+len(h.info) > longestIntroduction {
		return nil, introductionTooLarge("_meta: clientInfo and clientCapabilities")
	}
	var room [1 << 10]byte
	said := append(room[:0], v.caller.identity...)
	if v.caller.identity == "" {
		said = append(append(said, '@'), v.peer.Address...)
	}
	said = append(said, 0)
	var names [8]string
	for _, name := range identifyingNames(names[:0], v.r.Header) {
		said = append(said, name...)
		for _, value := range v.r.Header[name] {
			said = append(append(said, 0), value...)
		}
		said = append(said, '\n')
	}
	said = append(append(append(said, h.capabilities...), 0), h.info...)
	sum := sha256.Sum256(said)
	return v.g.State.client(string(sum[:]), func() *client {
		h.capabilities, h.info = slices.Clone(h.capabilities), slices.Clone(h.info) // of a request that ends
		return newClient(mcp.Modern, mcp.Stateless, v.caller.identity, v.caller.owner(), h.complete())
	}), nil
}

// identifying are the parts of names of headers that say who sends them, by their first letter.
// Others differ from request to request, as those do that proxies and tracing add.
var identifying = func() (byLetter ['z' + 1][]string) {
	for _, part := range []string{
		"auth", "cookie", "credential", "key", "passw", "secret", "session", "token", "jwt",
		"user", "account", "customer", "email", "identity", "org", "principal", "project", "role", "subject", "team", "tenant", "workspace",
	} {
		byLetter[part[0]] = append(byLetter[part[0]], part)
	}
	return byLetter
}()

// identifyingNames appends the names of headers that say who sends them, in order.
func identifyingNames(to []string, header http.Header) []string {
	for name := range header {
		if isIdentifying(name) {
			to = append(to, name)
		}
	}
	slices.Sort(to)
	return to
}

// isIdentifying reports whether a header says who sends it.
func isIdentifying(name string) bool {
	switch {
	case hasPrefixFold(name, "mcp-"), hasPrefixFold(name, "sec-"), strings.EqualFold(name, "user-agent"), strings.EqualFold(name, "idempotency-key"):
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
func (g *Gateway) session(id, identity string) (*client, *jsonrpc.Failure) {
	c := g.client(id, func() *client {
		t, ok := g.sealer.openTicket(id)
		if !ok {
			return nil
		}
		owner := t.Identity
		if owner == "" {
			owner = "@" + t.Address
		}
		c := newClient(mcp.Legacy, t.Version, t.Identity, owner, readIntroduction(t.Hello))
		c.issued = time.Unix(t.Issued, 0)
		return c.restore(t.Links, g.config.Servers)
	})
	switch {
	case c == nil:
		return nil, jsonrpc.UnknownSession()
	case c.identity != identity || g.hasEnded(c):
		g.release(c)
		return nil, jsonrpc.UnknownSession()
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
func (v *visit) behalf() behalf { return behalf{v.r.Context(), v.g, v.r} }

// all calls f for all servers that the client may know of at the same time, with its link to
// each.
func (v *visit) all(f func(s *Server, l *link)) {
	var calls errgroup.Group
	calls.SetLimit(maxFanOut)
	for _, s := range v.g.rules.seen(v.caller.identity) {
		l := v.client.link(s)
		calls.Go(func() error {
			f(s, l)
			return nil
		})
	}
	_ = calls.Wait()
}

// maxFanOut is how many servers are talked to at the same time for one request.
const maxFanOut = 64
