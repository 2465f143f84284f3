// Package activity records the last calls through the gateways of this process, their number, and
// how many bytes of their results were saved. It costs each call one short lock.
package activity

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Call is the use of a tool, a prompt or a resource by a client, after its end.
type Call struct {
	ID        int64     `json:"id"` // increases with each call
	At        time.Time `json:"at"` // end of the call
	Gateway   string    `json:"gateway"`
	Client    string    `json:"client"`
	Address   string    `json:"client_ip,omitempty"`
	Server    string    `json:"server,omitempty"` // empty if the gateway itself responded
	Method    string    `json:"method"`
	Name      string    `json:"name,omitempty"` // tool or prompt, as the server names it, or the URI
	RequestID string    `json:"request_id,omitempty"`
	Outcome   string    `json:"outcome"`
	ErrorCode int       `json:"error_code,omitempty"` // of JSON-RPC
	Rule      string    `json:"rule,omitempty"`       // rule that decided
	Confirmed bool      `json:"confirmed,omitempty"`  // by the user of the client
	Seconds   float64   `json:"seconds"`

	Received   int64    `json:"received_bytes"`       // size of the server's response
	Sent       int64    `json:"sent_bytes"`           // its size after masks and filters
	CutTexts   int      `json:"cut_texts,omitempty"`  // shortened texts in the response
	CutChars   int      `json:"cut_chars,omitempty"`  // characters removed from them
	Originals  []string `json:"originals,omitempty"`  // handles of the original texts, if they are kept
	HasContent bool     `json:"has_content,omitzero"` // arguments and result are kept

	// Arguments and result as the client has them. Set only if the gateway records them.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`

	Identity string `json:"-"` // owner of the originals
	Owner    string `json:"-"` // owner against whose limit the call counts
}

// Failed reports whether the call has failed. A call that its client canceled has not.
func (c *Call) Failed() bool { return c.Outcome != "ok" && c.Outcome != "canceled" }

// size returns the approximate size of a call in memory, in bytes.
func (c *Call) size() int64 {
	const fixed = 600
	texts := len(c.Name) + len(c.Client) + len(c.Rule) + len(c.RequestID) + len(c.Identity) + len(c.Owner)
	return int64(fixed + texts + 32*len(c.Originals) + len(c.Arguments) + len(c.Result))
}

// Sums are the number of calls, and the size of their responses.
type Sums struct {
	Calls    int64 `json:"calls"`
	Failed   int64 `json:"failed"`
	Received int64 `json:"received_bytes"` // size of the servers' responses
	Sent     int64 `json:"sent_bytes"`     // their size after masks and filters
	CutChars int64 `json:"cut_chars"`      // characters removed from them
}

// Add adds other sums.
func (s *Sums) Add(other *Sums) {
	s.Calls += other.Calls
	s.Failed += other.Failed
	s.Received += other.Received
	s.Sent += other.Sent
	s.CutChars += other.CutChars
}

// add adds a call.
func (s *Sums) add(c *Call) {
	s.Calls++
	if c.Failed() {
		s.Failed++
	}
	s.Received += c.Received
	s.Sent += c.Sent
	s.CutChars += int64(c.CutChars)
}

// gatewaySums are sums by the name of the gateway.
type gatewaySums map[string]*Sums

// of returns the sums of a gateway.
func (g gatewaySums) of(gateway string) *Sums {
	if g[gateway] == nil {
		g[gateway] = new(Sums)
	}
	return g[gateway]
}

// sum adds up the sums of the gateways for which match returns true, and reports whether there are
// any.
func (g gatewaySums) sum(match func(gateway string) bool) (total Sums, any bool) {
	for gateway, sums := range g {
		if match(gateway) {
			total.Add(sums)
			any = true
		}
	}
	return total, any
}

// A Tool identifies a tool.
type Tool struct {
	Gateway string `json:"gateway"`
	Server  string `json:"server"`
	Name    string `json:"name"`
}

