package gateway

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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
func (x *exchange) isResumable() bool {
	h := x.reader
	return h != nil && h.Position != nil && h.Position.ID != "" && (x.message.IsRequest() || x.resumed) &&
		!x.reply.done() && !h.Torn() && x.verdict == nil && !x.left && h.Fault(x.server.Name) == nil
}

// readOn asks for the rest of a stream until it has the answer. r is the request that has begun
// the stream, host what that was sent to, and failure how its response has ended.
func (x *exchange) readOn(r *http.Request, host string, failure *jsonrpc.Failure) *jsonrpc.Failure {
	ctx, at := x.context(r), x.reader.Position
	for last := x; last.isResumable(); {
		if !last.mayGoOn(failure) {
			return x.giveUp(ctx, jsonrpc.StreamLost(x.server.Name))
		}
		if failure := last.pause(ctx, x.flight); failure != nil {
			return x.giveUp(ctx, failure)
		}
		x.g.config.Logger.Debug("stream of MCP server is resumed",
			zap.String("mcp_server", x.server.Name), zap.Int("attempt", at.Attempts))
		get := x.server.Upstream.Derive(ctx, r, false)
		get.Host = host
		emptyBody(get, http.MethodGet)
		session := streamable.Session{
			Era: mcp.Legacy, Version: r.Header.Get(mcp.VersionHeader), ID: r.Header.Get(mcp.SessionHeader),
		}
		session.SignGET(get.Header, at.ID)
		last = last.rest()
		failure = last.forward(get)
		x.ending = last.ending
	}
	return failure
}

// pause waits until the rest of the stream may be asked for. Its failure says that this is
// not done anymore.
func (x *exchange) pause(ctx context.Context, flight *inFlight) *jsonrpc.Failure {
	at, a := x.reader.Position, &x.arrival
	if at.Attempts >= maxResumes {
		return jsonrpc.StreamLost(x.server.Name)
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
		return jsonrpc.Timeout(x.server.Name)
	}
	return nil
}

// rest returns the exchange for the rest of the stream.
func (x *exchange) rest() *exchange {
	x.reader.Resume()
	rest := &exchange{
		g: x.g, server: x.server, kind: x.kind, w: x.w, began: x.began,
		posted: &posted{message: x.message}, caller: x.caller, resumed: true, reader: x.reader,
		operator: x.operator, traffic: x.traffic,
	}
	rest.reply = &readerReply{Reader: x.reader, x: rest}
	rest.arrival.heardAt.Store(x.arrival.heardAt.Load())
	rest.arrival.size = x.arrival.size
	return rest
}

// mayGoOn reports whether the rest of the stream can still be had, now or later. A server
// answers 409 if it does not know yet that the last connection is broken.
func (x *exchange) mayGoOn(failure *jsonrpc.Failure) bool {
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
func (x *exchange) giveUp(ctx context.Context, failure *jsonrpc.Failure) *jsonrpc.Failure {
	if ctx.Err() != nil {
		x.left, x.outcome = true, OutcomeCanceled
		return nil
	}
	return failure
}

// resumeCall goes on with the stream of a call that a client has lost, at the one server that
// has it. kind is that of its events, see relay.eventID.
func (v *visit) resumeCall(kind, server, last string) *jsonrpc.Failure {
	_, encoded, _ := strings.Cut(kind, ":")
	clientID, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(clientID) == 0 {
		return notOfSession()
	}
	owner := v.g.servers[server]
	if owner == nil || !v.sees(owner) {
		return notOfSession()
	}
	v.server = owner
	l := v.client.link(owner)
	if failure := l.open(v.behalf()); failure != nil {
		return failure
	}
	l.use()
	if call := v.client.inFlight(clientID); call != nil && call.link == l {
		call.cancel(nil) // the client knows first that its connection is broken, and reads the rest here
	} else if call == nil {
		v.g.elsewhere.resumed(v.client, clientID, owner.ID)
	}
	s := &stream{visit: v.open()} // without listeners
	s.ctx, s.cancel = context.WithCancelCause(v.ctx)
	defer s.visit.asides.Wait()
	defer s.open.Wait()
	defer s.end()
	c := &resumedCall{stream: s, r: v.r, link: l, kind: kind, clientID: clientID}
	return c.run(last)
}

// A resumedCall is the rest of the stream of a call, which a client has asked for.
type resumedCall struct {
	*stream
	nameReader
	r        *http.Request // that asks for it
	link     *link
	kind     string // of the events
	clientID []byte // of the call; the server may know it by another one
	h        streamable.Reader
}

// run has the client read the stream after an event.
func (c *resumedCall) run(last string) *jsonrpc.Failure {
	v := &c.visit
	begin := sync.OnceFunc(func() {
		v.out.Begin()
		c.open.Go(c.keepOpen)
	})
	c.h = streamable.Reader{Position: &streamable.Position{ID: last}, Parse: c.parse, OnMessage: c.heard}
	c.h.OnHeader = func(status int) bool {
		if status == http.StatusOK {
			begin()
		}
		return status == http.StatusOK
	}
	r, _, _ := c.link.prepare(behalf{ctx: c.ctx, g: v.g, r: c.r})
	emptyBody(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-Id", last)
	x := v.g.newExchange(c.link, &c.h, nil)
	x.resumed = true
	failure := x.send(r)
	switch {
	case v.out.Streaming():
		return nil
	case c.h.Status()/100 == 4:
		return jsonrpc.InvalidRequest("Last-Event-ID: the MCP server cannot go on after this event")
	}
	return failure
}

// heard passes a message of the server on.
func (c *resumedCall) heard(e *streamable.Event) error {
	v, l, m := &c.visit, c.link, e.Message
	out := streamable.Event{ID: l.translator(v.g).eventID(c.kind, e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		if v.client.takesEmptyEvents() {
			v.out.Event(&out)
		}
	case m.IsAnswer():
		c.h.Settle(m)
		edits := append(withID(m, c.clientID), l.translator(v.g).rename(m.Raw, c.names)...)
		out.Data = jsonspan.Spliced(m.Raw, edits...)
		v.out.Event(&out)
		time.AfterFunc(streamGrace, c.end) // some servers do not end the stream
	default:
		others := l.unsolicited(behalf{ctx: c.ctx, g: v.g, r: c.r})
		others.note(m)
		if !c.deliver(v.g, l, m, out.ID) && m.IsRequest() {
			others.refuse(&v.asides, m, "the client cannot be asked "+mcp.Shortened(m.Text(jsonrpc.Method)))
		}
	}
	return nil
}
