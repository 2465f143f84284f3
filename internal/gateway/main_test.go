package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An incoming is a request as a server has seen it.
type incoming struct {
	*http.Request
	body    string
	message jsonrpc.Message
	session string
	at      *peer
}

func (a *incoming) method() string {
	if a.Request.Method != http.MethodPost {
		return a.Request.Method
	}
	return a.message.Text(jsonrpc.Method)
}

func (a *incoming) id() string { return string(a.message.Literal(jsonrpc.ID)) }

// reply answers with a result, as JSON.
func (a *incoming) reply(w http.ResponseWriter, result string) {
	a.write(w, http.StatusOK, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result+`}`)
}

// refuse answers with an error.
func (a *incoming) refuse(w http.ResponseWriter, status, code int, message string) {
	a.write(w, status, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, a.id(), code, message))
}

func (a *incoming) write(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// send sends an event. The first one begins the stream.
func (a *incoming) send(w http.ResponseWriter, message string) { a.sendAs(w, "", message) }

func (a *incoming) sendAs(w http.ResponseWriter, head, message string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, head+"data: "+message+"\n\n")
	_ = http.NewResponseController(w).Flush()
}

// finish answers with a result, as an event.
func (a *incoming) finish(w http.ResponseWriter, result string) {
	a.send(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result+`}`)
}

// ask asks the client something on the stream of a call, and returns the answer, or
// nothing if there will be none.
func (a *incoming) ask(w http.ResponseWriter, id, method, params string) string {
	answer := a.at.expect(a.session, id)
	a.send(w, `{"jsonrpc":"2.0","id":`+id+`,"method":"`+method+`","params":`+params+`}`)
	select {
	case text := <-answer:
		return text
	case <-a.Context().Done():
		return ""
	}
}

// A script answers a request.
type script func(w http.ResponseWriter, a *incoming)

// A peer is an MCP server that plays a script.
type peer struct {
	name         string
	speaks       [2]bool // by era
	version      string  // that it answers to initialize; the one asked for if empty
	capabilities string
	instructions string
	sessions     bool   // it has such
	forgotten    script // how it says that it does not know a session

	mu       sync.Mutex
	on       map[string]script
	alive    map[string]bool
	last     int
	arrivals []*incoming
	changed  chan struct{} // closed when something arrives
	answers  map[string]chan string
	down     atomic.Bool
}

const everything = `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{}}`

