package inbound

import (
	"sync"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// Usage is the rate limit state and the request counts of clients. It is retained over
// configuration reloads.
type Usage struct {
	buckets *ratelimit.Buckets
	tallies sync.Map // *Tally by the label of the client in metrics
}

// maxLimited limits the clients that have rate limit state.
const maxLimited = 100_000

// NewUsage returns an empty Usage. space is the state that replicas share; nil for none. With
// allowWhenDown, this replica counts alone while the space is unavailable.
func NewUsage(space *replicas.Space, allowWhenDown bool) *Usage {
	return &Usage{buckets: ratelimit.NewShared(maxLimited, space.Space("rates"), allowWhenDown)}
}

// Close drops all state.
func (u *Usage) Close() { u.buckets.Close() }

// A Tally counts the requests of a client.
type Tally struct {
	Requests, Denied atomic.Int64
	Last             atomic.Int64 // time of the last request, in milliseconds since 1970
}

// Tally returns the Tally of a client, by its label in metrics.
func (u *Usage) Tally(label string) *Tally {
	t, ok := u.tallies.Load(label)
	if !ok {
		t, _ = u.tallies.LoadOrStore(label, new(Tally))
	}
	return t.(*Tally)
}

// Tallies calls f for each client that sent requests.
func (u *Usage) Tallies(f func(label string, t *Tally)) {
	u.tallies.Range(func(label, t any) bool {
		f(label.(string), t.(*Tally))
		return true
	})
}
