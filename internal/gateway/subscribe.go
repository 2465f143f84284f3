package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// listen opens a stream of the modern era.
func (v *visit) listen() *jsonrpc.Failure {
	wants := new(interests)
	if v.message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject || json.Unmarshal(v.message.Literal(jsonrpc.Notifications), wants) != nil {
		return jsonrpc.InvalidParams("notifications: it is missing, or no object of what to listen to")
	}
	size := int64(0)
	for _, uri := range wants.URIs {
		if size += int64(len(uri)); len(uri) > longestURI {
			return jsonrpc.InvalidParams("resourceSubscriptions: a URI has more than 8 KiB")
		}
	}
	if len(wants.URIs) > maxSubscriptions || !v.g.subscribing.Take(v.client.owner, size) {
		return jsonrpc.InvalidParams("resourceSubscriptions: there are too many")
	}
	defer v.g.subscribing.Give(v.client.owner, size)
	wants.resolve(v)
	if !v.out.AcceptsStream() {
		return notAcceptable()
	}
	v.all(func(_ *Server, l *link) { _ = l.open(v.origin()) })
	agreed := interests{of: map[string][]string{}, shown: wants.shown}
	for _, server := range v.g.rules.seen(v.caller.identity) {
		_, can := v.client.link(server).state()
		mine := wants.at(server.Name, can|toolsChange|promptsChange|resourcesChange) // ours: servers come and go
		agreed.Tools, agreed.Prompts, agreed.Resources = agreed.Tools || mine.Tools, agreed.Prompts || mine.Prompts, agreed.Resources || mine.Resources
		if len(mine.URIs) > 0 {
			agreed.of[server.Name] = mine.URIs
			for _, uri := range mine.URIs {
				agreed.URIs = append(agreed.URIs, wants.shown[server.Name+"\x00"+uri])
			}
		}
	}
	s := v.newStream(&agreed)
	defer s.close()
	if !agreed.nothing() {
		s.await(s.join(func(string) string { return "" }))
	}
	v.out.Event(&streamable.Event{Data: s.tagged(jsonrpc.Notification("notifications/subscriptions/acknowledged",
		slices.Concat([]byte(`{"notifications":`), jsonrpc.Encode(agreed), []byte("}"))))})
	if !agreed.nothing() {
		s.keepOpen()
	}
	if v.r.Context().Err() == nil || s.g.Load().exiting() {
		v.out.Answer(http.StatusOK, &streamable.Event{Data: jsonrpc.Answer(v.message.Literal(jsonrpc.ID), slices.Concat(
			[]byte(`{"resultType":"complete","_meta":{"`+mcp.MetaSubscriptionID+`":`), v.message.Literal(jsonrpc.ID), []byte("}}")))})
	}
	return nil
}

// subscribe answers resources/subscribe, or resources/unsubscribe if on is false (A68).
func (c *call) subscribe(on bool) *jsonrpc.Failure {
	s, target, edits, failure := c.findResource(jsonrpc.URI)
	if failure == nil {
		failure = c.admit(target)
	}
	if failure != nil {
		return failure
	}
	l := c.client.link(s)
	if failure := l.open(c.origin()); failure != nil {
		return c.failed(failure)
	}
	uri, shown := target.Name, ""
	if c.alias.isSet() {
		shown = c.alias.shown
	}
	era, _ := l.state()
	limit := maxSubscriptions
	if era == mcp.Modern {
		limit = maxListeners
	}
	added := false
	switch {
	case len(uri) > longestURI || len(shown) > longestURI:
		return invalid("uri: it has more than 8 KiB")
	case !on:
		l.subscriptions.remove(c.g.subscribing, c.client.owner, uri)
	default:
		var ok bool
		if added, ok = l.subscriptions.add(c.g.subscribing, c.client.owner, uri, shown, limit); !ok {
			return invalid("uri: there are too many subscriptions")
		}
	}
	if era == mcp.Legacy {
		failure := c.pass(s, target, edits)
		if added && (failure != nil || c.errorCode != 0) {
			l.subscriptions.remove(c.g.subscribing, c.client.owner, uri) // which the server has not agreed to
		}
		return failure
	}
	c.server = s
	for _, listening := range c.client.listening() {
		if !on {
			listening.stop(listenerKey{s.ID, uri})
			continue
		}
		// After the answer, the client expects to get every change.
		begun := make(chan struct{})
		listening.listenTo(listenerKey{s.ID, uri}, "", sync.OnceFunc(func() { close(begun) }))
		listening.await(begun)
	}
	return c.answer([]byte("{}"))
}

// get opens the stream of a session.
func (v *visit) get() *jsonrpc.Failure {
	if !v.out.AcceptsStream() {
		return notAcceptable()
	}
	kind, server, last := "", "", ""
	if bound := v.r.Header.Get("Last-Event-Id"); bound != "" {
		id, ok := v.g.sealer.claim(bound, eventOfSession, v.client.key)
		if !ok {
			id = bound
		}
		kind, id, _ = strings.Cut(id, "/")
		server, last, _ = strings.Cut(id, "/")
		switch {
		case kind == callStream && ok:
			return v.resumeCall(server, last)
		case kind == callStream:
			return notOfSession()
		case !ok:
			server = "" // to listen is something that can begin anew
		}
	}
	s := v.newStream(nil)
	defer s.close()
	s.await(s.join(func(name string) string {
		if name == server {
			return last
		}
		return ""
	}))
	v.out.Begin()
	s.keepOpen()
	return nil
}

// resumeCall goes on with the stream of a call, at the one server that has it.
func (v *visit) resumeCall(server, last string) *jsonrpc.Failure {
	owner := v.g.servers[server]
	if owner == nil || !v.sees(owner) {
		return notOfSession()
	}
	v.server = owner
	l := v.client.link(owner)
	if failure := l.open(v.origin()); failure != nil {
		return failure
	}
	v.out.Begin()
	s := &stream{visit: v} // without listeners
	s.listenGET(v.origin(), l, &listener{last: last}, callStream, func() {})
	return nil
}

// notAcceptable refuses a client that listens but takes no event streams.
func notAcceptable() *jsonrpc.Failure {
	failure := jsonrpc.InvalidRequest("Accept: it does not name text/event-stream")
	failure.Status = http.StatusNotAcceptable
	return failure
}

// notOfSession refuses to go on with a stream that a session never had.
func notOfSession() *jsonrpc.Failure {
	return jsonrpc.InvalidRequest("Last-Event-ID: it is none of this session")
}
