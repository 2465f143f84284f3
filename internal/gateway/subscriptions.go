package gateway

import (
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// subscriptions are the resources of a server that a client has subscribed to. They are needed for
// modern servers, which get one listener each, and to subscribe again in a new legacy session.
type subscriptions struct {
	mu      sync.Mutex
	uris    []string          // sorted
	aliases map[string]string // URIs that the client used, if different, by URI
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
	if len(s.uris) == limit || !meter.Take(owner, int64(len(uri)+len(alias))) {
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

func (s *subscriptions) removeAll(meter *quota.Meter, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