func newPeer(name string) *peer {
	p := &peer{
		name:         name,
		capabilities: everything,
		sessions:     true,
		on:           map[string]script{},
		alive:        map[string]bool{},
		changed:      make(chan struct{}),
		answers:      map[string]chan string{},
	}
	p.forgotten = func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusNotFound) }
	p.on["tools/call"] = func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"content":[{"type":"text","text":`+string(jsonrpc.Quote(p.name))+`}]}`)
	}
	p.on["GET"] = func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusMethodNotAllowed) }
	for _, k := range mcp.ListKinds {
		p.has(k.Method, k.Member)
	}
	return p
}

func legacyPeer(name string) *peer {
	p := newPeer(name)
	p.speaks[mcp.Legacy] = true
	return p
}

func modernPeer(name string) *peer {
	p := newPeer(name)
	p.speaks[mcp.Modern] = true
	return p
}

// does has requests of a method answered by a script. HTTP methods are methods, too.
func (p *peer) does(method string, s script) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on[method] = s
	return p
}

// has gives the peer a list of one page.
func (p *peer) has(method, member string, items ...string) *peer {
	return p.does(method, func(w http.ResponseWriter, a *incoming) {
		more := ""
		if a.Header.Get(mcp.VersionHeader) == mcp.Stateless {
			more = `,"resultType":"complete","ttlMs":0,"cacheScope":"private"`
		}
		a.reply(w, `{"`+member+`":[`+strings.Join(items, ",")+`]`+more+`}`)
	})
}

// hasTools gives the peer tools of these names.
func (p *peer) hasTools(names ...string) *peer {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = `{"name":` + string(jsonrpc.Quote(name)) + `,"inputSchema":{"type":"object"}}`
	}
	return p.has("tools/list", "tools", items...)
}

// listens has the peer keep GET streams open, which hear of what say is given.
func (p *peer) listens() (say func(message string)) {
	var mu sync.Mutex
	streams := map[http.ResponseWriter]*incoming{}
	p.does("GET", func(w http.ResponseWriter, a *incoming) {
		mu.Lock()
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		streams[w] = a
		mu.Unlock()
		<-a.Context().Done()
		mu.Lock()
		delete(streams, w)
		mu.Unlock()
	})
	return func(message string) {
		mu.Lock()
		defer mu.Unlock()
		for w, a := range streams {
			a.send(w, message)
		}
	}
}

func (p *peer) expect(session, id string) <-chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := make(chan string, 1)
	p.answers[session+" "+id] = answer
	return answer
}

// forget has the peer forget all sessions.
func (p *peer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.alive)
}

// heard returns the requests of a method.
func (p *peer) heard(method string) (all []*incoming) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arrivals {
		if a.method() == method {
			all = append(all, a)
		}
	}
	return all
}

func (p *peer) count(method string) int { return len(p.heard(method)) }

// await waits until so many requests of a method have come, and returns the last.
func (p *peer) await(t testing.TB, method string, n int) *incoming {
	t.Helper()
	timer := time.NewTimer(await.Patience)
	defer timer.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if all := p.heard(method); len(all) >= n {
			return all[n-1]
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("%s has heard %d × %s, want %d", p.name, p.count(method), method, n)
		}
	}
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.down.Load() {
		panic(http.ErrAbortHandler)
	}
	a := &incoming{Request: r, session: r.Header.Get(mcp.SessionHeader), at: p}
	body, _ := io.ReadAll(r.Body)
	a.body = string(body)
	if len(body) > 0 {
		if failure := a.message.Read(body); failure != nil {
			a.write(w, http.StatusBadRequest, string(failure.Append(nil, nil)))
			return
		}
	}
	method := a.method()
	p.mu.Lock()
	p.arrivals = append(p.arrivals, a)
	close(p.changed)
	p.changed = make(chan struct{})
	answer := p.on[method]
	known := !p.sessions || p.alive[a.session]
	p.mu.Unlock()

	if r.Header.Get(mcp.VersionHeader) == mcp.Stateless || a.message.Has(jsonrpc.ProtocolVersion) {
		p.serveModern(w, a, answer)
		return
	}
	switch {
	case !p.speaks[mcp.Legacy]:
		a.write(w, http.StatusNotFound, `{"jsonrpc":"2.0","id":`+string(jsonrpc.Quote("x"))+`,"error":{"code":-32601,"message":"method not found"}}`)
	case method == "initialize" && answer == nil:
		p.initialize(w, a)
	case method != "initialize" && !known:
		p.forgotten(w, a)
	case r.Method == http.MethodDelete:
		p.mu.Lock()
		delete(p.alive, a.session)
		p.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPost && a.message.IsAnswer():
		p.mu.Lock()
		waiting := p.answers[a.session+" "+a.id()]
		delete(p.answers, a.session+" "+a.id())
		p.mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
		if waiting != nil {
			waiting <- a.body
		}
	case answer != nil:
		answer(w, a)
	case r.Method == http.MethodPost && a.message.IsNotification():
		w.WriteHeader(http.StatusAccepted)
	case method == "ping", method == "logging/setLevel", method == "resources/subscribe", method == "resources/unsubscribe":
		a.reply(w, "{}")
	default:
		a.refuse(w, http.StatusOK, jsonrpc.CodeMethodNotFound, "method not found")
	}
}

func (p *peer) initialize(w http.ResponseWriter, a *incoming) {
	if p.sessions {
		p.mu.Lock()
		p.last++
		session := p.name + "-session-" + strconv.Itoa(p.last)
		p.alive[session] = true
		p.mu.Unlock()
		w.Header().Set(mcp.SessionHeader, session)
	}
	version := p.version
	if version == "" {
		version = a.message.Text(jsonrpc.Requested)
	}
	a.reply(w, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":%q,"version":"1"},"instructions":%q}`,
		version, p.capabilities, p.name, p.instructions))
}

