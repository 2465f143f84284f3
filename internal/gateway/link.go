package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unique"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A link is a client's connection to one of the servers.
type link struct {
	client *client
	server string // its name
	id     string // its ID
	prefix string // of our ids

	opening chan struct{} // holds one token: who has it shakes hands

	mu        sync.Mutex
	ready     bool
	greeted   bool // the server knows that the client is ready
	greetings int  // how often it was told
	era       mcp.Era
	version   string
	session   string
	can       abilities
	about     about
	lastID    uint64
	of        *http.Request // on behalf of which the session is ended, if the client never does

	failed bool // the server could not be met when it was tried

	subscriptions []string          // to resources, sorted
	windows       map[string]string // what the client calls those that it has subscribed to by another URI

	calls     []*heldCall  // of a client of the modern era to a server of the legacy era
	overheard *overhearing // what is listened to for them
	deaf      bool         // there is nothing to listen to

	lists   [kindCount]cached
	hearing [kindCount]int // streams by which the server can say that its lists have changed
}

func newLink(c *client, s *Server) *link {
	return &link{client: c, server: s.Name, id: s.ID, prefix: rand.Text()[:8], opening: make(chan struct{}, 1)}
}

// size returns about how much memory a link takes.
func (l *link) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := 1<<9 + len(l.session)
	if about := len(l.about.capabilities.text()) + len(l.about.instructions.text()); about > 4<<10 {
		size += about // few servers say as much, and those may say it differently each time
	}
	for _, uri := range l.subscriptions {
		size += len(uri) + len(l.windows[uri])
	}
	if l.of != nil {
		for name, values := range l.of.Header {
			size += len(name)
			for _, value := range values {
				size += len(value)
			}
		}
	}
	return size
}

// about is what a server says of itself. Most servers say the same to all clients.
type about struct{ capabilities, instructions shared }

// shared is a text that is kept once for all who have the same.
type shared struct{ handle unique.Handle[string] }

func share(text string) shared { return shared{unique.Make(text)} }

func (s shared) text() string {
	if s == (shared{}) {
		return ""
	}
	return s.handle.Value()
}

// longestAbout is how many bytes that may have.
const longestAbout = 64 << 10

// abilities are the capabilities of a server that we decide upon.
type abilities uint16

const (
	hasTools abilities = 1 << iota
	hasPrompts
	hasResources
	hasLogging
	hasCompletions
	hasTasks
	canSubscribe
	toolsChange
	promptsChange
	resourcesChange
)

var abilityPaths = jsonspan.CompilePaths("tools", "prompts", "resources", "logging", "completions", "tasks",
	"resources.subscribe", "tools.listChanged", "prompts.listChanged", "resources.listChanged")

// abilitiesOf reads capabilities. An empty object is a capability, too (A4).
func abilitiesOf(capabilities []byte) (can abilities) {
	_ = abilityPaths.Find(capabilities, func(path int, v jsonspan.Value) {
		if v.Kind == jsonspan.BeginObject || v.Kind == jsonspan.True {
			can |= 1 << path
		}
	})
	return can
}

// ticket returns what it takes to go on with the link elsewhere.
func (l *link) ticket() (t linkTicket, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return linkTicket{"", l.era, l.version, l.session, l.can}, l.ready
}

// state returns how the server is spoken to.
func (l *link) state() (era mcp.Era, can abilities) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.era, l.can
}

// open shakes hands with the server, if that has not been done.
func (l *link) open(ctx context.Context, a *Gateway, of *http.Request) *jsonrpc.Failure {
	if l.opened() {
		return nil
	}
	select {
	case l.opening <- struct{}{}:
		defer func() { <-l.opening }()
	case <-ctx.Done():
		return jsonrpc.Timeout(l.server)
	}
	s := a.of(l)
	switch {
	case l.opened():
		return nil
	case l.client.ended.Load():
		return jsonrpc.UnknownSession()
	case s == nil:
		return jsonrpc.UnknownServer(l.server)
	}
	failure := s.out()
	if failure == nil {
		failure = l.meet(ctx, a, s, of)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready, l.failed = failure == nil, failure != nil
	return failure
}

func (l *link) opened() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}

