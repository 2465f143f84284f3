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

// An incoming is a request as a server received it.
type incoming struct {
	*http.Request
	body    string
	message jsonrpc.Message
	session string
	at      *fakeServer
}

func (a *incoming) method() string {
	if a.Request.Method != http.MethodPost {
		return a.Request.Method
	}
	return a.message.Text(jsonrpc.Method)
}

func (a *incoming) id() string { return string(a.message.Literal(jsonrpc.ID)) }

// reply answers with a JSON result.
func (a *incoming) reply(w http.ResponseWriter, result string) {
	if a.at.endless {
		a.finish(w, result)
		<-a.Context().Done()
		return
	}
	null := ""
	if a.at.nullErrors {
		null = `,"error":null`
	}
	a.write(w, http.StatusOK, `{"jsonrpc":"2.0","id":`+a.id()+null+`,"result":`+result+`}`)
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

// send sends an event. The first one starts the stream.
func (a *incoming) send(w http.ResponseWriter, message string) { a.sendAs(w, "", message) }

func (a *incoming) sendAs(w http.ResponseWriter, head, message string) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, head+"data: "+message+"\n\n")
	_ = http.NewResponseController(w).Flush()
}

// finish answers with a result in an event.
func (a *incoming) finish(w http.ResponseWriter, result string) {
	a.send(w, `{"jsonrpc":"2.0","id":`+a.id()+`,"result":`+result+`}`)
}

// ask sends a request to the client in the stream of a call. It returns the response, or "" if
// there is none.
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

// A fakeServer is an MCP server that answers with scripts.
type fakeServer struct {
	name             string
	eras             [2]bool // by era
	version          string  // answered to initialize; the requested one if empty
	capabilities     string
	instructions     string
	sessions         bool   // has sessions
	nullErrors       bool   // results have an error that is null
	endless          bool   // results are events of streams that do not end
	onUnknownSession script // answers requests in an unknown session

	mu       sync.Mutex
	on       map[string]script
	alive    map[string]bool
	last     int
	arrivals []*incoming
	changed  chan struct{} // closed when a request arrives
	answers  map[string]chan string
	down     atomic.Bool
}

const everything = `{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"logging":{},` +
	`"completions":{}}`

func newPeer(name string) *fakeServer {
	p := &fakeServer{
		name:         name,
		capabilities: everything,
		sessions:     true,
		on:           map[string]script{},
		alive:        map[string]bool{},
		changed:      make(chan struct{}),
		answers:      map[string]chan string{},
	}
	p.onUnknownSession = func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusNotFound) }
	p.on["tools/call"] = func(w http.ResponseWriter, a *incoming) {
		a.reply(w, `{"content":[{"type":"text","text":`+string(jsonrpc.Quote(p.name))+`}]}`)
	}
	p.on["GET"] = func(w http.ResponseWriter, _ *incoming) { w.WriteHeader(http.StatusMethodNotAllowed) }
	for _, k := range mcp.ListKinds {
		p.hasList(k.Method, k.Member)
	}
	return p
}

func legacyPeer(name string) *fakeServer {
	p := newPeer(name)
	p.eras[mcp.Legacy] = true
	return p
}

func modernPeer(name string) *fakeServer {
	p := newPeer(name)
	p.eras[mcp.Modern] = true
	return p
}

// handle sets the script for a method of MCP or HTTP.
func (p *fakeServer) handle(method string, s script) *fakeServer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on[method] = s
	return p
}

// hasList gives the server a list with one page.
func (p *fakeServer) hasList(method, member string, items ...string) *fakeServer {
	return p.handle(method, func(w http.ResponseWriter, a *incoming) {
		more := ""
		if a.Header.Get(mcp.VersionHeader) == mcp.Stateless {
			more = `,"resultType":"complete","ttlMs":0,"cacheScope":"private"`
		}
		a.reply(w, `{"`+member+`":[`+strings.Join(items, ",")+`]`+more+`}`)
	})
}

// hasTools gives the server tools with these names.
func (p *fakeServer) hasTools(names ...string) *fakeServer {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = `{"name":` + string(jsonrpc.Quote(name)) + `,"inputSchema":{"type":"object"}}`
	}
	return p.hasList("tools/list", "tools", items...)
}

