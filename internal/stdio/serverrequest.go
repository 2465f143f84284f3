package stdio

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

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

// refuse answers a server request with an error, unless it has been answered.
func (q *serverRequest) refuse(why string) {
	if q.session.serverRequests.take(q.number) != nil {
		q.child.answerLocally(q.id, q.method, jsonrpc.CodeInternalError, why)
	}
}

// serverRequestTime is how long a server request waits for a client without an open response.
const serverRequestTime = 5 * time.Second

// refuseUnlessRead refuses a server request outside of calls if, after a while, the client has not
// read it, or has no open response anymore.
func (q *serverRequest) refuseUnlessRead(while time.Duration) {
	s := q.session
	time.AfterFunc(while, func() {
		connected, unused := s.presence()
		switch {
		case !s.serverRequests.isOpen(q):
		case s.streamInbox.Withdraw(func(l letter) bool { return l.serverRequest == q }):
			q.refuse("the client has no open stream")
		case connected:
			q.refuseUnlessRead(serverRequestTime)
		case unused < serverRequestTime:
			q.refuseUnlessRead(serverRequestTime - unused)
		default:
			q.refuse("the client has left")
		}
	})
}

// serverRequests are the server requests that the client of a session has not answered yet.
type serverRequests struct {
	session *session

	mu     sync.Mutex
	last   uint64 // latest number
	open   map[uint64]*serverRequest
	closed bool // the session has ended
}

// maxServerRequests is how many server requests a client can have open.
const maxServerRequests = 1_000

// forward sends a server request to the client, on the stream of a call or of the session. If that
// fails, it is answered locally.
func (r *serverRequests) forward(c *child, call *call, m *jsonrpc.Message) {
	q, why := r.add(c, call, m)
	if q == nil {
		c.answerLocally(m.Literal(jsonrpc.ID), m.Text(jsonrpc.Method), jsonrpc.CodeInternalError, why)
		return
	}
	number := strconv.AppendUint(nil, q.number, 10)
	l := letter{message: replaceFields(m, number, jsonrpc.ID), serverRequest: q}
	switch {
	case call != nil:
		if !call.inbox.Put(l) {
			q.refuse("the client is not reading its stream, or has left")
		}
	case !r.session.streamInbox.Put(l):
		q.refuse("the client is not reading its stream")
	default:
		q.refuseUnlessRead(serverRequestTime)
	}
}

// add notes a server request, or returns why the client cannot get it.
func (r *serverRequests) add(c *child, call *call, m *jsonrpc.Message) (q *serverRequest, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return nil, "the client has left"
	case len(r.open) == maxServerRequests:
		return nil, "the client has too many open requests"
	}
	r.last++
	q = &serverRequest{
		session: r.session, child: c, id: bytes.Clone(m.Literal(jsonrpc.ID)), method: m.Text(jsonrpc.Method),
		number: r.last, progressToken: bytes.Clone(m.Literal(jsonrpc.ProgressToken)), call: call,
	}
	r.open[q.number] = q
	return q, ""
}

// take returns the open server request with a number, which is then closed.
func (r *serverRequests) take(number uint64) *serverRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.open[number]
	delete(r.open, number)
	return q
}

func (r *serverRequests) isOpen(q *serverRequest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open[q.number] != nil
}

// answer forwards the client's response to a server request. It reports whether there was such a
// request.
func (r *serverRequests) answer(ctx context.Context, m *jsonrpc.Message) bool {
	q := r.take(jsonrpc.NumberOf(m.Literal(jsonrpc.ID)))
	if q == nil {
		return false
	}
	if err := q.child.input.sendEdited(ctx, m.Raw, m.ReplaceAll(q.id, jsonrpc.ID)); err != nil {
		q.child.answerLocally(q.id, q.method, jsonrpc.CodeInternalError, "the client has left")
	}
	return true
}

// refuseMatching refuses open server requests.
func (r *serverRequests) refuseMatching(match func(*serverRequest) bool) {
	r.mu.Lock()
	var refused []*serverRequest
	for _, q := range r.open {
		if match(q) {
			refused = append(refused, q)
		}
	}
	r.mu.Unlock()
	for _, q := range refused {
		q.refuse("the client has left")
	}
}

// close refuses all server requests, and those to come.
func (r *serverRequests) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.refuseMatching(func(*serverRequest) bool { return true })
}

// detach keeps the server requests on the stream of a call whose response is sent now. A server
// request need not belong to the call whose stream carries it, and the client reads it before the
// response, so it may still answer.
func (r *serverRequests) detach(call *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.open {
		if q.call == call {
			q.call = nil
			q.refuseUnlessRead(serverRequestTime)
		}
	}
}

// withdraw removes a server request that the server has canceled. It returns the number that the
// client knows, and the inbox that the request went to.
func (r *serverRequests) withdraw(c *child, id []byte) (number uint64, to *inbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.open {
		if q.child == c && bytes.Equal(q.id, id) {
			delete(r.open, q.number)
			if q.call != nil {
				return q.number, q.call.inbox
			}
			return q.number, r.session.streamInbox
		}
	}
	return 0, nil
}

// awaitsProgress reports whether a child has an open request to the client with this progress
// token.
func (r *serverRequests) awaitsProgress(c *child, token []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.open {
		if q.child == c && q.progressToken != nil && bytes.Equal(q.progressToken, token) {
			return true
		}
	}
	return false
}

const rootsList = "roots/list"

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
	result, _ := s.pool.answer(s.address.host, rootsList)
	return result != nil || len(s.pool.config.Roots) > 0
}

// An Answerer answers server requests without a client. It reports whether it handles the
// method; a nil result then refuses the request.
type Answerer func(method string) (result []byte, ours bool)

// AnswerWith registers an Answerer for the children at a host, until release is called. The first
// one that handles a method wins.
func (p *Pool) AnswerWith(host string, answerer Answerer) (release func()) {
	return p.answerers.add(host, answerer)
}

// answer answers a server request without a client.
func (p *Pool) answer(host, method string) (result []byte, ours bool) {
	for _, answerer := range p.answerers.at(host) {
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
