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

// resumeCall resumes the stream of a call that a client has lost. kind is the stream kind in its
// event ids, see relay.eventID.
func (req *aggregateRequest) resumeCall(kind, server, last string) *jsonrpc.Failure {
	_, encoded, _ := strings.Cut(kind, ":")
	clientID, err := base64.RawURLEncoding.DecodeString(encoded)
	if err != nil || len(clientID) == 0 {
		return unknownEventID()
	}
	owner := req.g.servers[server]
	if owner == nil || !req.sees(owner) {
		return unknownEventID()
	}
	req.Server = owner
	l := req.client.linkTo(owner)
	if failure := l.open(req.scope()); failure != nil {
		return failure
	}
	l.markUsed()
	if call := req.client.activeCall(clientID); call != nil && call.link == l {
		call.Cancel(nil) // the client noticed first that its connection is broken, and resumes here
	} else if call == nil {
		req.g.replicaSync.callResumed(req.client, clientID, owner.ID)
	}
	s := &stream{req: req.newStreamRequest()} // without listeners
	s.ctx, s.cancel = context.WithCancelCause(req.ctx)
	defer s.req.sideRequests.Wait()
	defer s.running.Wait()
	defer s.end()
	c := &resumedCall{stream: s, r: req.HTTP, link: l, kind: kind, clientID: clientID}
	return c.run(last)
}

// A resumedCall is the rest of the stream of a call.
type resumedCall struct {
	*stream
	nameReader
	r        *http.Request // request that resumes the stream
	link     *link
	kind     string // stream kind in the event ids
	clientID []byte // the client's id of the call; the server may have another one
	reader   streamable.Reader
}

// run passes on the stream after an event.
func (c *resumedCall) run(last string) *jsonrpc.Failure {
	req := &c.req
	begin := sync.OnceFunc(func() {
		req.out.Begin()
		c.running.Go(c.keepOpen)
	})
	c.reader = streamable.Reader{Position: &streamable.Position{ID: last}, Parse: c.parse, OnMessage: c.onMessage}
	c.reader.OnHeader = func(status int) bool {
		if status == http.StatusOK {
			begin()
		}
		return status == http.StatusOK
	}
	r, _, _ := c.link.newRequest(scope{ctx: c.ctx, g: req.g, r: c.r})
	httpbody.EmptyAs(r, http.MethodGet)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-Id", last)
	x := req.g.exchange(c.link, &c.reader, nil)
	x.Resumed = true
	failure := x.Send(r)
	switch {
	case req.out.IsStreaming():
		return nil
	case c.reader.Status()/100 == 4:
		return jsonrpc.InvalidRequest("Last-Event-ID: the MCP server cannot resume after this event")
	}
	return failure
}

// onMessage passes on a message of the server.
func (c *resumedCall) onMessage(e *streamable.Event) error {
	req, l, m := &c.req, c.link, e.Message
	out := streamable.Event{ID: l.translator(req.g).eventID(c.kind, e.ID), Retry: e.Retry}
	switch {
	case len(e.Data) == 0:
		if req.client.takesEmptyEvents() {
			req.out.Event(&out)
		}
	case m.IsResponse():
		c.reader.NoteResponse(m)
		edits := append(m.WithID(c.clientID), l.translator(req.g).rename(m.Raw, c.names)...)
		out.Data = jsonspan.Spliced(m.Raw, edits...)
		req.out.Event(&out)
		time.AfterFunc(upstream.StreamGrace, c.end) // some servers do not end the stream
	default:
		u := l.unsolicited(scope{ctx: c.ctx, g: req.g, r: c.r})
		u.note(m)
		if !c.deliver(req.g, l, m, out.ID) && m.IsRequest() {
			u.refuse(&req.sideRequests, m, "the client does not support "+mcp.Shortened(m.Text(jsonrpc.Method)))
		}
	}
	return nil
}