func (p *peer) serveModern(w http.ResponseWriter, a *incoming, answer script) {
	switch {
	case !p.speaks[mcp.Modern]:
		a.write(w, http.StatusBadRequest, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: no session"}}`)
		return
	case mcp.CheckModern(a.Header, &a.message) != nil:
		failure := mcp.CheckModern(a.Header, &a.message)
		a.write(w, failure.Status, string(failure.Append(nil, a.message.Literal(jsonrpc.ID))))
		return
	}
	switch method := a.method(); {
	case answer != nil:
		answer(w, a)
	case method == "server/discover":
		versions := `"2026-07-28"`
		if p.speaks[mcp.Legacy] {
			versions += `,"2025-11-25"`
		}
		a.reply(w, fmt.Sprintf(`{"resultType":"complete","supportedVersions":[%s],"capabilities":%s,"instructions":%q,"ttlMs":0,"cacheScope":"private"}`, versions,
			p.capabilities, p.instructions))
	default:
		a.refuse(w, http.StatusNotFound, jsonrpc.CodeMethodNotFound, "method not found")
	}
}

// toPeer is the way to a peer: its handler is called, and writes the response.
type toPeer struct{ *peer }

func (toPeer) Derive(ctx context.Context, r *http.Request, _ bool) *http.Request {
	derived := r.WithContext(ctx)
	derived.Header = r.Header.Clone()
	derived.URL = new(url.URL)
	*derived.URL = *r.URL
	derived.Body, derived.GetBody, derived.ContentLength = http.NoBody, nil, 0
	return derived
}

func (toPeer) Describe(*http.Request, func(string) (any, bool)) {}

func (to toPeer) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	sent := r.WithContext(r.Context())
	sent.Header = r.Header.Clone() // the peer remembers it
	to.ServeHTTP(w, sent)
	return r.Context().Err()
}

// An observed is an Observer that remembers what it is told.
type observed struct {
	mu         sync.Mutex
	records    []upstream.Record
	denials    []inbound.Denial
	calls      []inbound.Call
	invalid    []string // tools, with the reason
	faults     []upstream.Fault
	overridden []string // tools that are hidden or missing
	up         []string // servers that have answered
	listed     []string // servers with how many they have of a kind
}

func (o *observed) RequestDone(r upstream.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.records = append(o.records, r)
}

func (o *observed) Denied(d *inbound.Denial) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.denials = append(o.denials, *d)
}

func (o *observed) CallDone(c inbound.Call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, c)
}

func (*observed) Redacted(string, int) {}

func (*observed) ToolChanged(string, string) {}

func (o *observed) ToolInvalid(server, tool string, reason error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.invalid = append(o.invalid, server+" "+tool+": "+reason.Error())
}

func (o *observed) ToolHidden(server, tool, by string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overridden = append(o.overridden, server+" "+tool+" hidden by "+by)
}

func (o *observed) ToolMissing(server, tool string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overridden = append(o.overridden, server+" "+tool+" missing")
}

func (*observed) ToolsSeen(string) {}

func (o *observed) ServerFailed(f *upstream.Fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = append(o.faults, *f)
}

func (o *observed) ServerAnswered(server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.up = append(o.up, server)
}

func (o *observed) Listed(server, kind string, items int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listed = append(o.listed, fmt.Sprint(server, " ", items, " ", kind))
}

// takeRecords returns the records since the last call.
func (o *observed) takeRecords() []upstream.Record {
	o.mu.Lock()
	defer o.mu.Unlock()
	records := o.records
	o.records = nil
	return records
}