// IsOthers reports whether t stands for all tools of its gateway that have no sums of their own.
func (t Tool) IsOthers() bool { return t.Server == "" && t.Name == "" }

// A dayLog has the sums of a day by gateway.
type dayLog struct {
	date string // in UTC, such as 2026-07-28
	sums gatewaySums
}

// A Day has the sums of a day.
type Day struct {
	Date string `json:"date"` // in UTC, such as 2026-07-28
	Sums
}

// An Interval has the sums of ten seconds.
type Interval struct {
	At time.Time `json:"at"` // beginning of the interval
	Sums
}

const (
	day            = 24 * time.Hour
	intervalLength = 10 * time.Second
	maxIntervals   = 60   // ten minutes
	maxDays        = 31   // older days are dropped
	maxTools       = 2000 // beyond that, the least used ones are added up without a name
	maxCalls       = 1000
	maxBytes       = 32 << 20
	maxAge         = day
)

var callsQuota = quota.NewKind("calls")

// A Log records calls and their sums. It is safe for concurrent use.
type Log struct {
	Began time.Time

	mu         sync.Mutex
	lastID     int64
	calls      *quota.Cache[int64, *Call]
	totals     gatewaySums
	tools      map[Tool]*Sums
	days       []dayLog   // latest last
	today      int        // index of the day of the last call
	todayBegin time.Time  // beginning of that day
	intervals  []Interval // with calls; the last is that of the last call
}

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{
		Began: time.Now(), totals: gatewaySums{}, tools: map[Tool]*Sums{},
		calls: quota.NewCache[int64, *Call](callsQuota, quota.Limits{Entries: maxCalls, Bytes: maxBytes}, maxAge, nil),
	}
}

// Process is the log of the gateways of this process. It is retained over configuration reloads.
var Process = NewLog()

// Add adds a call that has just ended, and sets its ID and time. The call must not be changed
// afterwards.
func (l *Log) Add(c *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	c.ID, c.At = l.lastID, time.Now()
	l.calls.Put(c.Owner, c.ID, c, c.size())
	l.totals.of(c.Gateway).add(c)
	l.sumsOfTool(c).add(c)
	l.sumsOfDay(c.At).of(c.Gateway).add(c)
	l.sumsOfInterval(c.At).add(c)
}

// sumsOfTool returns the sums of the tool of a call. Clients can call tools by any name, so only
// tools with a successful call get sums of their own.
func (l *Log) sumsOfTool(c *Call) *Sums {
	key := Tool{c.Gateway, c.Server, c.Name}
	if c.Method != "tools/call" {
		key.Name = c.Method // there may be any number of resources
	}
	sums := l.tools[key]
	switch {
	case sums != nil:
		return sums
	case c.Outcome != "ok":
		return l.sumsOfOthers(c.Gateway)
	case len(l.tools) >= maxTools:
		l.mergeRarest()
	}
	sums = new(Sums)
	l.tools[key] = sums
	return sums
}

// sumsOfOthers returns the sums of all tools of a gateway without sums of their own.
func (l *Log) sumsOfOthers(gateway string) *Sums {
	others := Tool{Gateway: gateway}
	if l.tools[others] == nil {
		l.tools[others] = new(Sums)
	}
	return l.tools[others]
}

// mergeRarest adds the least used tool to the others of its gateway. Some servers respond to any
// tool name: names that a client invents then evict each other, not tools in use.
func (l *Log) mergeRarest() {
	var rarest Tool
	fewest := int64(math.MaxInt64)
	for tool, sums := range l.tools {
		if !tool.IsOthers() && sums.Calls < fewest {
			rarest, fewest = tool, sums.Calls
		}
	}
	if fewest == math.MaxInt64 {
		return
	}
	l.sumsOfOthers(rarest.Gateway).Add(l.tools[rarest])
	delete(l.tools, rarest)
}

