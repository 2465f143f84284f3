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

// isResumable reports whether the stream ended before the response and can be resumed.
func (x *Exchange) isResumable() bool {
	reader := x.reader
	return reader != nil && reader.Position != nil && reader.Position.ID != "" && (x.Message.IsRequest() || x.Resumed) &&
		!x.reply.done() && !reader.IsTruncated() && x.failure == nil && !x.ClientGone && reader.Fault(x.Server.Name) == nil
}

// resume resumes a stream until it has the response. r is the request that started the stream, host
// the host it was sent to, and failure how it ended.
func (x *Exchange) resume(r *http.Request, host string, failure *jsonrpc.Failure) *jsonrpc.Failure {
	ctx, position := x.context(r), x.reader.Position
	for last := x; last.isResumable(); {
		if !last.canResume(failure) {
			return x.giveUp(ctx, jsonrpc.StreamLost(x.Server.Name))
		}
		if failure := last.pause(ctx, x.call); failure != nil {
			return x.giveUp(ctx, failure)
		}
		x.Shared.Logger.Debug("resuming stream of MCP server",
			zap.String("mcp_server", x.Server.Name), zap.Int("attempt", position.Attempts))
		get := x.Server.Routes.Derive(ctx, r, false)
		get.Host = host
		httpbody.EmptyAs(get, http.MethodGet)
		session := streamable.Session{
			Era: mcp.Legacy, Version: r.Header.Get(mcp.VersionHeader), ID: r.Header.Get(mcp.SessionHeader),
		}
		session.SetGETHeaders(get.Header, position.ID)
		last = last.nextExchange()
		failure = last.forward(get)
		x.Ending = last.Ending
	}
	return failure
}

// pause waits until the stream may be resumed. It returns a failure if the stream must not be
// resumed anymore.
func (x *Exchange) pause(ctx context.Context, call *ActiveCall) *jsonrpc.Failure {
	position, rr := x.reader.Position, &x.receiver
	if position.Attempts >= maxResumes {
		return jsonrpc.StreamLost(x.Server.Name)
	}
	defer call.pause()()
	if rr.timer != nil { // otherwise the client decides how long it waits
		rr.lastActivity.Add(int64(position.Retry())) // the server asked for this pause
		left := max(rr.idleTimeLeft(), x.reply.timeLeft(rr.timeout)+position.Retry())
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	if !position.Wait(ctx) {
		return jsonrpc.Timeout(x.Server.Name)
	}
	return nil
}

// nextExchange returns the exchange for the rest of the stream.
func (x *Exchange) nextExchange() *Exchange {
	x.reader.Resume()
	rest := &Exchange{
		Shared: x.Shared, Server: x.Server, Kind: x.Kind, Writer: x.Writer, Began: x.Began,
		PostedMessage: &PostedMessage{Message: x.Message}, Caller: x.Caller, Resumed: true, reader: x.reader,
		inspection: x.inspection, Traffic: x.Traffic,
	}
	rest.reply = &readerReply{Reader: x.reader, x: rest}
	rest.receiver.lastActivity.Store(x.receiver.lastActivity.Load())
	rest.receiver.size = x.receiver.size
	return rest
}

// canResume reports whether the stream may still be resumed, now or later. A server responds with
// 409 if it has not noticed yet that the last connection is broken.
func (x *Exchange) canResume(failure *jsonrpc.Failure) bool {
	switch status := x.reader.Status(); {
	case status == 0:
		return failure == nil || failure.Status >= 500
	case status == http.StatusOK:
		return x.reader.IsStream()
	default:
		return status >= 500 || status == http.StatusConflict
	}
}

// giveUp ends a request whose response will not come.
func (x *Exchange) giveUp(ctx context.Context, failure *jsonrpc.Failure) *jsonrpc.Failure {
	if ctx.Err() != nil {
		x.ClientGone, x.Outcome = true, OutcomeCanceled
		return nil
	}
	return failure
}
