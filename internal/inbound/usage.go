package inbound

import (
	"sync"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// Usage is what clients have used of their rates, and how often they were there. It outlives configurations.
type Usage struct {
	buckets *ratelimit.Buckets
	tallies sync.Map // *Tally by the label of the client in metrics
}

// maxLimited is how many clients a gateway knows the rates of.
const maxLimited = 100_000

// NewUsage returns the Usage of a new gateway. space is what replicas share; nil if there are none. allowWhenDown
// says that this replica counts alone while the space cannot be reached.
func NewUsage(space *replicas.Space, allowWhenDown bool) *Usage {
	return &Usage{buckets: ratelimit.NewShared(maxLimited, space.Space("rates"), allowWhenDown)}
}

// Close forgets all of it.
func (u *Usage) Close() { u.buckets.Close() }

// A Tally counts what a client does.
type Tally struct {
	Requests, Denied atomic.Int64
	Last             atomic.Int64 // request, in milliseconds since 1970
}

// Tally returns that of a client, by its label in metrics.
func (u *Usage) Tally(label string) *Tally {
	t, ok := u.tallies.Load(label)
	if !ok {
		t, _ = u.tallies.LoadOrStore(label, new(Tally))
	}
	return t.(*Tally)
}

// Tallies calls f for each client that has been there.
func (u *Usage) Tallies(f func(label string, t *Tally)) {
	u.tallies.Range(func(label, t any) bool {
		f(label.(string), t.(*Tally))
		return true
	})
}
