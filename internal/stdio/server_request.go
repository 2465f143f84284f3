package stdio

import (
	"encoding/json"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A serverRequest is a request of a child to a client. The client sees a number of the pool
// instead of its id.
type serverRequest struct {
	session       *session
	child         *child
	id            []byte // literal, as the child sent it
	method        string
	number        uint64
	progressToken []byte // nil for none
	call          *call  // call whose stream carries it; nil for the stream of the session
}

const rootsList = "roots/list"

// handleServerRequest forwards a request of the child to the client whose call it belongs to, or
// to the owner of the child, or answers it. A shared child does not get the roots capability
// unless roots are configured, because it would use those of one client for all. If it requests
// roots anyway, within a call, it is dedicated to the client of that call.
func (c *child) handleServerRequest(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "ping" {
		c.trySend(jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), []byte("{}")))
		return
	}
	if result, ours := c.server.pool.answerWithoutClient(c.server.address.host, method); ours {
		if result == nil {
			c.trySend(jsonrpc.ErrorResponse(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "this method is not supported"))
		} else {
			c.trySend(jsonrpc.ResultResponse(m.Literal(jsonrpc.ID), result))
		}
		return
	}
	owner := c.server.soleOwner(c)
	call, ambiguous := c.inferCall()
	if call == nil && !ambiguous {
		c.noteLateRequest()
	}
	forward := call != nil && call.session != nil && call.session.canBeAsked(method)
	if owner == nil && method == rootsList {
		forward = forward && !c.server.hasRoots() && c.server.dedicate(c, call.session)
		if !forward {
			c.server.logRootsIgnored()
		}
	}
	switch {
	case forward:
		call.session.forwardServerRequest(c, call, m)
	case call != nil:
		c.answerForClient(call.session, m.Literal(jsonrpc.ID), method)
	case owner != nil && owner.canBeAsked(method):
		owner.forwardServerRequest(c, nil, m)
	default:
		why := "no client can answer this request now"
		if owner == nil {
			why = "several clients share this server: it can send requests only while exactly one of them " +
				"has a call in flight; use isolation session to give each session its own process"
		}
		c.answerLocally(m.Literal(jsonrpc.ID), method, jsonrpc.CodeMethodNotFound, why)
	}
}

// logRootsIgnored logs once for each server that its shared children do not get the roots of
// clients, unless roots are configured.
func (s *server) logRootsIgnored() {
	if s.hasRoots() {
		return
	}
	if _, said := s.pool.rootsLogged.LoadOrStore(s.name, true); !said {
		s.log().Info("client roots are not forwarded to a shared server",
			zap.String("hint", "configure roots, or use isolation session to forward those of clients"))
	}
}

// hasRoots reports whether roots are configured.
func (s *server) hasRoots() bool {
	result, _ := s.pool.answerWithoutClient(s.address.host, rootsList)
	return result != nil || len(s.pool.config.Roots) > 0
}

// answerLocally answers a server request without a client: roots/list with the configured roots,
// others with an error.
func (c *child) answerLocally(id []byte, method string, code int, why string) {
	if method == rootsList {
		c.trySend(jsonrpc.ResultResponse(id, c.server.pool.roots))
		return
	}
	c.trySend(jsonrpc.ErrorResponse(id, code, why))
}

// answerForClient answers a server request that the client does not support. A client with a
// session has declared that it has no roots; only configured roots override that (A25).
func (c *child) answerForClient(s *session, id []byte, method string) {
	why := "the client does not support this request"
	if method == rootsList && c.server.owner == nil {
		why = "several clients share this server: its roots come from its configuration"
	}
	if s != nil && len(c.server.pool.config.Roots) == 0 {
		c.trySend(jsonrpc.ErrorResponse(id, jsonrpc.CodeMethodNotFound, why))
		return
	}
	c.answerLocally(id, method, jsonrpc.CodeMethodNotFound, why)
}

// An Answerer answers server requests without a client. It reports whether it handles the
// method; a nil result then refuses the request.
type Answerer func(method string) (result []byte, ours bool)

// AnswerWith registers an Answerer for the children at a host, until release is called. The first
// one that handles a method wins.
func (p *Pool) AnswerWith(host string, answerer Answerer) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answerers[host] = append(p.answerers[host], &answerer)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answerers[host] = slices.DeleteFunc(p.answerers[host], func(other *Answerer) bool { return other == &answerer })
	}
}

// answerWithoutClient answers a server request with a registered Answerer.
func (p *Pool) answerWithoutClient(host, method string) (result []byte, ours bool) {
	p.mu.Lock()
	answerers := slices.Clone(p.answerers[host])
	p.mu.Unlock()
	for _, answerer := range answerers {
		if result, ours = (*answerer)(method); ours {
			return result, true
		}
	}
	return nil, false
}

// RootsResult returns the result of roots/list.
func RootsResult(uris []string) []byte {
	type root struct {
		URI string `json:"uri"`
	}
	roots := make([]root, len(uris))
	for i, uri := range uris {
		roots[i].URI = uri
	}
	result, _ := json.Marshal(map[string]any{"roots": roots}) // strings never fail
	return result
}
