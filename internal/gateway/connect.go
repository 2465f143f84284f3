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

// A connectAttempt is an attempt to open the session of a link.
type connectAttempt struct {
	scope
	link   *link
	server *upstream.Server
}

// run does the handshake with the server, within its timeout, and records the result.
func (c connectAttempt) run() *jsonrpc.Failure {
	began, s := time.Now(), c.server
	timeout := max(c.g.config.JoinTimeout, c.link.client.inspection.Timeout())
	if c.isCall {
		timeout = max(s.Timeout, c.link.client.inspection.Timeout())
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	failure := connectAttempt{c.withContext(ctx), c.link, s}.handshake()
	switch {
	case failure == nil:
		s.NoteAttempt(began, nil)
		s.NoteFailure(nil)
		c.g.config.Observer.ServerAnswered(s.Name)
		c.g.notify.serverAvailable(s)
		return nil
	case c.ctx.Err() != nil:
		return failure // the client disconnected
	}
	if failure.IsLoginRequired() {
		s.NoteFailure(failure)
		s.NoteAttempt(began, nil)
		c.g.notify.serverAvailable(s)
		return failure
	}
	if upstream.Unreachable(failure) && s.ChildrenOnly && failure.Data.Symbol == "timeout" && failure.Err == nil {
		failure.Cause = jsonrpc.CauseStarting
	}
	if !c.refusesClient(failure) {
		s.NoteFailure(failure)
	}
	fault := s.Fault(failure, c.firstMethod(), timeout)
	if upstream.Unreachable(failure) {
		fault.Retry = s.NoteAttempt(began, failure)
	} else {
		s.NoteAttempt(began, nil)
	}
	if c.refusesClient(failure) {
		c.g.config.Logger.Warn("MCP server refused the handshake of a client", zap.String("mcp_server", s.Name),
			zap.String("code", failure.Data.Symbol), zap.String("reason", fault.Reason))
		return failure
	}
	c.g.config.Observer.ServerFailed(fault)
	return failure
}

// firstMethod returns the method of the first request to the server.
func (c connectAttempt) firstMethod() string {
	if c.server.SpeaksEra(mcp.Modern) && !c.server.SpeaksEra(mcp.Legacy) {
		return "server/discover"
	}
	return "initialize"
}

// refusesClient reports whether the server refused this client, because of its params or the
// credentials that it sent.
func (c connectAttempt) refusesClient(failure *jsonrpc.Failure) bool {
	status := failure.Data.StatusCode
	return failure.Data.Symbol == "server_error" ||
		c.server.ForwardAuth && (status == http.StatusUnauthorized || status == http.StatusForbidden)
}

// handshake finds the era of the server, and begins a session if the server has sessions. A failed
// era counts as unsupported only if the other one succeeds.
func (c connectAttempt) handshake() *jsonrpc.Failure {
	l, s := c.link, c.server
	var failure, first *jsonrpc.Failure
	joined := false // the modern handshake succeeded, and the server also speaks the client's era
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
			s.NoteEra(era, true)
			if i > 0 && !joined {
				s.NoteEra(mcp.Modern-era, false)
			}
			if session != "" && l.client.era == mcp.Modern {
				l.endRequest = c.withContext(context.WithoutCancel(c.ctx)).newRequest(l)
				httpbody.EmptyAs(l.endRequest, http.MethodDelete)
			}
			if joined = era == mcp.Modern && l.client.era == mcp.Legacy && s.SpeaksEra(mcp.Legacy) && i == 0; !joined {
				return nil
			}
		case failure.IsLoginRequired(), failure.Data.Symbol == "login_failed":
			return failure // not a matter of the era
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
		return first // the server speaks that era only
	}
	return failure
}

// mayBeSilent reports whether a timeout may mean that the server does not know the method. Some
// legacy servers never answer unknown methods.
func (c connectAttempt) mayBeSilent(era mcp.Era, failure *jsonrpc.Failure) bool {
	return era == mcp.Modern && !c.server.SpeaksEra(era) && failure.Data.Symbol == "timeout"
}