// meet shakes hands with the server, as long as that may take.
func (l *link) meet(ctx context.Context, a *Gateway, s *Server, of *http.Request) *jsonrpc.Failure {
	began := time.Now()
	joining, cancel := context.WithTimeout(ctx, a.config.JoinTimeout)
	defer cancel()
	failure := l.shakeHands(joining, a, s, of)
	switch {
	case failure == nil:
		s.tried(began, nil)
		return nil
	case ctx.Err() != nil:
		s.gaveUp() // because the client did
		return failure
	}
	log := a.config.Logger.With(zap.String("mcp_server", l.server), zap.String("code", failure.Data.Symbol), zap.String("reason", failure.Message))
	if !unreachable(failure) {
		s.tried(began, nil)
		log.Warn("MCP server refuses a client")
		return failure
	}
	log.Warn("MCP server left out", zap.Duration("retry_after", s.tried(began, failure)))
	return failure
}

// lost says that the server does not know a session any more, or is not what it was.
func (l *link) lost(session string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready && l.session == session {
		l.ready, l.greeted, l.greetings, l.session = false, false, 0, ""
		l.forget(everyKind...)
	}
}

// shakeHands finds out in which era the server speaks, and begins a session if it
// has such.
func (l *link) shakeHands(ctx context.Context, a *Gateway, s *Server, of *http.Request) *jsonrpc.Failure {
	var failure *jsonrpc.Failure
	silent := false // to what only servers of the modern era know
	for _, era := range s.eras(l.client.era) {
		var result []byte
		var session string
		if era == mcp.Modern {
			result, failure = l.discover(ctx, a, s, of)
		} else {
			result, session, failure = l.initialize(ctx, a, of)
		}
		if failure == nil {
			failure = l.know(a, era, result, session)
		}
		if failure == nil && session != "" && l.client.era == mcp.Modern {
			l.of = s.Upstream.Derive(context.WithoutCancel(ctx), of, false)
			emptyBody(l.of, http.MethodDelete)
		}
		if failure != nil && unreachable(failure) {
			if era == mcp.Modern && !s.knows(era) && failure.Data.Symbol == "timeout" && ctx.Err() == nil {
				silent = true
				continue
			}
			return failure
		}
		if s.learn(era, failure == nil); failure == nil {
			if silent {
				s.learn(mcp.Modern, false)
			}
			return nil
		}
	}
	return failure
}

// know notes what a server has said of itself.
func (l *link) know(a *Gateway, era mcp.Era, result []byte, session string) *jsonrpc.Failure {
	var hi struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Instructions string          `json:"instructions"`
		Version      string          `json:"protocolVersion"`
		Versions     []string        `json:"supportedVersions"`
	}
	if json.Unmarshal(result, &hi) != nil || len(hi.Capabilities) > longestAbout {
		return jsonrpc.InvalidResponse(l.server)
	}
	if len(hi.Capabilities)+len(hi.Instructions) > longestAbout {
		a.config.Logger.Warn("instructions of MCP server left out: too long", zap.String("mcp_server", l.server), zap.Int("bytes", len(hi.Instructions)))
		hi.Instructions = ""
	}
	if era == mcp.Modern {
		if !slices.Contains(hi.Versions, mcp.Stateless) {
			return jsonrpc.InvalidResponse(l.server)
		}
		hi.Version = mcp.Stateless
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.era, l.version, l.session = era, hi.Version, session
	l.about, l.can = about{share(string(hi.Capabilities)), share(hi.Instructions)}, abilitiesOf(hi.Capabilities)
	l.greeted = era == mcp.Modern
	return nil
}

// initialize begins a session.
func (l *link) initialize(ctx context.Context, a *Gateway, of *http.Request) (result []byte, session string, failure *jsonrpc.Failure) {
	r := a.of(l).Upstream.Derive(ctx, of, false)
	body := jsonrpc.RequestAs(l.nextID(), "initialize", l.client.introduction())
	l.dress(r, mcp.Legacy, "", "")
	h, failure := l.roundTrip(a, r, body, resultInto(&result))
	return result, h.Header().Get(mcp.SessionHeader), failure
}

