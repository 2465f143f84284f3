package gateway

import (
	"net/http"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// subscribe answers resources/subscribe, or resources/unsubscribe if on is false (A68).
func (c *call) subscribe(on bool) *jsonrpc.Failure {
	s, target, edits, failure := c.findResource(jsonrpc.URI)
	if failure == nil && !c.AdmitAsked {
		failure = c.Admit(target)
	}
	if failure != nil {
		return failure
	}
	l := c.client.link(s)
	if failure := l.open(c.behalf()); failure != nil {
		return c.failed(failure)
	}
	l.sendInitialized(c.behalf()) // which repeats older subscriptions in a new session, but not this one
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
	case len(uri) > mcp.LongestURI || len(shown) > mcp.LongestURI:
		return invalid("uri: it has more than 8 KiB")
	case !on:
		l.subscriptions.remove(c.g.subscribing, c.client.owner, uri)
	default:
		var ok bool
		if added, ok = l.subscriptions.add(c.g.subscribing, c.client.owner, uri, shown, limit); !ok {
			return invalid("uri: there are too many subscriptions")
		}
	}
	change := sessionChange{Server: s.ID, URI: uri, Shown: shown, On: on}
	if era == mcp.Legacy && c.g.elsewhere != nil {
		change.Told = c.g.told(l) // in a moment
	}
	c.g.elsewhere.change(c.ctx, c.client, change) // before the answer
	if era == mcp.Legacy {
		failure := c.pass(s, target, edits)
		if added && (failure != nil || c.ErrorCode != 0) {
			l.subscriptions.remove(c.g.subscribing, c.client.owner, uri) // which the server has not agreed to
			change.On = false
			c.g.elsewhere.change(c.ctx, c.client, change)
		}
		return failure
	}
	c.Server = s
	for _, listening := range c.client.listening() {
		if !on {
			listening.stop(listenerKey{s.ID, uri})
			continue
		}
		listening.listenAndWait(listenerKey{s.ID, uri})
	}
	return c.answer([]byte("{}"))
}

// listenAndWait starts a listener, and waits until the server has answered, but not for long. After it has
// subscribed, the client expects to get every change.
func (s *stream) listenAndWait(key listenerKey) {
	begun := make(chan struct{})
	s.listenTo(key, "", sync.OnceFunc(func() { close(begun) }))
	s.await(begun)
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