// keepStreams makes the server keep GET streams open. say sends a message to all of them.
func (p *fakeServer) keepStreams() (say func(message string)) {
	var mu sync.Mutex
	streams := map[http.ResponseWriter]*incoming{}
	p.handle("GET", func(w http.ResponseWriter, a *incoming) {
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

func (p *fakeServer) expect(session, id string) <-chan string {
	p.mu.Lock()
	defer p.mu.Unlock()
	answer := make(chan string, 1)
	p.answers[session+" "+id] = answer
	return answer
}

// forget makes the server forget all sessions.
func (p *fakeServer) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.alive)
}

// requests returns the requests with a method.
func (p *fakeServer) requests(method string) (all []*incoming) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.arrivals {
		if a.method() == method {
			all = append(all, a)
		}
	}
	return all
}

func (p *fakeServer) count(method string) int { return len(p.requests(method)) }

// waitFor waits until n requests with a method have arrived, and returns the last.
func (p *fakeServer) waitFor(t testing.TB, method string, n int) *incoming {
	t.Helper()
	timer := time.NewTimer(await.Patience)
	defer timer.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if all := p.requests(method); len(all) >= n {
			return all[n-1]
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("%s received %d × %s, want %d", p.name, p.count(method), method, n)
		}
	}
}

func (p *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	case !p.eras[mcp.Legacy]:
		a.write(w, http.StatusNotFound, `{"jsonrpc":"2.0","id":`+string(jsonrpc.Quote("x"))+
			`,"error":{"code":-32601,"message":"method not found"}}`)
	case method == "initialize" && answer == nil:
		p.initialize(w, a)
	case method != "initialize" && !known:
		p.onUnknownSession(w, a)
	case r.Method == http.MethodDelete:
		p.mu.Lock()
		delete(p.alive, a.session)
		p.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPost && a.message.IsResponse():
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
	case method == "ping", method == "logging/setLevel", method == "resources/subscribe",
		method == "resources/unsubscribe":
		a.reply(w, "{}")
	default:
		a.refuse(w, http.StatusOK, jsonrpc.CodeMethodNotFound, "method not found")
	}
}

func (p *fakeServer) initialize(w http.ResponseWriter, a *incoming) {
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
	a.reply(w, fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":%q,"version":"1"},`+
		`"instructions":%q}`,
		version, p.capabilities, p.name, p.instructions))
}