// introduction returns the params of initialize.
func (c *client) introduction() []byte {
	if c.era == mcp.Legacy {
		return c.hello.params
	}
	return slices.Concat([]byte(`{"protocolVersion":"`+mcp.Latest+`","capabilities":`), c.hello.capabilities,
		[]byte(`,"clientInfo":`), c.hello.info, []byte("}"))
}

// discover asks a server of the modern era who it is. There are servers of the other
// era that never answer what they do not know, so one that is not known to be modern
// does not get all the time there is.
func (l *link) discover(ctx context.Context, a *Gateway, s *Server, of *http.Request) (result []byte, failure *jsonrpc.Failure) {
	if !s.knows(mcp.Modern) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.config.JoinTimeout/3)
		defer cancel()
	}
	r := a.of(l).Upstream.Derive(ctx, of, false)
	body := jsonrpc.RequestAs(l.nextID(), "server/discover", slices.Concat([]byte(`{"_meta":`), l.client.meta(""), []byte("}")))
	l.dress(r, mcp.Modern, mcp.Stateless, "")
	_, failure = l.roundTrip(a, r, body, resultInto(&result))
	return result, failure
}

// meta returns what a request of the modern era says of the client.
func (c *client) meta(level string) []byte {
	meta := slices.Concat([]byte(`{"io.modelcontextprotocol/protocolVersion":"`+mcp.Stateless+`","io.modelcontextprotocol/clientInfo":`),
		c.hello.info, []byte(`,"io.modelcontextprotocol/clientCapabilities":`), c.hello.capabilities)
	if level != "" {
		meta = slices.Concat(meta, []byte(`,"io.modelcontextprotocol/logLevel":`), jsonrpc.Quote(level))
	}
	return append(meta, '}')
}

// nextID returns an id of our own. Clients have other ones on the same session, and so
// have other processes that serve it.
func (l *link) nextID() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	return append(strconv.AppendUint([]byte(`"gateway:`+l.prefix+":"), l.lastID, 10), '"')
}

