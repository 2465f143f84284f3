// Package activity keeps what has gone through the gateways of this process: their last calls, how many there were, and
// how much of their results was kept out of contexts. It costs each call one short lock.
package activity

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Call is the use of a tool, a prompt or a resource by a client, after its end.
type Call struct {
	ID        int64     `json:"id"` // larger than those of the calls before
	At        time.Time `json:"at"` // when it ended
	Gateway   string    `json:"gateway"`
	Client    string    `json:"client"`
	Address   string    `json:"client_ip,omitempty"`
	Server    string    `json:"server,omitempty"` // empty if the gateway itself has answered
	Method    string    `json:"method"`
	Name      string    `json:"name,omitempty"` // of the tool or prompt, as the server has it, or the URI
	RequestID string    `json:"request_id,omitempty"`
	Outcome   string    `json:"outcome"`
	ErrorCode int       `json:"error_code,omitempty"` // of JSON-RPC
	Rule      string    `json:"rule,omitempty"`       // that decided
	Confirmed bool      `json:"confirmed,omitempty"`  // by the person at the client
	Seconds   float64   `json:"seconds"`

	Received   int64    `json:"received_bytes"`       // of the answer of the server
	Sent       int64    `json:"sent_bytes"`           // what was left of it for the client
	CutTexts   int      `json:"cut_texts,omitempty"`  // in the answer
	CutChars   int      `json:"cut_chars,omitempty"`  // that were taken out of these
	Originals  []string `json:"originals,omitempty"`  // handles of the whole texts, if they are kept
	HasContent bool     `json:"has_content,omitzero"` // arguments and result are kept

	// What was asked and answered, as the client has it. Only if the gateway records it.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`

	Identity string `json:"-"` // whose originals these are
	Owner    string `json:"-"` // who is charged for the room that the call takes
}

// Failed reports whether the call has failed. One that its client has canceled has not.
func (c *Call) Failed() bool { return c.Outcome != "ok" && c.Outcome != "canceled" }

// size returns how many bytes a call takes, about.
func (c *Call) size() int64 {
	const fixed = 600
	texts := len(c.Name) + len(c.Client) + len(c.Rule) + len(c.RequestID) + len(c.Identity) + len(c.Owner)
	return int64(fixed + texts + 32*len(c.Originals) + len(c.Arguments) + len(c.Result))
}

// Sums are how many calls there were, and how large their results.
type Sums struct {
	Calls    int64 `json:"calls"`
	Failed   int64 `json:"failed"`
	Received int64 `json:"received_bytes"` // of the answers of servers
	Sent     int64 `json:"sent_bytes"`     // what was left of them for clients
	CutChars int64 `json:"cut_chars"`      // that were taken out of them
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

// A Tool is what the sums of a tool are found by.
type Tool struct {
	Gateway string `json:"gateway"`
	Server  string `json:"server"`
	Name    string `json:"name"`
}

// A Day has the sums of a day.
type Day struct {
	Date string `json:"date"` // such as 2026-07-28, in UTC
	Sums
}

// An Interval has the sums of ten seconds.
type Interval struct {
	At time.Time `json:"at"` // when it begins
	Sums
}

const (
	day            = 24 * time.Hour
	intervalLength = 10 * time.Second
	maxIntervals   = 60   // ten minutes
	maxDays        = 31   // those before are not told apart
	maxTools       = 2000 // those with the fewest calls count as one, without a name
	maxCalls       = 1000
	maxBytes       = 32 << 20
	maxAge         = day
)

var keptCalls = quota.NewKind("calls")

// A Log keeps calls and their sums. It is safe for concurrent use.
type Log struct {
	Began time.Time

	mu        sync.Mutex
	lastID    int64
	calls     *quota.Cache[int64, *Call]
	total     Sums
	tools     map[Tool]*Sums
	days      []Day      // the last one is the latest
	today     int        // which of them is the one of the last call
	dawn      time.Time  // when that began
	intervals []Interval // those with calls in them; the last one is that of the last call
}

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{
		Began: time.Now(), tools: map[Tool]*Sums{},
		calls: quota.NewCache[int64, *Call](keptCalls, quota.Limits{Entries: maxCalls, Bytes: maxBytes}, maxAge, nil),
	}
}

// Process is the log of the gateways of this process. It outlives reloads.
var Process = NewLog()

