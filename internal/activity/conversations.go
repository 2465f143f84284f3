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
	Masked       int     // masked results
	SavedChars   int     // characters removed, minus the placeholders
	BytesBefore  int64   // size of the body received
	BytesAfter   int64   // size of the body sent
	TokensBefore int64   // input tokens with all results, estimated
	TokensAfter  int64   // input tokens as the provider counts them; otherwise estimated
	Moved        bool    // the request masks results that the previous one had
	Usage        Usage   // as the provider reports it
	Cost         float64 // in uncached input tokens; 0 if unknown
	CostBefore   float64 // cost without masking, in the same unit
}

// Usage is the number of tokens, as a provider counts them.
type Usage struct {
	Input      int64 `json:"input"`       // whole prompt, cached or not
	Cached     int64 `json:"cached"`      // part of Input read from the cache
	CacheWrite int64 `json:"cache_write"` // part of Input written to the cache, if that has its own price
	Output     int64 `json:"output"`
}

// add adds another usage.
func (u *Usage) add(other Usage) {
	u.Input += other.Input
	u.Cached += other.Cached
	u.CacheWrite += other.CacheWrite
	u.Output += other.Output
}

// A Route has the sums of the conversations through a tool_result_mask.
type Route struct {
	Route        string  `json:"route"` // name; may be empty
	Requests     int64   `json:"requests"`
	Masked       int64   `json:"masked_requests"` // requests with masked results
	Results      int64   `json:"masked_results"`  // each as often as it was masked
	SavedChars   int64   `json:"saved_chars"`
	BytesBefore  int64   `json:"bytes_before"`  // of bodies received
	BytesAfter   int64   `json:"bytes_after"`   // of bodies sent
	TokensBefore int64   `json:"tokens_before"` // input tokens with all results, estimated
	TokensAfter  int64   `json:"tokens_after"`  // input tokens as providers count them; otherwise estimated
	Usage        Usage   `json:"usage"`
	Cost         float64 `json:"cost_tokens"`          // in uncached input tokens
	CostBefore   float64 `json:"cost_tokens_unmasked"` // without masking, estimated
	Moves        []Move  `json:"moves"`                // latest first
}

// A Move is a request in which the boundary of masked results moved. A provider that caches prompts
// by their prefix had to read it again from the first newly masked result. Cost minus CostBefore is
// what the move cost; the requests after it cost less.
type Move struct {
	At         time.Time `json:"at"`
	Results    int       `json:"masked_results"` // all masked results, old and new
	SavedChars int       `json:"saved_chars"`
	Cached     int64     `json:"cached"`      // tokens still found in the provider's cache
	CacheWrite int64     `json:"cache_write"` // tokens
	Input      int64     `json:"input"`       // tokens, including the other two
	Cost       float64   `json:"cost_tokens"`
	CostBefore float64   `json:"cost_tokens_unmasked"`
}

const (
	maxRoutes = 100 // beyond that, routes are added up without a name
	maxMoves  = 20  // of each route
)

// Conversations record requests to models. They are safe for concurrent use.
type Conversations struct {
	mu     sync.Mutex
	routes map[string]*Route
}

// NewConversations returns an empty record.
func NewConversations() *Conversations { return &Conversations{routes: map[string]*Route{}} }

// Models are the conversations of this process. They are retained over configuration reloads.
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
