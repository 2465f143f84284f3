package activity

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// all accepts every call.
func all(*Call) bool { return true }

// every accepts every gateway.
func every(string) bool { return true }

// kept returns the number of recorded calls of an owner.
func kept(l *Log, owner string) int {
	return len(l.Calls(0, maxCalls, func(c *Call) bool { return c.Owner == owner }))
}

// ids returns the IDs of calls.
func ids(calls []*Call) (ids []int64) {
	for _, c := range calls {
		ids = append(ids, c.ID)
	}
	return ids
}

func TestCallsAreListedLatestFirst(t *testing.T) {
	l := NewLog()
	for i := range 5 {
		l.Add(&Call{Owner: fmt.Sprint("client ", i%2), Client: fmt.Sprint(i % 2)})
	}
	for _, test := range []struct {
		name   string
		after  int64
		limit  int
		client string
		want   []int64
	}{
		{"all", 0, 10, "", []int64{5, 4, 3, 2, 1}},
		{"the latest", 0, 2, "", []int64{5, 4}},
		{"since an ID", 3, 10, "", []int64{5, 4}},
		{"nothing new", 5, 10, "", nil},
		{"limit 0", 0, 0, "", nil},
		{"of one owner", 0, 10, "1", []int64{4, 2}},
		{"the latest of one owner since an ID", 1, 1, "0", []int64{5}},
	} {
		got := l.Calls(test.after, test.limit, func(c *Call) bool { return test.client == "" || c.Client == test.client })
		if !slices.Equal(ids(got), test.want) {
			t.Errorf("%s: got %v, want %v", test.name, ids(got), test.want)
		}
	}
	if c := l.Call(3); c == nil || c.ID != 3 {
		t.Errorf("got %+v", c)
	}
	if c := l.Call(6); c != nil {
		t.Errorf("got %+v", c)
	}
}

// The client with the most calls loses its oldest ones. Other clients lose none. Clients without
// authentication count as one.
func TestCallsOfOthersAreNotPushedOut(t *testing.T) {
	l := NewLog()
	for range 10 {
		l.Add(&Call{Owner: "ann"})
	}
	for range 3 * maxCalls {
		l.Add(&Call{Owner: ""})
	}
	if ann, strangers := kept(l, "ann"), kept(l, ""); ann != 10 || strangers != maxCalls-10 {
		t.Errorf("kept %d of ann, %d of unauthenticated clients", ann, strangers)
	}
	large := json.RawMessage(strings.Repeat("x", 1<<20))
	for range 100 {
		l.Add(&Call{Owner: "bob", Arguments: large})
	}
	if ann, bob := kept(l, "ann"), kept(l, "bob"); ann != 10 || bob == 0 || bob > maxBytes>>20 {
		t.Errorf("kept %d of ann, %d of bob", ann, bob)
	}
	if usage := callsQuota.Usage(); usage.Bytes > usage.MaxBytes || usage.Entries > usage.MaxEntries {
		t.Errorf("usage is %+v", usage)
	}
}

func TestCallsExpireAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		l.Add(&Call{Outcome: "ok"})
		time.Sleep(maxAge - time.Second)
		l.Add(&Call{Outcome: "ok"})
		if got := ids(l.Calls(0, 10, all)); !slices.Equal(got, []int64{2, 1}) {
			t.Errorf("got %v", got)
		}
		time.Sleep(time.Second)
		if got := ids(l.Calls(0, 10, all)); !slices.Equal(got, []int64{2}) || l.Call(1) != nil {
			t.Errorf("got %v", got)
		}
		if total, _, _ := l.Sums(every); total.Calls != 2 {
			t.Errorf("total is %+v", total)
		}
	})
}