// noteServer stores the server's result of initialize or server/discover in the link.
func (c connectAttempt) noteServer(era mcp.Era, result []byte, session string) *jsonrpc.Failure {
	l := c.link
	var body struct {
		Capabilities json.RawMessage `json:"capabilities"`
		Instructions string          `json:"instructions"`
		Version      string          `json:"protocolVersion"`
		Versions     []string        `json:"supportedVersions"`
	}
	if json.Unmarshal(result, &body) != nil || len(body.Capabilities) > maxServerInfo {
		return jsonrpc.InvalidResponse(l.serverName)
	}
	if len(body.Capabilities)+len(body.Instructions) > maxServerInfo {
		c.g.config.Logger.Warn("instructions of MCP server left out: too long",
			zap.String("mcp_server", l.serverName), zap.Int("bytes", len(body.Instructions)))
		body.Instructions = ""
	}
	if era == mcp.Modern {
		if mcp.NewestLegacy(body.Versions) != "" {
			c.server.NoteEra(mcp.Legacy, true)
		}
		if !slices.Contains(body.Versions, mcp.Stateless) {
			return jsonrpc.InvalidResponse(l.serverName)
		}
		body.Version = mcp.Stateless
	}
	info := &serverInfo{
		capabilities:  intern(string(body.Capabilities)),
		instructions:  intern(body.Instructions),
		mentionedURIs: intern(mcp.Mentions(body.Instructions)),
		can:           mcp.AbilitiesOf(body.Capabilities),
		hasSession:    session != "",
		learned:       time.Now(),
	}
	if !l.client.isolated.Load() {
		c.g.profile(l.client, l.serverID).setInfo(info)
	}
	l.client.inspection.NoteServer(body.Version, result)
	l.session.begin(linkTicket{Era: era, Version: body.Version, Session: session, Can: info.can}, info)
	return nil
}

// initialize begins a session, over the transport that the server has.
func (c connectAttempt) initialize() (result []byte, session string, failure *jsonrpc.Failure) {
	if c.server.SpeaksHTTPSSE() {
		if result, session, failure, isHTTPSSE := c.initializeHTTPSSE(c.g.config.JoinTimeout); isHTTPSSE {
			return result, session, failure
		}
	}
	reader, result, failure := c.initializeIn("")
	// A server that does not accept POST at the address of its stream may speak HTTP+SSE.
	status := reader.Status()
	if failure != nil && status/100 == 4 && !httpsse.IsInconclusive(status) && !c.server.ChildrenOnly {
		if result, session, failure, isHTTPSSE := c.initializeHTTPSSE(c.g.config.JoinTimeout / 3); isHTTPSSE {
			return result, session, failure
		}
	}
	return result, reader.Header().Get(mcp.SessionHeader), failure
}

// initializeIn begins a session. HTTP+SSE already has a session id. If the server refuses the
// version, it tries one that the server offers.
func (c connectAttempt) initializeIn(session string) (
	reader *streamable.Reader, result []byte, failure *jsonrpc.Failure,
) {
	version := c.link.client.legacyVersion()
	reader, result, failure = c.initializeAs(version, session)
	if failure == nil {
		return reader, result, nil
	}
	if offered := mcp.NewestLegacy(failure.Data.Supported); offered != "" && offered != version {
		return c.initializeAs(offered, session)
	}
	return reader, result, failure
}

// initializeAs sends initialize with a protocol version.
func (c connectAttempt) initializeAs(version, session string) (
	reader *streamable.Reader, result []byte, failure *jsonrpc.Failure,
) {
	r := c.newRequest(c.link)
	body := jsonrpc.RequestAs(c.link.ids.next(), "initialize", c.link.client.initializeParams(version))
	streamable.Session{Era: mcp.Legacy, ID: session}.SetHeaders(r.Header)
	reader, failure = c.link.roundTrip(c.g, r, body, resultInto(&result))
	return reader, result, failure
}

// discover sends server/discover. A server that is not known to be modern gets only a part of the
// timeout, see mayBeSilent. Child processes get all of it: internal/stdio finds their era while
// they start, and a second attempt would start another process.
func (c connectAttempt) discover() (result []byte, failure *jsonrpc.Failure) {
	if !c.server.SpeaksEra(mcp.Modern) && !c.server.ChildrenOnly {
		ctx, cancel := context.WithTimeout(c.ctx, c.g.config.JoinTimeout/3)
		defer cancel()
		c.ctx = ctx
	}
	for mayRetry := true; ; mayRetry = false {
		r := c.newRequest(c.link)
		params := mcp.WithMeta(nil, c.link.client.introduction.meta(""))
		body := jsonrpc.RequestAs(c.link.ids.next(), "server/discover", params)
		streamable.Session{Era: mcp.Modern, Version: mcp.Stateless}.SetHeaders(r.Header)
		_, failure = c.link.roundTrip(c.g, r, body, resultInto(&result))
		if failure == nil || !mayRetry || !slices.Contains(failure.Data.Supported, mcp.Stateless) {
			break
		}
		// The server refused a version that it offers. Try again: another process may answer.
	}
	if failure != nil && mcp.NewestLegacy(failure.Data.Supported) != "" {
		c.server.NoteEra(mcp.Legacy, true)
	}
	return result, failure
}

