package toolresultmask

import (
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
)

func TestCost(t *testing.T) {
	prices := &CachePrices{Read: .1, Write: 1.25}
	// 30,000 tokens, of which 10,000 are masked and 2,000 are new; 4 bytes a token.
	kept := prompt{unmasked: 120_000, before: 112_000, sent: 80_000, shared: 72_000}
	moved := kept
	moved.shared, moved.broken = 40_000, true
	for _, test := range []struct {
		name   string
		prompt prompt
		told   chat.Usage
		want   cost
	}{
		{"what was not masked costs the same", prompt{unmasked: 8000, sent: 8000}, chat.Usage{Input: 1000, Cached: 400,
			CacheWrite: 500},
			cost{40 + 625 + 100, 765}},
		{"and so does what is no conversation", prompt{}, chat.Usage{Input: 1000, Cached: 400}, cost{640, 640}},
		{"nothing is known of it", prompt{}, chat.Usage{}, cost{}},
		{"what is masked would have been read", kept, chat.Usage{Input: 20_000, Cached: 18_000, CacheWrite: 2000},
			cost{1800 + 2500, 2800 + 2500}},
		{"a provider that does not bill what it writes", kept, chat.Usage{Input: 20_000, Cached: 18_000},
			cost{1800 + 2000, 2800 + 2000}},
		{"a provider that caches nothing", kept, chat.Usage{Input: 20_000}, cost{20_000, 30_000}},
		{"a cache that has expired", kept, chat.Usage{Input: 20_000, CacheWrite: 20_000}, cost{25_000, 37_500}},
		{"all is in the cache", kept, chat.Usage{Input: 20_000, Cached: 20_000}, cost{2000, 3000}},
		{"what has moved would have been read", moved, chat.Usage{Input: 20_000, Cached: 10_000, CacheWrite: 10_000},
			cost{1000 + 12_500, 2800 + 2500}},
		{"what has moved, where all was written", moved, chat.Usage{Input: 20_000, CacheWrite: 20_000},
			cost{25_000, 2800 + 2500}},
		{"what has moved, and all is in the cache", moved, chat.Usage{Input: 20_000, Cached: 20_000},
			cost{2000, 2800 + 2500}},
		{"what has moved, at a provider that caches nothing", moved, chat.Usage{Input: 20_000}, cost{20_000, 30_000}},
		{"more tokens in a byte", moved, chat.Usage{Input: 40_000, Cached: 20_000, CacheWrite: 20_000},
			cost{2000 + 25_000, 5600 + 5000}},
		{"without usage both are estimated", kept, chat.Usage{}, cost{1800 + 2500, 2800 + 2500}},
		{"without usage, what has moved is written", moved, chat.Usage{}, cost{1000 + 12_500, 2800 + 2500}},
		{"without usage, a beginning too short for the cache", prompt{unmasked: 8000, before: 4000, sent: 6000,
			shared: 4000}, chat.Usage{},
			cost{1875, 2500}},
		{"figures that contradict each other", kept, chat.Usage{Input: 20_000, Cached: 30_000, CacheWrite: 10_000},
			cost{3000, 4000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.prompt.cost(test.told, prices)
			if math.Abs(got.sent-test.want.sent) > 1e-6 || math.Abs(got.unmasked-test.want.unmasked) > 1e-6 {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// Of two masks, the second has the last word about what is sent.
func TestPromptOfTwoMasks(t *testing.T) {
	got := prompt{unmasked: 100, before: 80, sent: 60, shared: 40}
	got.maskedBy(prompt{unmasked: 60, before: 40, sent: 50, shared: 30, broken: true})
	if want := (prompt{100, 80, 50, 30, true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got.maskedBy(prompt{}) // which has let it pass
	if want := (prompt{100, 80, 50, 30, true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	var first prompt
	if first.maskedBy(got); first != got {
		t.Errorf("%+v, want %+v", first, got)
	}
}

// The cost of a stream that does not tell its usage is estimated. Another answer
// that does not, such as a count of tokens, has no cost.
func TestCostWithoutUsage(t *testing.T) {
	h := provision(t, `{"window_turns":1,"route":"untold"}`)
	long := strings.Repeat("A", 40_000)
	for _, test := range []struct {
		contentType, answer string
		sent, unmasked      float64
	}{
		// The first result is masked for the first time, so that all is written again.
		{"text/event-stream", "data: {}\n\n", 1.25 * 10_000, .1*10_000 + 1.25*10_000},
		{"application/json", `{"input_tokens":20000}`, 0, 0},
	} {
		sent, unmasked := count(promptCost, "untold", "sent"), count(promptCost, "untold", "unmasked")
		through(t, h, post(turns(long, long)), func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", test.contentType)
			_, _ = io.WriteString(w, test.answer)
		})
		sent, unmasked = count(promptCost, "untold", "sent")-sent, count(promptCost, "untold", "unmasked")-unmasked
		if math.Abs(sent-test.sent) > 200 || math.Abs(unmasked-test.unmasked) > 200 { // what stands around the results
			t.Errorf("%s: %v, unmasked %v", test.contentType, sent, unmasked)
		}
	}
}