func TestSums(t *testing.T) {
	l := NewLog()
	for _, c := range []Call{
		{Gateway: "g", Server: "s", Method: "tools/call", Name: "a", Outcome: "ok", Received: 100, Sent: 40, CutChars: 50},
		{Gateway: "g", Server: "s", Method: "tools/call", Name: "a", Outcome: "error", Received: 10, Sent: 10},
		{Gateway: "g", Server: "s", Method: "tools/call", Name: "a", Outcome: "canceled"},
		{Gateway: "g", Server: "s", Method: "tools/call", Name: "never", Outcome: "acl_denied"},
		{Gateway: "g", Server: "s", Method: "tools/call", Name: "any", Outcome: "canceled"},
		{Gateway: "g", Server: "s", Method: "resources/read", Name: "r://1", Outcome: "ok", Received: 1, Sent: 1},
		{Gateway: "g", Server: "s", Method: "resources/read", Name: "r://2", Outcome: "ok", Received: 1, Sent: 1},
	} {
		l.Add(&c)
	}
	total, tools, days := l.Sums(every)
	if want := (Sums{Calls: 7, Failed: 2, Received: 112, Sent: 52, CutChars: 50}); total != want || len(days) != 1 ||
		days[0].Sums != want {
		t.Errorf("got %+v, by day %+v", total, days)
	}
	got := map[Tool]Sums{}
	for _, tool := range tools {
		got[tool.Tool] = tool.Sums
	}
	want := map[Tool]Sums{
		{"g", "s", "a"}:              {Calls: 3, Failed: 1, Received: 110, Sent: 50, CutChars: 50},
		{"g", "s", "resources/read"}: {Calls: 2, Received: 2, Sent: 2},
		{Gateway: "g"}:               {Calls: 2, Failed: 1}, // no tool with this name has succeeded
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSumsOfOneGateway(t *testing.T) {
	l := NewLog()
	l.Add(&Call{Gateway: "a", Server: "s", Method: "tools/call", Name: "x", Outcome: "ok", CutChars: 3})
	l.Add(&Call{Gateway: "a", Server: "s", Method: "tools/call", Name: "y", Outcome: "acl_denied"})
	l.Add(&Call{Gateway: "b", Server: "s", Method: "tools/call", Name: "x", Outcome: "ok", CutChars: 5})
	for gateway, want := range map[string]Sums{
		"a": {Calls: 2, Failed: 1, CutChars: 3}, "b": {Calls: 1, CutChars: 5}, "c": {},
	} {
		total, tools, days := l.Sums(func(name string) bool { return name == gateway })
		var byTool, byDay Sums
		for _, tool := range tools {
			byTool.Add(&tool.Sums)
		}
		for _, day := range days {
			byDay.Add(&day.Sums)
		}
		if total != want || byTool != want || byDay != want {
			t.Errorf("%s: got %+v, by tool %+v, by day %+v, want %+v", gateway, total, byTool, byDay, want)
		}
	}
}

// Tools in use keep their sums, even if clients call many other names.
func TestToolsAreLimited(t *testing.T) {
	l := NewLog()
	add := func(name string) { l.Add(&Call{Method: "tools/call", Name: name, Outcome: "ok", Received: 1}) }
	add("early")
	add("early")
	for i := range maxTools + 100 {
		add(fmt.Sprint("made up ", i))
	}
	add("late")
	add("late")
	add("early")
	total, tools, _ := l.Sums(every)
	if len(tools) > maxTools+1 {
		t.Fatalf("got %d tools, want at most the limit and one", len(tools))
	}
	var sum Sums
	for _, tool := range tools {
		sum.Add(&tool.Sums)
		if want := map[string]int64{"early": 3, "late": 2}[tool.Name]; want != 0 && tool.Calls != want {
			t.Errorf("%q has %d calls, want %d", tool.Name, tool.Calls, want)
		}
	}
	if sum != total || !slices.ContainsFunc(tools, func(t ToolSums) bool { return t.Name == "late" }) {
		t.Errorf("%d tools have %+v, total is %+v", len(tools), sum, total)
	}
}

func TestDays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight, on 2000-01-01
		l := NewLog()
		time.Sleep(day - time.Nanosecond)
		l.Add(new(Call))
		time.Sleep(time.Nanosecond)
		l.Add(new(Call))
		l.Add(new(Call))
		time.Sleep(2 * day) // without calls
		l.Add(new(Call))
		_, _, days := l.Sums(every)
		var got []string
		for _, d := range days {
			got = append(got, fmt.Sprint(d.Date, " ", d.Calls))
		}
		if want := "2000-01-01 1, 2000-01-02 2, 2000-01-04 1"; strings.Join(got, ", ") != want {
			t.Errorf("got %s", got)
		}
		for range 2 * maxDays {
			time.Sleep(day)
			l.Add(new(Call))
		}
		if _, _, days = l.Sums(every); len(days) != maxDays || days[0].Date >= days[1].Date {
			t.Errorf("got %d days: %+v", len(days), days)
		}
	})
}

