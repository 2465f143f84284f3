package stdio

import (
	"encoding/json"
	"slices"

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
	call    *call // on whose stream it is asked, if on one
}

// ask has a question of the server answered: by the client whose call it belongs
// to, by the only client there is, or here.
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
	call, doubtful := c.caller()
	switch {
	case call != nil && call.session != nil && call.session.can(method):
		call.session.ask(c, call, m)
	case call != nil:
		c.answerFor(call.session, m.Literal(jsonrpc.ID), method)
	case doubtful:
		c.answerHere(m.Literal(jsonrpc.ID), method, jsonrpc.CodeMethodNotFound,
			"several clients share this server: whom this is for cannot be known; give each session a process of its own")
	default:
		if s := c.server.sole(); s != nil && s.can(method) {
			s.ask(c, nil, m)
		} else {
			c.answerHere(m.Literal(jsonrpc.ID), method, jsonrpc.CodeMethodNotFound, "no client can be asked this now")
		}
	}
}

// answerHere answers a question in the place of a client: with the roots, if it is
// these that are asked for, else with an error.
func (c *child) answerHere(id []byte, method string, code int, why string) {
	if method == "roots/list" {
		c.tell(jsonrpc.Answer(id, c.server.pool.roots))
		return
	}
	c.tell(jsonrpc.Refusal(id, code, why))
}

// answerFor answers a question in the place of a client that cannot be asked. If it has
// a session, it has said that it has no roots; somebody may have configured some (A25).
func (c *child) answerFor(s *session, id []byte, method string) {
	const why = "the client cannot be asked this"
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
