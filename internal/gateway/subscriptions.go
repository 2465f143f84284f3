package gateway

import (
	"net/http"
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// subscriptions are the resources of a server that a client has subscribed to. They are needed for
// modern servers, which get one listener each, and to subscribe again in a new legacy session.
type subscriptions struct {
	mu      sync.Mutex
	uris    []string          // sorted
	aliases map[string]string // URIs that the client used, if different, by URI
	closed  bool              // the link is no longer used
}

// add adds a subscription, unless that exceeds the limit or the quota. alias is "" if the client
// used the server's URI. It reports whether the subscription is new, and whether it exists now.
func (s *subscriptions) add(meter *quota.Meter, owner, uri, alias string, limit int) (added, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, there := slices.BinarySearch(s.uris, uri)
	switch {
	case there && (alias == "" || alias == s.aliases[uri]):
		return false, true
	case there: // with another alias
		s.drop(meter, owner, i)
	}
	if s.closed || len(s.uris) == limit || !meter.Take(owner, int64(len(uri)+len(alias))) {
		return false, false
	}
	s.uris = slices.Insert(s.uris, i, uri)
	if alias != "" {
		if s.aliases == nil {
			s.aliases = map[string]string{}
		}
		s.aliases[uri] = alias
	}
	return !there, true
}

func (s *subscriptions) remove(meter *quota.Meter, owner, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, there := slices.BinarySearch(s.uris, uri); there {
		s.drop(meter, owner, i)
	}
}

// close removes all subscriptions, and prevents new ones.
func (s *subscriptions) close(meter *quota.Meter, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for len(s.uris) > 0 {
		s.drop(meter, owner, len(s.uris)-1)
	}
}

// drop removes the subscription with an index. The caller holds the lock.
func (s *subscriptions) drop(meter *quota.Meter, owner string, i int) {
	uri := s.uris[i]
	meter.Give(owner, int64(len(uri)+len(s.aliases[uri])))
	s.uris = slices.Delete(s.uris, i, i+1)
	delete(s.aliases, uri)
}

func (s *subscriptions) has(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := slices.BinarySearch(s.uris, uri)
	return there
}

// all returns the URIs of all subscriptions.
func (s *subscriptions) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.uris)
}

// alias returns the URI that the client used for a resource, "" if it is the same.
func (s *subscriptions) alias(uri string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aliases[uri]
}

// size returns the approximate memory use.
func (s *subscriptions) size() (bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uri := range s.uris {
		bytes += len(uri) + len(s.aliases[uri])
	}
	return bytes
}

// maxSubscriptions limits the subscriptions of a client at a server; maxListeners does so for
// modern servers, where each takes a stream.
const maxSubscriptions, maxListeners = 1_000, 64

// subscriptionLimits apply to all servers and clients of a gateway.
var subscriptionLimits = quota.Limits{Entries: 100_000, Bytes: 64 << 20, OwnerEntries: 10_000, OwnerBytes: 8 << 20}

var subscriptionsQuota = quota.NewKind("subscriptions")

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
	era := l.session.current().Era
	limit := maxSubscriptions
	if era == mcp.Modern {
		limit = maxListeners
	}
	added := false
	switch {
	case uri == "": // also the key of the listener for all messages of the server
		return invalidParams("uri: missing or empty")
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
			listening.work.stop(listenerKey{s.ID, uri})
			continue
		}
		listening.listenAndWait(listenerKey{s.ID, uri})
	}
	return c.answerResult([]byte("{}"))
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
