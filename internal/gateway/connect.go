package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"
	"unique"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A connecting is an attempt to connect a client to a server.
type connecting struct {
	behalf
	link   *link
	server *upstream.Server
}

// run shakes hands with the server, as long as that may take.
func (c connecting) run() *jsonrpc.Failure {
	began, s := time.Now(), c.server
	timeout := max(c.g.config.JoinTimeout, c.link.client.inspection.Timeout())
	if c.calls {
		timeout = max(s.Timeout, c.link.client.inspection.Timeout())
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	failure := connecting{c.within(ctx), c.link, s}.shakeHands()
	switch {
	case failure == nil:
		s.NoteAttempt(began, nil)
		s.NoteFailure(nil)
		c.g.config.Observer.ServerAnswered(s.Name)
		c.g.came(s)
		return nil
	case c.ctx.Err() != nil:
		return failure // the client has left
	}
	if failure.IsLoginRequired() {
		s.NoteFailure(failure)
		s.NoteAttempt(began, nil)
		c.g.came(s)
		return failure
	}
	if upstream.Unreachable(failure) && s.ChildrenOnly && failure.Data.Symbol == "timeout" && failure.Err == nil {
		failure.Cause = jsonrpc.CauseStarting
	}
	if !c.refusesClient(failure) {
		s.NoteFailure(failure)
	}
	fault := s.Fault(failure, c.tried(), timeout)
	if upstream.Unreachable(failure) {
		fault.Retry = s.NoteAttempt(began, failure)
	} else {
		s.NoteAttempt(began, nil)
	}
	if c.refusesClient(failure) {
		c.g.config.Logger.Warn("MCP server refuses a client", zap.String("mcp_server", s.Name),
			zap.String("code", failure.Data.Symbol), zap.String("reason", fault.Reason))
		return failure
	}
	c.g.config.Observer.ServerFailed(fault)
	return failure
}

// tried returns the request that begins with the server.
func (c connecting) tried() string {
	if c.server.SpeaksEra(mcp.Modern) && !c.server.SpeaksEra(mcp.Legacy) {
		return "server/discover"
	}
	return "initialize"
}

// refusesClient reports whether a handshake has failed for what the client has said, or for the
// credentials that it has sent.
func (c connecting) refusesClient(failure *jsonrpc.Failure) bool {
	status := failure.Data.StatusCode
	return failure.Data.Symbol == "server_error" ||
		c.server.ForwardAuth && (status == http.StatusUnauthorized || status == http.StatusForbidden)
}

// shakeHands finds out which era the server speaks, and begins a session if it has sessions.
// An era that failed is noted as not spoken only after the other one has succeeded.
func (c connecting) shakeHands() *jsonrpc.Failure {
	l, s := c.link, c.server
	var failure, first *jsonrpc.Failure
	joined := false // in the modern era, and the server says that it speaks that of the client, too
	for i, era := range s.Eras(l.client.era) {
		var result []byte
		var session string
		if era == mcp.Modern {
			result, failure = c.discover()
		} else {
			result, session, failure = c.initialize()
		}
		if failure == nil {
			failure = c.noteServer(era, result, session)
		}
		switch {
		case failure == nil:
			if s.NoteEra(era, true); i > 0 && !joined {
				s.NoteEra(mcp.Modern-era, false)
			}
			if session != "" && l.client.era == mcp.Modern {
				l.ender = c.within(context.WithoutCancel(c.ctx)).derive(l)
				httpbody.EmptyAs(l.ender, http.MethodDelete)
			}
			if joined = era == mcp.Modern && l.client.era == mcp.Legacy && s.SpeaksEra(mcp.Legacy) && i == 0; !joined {
				return nil
			}
		case failure.IsLoginRequired(), failure.Data.Symbol == "login_failed":
			return failure // which says nothing of the era
		case upstream.Unreachable(failure) && !(c.ctx.Err() == nil && c.mayBeSilent(era, failure)):
			return failure
		}
		if i == 0 {
			first = failure
		}
	}
	switch {
	case joined:
		return nil
	case failure.Code == jsonrpc.CodeMethodNotFound && first != nil:
		return first // it speaks that era only
	}
	return failure
}

// mayBeSilent reports whether the server may not have answered because it does not know what it
// was asked. There are servers of the legacy era that never answer what they do not know.
func (c connecting) mayBeSilent(era mcp.Era, failure *jsonrpc.Failure) bool {
	return era == mcp.Modern && !c.server.SpeaksEra(era) && failure.Data.Symbol == "timeout"
}

// noteServer notes what a server has said of itself.
func (c connecting) noteServer(era mcp.Era, result []byte, session string) *jsonrpc.Failure {
	l := c.link
	var said struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Instructions string          `json:"instructions"`
		Version      string          `json:"protocolVersion"`
		Versions     []string        `json:"supportedVersions"`
	}
	if json.Unmarshal(result, &said) != nil || len(said.Capabilities) > longestAbout {
		return jsonrpc.InvalidResponse(l.server)
	}
	if len(said.Capabilities)+len(said.Instructions) > longestAbout {
		c.g.config.Logger.Warn("instructions of MCP server left out: too long",
			zap.String("mcp_server", l.server), zap.Int("bytes", len(said.Instructions)))
		said.Instructions = ""
	}
	if era == mcp.Modern {
		if mcp.NewestLegacy(said.Versions) != "" {
			c.server.NoteEra(mcp.Legacy, true)
		}
		if !slices.Contains(said.Versions, mcp.Stateless) {
			return jsonrpc.InvalidResponse(l.server)
		}
		said.Version = mcp.Stateless
	}
	about := &about{
		capabilities: intern(string(said.Capabilities)),
		instructions: intern(said.Instructions),
		mentioned:    intern(mcp.Mentions(said.Instructions)),
		can:          mcp.AbilitiesOf(said.Capabilities),
		session:      session != "",
		learned:      time.Now(),
	}
	if !l.client.apart.Load() {
		c.g.profile(l.client, l.id).learn(about)
	}
	l.client.inspection.NoteServer(said.Version, result)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.era, l.version, l.session = era, said.Version, session
	l.about, l.can, l.carried = about, about.can, false
	l.initialized, l.behind = era == mcp.Modern, false
	return nil
}