func (p *fakeServer) serveModern(w http.ResponseWriter, a *incoming, answer script) {
	switch {
	case !p.eras[mcp.Modern]:
		a.write(w, http.StatusBadRequest, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,`+
			`"message":"Bad Request: no session"}}`)
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
		if p.eras[mcp.Legacy] {
			versions += `,"2025-11-25"`
		}
		a.reply(w, fmt.Sprintf(`{"resultType":"complete","supportedVersions":[%s],"capabilities":%s,"instructions":%q,`+
			`"ttlMs":0,"cacheScope":"private"}`, versions,
			p.capabilities, p.instructions))
	default:
		a.refuse(w, http.StatusNotFound, jsonrpc.CodeMethodNotFound, "method not found")
	}
}

// fakeRoutes calls the handler of a fakeServer directly.
type fakeRoutes struct{ *fakeServer }

func (fakeRoutes) Derive(ctx context.Context, r *http.Request, _ bool) *http.Request {
	derived := r.WithContext(ctx)
	derived.Header = r.Header.Clone()
	derived.URL = new(url.URL)
	*derived.URL = *r.URL
	derived.Body, derived.GetBody, derived.ContentLength = http.NoBody, nil, 0
	return derived
}

func (fakeRoutes) Describe(*http.Request, func(string) (any, bool)) {}

func (to fakeRoutes) Serve(w http.ResponseWriter, r *http.Request, account string) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	sent := r.WithContext(r.Context())
	sent.Header = r.Header.Clone() // the server keeps the request
	to.ServeHTTP(w, sent)
	return r.Context().Err()
}

// A recorder is an Observer that records everything.
type recorder struct {
	mu         sync.Mutex
	records    []upstream.Record
	denials    []inbound.Denial
	calls      []inbound.Call
	invalid    []string // tools with the reason
	faults     []upstream.Fault
	overridden []string // tools that are hidden or missing
	up         []string // servers that answered
	listed     []string // servers with the number of items of a kind
}

func (o *recorder) RequestDone(r upstream.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.records = append(o.records, r)
}

func (o *recorder) Denied(d *inbound.Denial) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.denials = append(o.denials, *d)
}

func (o *recorder) CallDone(c inbound.Call) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls = append(o.calls, c)
}

func (*recorder) Redacted(string, int) {}

func (*recorder) ToolChanged(string, string) {}

func (o *recorder) ToolInvalid(server, tool string, reason error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.invalid = append(o.invalid, server+" "+tool+": "+reason.Error())
}

func (o *recorder) ToolHidden(server, tool, renamed string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overridden = append(o.overridden, server+" "+tool+" hidden by "+renamed)
}

func (o *recorder) ToolMissing(server, tool string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.overridden = append(o.overridden, server+" "+tool+" missing")
}

func (*recorder) ToolsSeen(string) {}

func (o *recorder) ServerFailed(f *upstream.Fault) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.faults = append(o.faults, *f)
}

func (o *recorder) ServerAnswered(server string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.up = append(o.up, server)
}

func (o *recorder) Listed(server, kind string, items int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listed = append(o.listed, fmt.Sprint(server, " ", items, " ", kind))
}

// takeRecords returns the records since the last call.
func (o *recorder) takeRecords() []upstream.Record {
	o.mu.Lock()
	defer o.mu.Unlock()
	records := o.records
	o.records = nil
	return records
}

// takeDenials returns the denials since the last call.
func (o *recorder) takeDenials() []inbound.Denial {
	o.mu.Lock()
	defer o.mu.Unlock()
	denials := o.denials
	o.denials = nil
	return denials
}

// takeCalls returns the calls since the last call.
func (o *recorder) takeCalls() []inbound.Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	calls := o.calls
	o.calls = nil
	return calls
}

// A testGateway is a Gateway with an HTTP handler.
type testGateway struct {
	active atomic.Int32 // requests whose handler has not returned
	*Gateway
	t         testing.TB
	transport http.RoundTripper
	url       string
	serving   atomic.Pointer[Gateway] // the same Gateway, for the handler
}

var testKey = []byte("0123456789abcdef0123456789abcdef")

// testConfig returns the Config of a Gateway with these servers.
func testConfig(configure func(*Config), peers ...*fakeServer) Config {
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
		Observer:   new(recorder),
		Detach:     func(context.Context) context.Context { return context.Background() },
		Generation: new(int),
	}
	for _, p := range peers {
		config.Servers = append(config.Servers, &upstream.Server{
			Name: p.name, ID: p.name, Routes: fakeRoutes{p}, Target: &url.URL{Path: "/"}, Timeout: 1_000 * time.Hour,
			ForwardAuth: true, Pins: new(toolpin.Pins), Streams: context.Background(),
		})
	}
	if configure != nil {
		configure(&config)
	}
	return config
}

// newBareGateway returns a Gateway with these servers, without a handler.
func newBareGateway(configure func(*Config), peers ...*fakeServer) *Gateway {
	return newBareGatewayIn(nil, configure, peers...)
}

// newBareGatewayIn is like newBareGateway. space may be nil.
func newBareGatewayIn(space *replicas.Space, configure func(*Config), peers ...*fakeServer) *Gateway {
	return New(testConfig(configure, peers...), NewState(space), NewRetained(space, false))
}

// newGateway returns a gateway that listens on the network.
func newGateway(t testing.TB, configure func(*Config), peers ...*fakeServer) *testGateway {
	return serveHTTP(t, newBareGateway(configure, peers...))
}

// serveHTTP makes a gateway listen on the network until the test ends.
func serveHTTP(t testing.TB, gateway *Gateway) *testGateway {
	g := &testGateway{Gateway: gateway, t: t}
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

func (g *testGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// A testClient is a client of the gateway.
type testClient struct {
	t            testing.TB
	g            *testGateway
	era          mcp.Era
	version      string
	identity     string
	capabilities string
	info         string
	accept       string
	session      string
	hello        reply // the answer to initialize
	header       http.Header
	last         atomic.Int64
}

// allCapabilities are the capabilities of a client that supports all server requests.
const allCapabilities = `{"sampling":{},"elicitation":{},"roots":{}}`

func (g *testGateway) user(t testing.TB, era mcp.Era) *testClient {
	u := &testClient{t: t, g: g, era: era, version: mcp.Latest, capabilities: allCapabilities,
		info:   `{"name":"test","version":"1"}`,
		accept: "application/json, text/event-stream", header: http.Header{}}
	if era == mcp.Modern {
		u.version = mcp.Stateless
	}
	return u
}

// legacy returns a legacy client with a session.
func (g *testGateway) legacy(t testing.TB) *testClient {
	t.Helper()
	return g.user(t, mcp.Legacy).connect()
}

// modern returns a modern client.
func (g *testGateway) modern(t testing.TB) *testClient { return g.user(t, mcp.Modern) }

// connect begins a session.
func (u *testClient) connect() *testClient {
	u.t.Helper()
	u.hello = u.ask("initialize", `{"protocolVersion":"`+u.version+`","capabilities":`+u.capabilities+`,"clientInfo":`+
		u.info+`}`)
	if u.session = u.hello.header.Get(mcp.SessionHeader); u.session == "" {
		u.t.Fatalf("no session: %+v", u.hello)
	}
	u.notify("notifications/initialized", "")
	return u
}

// atGateway returns the same client, with the same session, at another gateway.
func (u *testClient) atGateway(g *testGateway) *testClient {
	return &testClient{t: u.t, g: g, era: u.era, version: u.version, identity: u.identity, capabilities: u.capabilities,
		info:   u.info,
		accept: u.accept, session: u.session, header: u.header}
}

// event returns an event id as the client gets it.
func (u *testClient) event(id string) string { return u.g.sealer.Bind(id, eventOfSession, u.session) }

// do sends an HTTP request.
func (u *testClient) do(ctx context.Context, method, body string) (*http.Response, error) {
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

// A reply is the complete response to a request.
type reply struct {
	status int
	header http.Header
	body   string     // complete body
	events []received // all events
	answer string     // the message that answers the request
	Result json.RawMessage
	Error  *responseError
	broken error
}

type responseError struct {
	Code    int
	Message string
	Data    struct {
		Code       string `json:"code"`
		ServerName string `json:"server_name"`
		URI        string `json:"uri"`
	}
}

func (s *reply) code() int {
	if s.Error == nil {
		return 0
	}
	return s.Error.Code
}

// symbol returns the symbolic code of an error, "" for none.
func (s *reply) symbol() string {
	if s.Error == nil {
		return ""
	}
	return s.Error.Data.Code
}

// request returns a request, with _meta for modern clients.
func (u *testClient) request(id, method, params string) string {
	if u.era == mcp.Modern {
		params = string(mcp.WithMeta([]byte(params), u.meta("")))
	}
	if params == "" {
		return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `"}`
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":` + params + `}`
}

