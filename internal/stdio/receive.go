package stdio

import (
	"encoding/json"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// receive handles a message of the child. A long message is in a block; its bytes do not change
// before the block is freed.
func (c *child) receive(m *jsonrpc.Message, b *block) {
	switch {
	case m.IsRequest():
		c.handleServerRequest(m)
	case m.IsNotification():
		c.forwardNotification(m)
	default:
		c.deliverResponse(m, b)
	}
}

// deliverResponse delivers a response to the call that waits for it, with the id of the client.
func (c *child) deliverResponse(m *jsonrpc.Message, b *block) {
	complete := m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error) // some servers write "error":null into results
	if !complete && !m.Has(jsonrpc.Version) {                 // most likely a log line in JSON
		c.server.pool.observe.Noise(c.server.name)
		return
	}
	if c.takePong(m.Literal(jsonrpc.ID)) {
		return
	}
	call := c.takeCall(m.Literal(jsonrpc.ID))
	if call == nil { // late, repeated, or with an unknown id
		c.server.pool.observe.Dropped(c.server.name)
		return
	}
	id := call.request.Literal(jsonrpc.ID)
	if !complete {
		call.fail(jsonrpc.InvalidResponse(c.server.name), errNoise)
		return
	}
	response := letter{message: replaceFields(m, id, jsonrpc.ID, jsonrpc.ListenID), block: b, code: m.ErrorNumber()}
	if !call.inbox.End(response) {
		b.free()
		call.fail(jsonrpc.TooMuchUnread(), errUnread)
	}
}

// forwardNotification forwards a notification to the clients that it concerns.
func (c *child) forwardNotification(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "notifications/tools/list_changed" {
		c.params.Store(nil)
	}
	switch {
	case method == "notifications/progress":
		call := c.callByID(m.Literal(jsonrpc.Progress))
		if call != nil && !call.request.Has(jsonrpc.ProgressToken) {
			call = nil // the client did not request progress
		}
		c.deliverNotification(call, m, jsonrpc.Progress, jsonrpc.ProgressToken)
	case m.Has(jsonrpc.SubscriptionID):
		call := c.callByID(m.Literal(jsonrpc.SubscriptionID))
		c.deliverNotification(call, m, jsonrpc.SubscriptionID, jsonrpc.ID)
	case method == "notifications/cancelled":
		c.server.forwardWithdrawal(c, m)
	case method == mcp.MethodUpdated:
		uri := m.Text(jsonrpc.URI)
		c.server.broadcast(m, func(s *session) bool { return s.isSubscribed(uri) })
	case strings.HasSuffix(method, "/list_changed"):
		c.server.listChanged(m)
	default:
		call, ambiguous := c.inferCall()
		switch {
		case call != nil && !c.passesLevel(m, call.session):
		case call != nil || ambiguous:
			c.deliverNotification(call, m)
		default:
			sole := c.server.soleSession(c)
			if sole == nil {
				c.server.pool.observe.Dropped(c.server.name)
			}
			c.server.broadcast(m, func(s *session) bool { return s == sole && c.passesLevel(m, s) })
		}
	}
}

func allSessions(*session) bool { return true }

// deliverNotification puts a notification into the inbox of a call. With two fields, the first
// one gets the value that the second one has in the client's request.
func (c *child) deliverNotification(call *call, m *jsonrpc.Message, fields ...jsonrpc.Field) {
	if call != nil {
		message := frame{m.Raw}
		if len(fields) == 2 {
			message = replaceFields(m, call.request.Literal(fields[1]), fields[0])
		}
		if call.inbox.Put(letter{message: message}) {
			return
		}
	}
	c.server.pool.observe.Dropped(c.server.name)
}

// replaceFields returns a message in which the fields have another literal. It shares the bytes of
// the message and of the literal.
func replaceFields(m *jsonrpc.Message, literal []byte, fields ...jsonrpc.Field) frame {
	return applyEdits(m.Raw, m.ReplaceAll(literal, fields...))
}

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