// initialize begins a session, by the transport that the server has.
func (c connecting) initialize() (result []byte, session string, failure *jsonrpc.Failure) {
	if c.server.SpeaksHTTPSSE() {
		if result, session, failure, is := c.initializeHTTPSSE(c.g.config.JoinTimeout); is {
			return result, session, failure
		}
	}
	h, result, failure := c.initializeIn("")
	if failure != nil && refusesPost(h.Status()) && !c.server.ChildrenOnly {
		if result, session, failure, is := c.initializeHTTPSSE(c.g.config.JoinTimeout / 3); is {
			return result, session, failure
		}
	}
	return result, h.Header().Get(mcp.SessionHeader), failure
}

// initializeIn begins a session. The transport may have one already. A server that refuses the
// version of the client is asked again with one that it offers.
func (c connecting) initializeIn(session string) (h *streamable.Reader, result []byte, failure *jsonrpc.Failure) {
	version := c.link.client.legacyVersion()
	h, result, failure = c.initializeAs(version, session)
	if failure == nil {
		return h, result, nil
	}
	if offered := mcp.NewestLegacy(failure.Data.Supported); offered != "" && offered != version {
		return c.initializeAs(offered, session)
	}
	return h, result, failure
}

// initializeAs sends the request that begins a session, in a version of the protocol.
func (c connecting) initializeAs(version, session string) (
	h *streamable.Reader, result []byte, failure *jsonrpc.Failure,
) {
	r := c.derive(c.link)
	body := jsonrpc.RequestAs(c.link.nextID(), "initialize", c.link.client.initializeParams(version))
	streamable.Session{Era: mcp.Legacy, ID: session}.Sign(r.Header)
	h, failure = c.link.roundTrip(c.g, r, body, resultInto(&result))
	return h, result, failure
}

// discover asks a server of the modern era who it is. One that is not known to be modern does
// not get all the time there is, see mayBeSilent. Child processes do: internal/stdio finds out about them while they
// start, and another era would start another one.
func (c connecting) discover() (result []byte, failure *jsonrpc.Failure) {
	if !c.server.SpeaksEra(mcp.Modern) && !c.server.ChildrenOnly {
		ctx, cancel := context.WithTimeout(c.ctx, c.g.config.JoinTimeout/3)
		defer cancel()
		c.ctx = ctx
	}
	for again := true; ; again = false {
		r := c.derive(c.link)
		body := jsonrpc.RequestAs(c.link.nextID(), "server/discover", mcp.WithMeta(nil, c.link.client.meta("")))
		streamable.Session{Era: mcp.Modern, Version: mcp.Stateless}.Sign(r.Header)
		_, failure = c.link.roundTrip(c.g, r, body, resultInto(&result))
		if failure == nil || !again || !slices.Contains(failure.Data.Supported, mcp.Stateless) {
			break
		}
		// It has refused a version that it offers. Another process may have done so.
	}
	if failure != nil && mcp.NewestLegacy(failure.Data.Supported) != "" {
		c.server.NoteEra(mcp.Legacy, true)
	}
	return result, failure
}

// An interned is a text that is kept once in memory.
type interned struct{ handle unique.Handle[string] }