// takeDenials returns the denials since the last call.
func (o *observed) takeDenials() []inbound.Denial {
	o.mu.Lock()
	defer o.mu.Unlock()
	denials := o.denials
	o.denials = nil
	return denials
}

// takeCalls returns the calls since the last call.
func (o *observed) takeCalls() []inbound.Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	calls := o.calls
	o.calls = nil
	return calls
}

// A front is a Gateway that can be reached over HTTP.
type front struct {
	active atomic.Int32 // requests whose handler has not returned
	*Gateway
	t         testing.TB
	transport http.RoundTripper
	url       string
	serving   atomic.Pointer[Gateway] // the same, for those who serve
}

var testKey = []byte("0123456789abcdef0123456789abcdef")

// configOf returns the Config of a Gateway of peers.
func configOf(configure func(*Config), peers ...*peer) Config {
	config := Config{
		Config: inbound.Config{
			Name: "all", Version: "1",
			Key:            testKey,
			JoinTimeout:    await.Patience / 2,
			Logger:         zap.NewNop(),
			Exiting:        context.Background(),
			Reauthenticate: context.Background(),
			RequestLimit:   16 << 20,
			InFlightLimit:  256 << 20,
		},
		Naming:     mcp.Naming{Separator: "::"},
		MaxClients: 10_000,
		Observer:   new(observed),
		Detach:     func(context.Context) context.Context { return context.Background() },
		Generation: new(int),
	}
	for _, p := range peers {
		config.Servers = append(config.Servers, &upstream.Server{
			Name: p.name, ID: p.name, Routes: toPeer{p}, Target: &url.URL{Path: "/"}, Timeout: 1_000 * time.Hour,
			ForwardAuth: true, Pins: new(toolpin.Pins), Streams: context.Background(),
		})
	}
	if configure != nil {
		configure(&config)
	}
	return config
}

// joining returns a Gateway of peers.
func joining(configure func(*Config), peers ...*peer) *Gateway {
	return joiningIn(nil, configure, peers...)
}

// joiningIn returns one that shares what is in a space, which may be nil.
func joiningIn(space *replicas.Space, configure func(*Config), peers ...*peer) *Gateway {
	return New(configOf(configure, peers...), NewState(space), NewRetained(space, false))
}

// newGateway returns a gateway that listens on the network.
func newGateway(t testing.TB, configure func(*Config), peers ...*peer) *front {
	return onNetwork(t, joining(configure, peers...))
}

// onNetwork has a gateway listen on the network, until the test ends.
func onNetwork(t testing.TB, gateway *Gateway) *front {
	g := &front{Gateway: gateway, t: t}
	g.serving.Store(g.Gateway)
	front := httptest.NewServer(g)
	transport := &http.Transport{MaxIdleConnsPerHost: 1_000}
	g.transport, g.url = transport, front.URL
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		front.CloseClientConnections()
		front.Close()
		g.close()
	})
	return g
}

func (g *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.active.Add(1)
	defer g.active.Add(-1)
	from := inbound.Peer{User: r.Header.Get("X-Identity"), Address: "192.0.2.1"}
	to := inbound.Endpoint{Kind: upstream.Aggregate}
	if server := r.Header.Get("X-Single"); server != "" {
		to = inbound.Endpoint{Kind: upstream.Single, Server: server}
	}
	if server := r.Header.Get("X-Rpc"); server != "" {
		to = inbound.Endpoint{Kind: upstream.RPC, Server: server}
	}
	g.serving.Load().NewRequest(w, r, to, from).Serve()
}

// A user is a client of the gateway.
type user struct {
	t        testing.TB
	g        *front
	era      mcp.Era
	version  string
	identity string
	can      string // capabilities
	info     string
	accept   string
	session  string
	hello    said // the answer to its initialize
	header   http.Header
	last     atomic.Int64
}

// asksAll are the capabilities of a client that can be asked everything.
const asksAll = `{"sampling":{},"elicitation":{},"roots":{}}`

