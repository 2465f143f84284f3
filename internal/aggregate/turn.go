package aggregate

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A turn is a request of a client and the response to it.
type turn struct {
	a       *Aggregate
	r       *http.Request
	m       *jsonrpc.Message // what it posts
	era     mcp.Era
	version string // of the protocol, as the header has it
	client  *client
	who     Visitor
	found   bool // what is called is not what was posted, but named in it
	asked   bool // somebody has been, whether the client may do this
	led     led  // to the resource that it is about
	w       http.ResponseWriter
	out     *streamable.Writer
	asides  Asides
	result  Result
}

// A Visitor is whom a request comes from.
type Visitor struct {
	Identity string // as far as it has proved it
	Address  string // of its machine

	// Admit is asked once for each request, whether the client may do what it is
	// about. If it is nil, it may.
	Admit func(mcp.Target) *jsonrpc.Failure
}

// owner returns whom something is kept for: the client or, if it is not known, all at its
// address. A network of IPv6 is one address.
func (v Visitor) owner() string {
	if v.Identity == "" {
		return "@" + ratelimit.Address(v.Address)
	}
	return v.Identity
}

// Serve answers a request. It has been read already: m is what it posts, if it
// posts something.
func (a *Aggregate) Serve(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message, who Visitor) Result {
	t := &turn{a: a, r: r, m: m, who: who, version: r.Header.Get(mcp.VersionHeader)}
	t.w, t.out = w, streamable.NewWriter(w, r.Header)
	defer func() {
		if t.client != nil {
			a.release(t.client)
		}
	}()
	defer t.out.Close()
	defer t.asides.Wait()
	failure := t.serve()
	if failure != nil && !t.asked {
		// What is wrong with a request is told only to whom it may make one, and counts
		// for one.
		if refused := t.admit(mcp.Target{}); refused != nil {
			failure = refused
		}
	}
	if failure != nil && t.out.Streaming() {
		t.out.Answer(failure.Status, &streamable.Event{Data: failure.Append(nil, m.Literal(jsonrpc.ID))})
		t.result.Code = failure.Code
	} else {
		t.result.Failure = failure
	}
	return t.result
}

// admit asks whether the client may do this.
func (t *turn) admit(target mcp.Target) *jsonrpc.Failure {
	if t.asked = true; t.who.Admit == nil {
		return nil
	}
	return t.who.Admit(target)
}

// general returns what a request is about that names nothing.
func (t *turn) general() mcp.Target {
	if !t.a.transparent() || t.r.Method != http.MethodPost {
		return mcp.Target{}
	}
	target, _ := mcp.TargetOf(t.a.config.Servers[0].Name, t.m)
	return target
}

// sees reports whether the client may know of a server.
func (t *turn) sees(s *Server) bool { return t.a.sees(t.who.Identity, s) }

func (a *Aggregate) sees(identity string, s *Server) bool {
	return a.config.Sees == nil || a.config.Sees(identity, s.Name)
}

// seen returns the servers that a client may know of.
func (a *Aggregate) seen(identity string) []*Server {
	if a.config.Sees == nil {
		return a.config.Servers
	}
	return slices.DeleteFunc(slices.Clone(a.config.Servers), func(s *Server) bool { return !a.sees(identity, s) })
}

func (t *turn) serve() *jsonrpc.Failure {
	if t.r.Method != http.MethodPost || !t.m.IsRequest() || !mcp.HasTarget(t.m.Text(jsonrpc.Method)) {
		if failure := t.admit(t.general()); failure != nil {
			return failure
		}
	}
	switch t.r.Method {
	case http.MethodPost:
		return t.post()
	case http.MethodGet, http.MethodDelete:
		if t.version != "" && !mcp.IsLegacy(t.version) {
			return t.notAllowed("POST") // in the modern era all is posted
		}
		if failure := t.join(); failure != nil {
			return failure
		}
		if t.r.Method == http.MethodGet {
			return t.get()
		}
		return t.delete()
	}
	return t.notAllowed("POST, GET, DELETE")
}

func (t *turn) notAllowed(allow string) *jsonrpc.Failure {
	t.w.Header().Set("Allow", allow)
	return jsonrpc.MethodNotAllowed()
}