func intern(text string) interned { return interned{unique.Make(text)} }

func (s interned) text() string {
	if s == (interned{}) {
		return ""
	}
	return s.handle.Value()
}

// longestAbout is how many bytes a server may say of itself.
const longestAbout = 64 << 10

// sendInitialized tells the server that the client is ready, once and before anything else
// (A3).
func (l *link) sendInitialized(o behalf) {
	if l.isInitialized() {
		return
	}
	if !l.beginOpening(o.ctx) {
		return
	}
	defer l.endOpening()
	if l.isInitialized() {
		return
	}
	if l.catchUp() {
		l.restoreSession(o)
		return
	}
	// A client that has left by now leaves the session to others, which need this.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), o.g.config.JoinTimeout)
	defer cancel()
	o = o.within(ctx)
	const tries = 3
	failure := l.tell(o, jsonrpc.Notification("notifications/initialized", nil))
	l.mu.Lock()
	l.attempts++
	l.initialized = failure == nil || l.attempts == tries ||
		failure.Data.StatusCode != 0 && !isTemporary(failure.Data.StatusCode)
	initialized := l.initialized
	l.mu.Unlock()
	if failure != nil {
		o.g.config.Logger.Warn("notifications/initialized not delivered",
			zap.String("mcp_server", l.server), zap.Error(failure))
	}
	if initialized {
		l.restoreSession(o)
		l.attend(o)
	}
}

// isInitialized reports whether the server knows that the client is ready and what it has asked for, or cannot know.
func (l *link) isInitialized() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.initialized && !l.behind || !l.ready
}

// catchUp reports whether the server knows that the client is ready, but not all that it has asked for. It is told
// now.
func (l *link) catchUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	behind := l.behind
	l.behind = false
	return behind && l.initialized
}

// isTemporary reports whether a status may be another one the next time.
func isTemporary(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// restoreSession repeats to a server of the legacy era what its client has asked for in a
// session that is lost, or elsewhere.
func (l *link) restoreSession(o behalf) {
	_, can := l.state()
	if level := l.client.logLevel(); level != "" && can&mcp.HasLogging != 0 {
		l.repeat(o, "logging/setLevel", jsonrpc.Encode(map[string]string{"level": level}))
	}
	for _, uri := range l.subscriptions.all() {
		l.repeat(o, "resources/subscribe", mcp.URIParams(uri))
	}
}

// repeat makes a request of the client again.
func (l *link) repeat(o behalf, method string, params []byte) {
	r, _, _ := l.prepare(o)
	ignore := response{take: func(*jsonrpc.Message) *jsonrpc.Failure { return nil }}
	if _, failure := l.roundTrip(o.g, r, jsonrpc.RequestAs(l.nextID(), method, params), ignore); failure != nil {
		o.g.config.Logger.Warn("server not told again",
			zap.String("mcp_server", l.server), zap.String("mcp_method", method), zap.Error(failure))
	}
}

// initializeHTTPSSE begins a session with a server of HTTP+SSE: with the stream of the session,
// and then as with others. It reports whether the server is such a one.
func (c connecting) initializeHTTPSSE(patience time.Duration) (
	result []byte, session string, failure *jsonrpc.Failure, is bool,
) {
	known := c.server.SpeaksHTTPSSE()
	session, failure = c.openHTTPSSE(patience)
	if c.server.NoteHTTPSSE(failure == nil); failure == nil && !known {
		c.g.config.Logger.Info("MCP server speaks HTTP+SSE", zap.String("mcp_server", c.server.Name))
	}
	switch {
	case failure == upstream.ErrNotHTTPSSE:
		return nil, "", nil, false
	case failure != nil && (upstream.Unreachable(failure) || failure.Data.Symbol == "http_error"):
		return nil, "", failure, known
	case failure != nil: // such as a login, or an invalid endpoint
		return nil, "", failure, true
	}
	if _, result, failure = c.initializeIn(session); failure != nil {
		c.g.shared.State.EndHTTPSSE(session)
		return nil, "", failure, true
	}
	return result, session, nil, true
}

// openHTTPSSE opens the stream of a session with a server of HTTP+SSE.
func (c connecting) openHTTPSSE(patience time.Duration) (session string, failure *jsonrpc.Failure) {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	of := c.within(context.WithoutCancel(c.ctx)).derive(c.link)
	return c.g.exchange(c.link, new(streamable.Reader), nil).OpenHTTPSSE(ctx, c.link.client.owner, of)
}

// refusesPost reports whether a server that answers a handshake with this status may be one of
// HTTP+SSE, which does not take messages where its stream is.
func refusesPost(status int) bool { return status/100 == 4 && !httpsse.IsInconclusive(status) }