// If a clock that was ahead is set back, calls do not count for a future day.
func TestClockIsSetBack(t *testing.T) {
	l, now := NewLog(), time.Now()
	for _, at := range []time.Time{now.Add(3650 * day), now, now} {
		l.sumsOfDay(at).of("").Calls++
		l.sumsOfInterval(at).Calls++
	}
	if _, _, days := l.Sums(every); len(days) != 2 || days[0].Calls != 2 || days[1].Calls != 1 ||
		days[0].Date > days[1].Date {
		t.Errorf("got %+v", days)
	}
	if len(l.intervals) != 2 || l.intervals[1].Calls != 2 {
		t.Errorf("got %+v", l.intervals)
	}
}

func TestIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLog()
		counts := func() string {
			recent := l.Recent()
			if len(recent) != maxIntervals || !recent[maxIntervals-1].At.Equal(time.Now().Truncate(intervalLength)) {
				t.Errorf("got %d intervals, the last at %s", len(recent), recent[maxIntervals-1].At)
			}
			text := ""
			for i, interval := range recent {
				if i > 0 && interval.At.Sub(recent[i-1].At) != intervalLength {
					t.Errorf("interval %s is followed by %s", recent[i-1].At, interval.At)
				}
				text += fmt.Sprint(interval.Calls)
			}
			return strings.TrimLeft(text, "0")
		}
		if got := counts(); got != "" {
			t.Errorf("got %s", got)
		}
		l.Add(new(Call))
		time.Sleep(intervalLength - 1)
		l.Add(new(Call))
		if got := counts(); got != "2" {
			t.Errorf("got %s", got)
		}
		time.Sleep(time.Nanosecond)
		l.Add(new(Call))
		time.Sleep(2 * intervalLength)
		if got := counts(); got != "2100" {
			t.Errorf("got %s", got)
		}
		time.Sleep((maxIntervals - 3) * intervalLength)
		if got := counts(); got != "1"+strings.Repeat("0", maxIntervals-1) {
			t.Errorf("got %s", got)
		}
		time.Sleep(intervalLength)
		if got := counts(); got != "" {
			t.Errorf("got %s", got)
		}
		for range 3 * maxIntervals {
			l.Add(new(Call))
			time.Sleep(intervalLength)
		}
		if len(l.intervals) > maxIntervals {
			t.Errorf("got %d intervals", len(l.intervals))
		}
	})
}

func TestLatency(t *testing.T) {
	l := NewLog()
	if got := l.Latency("g", "s"); got != nil {
		t.Errorf("got %+v", got)
	}
	for i := range 100 {
		l.Add(&Call{Gateway: "g", Server: "s", Outcome: "ok", Seconds: float64(100 - i)})
	}
	l.Add(&Call{Gateway: "g", Server: "s", Outcome: "timeout", Seconds: 1e6})
	l.Add(&Call{Gateway: "g", Server: "other", Outcome: "ok", Seconds: 1e6})
	l.Add(&Call{Gateway: "other", Server: "s", Outcome: "ok", Seconds: 1e6})
	if got := l.Latency("g", "s"); got == nil || *got != (Latency{Calls: 100, P50: 50, P95: 95, P99: 99}) {
		t.Errorf("got %+v", got)
	}
	l.Add(&Call{Gateway: "g", Server: "one", Outcome: "ok", Seconds: 2})
	if got := l.Latency("g", "one"); got == nil || *got != (Latency{Calls: 1, P50: 2, P95: 2, P99: 2}) {
		t.Errorf("got %+v", got)
	}
}