// An interned is a string of which memory holds one copy.
type interned struct{ handle unique.Handle[string] }

func intern(text string) interned { return interned{unique.Make(text)} }

func (s interned) text() string {
	if s == (interned{}) {
		return ""
	}
	return s.handle.Value()
}

// maxServerInfo limits the bytes of a server's capabilities and instructions.
const maxServerInfo = 64 << 10

// sendInitialized sends notifications/initialized to the server, once and before any other message
// (A3).
func (l *link) sendInitialized(sc scope) {
	if l.session.isInitialized() {
		return
	}
	if !l.session.beginOpening(sc.ctx) {
		return
	}
	defer l.session.endOpening()
	if l.session.isInitialized() {
		return
	}
	if l.session.takeUnsynced() {
		l.restoreSession(sc)
		return
	}
	// Finish even if the client disconnects: the session outlives this request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(sc.ctx), sc.g.config.JoinTimeout)
	defer cancel()
	sc = sc.withContext(ctx)
	failure := l.send(sc, jsonrpc.Notification("notifications/initialized", nil))
	initialized := l.session.noteInitialized(failure)
	if failure != nil {
		sc.g.config.Logger.Warn("notifications/initialized not delivered",
			zap.String("mcp_server", l.serverName), zap.Error(failure))
	}
	if initialized {
		l.restoreSession(sc)
		l.listenInStreams(sc)
	}
}

// isTemporary reports whether a request with this response status is worth repeating.
func isTemporary(status int) bool {
	switch status {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// restoreSession repeats the log level and the subscriptions of the client to a legacy server,
// after a session was lost or changed at another replica.
func (l *link) restoreSession(sc scope) {
	if level := l.client.logLevel(); level != "" && l.session.current().Can&mcp.HasLogging != 0 {
		l.repeat(sc, "logging/setLevel", jsonrpc.Encode(map[string]string{"level": level}))
	}
	for _, uri := range l.subscriptions.all() {
		l.repeat(sc, "resources/subscribe", mcp.URIParams(uri))
	}
}

// repeat sends a request on behalf of the client and ignores its result.
func (l *link) repeat(sc scope, method string, params []byte) {
	r, _ := l.newRequest(sc)
	if _, failure := l.roundTrip(sc.g, r, jsonrpc.RequestAs(l.ids.next(), method, params), ignoreResult); failure != nil {
		sc.g.config.Logger.Warn("log level or subscription of client not sent to MCP server",
			zap.String("mcp_server", l.serverName), zap.String("mcp_method", method), zap.Error(failure))
	}
}

// initializeHTTPSSE begins a session with an HTTP+SSE server: it opens the event stream and sends
// initialize. It reports whether the server speaks HTTP+SSE.
func (c connectAttempt) initializeHTTPSSE(timeout time.Duration) (
	result []byte, session string, failure *jsonrpc.Failure, isHTTPSSE bool,
) {
	known := c.server.SpeaksHTTPSSE()
	session, failure = c.openHTTPSSE(timeout)
	c.server.NoteHTTPSSE(failure == nil)
	if failure == nil && !known {
		c.g.config.Logger.Info("MCP server speaks HTTP+SSE", zap.String("mcp_server", c.server.Name))
	}
	switch {
	case failure == upstream.ErrNotHTTPSSE:
		return nil, "", nil, false
	case failure != nil && (upstream.Unreachable(failure) || failure.Data.Symbol == "http_error"):
		return nil, "", failure, known
	case failure != nil: // such as a required login or an invalid endpoint
		return nil, "", failure, true
	}
	if _, result, failure = c.initializeIn(session); failure != nil {
		c.g.shared.Retained.EndHTTPSSE(session)
		return nil, "", failure, true
	}
	return result, session, nil, true
}

// openHTTPSSE opens the event stream of a session with an HTTP+SSE server.
func (c connectAttempt) openHTTPSSE(timeout time.Duration) (session string, failure *jsonrpc.Failure) {
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	r := c.withContext(context.WithoutCancel(c.ctx)).newRequest(c.link)
	return c.g.exchange(c.link, new(streamable.Reader), nil).OpenHTTPSSE(ctx, c.link.client.owner, r)
}