// dress gives a request the headers that a server of this era wants to see, apart
// from those that repeat what its body says.
func (l *link) dress(r *http.Request, era mcp.Era, version, session string) {
	for _, name := range [...]string{mcp.SessionHeader, mcp.VersionHeader, "Accept-Encoding", "Content-Encoding", "Last-Event-Id", "Upgrade"} {
		delete(r.Header, name)
	}
	if era == mcp.Legacy {
		mcp.ClearModern(r.Header)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	if version != "" {
		r.Header.Set(mcp.VersionHeader, version)
	}
	if session != "" {
		r.Header.Set(mcp.SessionHeader, session)
	}
}

// A response is how the answer to a request of our own is taken.
type response struct {
	// parse reads a message of the server. Default: its Read method
	parse func(m *jsonrpc.Message, data []byte) *jsonrpc.Failure

	// take takes the answer, unless that is an error. Its bytes are valid until it returns.
	take func(*jsonrpc.Message) *jsonrpc.Failure
}

// resultInto returns a response whose result goes to a variable.
func resultInto(result *[]byte) response {
	return response{take: func(m *jsonrpc.Message) *jsonrpc.Failure {
		*result = slices.Clone(m.Literal(jsonrpc.Result))
		return nil
	}}
}

// roundTrip has the server answer a request of our own.
func (l *link) roundTrip(a *Gateway, r *http.Request, body []byte, to response) (h *streamable.Reader, failure *jsonrpc.Failure) {
	var asked jsonrpc.Message
	if failure := asked.Read(body); failure != nil {
		return new(streamable.Reader), failure
	}
	if r.Header.Get(mcp.VersionHeader) == mcp.Stateless {
		mcp.SetModern(r.Header, &asked, mcp.Stateless)
	}
	httpbody.Post(r, body)
	h = &streamable.Reader{Limit: maxListing, Parse: to.parse}
	answered := false
	var refusal *jsonrpc.Failure
	var asides Asides
	defer asides.Wait()
	h.OnMessage = func(e *streamable.Event) error {
		m := e.Message
		if !h.Answers(m, asked.Literal(jsonrpc.ID)) {
			l.stray(a, r, &asides, e)
			return nil
		}
		if answered {
			return nil
		}
		answered = true
		h.Settle(m)
		switch {
		case m.Has(jsonrpc.Error) && h.Status() >= 300 && !m.Has(jsonrpc.ErrorCode): // it is OAuth's, or of somebody else
			refusal = jsonrpc.HTTPError(l.server, h.Status())
		case m.Has(jsonrpc.Error):
			refusal = jsonrpc.ServerError(l.server, m)
		default:
			refusal = to.take(m)
		}
		return nil
	}
	ctx := r.Context()
	failure = a.newExchange(l, h, &asked).send(r)
	switch {
	case answered:
		return h, refusal
	case failure != nil:
		return h, failure
	case ctx.Err() != nil:
		return h, jsonrpc.Timeout(l.server)
	}
	return h, h.Failure(l.server)
}

// request has the server answer a request of our own, in the session there is.
func (l *link) request(ctx context.Context, a *Gateway, of *http.Request, method string, params []byte) (result []byte, failure *jsonrpc.Failure) {
	failure = l.ask(ctx, a, of, method, params, resultInto(&result))
	return result, failure
}

// ask has the server answer a request of our own, in the session there is. A server that has
// forgotten it is met anew.
func (l *link) ask(ctx context.Context, a *Gateway, of *http.Request, method string, params []byte, to response) *jsonrpc.Failure {
	return l.inSession(ctx, a, of, func(bool) (*streamable.Reader, string, *jsonrpc.Failure) {
		r, session, era := l.prepare(ctx, a, of)
		own := params
		if era == mcp.Modern {
			own = withMeta(params, l.client.meta(l.client.logLevel()))
		}
		h, failure := l.roundTrip(a, r, jsonrpc.RequestAs(l.nextID(), method, own), to)
		return h, session, failure
	})
}

// inSession has something tried in a session with the server. If that has failed
// because the server has forgotten the session, it is tried once more in another one;
// the first time, again says that it can be.
func (l *link) inSession(ctx context.Context, a *Gateway, of *http.Request, try func(again bool) (h *streamable.Reader, session string, _ *jsonrpc.Failure)) *jsonrpc.Failure {
	for again := true; ; again = false {
		if failure := l.open(ctx, a, of); failure != nil {
			return failure
		}
		l.greet(ctx, a, of)
		h, session, failure := try(again)
		if failure == nil || !again || !h.SessionLost() {
			return failure
		}
		l.lost(session)
	}
}

// prepare returns a request in the session there is.
func (l *link) prepare(ctx context.Context, a *Gateway, of *http.Request) (r *http.Request, session string, era mcp.Era) {
	r = a.of(l).Upstream.Derive(ctx, of, false)
	session, era = l.sign(r)
	return r, session, era
}

// sign makes r a request in the session there is.
func (l *link) sign(r *http.Request) (session string, era mcp.Era) {
	l.mu.Lock()
	era, version, session := l.era, l.version, l.session
	l.mu.Unlock()
	l.dress(r, era, version, session)
	return session, era
}

// withMeta returns params with _meta in them, which they do not have.
func withMeta(params, meta []byte) []byte {
	member := slices.Concat([]byte(`"_meta":`), meta)
	if len(params) == 0 {
		return slices.Concat([]byte("{"), member, []byte("}"))
	}
	return jsonspan.Spliced(params, jsonspan.Insert(params, member))
}

// tell sends the server a message that wants no answer.
func (l *link) tell(ctx context.Context, a *Gateway, of *http.Request, body []byte) *jsonrpc.Failure {
	if a.of(l) == nil {
		return jsonrpc.UnknownServer(l.server)
	}
	r, _, _ := l.prepare(ctx, a, of)
	var m jsonrpc.Message
	if failure := m.Read(body); failure != nil {
		return failure
	}
	httpbody.Post(r, body)
	h := &streamable.Reader{OnMessage: func(e *streamable.Event) error {
		// What a server says to something that it need not answer is not answered
		// either: two who do so could go on for ever.
		if e.Message.IsNotification() {
			l.stray(a, r, nil, e)
		}
		return nil
	}}
	failure := a.newExchange(l, h, &m).send(r)
	switch {
	case h.Status()/100 == 2:
		return nil // it has been accepted, whatever else the server has to say
	case failure != nil:
		return failure
	case h.Status() == 0: // nobody has waited for it
		return jsonrpc.Timeout(l.server)
	case h.Status() >= 300:
		return jsonrpc.HTTPError(l.server, h.Status())
	}
	return nil
}

// greet tells the server that the client is ready, once and before anything else (A3).
func (l *link) greet(ctx context.Context, a *Gateway, of *http.Request) {
	if l.welcome() {
		return
	}
	select {
	case l.opening <- struct{}{}:
		defer func() { <-l.opening }()
	case <-ctx.Done():
		return
	}
	if l.welcome() {
		return
	}
	// Whoever has left by now leaves the session to others, who need this.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.config.JoinTimeout)
	defer cancel()
	const tries = 3
	failure := l.tell(ctx, a, of, jsonrpc.Notification("notifications/initialized", nil))
	l.mu.Lock()
	l.greetings++
	l.greeted = failure == nil || failure.Data.StatusCode != 0 && !passing(failure.Data.StatusCode) || l.greetings == tries
	greeted := l.greeted
	l.mu.Unlock()
	if failure != nil {
		a.config.Logger.Warn("notifications/initialized not delivered", zap.String("mcp_server", l.server), zap.Error(failure))
	}
	if !greeted {
		return
	}
	l.remind(ctx, a, of)
}

// remind tells a server of the legacy era what its client has told it before, in a
// session that is lost.
func (l *link) remind(ctx context.Context, a *Gateway, of *http.Request) {
	_, can := l.state()
	if level := l.client.logLevel(); level != "" && can&hasLogging != 0 {
		l.again(ctx, a, of, "logging/setLevel", jsonrpc.Encode(map[string]string{"level": level}))
	}
	for _, uri := range l.client.subscribed(l) {
		l.again(ctx, a, of, "resources/subscribe", uriParams(uri))
	}
}

// again makes a request in the session there is.
func (l *link) again(ctx context.Context, a *Gateway, of *http.Request, method string, params []byte) {
	r, _, _ := l.prepare(ctx, a, of)
	if _, failure := l.roundTrip(a, r, jsonrpc.RequestAs(l.nextID(), method, params), response{take: func(*jsonrpc.Message) *jsonrpc.Failure { return nil }}); failure != nil {
		a.config.Logger.Warn("server not told again", zap.String("mcp_server", l.server), zap.String("mcp_method", method), zap.Error(failure))
	}
}

// passing reports whether a status may be another one the next time.
func passing(status int) bool {
	return status == http.StatusNotFound || status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || status >= 500
}

// welcome reports whether there is nobody to greet.
func (l *link) welcome() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.greeted || !l.ready
}

// end ends the session with the server.
func (l *link) end(ctx context.Context, a *Gateway, of *http.Request) {
	l.mu.Lock()
	session, version := l.session, l.version
	l.ready, l.session = false, ""
	l.mu.Unlock()
	if session == "" || a.of(l) == nil {
		return
	}
	r := a.of(l).Upstream.Derive(ctx, of, false)
	l.dress(r, mcp.Legacy, version, session)
	emptyBody(r, http.MethodDelete)
	h := &streamable.Reader{OnMessage: func(*streamable.Event) error { return nil }}
	_ = a.newExchange(l, h, nil).send(r) // it may not care for sessions
}

// logLevel returns which log messages the client wants, if it has said.
func (c *client) logLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// emptyBody makes r a request of an HTTP method that posts nothing.
func emptyBody(r *http.Request, method string) {
	r.Method = method
	httpbody.Empty(r)
}
