package gateway

import (
	"sync"
	"sync/atomic"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/resourcetemplate"
)

// Retained is what a gateway keeps across reloads besides its clients.
type Retained struct {
	// Templates are the resource templates that the admin API has the gateway host.
	Templates *resourcetemplate.Set

	buckets *ratelimit.Buckets // what clients have used of their rates
	tasks   *taskOwners
	tallies sync.Map // *Tally by the label of the client in metrics
}

// maxLimited is how many clients a gateway knows the rates of.
const maxLimited = 100_000

// NewRetained returns a Retained of a new gateway. It has to be destructed.
func NewRetained() *Retained {
	return &Retained{Templates: resourcetemplate.New(), buckets: ratelimit.New(maxLimited), tasks: newTaskOwners()}
}

// Destruct implements caddy.Destructor.
func (k *Retained) Destruct() error {
	k.buckets.Close()
	k.Templates.Close()
	k.tasks.close()
	return nil
}

// A Tally counts what a client does.
type Tally struct {
	Requests, Denied atomic.Int64
	Last             atomic.Int64 // request, in milliseconds since 1970
}

// Tally returns that of a client, by its label in metrics.
func (k *Retained) Tally(label string) *Tally {
	t, ok := k.tallies.Load(label)
	if !ok {
		t, _ = k.tallies.LoadOrStore(label, new(Tally))
	}
	return t.(*Tally)
}

// Tallies calls f for each client that has been there.
func (k *Retained) Tallies(f func(label string, t *Tally)) {
	k.tallies.Range(func(label, t any) bool {
		f(label.(string), t.(*Tally))
		return true
	})
}
