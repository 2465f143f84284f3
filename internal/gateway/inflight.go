package gateway

import (
	"crypto/rand"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An activeCall is a call that a client has made and that is not answered yet.
type activeCall struct {
	upstream.ActiveCall
	link *link
	held atomic.Bool // the gateway holds the call: the server has nothing to cancel

	// id is the id of the request at the server if the call was repeated, nil if it is the client's
	// id.
	id atomic.Pointer[[]byte]
}

// activeCalls are the calls of a client that can be canceled.
type activeCalls struct {
	mu   sync.Mutex
	byID map[string]*activeCall
}

// begin adds a call until end. If the id is in use, it keeps its first call.
func (a *activeCalls) begin(id []byte, f *activeCall) (key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key = keyOf(id)
	if a.byID == nil {
		a.byID = map[string]*activeCall{}
	}
	if a.byID[key] == nil {
		a.byID[key] = f
	}
	return key
}

// end removes a call that begin added.
func (a *activeCalls) end(key string, f *activeCall) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byID[key] == f {
		delete(a.byID, key)
	}
}

// get returns the call with an id, nil if there is none.
func (a *activeCalls) get(id []byte) *activeCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[keyOf(id)]
}

// any returns one of the calls, nil if there are none.
func (a *activeCalls) any() *activeCall {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, call := range a.byID {
		return call
	}
	return nil
}

// serverRequests are the requests that a client has been sent and not answered yet.
type serverRequests struct {
	mu   sync.Mutex
	byID map[string]serverRequest
}

// A serverRequest is a request that was sent to a client. One of its fields is set.
type serverRequest struct {
	reader   *streamable.Reader      // of the call during which a server sent the request
	response chan<- *jsonrpc.Message // receives the response to a request of the gateway
}

// maxServerRequests limits the server requests that are tracked per client.
const maxServerRequests = 1_000

// note notes that the client was sent a request during the call of a reader.
func (q *serverRequests) note(id []byte, reader *streamable.Reader) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, there := q.byID[keyOf(id)]; !there && len(q.byID) < maxServerRequests {
		q.add(id, serverRequest{reader: reader})
		reader.ServerRequestOpened()
	}
}

// add adds a request. The caller holds the lock.
func (q *serverRequests) add(id []byte, request serverRequest) {
	if q.byID == nil {
		q.byID = map[string]serverRequest{}
	}
	q.byID[keyOf(id)] = request
}

// settle notes that a server request needs no response anymore.
func (q *serverRequests) settle(id []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if request := q.byID[keyOf(id)]; request.reader != nil {
		request.reader.ServerRequestClosed()
		delete(q.byID, keyOf(id))
	}
}

// dropOf drops the server requests of a call that has ended.
func (q *serverRequests) dropOf(reader *streamable.Reader) {
	if !reader.HasOpenServerRequests() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.byID, func(_ string, request serverRequest) bool { return request.reader == reader })
}

// take passes a response of the client to the call that waits for it. It reports whether this
// replica knows the request, and whether the gateway itself sent it.
func (q *serverRequests) take(id []byte, m *jsonrpc.Message) (known, own bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	request, known := q.byID[keyOf(id)]
	delete(q.byID, keyOf(id))
	switch {
	case request.reader != nil:
		request.reader.ServerRequestClosed()
		return true, false // for the server
	case known:
		answer := *m
		answer.Raw = append([]byte(nil), m.Raw...)
		request.response <- &answer // buffered, does not block
	}
	return known, known
}

// expect returns an id for a request of the gateway about a server, and the channel for the
// response.
func (q *serverRequests) expect(server string) (id []byte, answer <-chan *jsonrpc.Message, forget func()) {
	id = jsonrpc.Quote(server + mcp.Separator + rand.Text())
	responses := make(chan *jsonrpc.Message, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(id, serverRequest{response: responses})
	return id, responses, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.byID, keyOf(id))
	}
}

// keyOf returns the value of a JSON id, independent of escapes.
func keyOf(id []byte) string {
	if len(id) < 2 || id[0] != '"' {
		return string(id)
	}
	return string(jsonspan.AppendText([]byte{'"'}, id[1:len(id)-1]))
}
