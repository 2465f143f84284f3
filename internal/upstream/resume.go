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

// A server of the legacy era may end the stream of a request before the answer, and a
// connection may break. The gateway then asks for the rest, after the last event that it has
// read. It never posts the request again, because that may have been carried out.

// maxResumes is how often the rest of a stream is asked for before there is another event.
const maxResumes = 10

// isResumable reports whether the response has ended before the answer, and there is a way to
// ask for the rest.
func (x *Exchange) isResumable() bool {
	h := x.reader
	return h != nil && h.Position != nil && h.Position.ID != "" && (x.Message.IsRequest() || x.Resumed) &&
		!x.reply.done() && !h.Torn() && x.verdict == nil && !x.Left && h.Fault(x.Server.Name) == nil
}

// readOn asks for the rest of a stream until it has the answer. r is the request that has begun
// the stream, host what that was sent to, and failure how its response has ended.
func (x *Exchange) readOn(r *http.Request, host string, failure *jsonrpc.Failure) *jsonrpc.Failure {
	ctx, at := x.context(r), x.reader.Position
	for last := x; last.isResumable(); {
		if !last.mayGoOn(failure) {
			return x.giveUp(ctx, jsonrpc.StreamLost(x.Server.Name))
		}
		if failure := last.pause(ctx, x.flight); failure != nil {
			return x.giveUp(ctx, failure)
		}
		x.Shared.Logger.Debug("stream of MCP server is resumed",
			zap.String("mcp_server", x.Server.Name), zap.Int("attempt", at.Attempts))
		get := x.Server.Routes.Derive(ctx, r, false)
		get.Host = host
		httpbody.EmptyAs(get, http.MethodGet)
		session := streamable.Session{
			Era: mcp.Legacy, Version: r.Header.Get(mcp.VersionHeader), ID: r.Header.Get(mcp.SessionHeader),
		}
		session.SignGET(get.Header, at.ID)
		last = last.rest()
		failure = last.forward(get)
		x.Ending = last.Ending
	}
	return failure
}

// pause waits until the rest of the stream may be asked for. Its failure says that this is
// not done anymore.
func (x *Exchange) pause(ctx context.Context, flight *Flight) *jsonrpc.Failure {
	at, a := x.reader.Position, &x.arrival
	if at.Attempts >= maxResumes {
		return jsonrpc.StreamLost(x.Server.Name)
	}
	defer flight.pause()()
	if a.timer != nil { // else the client decides how long it waits
		a.heardAt.Add(int64(at.Retry())) // the pause that the server wants is not its silence
		left := max(a.silence(), x.reply.timeLeft(a.timeout)+at.Retry())
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	if !at.Wait(ctx) {
		return jsonrpc.Timeout(x.Server.Name)
	}
	return nil
}

// rest returns the exchange for the rest of the stream.
func (x *Exchange) rest() *Exchange {
	x.reader.Resume()
	rest := &Exchange{
		Shared: x.Shared, Server: x.Server, Kind: x.Kind, Writer: x.Writer, Began: x.Began,
		Posted: &Posted{Message: x.Message}, Caller: x.Caller, Resumed: true, reader: x.reader,
		inspection: x.inspection, Traffic: x.Traffic,
	}
	rest.reply = &readerReply{Reader: x.reader, x: rest}
	rest.arrival.heardAt.Store(x.arrival.heardAt.Load())
	rest.arrival.size = x.arrival.size
	return rest
}

// mayGoOn reports whether the rest of the stream can still be had, now or later. A server
// answers 409 if it does not know yet that the last connection is broken.
func (x *Exchange) mayGoOn(failure *jsonrpc.Failure) bool {
	switch status := x.reader.Status(); {
	case status == 0:
		return failure == nil || failure.Status >= 500
	case status == http.StatusOK:
		return x.reader.IsStream()
	default:
		return status >= 500 || status == http.StatusConflict
	}
}

// giveUp ends a request whose answer will not come.
func (x *Exchange) giveUp(ctx context.Context, failure *jsonrpc.Failure) *jsonrpc.Failure {
	if ctx.Err() != nil {
		x.Left, x.Outcome = true, OutcomeCanceled
		return nil
	}
	return failure
}
