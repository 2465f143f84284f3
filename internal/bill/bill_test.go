package bill

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A request is sent after some minutes, or at an unknown time if after is 0.
type request struct {
	body  string
	edits []jsonspan.Edit
	after float64
	want  Tokens
}

func TestCache(t *testing.T) {
	a, b, c := strings.Repeat("a", 400), strings.Repeat("b", 400), strings.Repeat("c", 400)
	masked := []jsonspan.Edit{{Start: 400, End: 800, New: []byte(a)}}
	for _, test := range []struct {
		name     string
		minimum  int
		ttl      time.Duration
		requests []request
	}{
		{
			name: "a repeated prefix is read",
			requests: []request{
				{body: a, want: Tokens{Written: 100}},
				{body: a + b, want: Tokens{Read: 100, Written: 100}},
				{body: a + b, want: Tokens{Read: 200}},
			},
		},
		{
			name: "everything after a change is written",
			requests: []request{
				{body: a + b + c, want: Tokens{Written: 300}},
				{body: a + c + b + b, want: Tokens{Read: 100, Written: 300}},
				{body: a + c, want: Tokens{Read: 200}},
				{body: a + c + c, want: Tokens{Read: 200, Written: 100}},
			},
		},
		{
			name: "edits are applied before a request is sent",
			requests: []request{
				{body: a + b + c, want: Tokens{Written: 300}},
				{body: a + b + c, edits: masked, want: Tokens{Read: 100, Written: 200}},
				{body: a + b + c + c, edits: masked, want: Tokens{Read: 300, Written: 100}},
			},
		},
		{
			name:    "a prefix shorter than the minimum is written again",
			minimum: 101,
			requests: []request{
				{body: a, want: Tokens{Written: 100}},
				{body: a + b, want: Tokens{Written: 200}},
				{body: a + b + c, want: Tokens{Read: 200, Written: 100}},
			},
		},
		{
			name: "an unused prefix expires",
			ttl:  5 * time.Minute,
			requests: []request{
				{body: a, after: 1, want: Tokens{Written: 100}},
				{body: a, after: 6, want: Tokens{Read: 100}},
				{body: a, after: 11, want: Tokens{Read: 100}},
				{body: a, after: 16.1, want: Tokens{Written: 100}},
				{body: a, want: Tokens{Read: 100}}, // at an unknown time
				{body: a, after: 60, want: Tokens{Read: 100}},
			},
		},
		{
			name: "nothing expires without a limit",
			requests: []request{
				{body: a, after: 1, want: Tokens{Written: 100}},
				{body: a, after: 1e6, want: Tokens{Read: 100}},
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			cache := Cache{Minimum: test.minimum, TTL: test.ttl}
			for range 2 { // the second conversation does not depend on the first
				cache.Reset()
				for i, r := range test.requests {
					var at time.Time
					if r.after > 0 {
						at = time.Unix(0, 0).Add(time.Duration(r.after * float64(time.Minute)))
					}
					got, _ := cache.Send([]byte(r.body), r.edits, at)
					if got != r.want {
						t.Errorf("request %d: %+v, want %+v", i, got, r.want)
					}
				}
			}
		})
	}
}

func TestSharedIncludesUncachedPrefixes(t *testing.T) {
	cache := Cache{Minimum: chat.MinCached}
	cache.Send([]byte("abcd"), nil, time.Time{})
	if got, shared := cache.Send([]byte("abXd"), nil, time.Time{}); got.Read != 0 || shared != 2 {
		t.Errorf("%+v, %d bytes", got, shared)
	}
}

func TestCost(t *testing.T) {
	sum := Tokens{Read: 1000}
	sum.Add(Tokens{Written: 100, Output: 10})
	if got := sum.Cost(Prices{Read: .125, Write: 1.25, Output: 5}); got != 300 || sum.Prompt() != 1100 {
		t.Errorf("%v for %d", got, sum.Prompt())
	}
}

func TestCommonPrefix(t *testing.T) {
	a, b := make([]byte, 10_000), make([]byte, 12_000)
	for at := range a {
		b[at] = 1
		if got := commonPrefix(a, b); got != at {
			t.Fatalf("got %d, want %d", got, at)
		}
		b[at] = 0
	}
	if got := commonPrefix(a, b); got != len(a) {
		t.Errorf("got %d, want all of the shorter one", got)
	}
}
