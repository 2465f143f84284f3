package activity

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// A Request is a request to a model, after its end.
type Request struct {
	Route        string
	Masked       int     // results that were left out of it
	SavedChars   int     // of these, without what stands in their place
	BytesBefore  int64   // of its body, as it came
	BytesAfter   int64   // as it was sent
	TokensBefore int64   // of input, with all results: estimated
	TokensAfter  int64   // of input, as the provider counts them or, if it does not tell, estimated
	Moved        bool    // results are left out that were not left out of the request before
	Usage        Usage   // as the provider tells it
	Cost         float64 // in tokens of input that no cache is used for; 0 if that is not known
	CostBefore   float64 // as it would have been with all results, in the same unit
}

// Usage are tokens, as a provider counts them.
type Usage struct {
	Input      int64 `json:"input"`       // all of the prompt, from the cache or not
	Cached     int64 `json:"cached"`      // of these, read from the cache
	CacheWrite int64 `json:"cache_write"` // of these, written to it, where that has a price of its own
	Output     int64 `json:"output"`
}

// add adds another usage.
func (u *Usage) add(other Usage) {
	u.Input += other.Input
	u.Cached += other.Cached
	u.CacheWrite += other.CacheWrite
	u.Output += other.Output
}

// A Route tells of the conversations that went through a tool_result_mask.
type Route struct {
	Route        string  `json:"route"` // its name; may be empty
	Requests     int64   `json:"requests"`
	Masked       int64   `json:"masked_requests"` // those of them that results were left out of
	Results      int64   `json:"masked_results"`  // each as often as it was left out
	SavedChars   int64   `json:"saved_chars"`
	BytesBefore  int64   `json:"bytes_before"`  // of bodies, as they came
	BytesAfter   int64   `json:"bytes_after"`   // as they were sent
	TokensBefore int64   `json:"tokens_before"` // of input, with all results: estimated
	TokensAfter  int64   `json:"tokens_after"`  // of input, as providers count them or, where they do not tell, estimated
	Usage        Usage   `json:"usage"`
	Cost         float64 `json:"cost_tokens"`          // in tokens of input that no cache is used for
	CostBefore   float64 `json:"cost_tokens_unmasked"` // as it would have been with all results: estimated
	Moves        []Move  `json:"moves"`                // the latest first
}

// A Move is a request in which the boundary moved before which results are left out: a provider that remembers prompts
// by their beginning had to read it again from the first result that the request before still had. It has cost as much
// more as Cost is above CostBefore; the requests after it cost less.
type Move struct {
	At         time.Time `json:"at"`
	Results    int       `json:"masked_results"` // all that were left out, those of before, too
	SavedChars int       `json:"saved_chars"`
	Cached     int64     `json:"cached"`      // tokens that the provider has still found in its cache
	CacheWrite int64     `json:"cache_write"` // tokens
	Input      int64     `json:"input"`       // tokens, of which the others are a part
	Cost       float64   `json:"cost_tokens"`
	CostBefore float64   `json:"cost_tokens_unmasked"`
}

const (
	maxRoutes = 100 // more than that count as one, which has no name
	maxMoves  = 20  // of each
)

// Conversations keep what has gone to models. They are safe for concurrent use.
type Conversations struct {
	mu     sync.Mutex
	routes map[string]*Route
}

// NewConversations returns none.
func NewConversations() *Conversations { return &Conversations{routes: map[string]*Route{}} }

// Models are the conversations of this process. They outlive reloads.
var Models = NewConversations()

// Add adds a request that has just ended.
func (c *Conversations) Add(r *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := r.Route
	if c.routes[name] == nil && len(c.routes) >= maxRoutes {
		name = ""
	}
	if c.routes[name] == nil {
		c.routes[name] = &Route{Route: name}
	}
	c.routes[name].add(r)
}

// add adds a request.
func (t *Route) add(r *Request) {
	t.Requests++
	if r.Masked > 0 {
		t.Masked++
	}
	t.Results += int64(r.Masked)
	t.SavedChars += int64(r.SavedChars)
	t.BytesBefore += r.BytesBefore
	t.BytesAfter += r.BytesAfter
	t.TokensBefore += r.TokensBefore
	t.TokensAfter += r.TokensAfter
	t.Usage.add(r.Usage)
	t.Cost += r.Cost
	t.CostBefore += r.CostBefore
	if r.Moved {
		move := Move{
			At: time.Now(), Results: r.Masked, SavedChars: r.SavedChars, Cached: r.Usage.Cached,
			CacheWrite: r.Usage.CacheWrite, Input: r.Usage.Input, Cost: r.Cost, CostBefore: r.CostBefore,
		}
		t.Moves = slices.Insert(t.Moves[:min(len(t.Moves), maxMoves-1)], 0, move)
	}
}

// Routes returns all routes, sorted by name.
func (c *Conversations) Routes() []Route {
	c.mu.Lock()
	defer c.mu.Unlock()
	routes := make([]Route, 0, len(c.routes))
	for _, name := range slices.Sorted(maps.Keys(c.routes)) {
		route := *c.routes[name]
		route.Moves = append([]Move{}, route.Moves...)
		routes = append(routes, route)
	}
	return routes
}