// serverRequest returns the HTTP request with a request of a modern client, as the gateway gets it.
func (u *testClient) serverRequest(method, params string) *http.Request {
	u.t.Helper()
	body := u.request("1", method, params)
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	var m jsonrpc.Message
	if failure := m.Read([]byte(body)); failure != nil {
		u.t.Fatal(failure)
	}
	mcp.SetModern(r.Header, &m, mcp.Stateless)
	return r
}

func (u *testClient) meta(more string) []byte {
	return []byte(`{"io.modelcontextprotocol/protocolVersion":"` + u.version + `","io.modelcontextprotocol/clientInfo":` +
		u.info +
		`,"io.modelcontextprotocol/clientCapabilities":` + u.capabilities + more + `}`)
}

func (u *testClient) nextID() string { return strconv.FormatInt(u.last.Add(1), 10) }

// ask sends a request and waits for the complete response.
func (u *testClient) ask(method, params string) reply {
	u.t.Helper()
	return u.post(u.request(u.nextID(), method, params))
}

// call calls a tool.
func (u *testClient) call(name string) reply {
	u.t.Helper()
	return u.ask("tools/call", `{"name":`+string(jsonrpc.Quote(name))+`,"arguments":{}}`)
}

// post posts a message and waits for the complete response.
func (u *testClient) post(body string) reply {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
	defer cancel()
	response, err := u.do(ctx, http.MethodPost, body)
	if err != nil {
		u.t.Errorf("%.200s: %v", body, err)
		return reply{broken: err}
	}
	defer response.Body.Close()
	s := reply{status: response.StatusCode, header: response.Header}
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

// notify sends a notification.
func (u *testClient) notify(method, params string) reply {
	u.t.Helper()
	body := `{"jsonrpc":"2.0","method":"` + method + `"}`
	if params != "" {
		body = `{"jsonrpc":"2.0","method":"` + method + `","params":` + params + `}`
	}
	return u.post(body)
}

// respond sends the response to a server request.
func (u *testClient) respond(e received, result string) reply {
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
	return m.IsResponse()
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

// A liveReply is a response that is read event by event.
type liveReply struct {
	t      testing.TB
	begun  chan struct{} // closed when the response has begun or failed
	status int
	err    error
	cancel context.CancelFunc
	events chan received // closed at the end
}

// startRequest sends a request without waiting for the end of the response.
func (u *testClient) startRequest(method, params string) *liveReply {
	u.t.Helper()
	return u.open(http.MethodPost, u.request(u.nextID(), method, params))
}

// listen opens a GET stream.
func (u *testClient) listen() *liveReply {
	u.t.Helper()
	return u.open(http.MethodGet, "")
}

// open sends a request and waits for the start of the response.
func (u *testClient) open(method, body string) *liveReply {
	u.t.Helper()
	live := u.start(method, body)
	<-live.begun
	if live.err != nil {
		u.t.Fatalf("%s %.200s: %v", method, body, live.err)
	}
	return live
}

// start sends a request.
func (u *testClient) start(method, body string) *liveReply {
	ctx, cancel := context.WithCancel(context.Background())
	live := &liveReply{t: u.t, begun: make(chan struct{}), cancel: cancel, events: make(chan received, 64)}
	go func() {
		defer close(live.events)
		response, err := u.do(ctx, method, body)
		live.err = err
		if err != nil {
			close(live.begun)
			return
		}
		defer response.Body.Close()
		live.status = response.StatusCode
		close(live.begun)
		if !strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
			text, _ := io.ReadAll(response.Body)
			live.events <- received{data: string(text)}
			return
		}
		for r := (&reading{lines: bufio.NewReader(response.Body)}); ; {
			e, err := r.next()
			if err != nil {
				return
			}
			select {
			case live.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	u.t.Cleanup(live.disconnect)
	return live
}

// disconnect cancels the request and waits until reading has stopped.
func (k *liveReply) disconnect() {
	k.cancel()
	for range k.events {
	}
}

// next returns the next event.
func (k *liveReply) next() received {
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
		k.t.Fatal("timeout waiting for an event")
	}
	return received{}
}

// nextOf returns the next event with a method, or the next response if method is empty.
func (k *liveReply) nextOf(method string) received {
	k.t.Helper()
	for {
		if e := k.next(); e.method() == method {
			return e
		}
	}
}

// waitEnd waits for the end of the response.
func (k *liveReply) waitEnd() {
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

// namesIn returns the names in a list.
func namesIn(t testing.TB, s reply, member, key string) (all []string) {
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

// A handlerTransport calls the gateway without a network, for use with fake time.
type handlerTransport struct{ http.Handler }

func (m handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
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

// newInMemory returns a gateway without a network. The caller must close it.
func newInMemory(t testing.TB, configure func(*Config), peers ...*fakeServer) *testGateway {
	return serveInMemory(t, newBareGateway(configure, peers...))
}

// serveInMemory serves a gateway without a network. The caller must close it.
func serveInMemory(t testing.TB, gateway *Gateway) *testGateway {
	g := &testGateway{Gateway: gateway, t: t, url: "http://gateway.invalid/mcp"}
	g.serving.Store(g.Gateway)
	g.transport = handlerTransport{g}
	return g
}

// close closes the gateway and ends held calls and streams.
func (g *testGateway) close() {
	g.Close()
	for _, r := range g.config.Observer.(*recorder).takeRecords() {
		if r.Outcome == upstream.OutcomePanic {
			g.t.Errorf("recorded as a panic: %+v", r)
		}
	}
	_ = g.State.Destruct()
	_ = g.Retained.Destruct()
}

// known returns all remembered clients.
func (g *testGateway) known() []*client { return g.clients.all() }

// hasServerRequest reports whether the client has been sent a request that it has not answered.
func (c *client) hasServerRequest() bool {
	c.serverRequests.mu.Lock()
	defer c.serverRequests.mu.Unlock()
	return len(c.serverRequests.byID) > 0
}