func (g *front) user(t testing.TB, era mcp.Era) *user {
	u := &user{t: t, g: g, era: era, version: mcp.Latest, can: asksAll, info: `{"name":"test","version":"1"}`,
		accept: "application/json, text/event-stream", header: http.Header{}}
	if era == mcp.Modern {
		u.version = mcp.Stateless
	}
	return u
}

// legacy returns a client of the legacy era that has a session.
func (g *front) legacy(t testing.TB) *user {
	t.Helper()
	return g.user(t, mcp.Legacy).connect()
}

// modern returns a client of the modern era.
func (g *front) modern(t testing.TB) *user { return g.user(t, mcp.Modern) }

// connect begins a session.
func (u *user) connect() *user {
	u.t.Helper()
	u.hello = u.ask("initialize", `{"protocolVersion":"`+u.version+`","capabilities":`+u.can+`,"clientInfo":`+u.info+`}`)
	if u.session = u.hello.header.Get(mcp.SessionHeader); u.session == "" {
		u.t.Fatalf("no session: %+v", u.hello)
	}
	u.tell("notifications/initialized", "")
	return u
}

// at returns the same client, with the same session, at another gateway.
func (u *user) at(g *front) *user {
	return &user{t: u.t, g: g, era: u.era, version: u.version, identity: u.identity, can: u.can, info: u.info,
		accept: u.accept, session: u.session, header: u.header}
}

// event returns the id of an event as the client has got it.
func (u *user) event(id string) string { return u.g.sealer.Bind(id, eventOfSession, u.session) }

// do sends an HTTP request.
func (u *user) do(ctx context.Context, method, body string) (*http.Response, error) {
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.g.url, content)
	if err != nil {
		return nil, err
	}
	for name, values := range u.header {
		r.Header[name] = values
	}
	r.Header.Set("Accept", u.accept)
	if u.identity != "" {
		r.Header.Set("X-Identity", u.identity)
	}
	if u.session != "" {
		r.Header.Set(mcp.SessionHeader, u.session)
		r.Header.Set(mcp.VersionHeader, u.version)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
		var m jsonrpc.Message
		if u.era == mcp.Modern && m.Read([]byte(body)) == nil && m.IsRequest() {
			mcp.SetModern(r.Header, &m, mcp.Stateless)
		}
	}
	return u.g.transport.RoundTrip(r)
}

// said is what came in answer to a request.
type said struct {
	status int
	header http.Header
	body   string     // all of it
	events []received // all of them
	answer string     // the message that answers
	Result json.RawMessage
	Error  *saidError
	broken error
}

type saidError struct {
	Code    int
	Message string
	Data    struct {
		Code       string `json:"code"`
		ServerName string `json:"server_name"`
		URI        string `json:"uri"`
	}
}

func (s *said) code() int {
	if s.Error == nil {
		return 0
	}
	return s.Error.Code
}

// symbol is the symbolic code of an error, empty for none.
func (s *said) symbol() string {
	if s.Error == nil {
		return ""
	}
	return s.Error.Data.Code
}