// join finds the session that the request names.
func (t *turn) join() (failure *jsonrpc.Failure) {
	id := t.r.Header.Get(mcp.SessionHeader)
	if id == "" {
		if t.r.Method == http.MethodGet {
			// What clients of the first revision, and people with a browser, try.
			return t.notAllowed("POST")
		}
		return jsonrpc.InvalidRequest("the header Mcp-Session-Id is missing: initialize first")
	}
	t.client, failure = t.a.session(id, t.who)
	return failure
}

// post answers a message.
func (t *turn) post() *jsonrpc.Failure {
	if failure := t.m.Check(); failure != nil {
		return failure
	}
	t.era = mcp.EraOf(t.version, t.m)
	if t.era == mcp.Modern {
		return t.postModern()
	}
	if t.m.IsRequest() && t.m.Is(jsonrpc.Method, "initialize") {
		return t.initialize()
	}
	if failure := t.join(); failure != nil {
		return failure
	}
	switch {
	case t.m.IsNotification():
		t.notify()
		t.accepted()
		return nil
	case !t.m.IsRequest():
		t.reply()
		t.accepted()
		return nil
	}
	switch method := t.m.Text(jsonrpc.Method); method {
	case "ping":
		return t.answer([]byte("{}"))
	case "logging/setLevel":
		return t.setLevel()
	case "resources/subscribe", "resources/unsubscribe":
		return t.subscribe(method == "resources/subscribe")
	default:
		return t.either(method)
	}
}

// postModern answers a message of the modern era.
func (t *turn) postModern() *jsonrpc.Failure {
	if !t.m.IsRequest() {
		t.accepted() // there is none that means anything over HTTP
		return nil
	}
	if failure := mcp.CheckModern(t.r.Header, t.m); failure != nil {
		return failure
	}
	if !t.m.Is(jsonrpc.ProtocolVersion, mcp.Stateless) {
		return jsonrpc.UnsupportedVersion(t.m.Text(jsonrpc.ProtocolVersion), mcp.Versions())
	}
	var failure *jsonrpc.Failure
	if t.client, failure = t.a.visitor(t.r, t.m, t.who); failure != nil {
		return failure
	}
	switch method := t.m.Text(jsonrpc.Method); method {
	case "server/discover":
		return t.discover()
	case mcp.MethodListen:
		return t.listen()
	case "initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe":
		return jsonrpc.MethodNotFound(method) // they were in the legacy era
	default:
		return t.either(method)
	}
}

// either answers what can be asked in both eras.
func (t *turn) either(method string) *jsonrpc.Failure {
	if k, ok := kindOf(method); ok {
		return t.list(k)
	}
	switch method {
	case "tools/call":
		return t.callTool()
	case "prompts/get":
		return t.callNamed(jsonrpc.Name, prompts)
	case "resources/read":
		return t.readResource()
	case "completion/complete":
		return t.complete()
	case "tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
		return t.callTask()
	}
	if t.a.transparent() {
		s := t.a.config.Servers[0]
		return t.pass(s, mcp.Target{Server: s.Name}, nil)
	}
	failure := jsonrpc.MethodNotFound(shortened(method))
	if t.era == mcp.Legacy {
		failure = failure.AsAnswer()
	}
	return failure
}

// shortened returns as much of a name as may be repeated to whoever sent it.
func shortened(name string) string { return strings.ToValidUTF8(name[:min(len(name), 128)], "") }

// accepted answers what wants no answer.
func (t *turn) accepted() {
	t.w.WriteHeader(http.StatusAccepted)
}

// answer answers the request with a result of ours.
func (t *turn) answer(result []byte) *jsonrpc.Failure { return t.answerAs("complete", result) }

// answerAs answers the request with a result of ours, of a type that there is in the
// modern era.
func (t *turn) answerAs(resultType string, result []byte) *jsonrpc.Failure {
	if t.era == mcp.Modern {
		result = t.a.signed(resultType, result)
	}
	t.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(t.m.Literal(jsonrpc.ID), result)})
	return nil
}

// all calls f for all servers that the client may know of at the same time, with its
// link to each.
func (t *turn) all(f func(ctx context.Context, s *Server, l *link)) {
	var calls sync.WaitGroup
	for _, s := range t.a.seen(t.who.Identity) {
		l := t.client.link(s)
		calls.Go(func() { f(t.r.Context(), s, l) })
	}
	calls.Wait()
}
