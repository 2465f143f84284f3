package gateway

import (
	"slices"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// subscriptions are the resources of a server that a client has subscribed to. A server of the
// modern era has no such request, and one of the legacy era may have to be asked again.
type subscriptions struct {
	mu      sync.Mutex
	uris    []string          // sorted
	aliases map[string]string // what the client calls those that it has subscribed to by another URI
}

// add notes a subscription, made by an alias if that is not empty, unless there are as many
// as the limit. It reports whether it was not there before, and whether it is now.
func (s *subscriptions) add(meter *quota.Meter, owner, uri, alias string, limit int) (added, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, there := slices.BinarySearch(s.uris, uri)
	switch {
	case there && (alias == "" || alias == s.aliases[uri]):
		return false, true
	case there: // by another URI
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

// remove notes that a subscription has ended.
func (s *subscriptions) remove(meter *quota.Meter, owner, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, there := slices.BinarySearch(s.uris, uri); there {
		s.drop(meter, owner, i)
	}
}

// removeAll notes that all subscriptions have ended.
func (s *subscriptions) removeAll(meter *quota.Meter, owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.uris) > 0 {
		s.drop(meter, owner, len(s.uris)-1)
	}
}

// drop removes a subscription. The caller holds the lock.
func (s *subscriptions) drop(meter *quota.Meter, owner string, i int) {
	uri := s.uris[i]
	meter.Give(owner, int64(len(uri)+len(s.aliases[uri])))
	s.uris = slices.Delete(s.uris, i, i+1)
	delete(s.aliases, uri)
}

// has reports whether the client has subscribed to a resource.
func (s *subscriptions) has(uri string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, there := slices.BinarySearch(s.uris, uri)
	return there
}

// all returns the URIs of all of them.
func (s *subscriptions) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.uris)
}

// alias returns what the client calls a resource, if it has subscribed to it by another URI.
func (s *subscriptions) alias(uri string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aliases[uri]
}

// size returns about how much memory they take.
func (s *subscriptions) size() (bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uri := range s.uris {
		bytes += len(uri) + len(s.aliases[uri])
	}
	return bytes
}

// To how many resources of a server a client can subscribe: of a server of the modern
// era each takes a stream.
const maxSubscriptions, maxListeners = 1_000, 64

// subscriptionLimits are for all servers and clients of a gateway.
var subscriptionLimits = quota.Limits{Entries: 100_000, Bytes: 64 << 20, OwnerEntries: 10_000, OwnerBytes: 8 << 20}

var keptSubscriptions = quota.NewKind("subscriptions")
