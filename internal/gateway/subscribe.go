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
	l := c.client.linkTo(s)
	if failure := l.open(c.scope()); failure != nil {
		return c.fail(failure)
	}
	l.sendInitialized(c.scope()) // repeats older subscriptions in a new session, but not this one
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
		return invalidParams("uri: longer than 8 KiB")
	case !on:
		l.subscriptions.remove(c.g.subscriptionMeter, c.client.owner, uri)
	default:
		var ok bool
		if added, ok = l.subscriptions.add(c.g.subscriptionMeter, c.client.owner, uri, shown, limit); !ok {
			return invalidParams("uri: too many subscriptions")
		}
	}
	change := sessionChange{Server: s.ID, URI: uri, Shown: shown, On: on}
	if era == mcp.Legacy && c.g.replicaSync != nil {
		change.Told = c.g.sharedSessions(l) // the call below tells the server
	}
	c.g.replicaSync.shareChange(c.ctx, c.client, change) // before the client gets the response
	if era == mcp.Legacy {
		failure := c.forward(s, target, edits)
		if added && (failure != nil || c.ErrorCode != 0) {
			l.subscriptions.remove(c.g.subscriptionMeter, c.client.owner, uri) // the server refused it
			change.On = false
			c.g.replicaSync.shareChange(c.ctx, c.client, change)
		}
		return failure
	}
	c.Server = s
	for _, listening := range c.client.openStreams() {
		if !on {
			listening.stop(listenerKey{s.ID, uri})
			continue
		}
		listening.listenAndWait(listenerKey{s.ID, uri})
	}
	return c.answerResult([]byte("{}"))
}

// listenAndWait starts a listener and waits until the server has responded, at most joinWait, so
// that the client misses no update after it has subscribed.
func (s *stream) listenAndWait(key listenerKey) {
	started := make(chan struct{})
	s.listenTo(key, "", sync.OnceFunc(func() { close(started) }))
	s.waitStarted(started)
}

// notAcceptable refuses to open a stream for a client that does not accept event streams.
func notAcceptable() *jsonrpc.Failure {
	failure := jsonrpc.InvalidRequest("Accept: must include text/event-stream")
	failure.Status = http.StatusNotAcceptable
	return failure
}

// unknownEventID refuses to resume a stream that the session never had.
func unknownEventID() *jsonrpc.Failure {
	return jsonrpc.InvalidRequest("Last-Event-ID: unknown event of this session")
}