// Add adds a call that has just ended. It must not be changed from then on, except that Add sets its ID and its time.
func (l *Log) Add(c *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastID++
	c.ID, c.At = l.lastID, time.Now()
	l.calls.Put(c.Owner, c.ID, c, c.size())
	l.total.add(c)
	l.tool(c).add(c)
	l.day(c.At).add(c)
	l.interval(c.At).add(c)
}

// tool returns the sums of the tool of a call. A client can call tools by any name, so only one that has answered
// before has sums of its own.
func (l *Log) tool(c *Call) *Sums {
	key := Tool{c.Gateway, c.Server, c.Name}
	if c.Method != "tools/call" {
		key.Name = c.Method // there may be any number of resources
	}
	sums := l.tools[key]
	switch {
	case sums != nil:
		return sums
	case c.Outcome != "ok":
		return l.others()
	case len(l.tools) >= maxTools:
		l.joinRarest()
	}
	sums = new(Sums)
	l.tools[key] = sums
	return sums
}

// others returns the sums of all tools that have none of their own.
func (l *Log) others() *Sums {
	if l.tools[Tool{}] == nil {
		l.tools[Tool{}] = new(Sums)
	}
	return l.tools[Tool{}]
}

// joinRarest has a tool with the fewest calls count as one of the others. There are servers that answer to every name:
// so those that a client makes up push out each other, and no tool that is used.
func (l *Log) joinRarest() {
	var rarest Tool
	fewest := int64(math.MaxInt64)
	for tool, sums := range l.tools {
		if tool != (Tool{}) && sums.Calls < fewest {
			rarest, fewest = tool, sums.Calls
		}
	}
	l.others().Add(l.tools[rarest])
	delete(l.tools, rarest)
}

// day returns the sums of a day. The clock may be set back, so it is not always the latest.
func (l *Log) day(at time.Time) *Sums {
	if at.Before(l.dawn) || !at.Before(l.dawn.Add(day)) {
		l.dawn = at.UTC().Truncate(day)
		l.today = l.dayOf(l.dawn.Format(time.DateOnly))
	}
	return &l.days[l.today].Sums
}

// dayOf returns the index of a date in the days, which it adds if need be.
func (l *Log) dayOf(date string) int {
	i, found := slices.BinarySearchFunc(l.days, date, func(d Day, date string) int {
		return strings.Compare(d.Date, date)
	})
	if found {
		return i
	}
	l.days = slices.Insert(l.days, i, Day{Date: date})
	if len(l.days) > maxDays {
		l.days = slices.Delete(l.days, 0, 1)
		i = max(0, i-1)
	}
	return i
}

// interval returns the sums of an interval. If the clock is set back, there may be several that begin at one time.
func (l *Log) interval(at time.Time) *Sums {
	at = at.Truncate(intervalLength)
	if n := len(l.intervals); n == 0 || !l.intervals[n-1].At.Equal(at) {
		l.intervals = append(l.intervals[max(0, n-maxIntervals+1):], Interval{At: at})
	}
	return &l.intervals[len(l.intervals)-1].Sums
}

// Calls returns up to limit calls with a larger ID than after that wanted reports true for, the latest first.
func (l *Log) Calls(after int64, limit int, wanted func(*Call) bool) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls.Expire()
	found := []*Call{}
	for id, c := range l.calls.All {
		if id <= after || len(found) == limit {
			break
		}
		if wanted(c) {
			found = append(found, c)
		}
	}
	return found
}

// Call returns the call with an ID, nil if it is not kept.
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

// Sums returns the sums of all calls since the process began, of the tools, and of the last days, the latest last.
func (l *Log) Sums() (total Sums, tools []ToolSums, days []Day) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tools = make([]ToolSums, 0, len(l.tools))
	for tool, sums := range l.tools {
		tools = append(tools, ToolSums{tool, *sums})
	}
	return l.total, tools, slices.Clone(l.days)
}

// Recent returns the sums of the last ten minutes, by intervals of ten seconds, the current one last.
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

// A Latency tells how long the last calls of a server took, in seconds.
type Latency struct {
	Calls int     `json:"calls"` // that it is known of
	P50   float64 `json:"p50"`
	P95   float64 `json:"p95"`
	P99   float64 `json:"p99"`
}

// Latency returns how long the calls of a server took that are kept, nil if none is. Those that were refused, and those
// that failed, do not count.
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
	at := func(percent int) float64 { return seconds[(len(seconds)*percent+99)/100-1] } // so many percent took no longer
	return &Latency{Calls: len(seconds), P50: at(50), P95: at(95), P99: at(99)}
}
