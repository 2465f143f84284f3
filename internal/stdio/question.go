package stdio

import (
	"encoding/json"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A question is a request of the server to a client. The client sees a number of
// ours in the place of its id.
type question struct {
	session *session
	child   *child
	id      []byte // the literal that the child has given it
	method  string
	number  uint64
	token   []byte // under which the child wants to hear of progress, if it does
	call    *call  // on whose stream it is asked, if on one
}

const rootsList = "roots/list"

// ask has a question of the server answered: by the client whose call it belongs
// to, by the client whose own child it is, or here. A shared child is not told that it
// can ask for roots, unless some are configured: it would keep one client's for everybody.
// If it asks for them nevertheless, within a call, it serves no other client.
func (c *child) ask(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "ping" {
		c.tell(jsonrpc.Answer(m.Literal(jsonrpc.ID), []byte("{}")))
		return
	}
	if result, ours := c.server.pool.answer(c.server.at.host, method); ours {
		if result == nil {
			c.tell(jsonrpc.Refusal(m.Literal(jsonrpc.ID), jsonrpc.CodeMethodNotFound, "nobody answers this"))
		} else {
			c.tell(jsonrpc.Answer(m.Literal(jsonrpc.ID), result))
		}
		return
	}
	owner := c.server.ownerOf(c)
	call, doubtful := c.caller()
	if call == nil && !doubtful {
		c.noteLate()
	}
	asked := call != nil && call.session != nil && call.session.canBeAsked(method)
	if owner == nil && method == rootsList {
		if asked = asked && !c.server.hasRoots() && c.server.lend(c, call.session); !asked {
			c.server.sayRootsStay()
		}
	}
	switch {
	case asked:
		call.session.ask(c, call, m)
	case call != nil:
		c.answerFor(call.session, m.Literal(jsonrpc.ID), method)
	case owner != nil && owner.canBeAsked(method):
		owner.ask(c, nil, m)
	default:
		why := "no client can be asked this now"
		if owner == nil {
			why = "several clients share this server: it can ask one only while that one alone has a call in flight; give each session a process of its own"
		}
		c.answerHere(m.Literal(jsonrpc.ID), method, jsonrpc.CodeMethodNotFound, why)
	}
}

// sayRootsStay logs once for each server that its shared children do not get the roots of
// clients, unless they have some of the configuration.
func (s *server) sayRootsStay() {
	if s.hasRoots() {
		return
	}
	if _, said := s.pool.rootsStay.LoadOrStore(s.name, true); !said {
		s.log().Info("roots of clients are not passed to a shared server",
			zap.String("hint", "configure roots, or isolation session if it needs those of clients"))
	}
}

// hasRoots reports whether there are roots that are no client's.
func (s *server) hasRoots() bool {
	result, _ := s.pool.answer(s.at.host, rootsList)
	return result != nil || len(s.pool.config.Roots) > 0
}

// answerHere answers a question in the place of a client: with the roots, if it is
// these that are asked for, else with an error.
func (c *child) answerHere(id []byte, method string, code int, why string) {
	if method == rootsList {
		c.tell(jsonrpc.Answer(id, c.server.pool.roots))
		return
	}
	c.tell(jsonrpc.Refusal(id, code, why))
}

// answerFor answers a question in the place of a client that cannot be asked. If it has
// a session, it has said that it has no roots; somebody may have configured some (A25).
func (c *child) answerFor(s *session, id []byte, method string) {
	why := "the client cannot be asked this"
	if method == rootsList && c.server.owner == nil {
		why = "several clients share this server: its roots come from its configuration"
	}
	if s != nil && len(c.server.pool.config.Roots) == 0 {
		c.tell(jsonrpc.Refusal(id, jsonrpc.CodeMethodNotFound, why))
		return
	}
	c.answerHere(id, method, jsonrpc.CodeMethodNotFound, why)
}

// An Answerer answers questions of children in the place of any client. It reports
// whether it does; a question without a result is refused.
type Answerer func(method string) (result []byte, ours bool)

// AnswerWith has the questions of the children at a host answered, until it is released.
// Of several the first that does counts.
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

func (p *Pool) answer(host, method string) (result []byte, ours bool) {
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

// RootsResult is the answer to roots/list.
func RootsResult(uris []string) []byte {
	type root struct {
		URI string `json:"uri"`
	}
	roots := make([]root, len(uris))
	for i, uri := range uris {
		roots[i].URI = uri
	}
	result, _ := json.Marshal(map[string]any{"roots": roots}) // of strings: it cannot fail
	return result
}
