package upstream

import (
	"context"
	"net/http"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// A legacy server may end the stream of a request before the response, and a connection may break.
// The gateway then requests the rest, after the last event that it has read. It never posts the
// request again, because the server may have executed it.

// maxResumes is how often the rest of a stream is requested before another event arrives.
const maxResumes = 10

// A resumption requests the rest of the stream of an exchange.
type resumption struct {
	x    *Exchange       // the exchange with the request, which is reported
	last *Exchange       // the exchange with the last part of the stream
	ctx  context.Context // of the call
	r    *http.Request   // started the stream
	host string          // host that it was sent to
}

// run resumes a stream until it has the response. failure is how it ended.
func (s *resumption) run(failure *jsonrpc.Failure) *jsonrpc.Failure {
	for s.isPossible() {
		if !s.mayContinue(failure) {
			return s.giveUp(jsonrpc.StreamLost(s.x.Server.Name))
		}
		if failure := s.pause(); failure != nil {
			return s.giveUp(failure)
		}
		s.x.Shared.Logger.Debug("resuming stream of MCP server",
			zap.String("mcp_server", s.x.Server.Name), zap.Int("attempt", s.x.reader.Position.Attempts))
		get := s.newRequest()
		s.last = s.nextExchange()
		failure = s.last.forward(get)
		s.x.Ending = s.last.Ending
	}
	return failure
}

// isPossible reports whether the stream ended before the response and can be resumed.
func (s *resumption) isPossible() bool {
	x, reader := s.last, s.x.reader
	return reader.Position.CanResume() && (x.Message.IsRequest() || x.Resumed) &&
		!x.reply.done() && !reader.IsTruncated() && x.failure == nil && !x.ClientGone && reader.Fault(x.Server.Name) == nil
}

// mayContinue reports whether the stream may still be resumed, now or later, after a failure. A
// server responds with 409 if it has not noticed yet that the last connection is broken.
func (s *resumption) mayContinue(failure *jsonrpc.Failure) bool {
	switch status := s.x.reader.Status(); {
	case status == 0:
		return failure == nil || failure.Status >= 500
	case status == http.StatusOK:
		return s.x.reader.IsStream()
	default:
		return status >= 500 || status == http.StatusConflict
	}
}

// pause waits until the stream may be resumed. It returns a failure if the stream must not be
// resumed anymore.
func (s *resumption) pause() *jsonrpc.Failure {
	ctx, position := s.ctx, s.x.reader.Position
	if position.Attempts >= maxResumes {
		return jsonrpc.StreamLost(s.x.Server.Name)
	}
	defer s.x.call.pause()()
	if s.last.limits.hasTimeout() { // otherwise the client decides how long it waits
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.last.limits.addPause(position.Retry()))
		defer cancel()
	}
	if !position.Wait(ctx) {
		return jsonrpc.Timeout(s.x.Server.Name)
	}
	return nil
}

// newRequest returns the request for the rest of the stream.
func (s *resumption) newRequest() *http.Request {
	get := s.x.Server.Routes.Derive(s.ctx, s.r, false)
	get.Host = s.host
	httpbody.EmptyAs(get, http.MethodGet)
	session := streamable.Session{
		Era: mcp.Legacy, Version: s.r.Header.Get(mcp.VersionHeader), ID: s.r.Header.Get(mcp.SessionHeader),
	}
	session.SetGETHeaders(get.Header, s.x.reader.Position.ID)
	return get
}

// nextExchange returns the exchange for the rest of the stream.
func (s *resumption) nextExchange() *Exchange {
	x := s.last
	x.reader.Resume()
	rest := &Exchange{
		Shared: x.Shared, Server: x.Server, Kind: x.Kind, Writer: x.Writer, Began: x.Began,
		PostedMessage: &PostedMessage{Message: x.Message}, Caller: x.Caller, Resumed: true, reader: x.reader,
		inspection: x.inspection, Traffic: x.Traffic, Goal: x.Goal,
	}
	rest.reply = &readerReply{Reader: x.reader, x: rest}
	rest.limits.lastActivity.Store(x.limits.lastActivity.Load())
	rest.receiver.size = x.receiver.size
	return rest
}

// giveUp ends a request whose response will not come.
func (s *resumption) giveUp(failure *jsonrpc.Failure) *jsonrpc.Failure {
	if s.ctx.Err() != nil {
		s.x.ClientGone, s.x.Outcome = true, OutcomeCanceled
		return nil
	}
	return failure
}
