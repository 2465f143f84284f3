package gateway

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

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
	v.Server = owner
	l := v.client.link(owner)
	if failure := l.open(v.behalf()); failure != nil {
		return failure
	}
	l.use()
	if call := v.client.inFlight(clientID); call != nil && call.link == l {
		call.Cancel(nil) // the client knows first that its connection is broken, and reads the rest here
	} else if call == nil {
		v.g.elsewhere.resumed(v.client, clientID, owner.ID)
	}
	s := &stream{visit: v.open()} // without listeners
	s.ctx, s.cancel = context.WithCancelCause(v.ctx)
	defer s.visit.asides.Wait()
	defer s.open.Wait()
	defer s.end()
	c := &resumedCall{stream: s, r: v.HTTP, link: l, kind: kind, clientID: clientID}
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
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-Id", last)
	x := v.g.exchange(c.link, &c.h, nil)
	x.Resumed = true
	failure := x.Send(r)
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
		edits := append(m.WithID(c.clientID), l.translator(v.g).rename(m.Raw, c.names)...)
		out.Data = jsonspan.Spliced(m.Raw, edits...)
		v.out.Event(&out)
		time.AfterFunc(upstream.StreamGrace, c.end) // some servers do not end the stream
	default:
		others := l.unsolicited(behalf{ctx: c.ctx, g: v.g, r: c.r})
		others.note(m)
		if !c.deliver(v.g, l, m, out.ID) && m.IsRequest() {
			others.refuse(&v.asides, m, "the client cannot be asked "+mcp.Shortened(m.Text(jsonrpc.Method)))
		}
	}
	return nil
}