// request composes a request. A client of the modern era says who it is.
func (u *user) request(id, method, params string) string {
	if u.era == mcp.Modern {
		params = string(mcp.WithMeta([]byte(params), u.meta("")))
	}
	if params == "" {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}`
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

func (u *user) meta(more string) []byte {
	return []byte(`{"io.modelcontextprotocol/protocolVersion":"` + u.version + `","io.modelcontextprotocol/clientInfo":` + u.info +
		`,"io.modelcontextprotocol/clientCapabilities":` + u.can + more + `}`)
}

func (u *user) nextID() string { return strconv.FormatInt(u.last.Add(1), 10) }

// ask sends a request and waits for the whole response.
func (u *user) ask(method, params string) said {
	u.t.Helper()
	return u.post(u.request(u.nextID(), method, params))
}

// call calls a tool.
func (u *user) call(name string) said {
	u.t.Helper()
	return u.ask("tools/call", `{"name":`+string(jsonrpc.Quote(name))+`,"arguments":{}}`)
}

// post posts a message and waits for the whole response.
func (u *user) post(body string) said {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
	defer cancel()
	response, err := u.do(ctx, http.MethodPost, body)
	if err != nil {
		u.t.Errorf("%.200s: %v", body, err)
		return said{broken: err}
	}
	defer response.Body.Close()
	s := said{status: response.StatusCode, header: response.Header}
	text, err := io.ReadAll(response.Body)
	s.body, s.broken = string(text), err
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		events := &reading{lines: bufio.NewReader(strings.NewReader(s.body))}
		for {
			e, err := events.next()
			if err != nil {
				break
			}
			s.events = append(s.events, e)
			if e.isAnswer() {
				s.answer = e.data
			}
		}
	} else {
		s.answer = s.body
	}
	_ = json.Unmarshal([]byte(s.answer), &s)
	return s
}

// tell sends a notification.
func (u *user) tell(method, params string) said {
	u.t.Helper()
	body := `{"jsonrpc":"2.0","method":"` + method + `"}`
	if params != "" {
		body = `{"jsonrpc":"2.0","method":"` + method + `","params":` + params + `}`
	}
	return u.post(body)
}

// answer answers a question.
func (u *user) answer(e received, result string) said {
	u.t.Helper()
	return u.post(`{"jsonrpc":"2.0","id":` + e.id() + `,"result":` + result + `}`)
}

// received is an event.
type received struct{ last, retry, data string }

func (e received) parts() (m jsonrpc.Message) {
	_ = m.Read([]byte(e.data))
	return m
}

func (e received) id() string {
	m := e.parts()
	return string(m.Literal(jsonrpc.ID))
}

func (e received) method() string {
	m := e.parts()
	return m.Text(jsonrpc.Method)
}

func (e received) isAnswer() bool {
	m := e.parts()
	return m.IsAnswer()
}

// reading reads events.
type reading struct{ lines *bufio.Reader }

func (r *reading) next() (e received, err error) {
	var data []string
	for {
		line, err := r.lines.ReadString('\n')
		if err != nil {
			return e, err
		}
		line = strings.TrimRight(line, "\r\n")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && (data != nil || e.last != "" || e.retry != ""):
			e.data = strings.Join(data, "\n")
			return e, nil
		case name == "data":
			data = append(data, value)
		case name == "id":
			e.last = value
		case name == "retry":
			e.retry = value
		}
	}
}

// A talk is a response that is read as it comes.
type talk struct {
	t      testing.TB
	begun  chan struct{} // closed when it has begun, or failed to
	status int
	err    error
	cancel context.CancelFunc
	events chan received // closed at the end
}

// begin sends a request and does not wait for the end of the response.
func (u *user) begin(method, params string) *talk {
	u.t.Helper()
	return u.open(http.MethodPost, u.request(u.nextID(), method, params))
}

// listen opens a GET stream.
func (u *user) listen() *talk {
	u.t.Helper()
	return u.open(http.MethodGet, "")
}

// open sends a request and waits for the beginning of the response.
func (u *user) open(method, body string) *talk {
	u.t.Helper()
	talk := u.start(method, body)
	if <-talk.begun; talk.err != nil {
		u.t.Fatalf("%s %.200s: %v", method, body, talk.err)
	}
	return talk
}

// start sends a request.
func (u *user) start(method, body string) *talk {
	ctx, cancel := context.WithCancel(context.Background())
	talk := &talk{t: u.t, begun: make(chan struct{}), cancel: cancel, events: make(chan received, 64)}
	go func() {
		defer close(talk.events)
		response, err := u.do(ctx, method, body)
		if talk.err = err; err != nil {
			close(talk.begun)
			return
		}
		defer response.Body.Close()
		talk.status = response.StatusCode
		close(talk.begun)
		if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
			text, _ := io.ReadAll(response.Body)
			talk.events <- received{data: string(text)}
			return
		}
		for r := (&reading{lines: bufio.NewReader(response.Body)}); ; {
			e, err := r.next()
			if err != nil {
				return
			}
			select {
			case talk.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	u.t.Cleanup(talk.hangUp)
	return talk
}

// hangUp ends the request, and waits until nothing more is read.
func (k *talk) hangUp() {
	k.cancel()
	for range k.events {
	}
}

// next returns the next event.
func (k *talk) next() received {
	k.t.Helper()
	timer := time.NewTimer(await.Patience)
	defer timer.Stop()
	select {
	case e, ok := <-k.events:
		if !ok {
			k.t.Fatal("the stream has ended")
		}
		return e
	case <-timer.C:
		k.t.Fatal("nothing came")
	}
	return received{}
}

// nextOf returns the next event of a method, or the next answer if it is empty.
func (k *talk) nextOf(method string) received {
	k.t.Helper()
	for {
		if e := k.next(); e.method() == method {
			return e
		}
	}
}

// ended waits for the end of the response.
func (k *talk) ended() {
	k.t.Helper()
	timer := time.NewTimer(await.Patience)
	defer timer.Stop()
	for {
		select {
		case _, ok := <-k.events:
			if !ok {
				return
			}
		case <-timer.C:
			k.t.Fatal("the stream has not ended")
		}
	}
}

// names returns the names in a list.
func names(t testing.TB, s said, member, key string) (all []string) {
	t.Helper()
	var result map[string]json.RawMessage
	var items []map[string]any
	if json.Unmarshal(s.Result, &result) != nil || json.Unmarshal(result[member], &items) != nil {
		t.Fatalf("no %s in %s", member, s.body)
	}
	for _, item := range items {
		name, _ := item[key].(string)
		all = append(all, name)
	}
	return all
}

// memory is a way to the gateway without a network, which can be used where time is
// not real.
type memory struct{ http.Handler }

func (m memory) RoundTrip(r *http.Request) (*http.Response, error) {
	from, to := io.Pipe()
	ctx, cancel := context.WithCancel(r.Context())
	w := &memoryWriter{header: http.Header{}, body: to, begun: make(chan struct{})}
	r = r.WithContext(ctx)
	if r.Body == nil {
		r.Body = http.NoBody
	}
	go func() {
		defer cancel()
		defer func() {
			p := recover()
			w.WriteHeader(http.StatusOK)
			if p != nil && p != http.ErrAbortHandler {
				panic(p)
			}
			if p != nil {
				_ = to.CloseWithError(io.ErrUnexpectedEOF)
			}
			_ = to.Close()
		}()
		m.ServeHTTP(w, r)
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done():
		<-w.begun
	}
	return &http.Response{StatusCode: w.status, Header: w.sent, Body: &memoryBody{from, cancel}}, nil
}

type memoryBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *memoryBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

type memoryWriter struct {
	header, sent http.Header
	status       int
	body         *io.PipeWriter
	begun        chan struct{}
}

func (w *memoryWriter) Header() http.Header { return w.header }

func (w *memoryWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	}
}

func (w *memoryWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *memoryWriter) FlushError() error { w.WriteHeader(http.StatusOK); return nil }

// newMemory returns a gateway without a network. Close is up to the caller.
func newMemory(t testing.TB, configure func(*Config), peers ...*peer) *front {
	return inMemory(t, joining(configure, peers...))
}

// inMemory has a gateway serve without a network. Close is up to the caller.
func inMemory(t testing.TB, gateway *Gateway) *front {
	g := &front{Gateway: gateway, t: t, url: "http://gateway.invalid/mcp"}
	g.serving.Store(g.Gateway)
	g.transport = memory{g}
	return g
}

// close ends what is held.
func (g *front) close() {
	g.Close()
	for _, r := range g.config.Observer.(*observed).takeRecords() {
		if r.Outcome == upstream.OutcomePanic {
			g.t.Errorf("recorded as a panic: %+v", r)
		}
	}
	_ = g.State.Destruct()
	_ = g.Retained.Destruct()
}

// known returns all clients that are remembered.
func (g *front) known() []*client { return g.clients() }