// sumsOfDay returns the sums of a day. The clock may be set back, so it is not always the latest.
func (l *Log) sumsOfDay(at time.Time) gatewaySums {
	if at.Before(l.todayBegin) || !at.Before(l.todayBegin.Add(day)) {
		l.todayBegin = at.UTC().Truncate(day)
		l.today = l.dayIndex(l.todayBegin.Format(time.DateOnly))
	}
	return l.days[l.today].sums
}

// dayIndex returns the index of a date in the days. It adds the date if needed.
func (l *Log) dayIndex(date string) int {
	i, found := slices.BinarySearchFunc(l.days, date, func(d dayLog, date string) int {
		return strings.Compare(d.date, date)
	})
	if found {
		return i
	}
	l.days = slices.Insert(l.days, i, dayLog{date, gatewaySums{}})
	if len(l.days) > maxDays {
		l.days = slices.Delete(l.days, 0, 1)
		i = max(0, i-1)
	}
	return i
}

// sumsOfInterval returns the sums of an interval. If the clock is set back, several intervals may
// begin at the same time.
func (l *Log) sumsOfInterval(at time.Time) *Sums {
	at = at.Truncate(intervalLength)
	if n := len(l.intervals); n == 0 || !l.intervals[n-1].At.Equal(at) {
		l.intervals = append(l.intervals[max(0, n-maxIntervals+1):], Interval{At: at})
	}
	return &l.intervals[len(l.intervals)-1].Sums
}

// Calls returns up to limit calls with an ID larger than after for which match returns true, latest
// first.
func (l *Log) Calls(after int64, limit int, match func(*Call) bool) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls.Expire()
	found := []*Call{}
	for id, c := range l.calls.All {
		if id <= after || len(found) == limit {
			break
		}
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

// Call returns the call with an ID; nil if it is not kept.
func (l *Log) Call(id int64) *Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, _ := l.calls.Get(id)
	return c
}

// ToolSums are the sums of a tool.
type ToolSums struct {
	Tool
	Sums
}

// Sums returns the sums since the process started, of the gateways for which match returns true: of
// all their calls, by tool, and by day, latest last.
func (l *Log) Sums(match func(gateway string) bool) (total Sums, tools []ToolSums, days []Day) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total, _ = l.totals.sum(match)
	for tool, sums := range l.tools {
		if match(tool.Gateway) {
			tools = append(tools, ToolSums{tool, *sums})
		}
	}
	for _, day := range l.days {
		if sums, any := day.sums.sum(match); any {
			days = append(days, Day{day.date, sums})
		}
	}
	return total, tools, days
}

// Recent returns the sums of the last ten minutes, in intervals of ten seconds, the current one
// last.
func (l *Log) Recent() []Interval {
	recent := make([]Interval, maxIntervals)
	first := time.Now().Truncate(intervalLength).Add(-(maxIntervals - 1) * intervalLength)
	for i := range recent {
		recent[i].At = first.Add(time.Duration(i) * intervalLength)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, interval := range l.intervals {
		if i := int(interval.At.Sub(first) / intervalLength); !interval.At.Before(first) && i < len(recent) {
			recent[i].Sums.Add(&interval.Sums)
		}
	}
	return recent
}

// A Latency has percentiles of the duration of a server's last calls, in seconds.
type Latency struct {
	Calls int     `json:"calls"` // number of calls
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
}

// Latency returns the latency of a server's recorded calls; nil if there are none. Only successful
// calls count.
func (l *Log) Latency(gateway, server string) *Latency {
	var seconds []float64
	for _, c := range l.Calls(0, maxCalls, func(c *Call) bool {
		return c.Gateway == gateway && c.Server == server && c.Outcome == "ok"
	}) {
		seconds = append(seconds, c.Seconds)
	}
	if len(seconds) == 0 {
		return nil
	}
	slices.Sort(seconds)
	percentile := func(p int) float64 { return seconds[(len(seconds)*p+99)/100-1] }
	return &Latency{Calls: len(seconds), P50: percentile(50), P95: percentile(95), P99: percentile(99)}
}

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