// Clients use a log concurrently.
func TestLogIsSafeForConcurrentUse(t *testing.T) {
	l := NewLog()
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for range 500 {
				l.Add(&Call{Owner: fmt.Sprint(i), Gateway: "g", Server: "s", Outcome: "ok"})
				l.Latency("g", "s")
				l.Recent()
				l.Sums(every)
			}
		})
	}
	writers.Wait()
	if total, _, _ := l.Sums(every); total.Calls != 2000 {
		t.Errorf("got %+v", total)
	}
}

func BenchmarkAdd(b *testing.B) {
	l := NewLog()
	b.ReportAllocs()
	for b.Loop() {
		l.Add(&Call{
			Gateway: "g", Client: "ann", Server: "files", Method: "tools/call", Name: "read", Outcome: "ok", Owner: "ann",
			Received: 1000, Sent: 1000,
		})
	}
}

func TestConversations(t *testing.T) {
	c := NewConversations()
	c.Add(&Request{Route: "b", BytesBefore: 100, BytesAfter: 100})
	c.Add(&Request{
		Route: "a", Masked: 2, SavedChars: 300, BytesBefore: 1000, BytesAfter: 700, TokensBefore: 250, TokensAfter: 175,
		Moved: true,
		Usage: Usage{Input: 175, Cached: 100, CacheWrite: 75, Output: 9}, Cost: 103.75, CostBefore: 60,
	})
	c.Add(&Request{
		Route: "a", Masked: 2, SavedChars: 300, BytesBefore: 1200, BytesAfter: 900, TokensBefore: 300, TokensAfter: 225,
		Usage: Usage{Input: 225, Cached: 175, CacheWrite: 50, Output: 1}, Cost: 80, CostBefore: 90,
	})
	all := c.Routes()
	if len(all) != 2 || all[0].Route != "a" || all[1].Route != "b" {
		t.Fatalf("got %+v", all)
	}
	a, b := all[0], all[1]
	if len(a.Moves) != 1 || a.Moves[0].At.IsZero() {
		t.Fatalf("got %+v", a.Moves)
	}
	move := a.Moves[0]
	move.At = (Move{}).At
	if want := (Move{Results: 2, SavedChars: 300, Cached: 100, CacheWrite: 75, Input: 175, Cost: 103.75,
		CostBefore: 60}); move != want {
		t.Errorf("got %+v", move)
	}
	a.Moves = nil
	want := Route{
		Route: "a", Requests: 2, Masked: 2, Results: 4, SavedChars: 600, BytesBefore: 2200, BytesAfter: 1600,
		TokensBefore: 550, TokensAfter: 400, Usage: Usage{400, 275, 125, 10}, Cost: 183.75, CostBefore: 150,
	}
	if got := fmt.Sprintf("%+v", a); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got %s", got)
	}
	if b.Requests != 1 || b.Masked != 0 || b.Moves == nil { // Moves is [] in JSON
		t.Errorf("got %+v", b)
	}
}

func TestConversationsHaveLimits(t *testing.T) {
	c := NewConversations()
	for i := range maxRoutes + 10 {
		c.Add(&Request{Route: fmt.Sprint("route ", i)})
	}
	if all := c.Routes(); len(all) != maxRoutes+1 || all[0].Route != "" || all[0].Requests != 10 {
		t.Errorf("%d routes, the first is %+v", len(all), all[0])
	}
	for i := range maxMoves + 10 {
		c.Add(&Request{Route: "route 1", Moved: true, Masked: i})
	}
	for _, route := range c.Routes() {
		if route.Route != "route 1" {
			continue
		}
		if first, last := route.Moves[0], route.Moves[len(route.Moves)-1]; len(route.Moves) != maxMoves ||
			first.Results != maxMoves+9 || last.Results != 10 {
			t.Errorf("%d moves, from %+v to %+v", len(route.Moves), first, last)
		}
	}
}
