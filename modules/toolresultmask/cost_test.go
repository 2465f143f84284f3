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
	kept := prompt{unmasked: 120_000, unmaskedShared: 112_000, sent: 80_000, shared: 72_000}
	moved := kept
	moved.shared, moved.broken = 40_000, true
	for _, test := range []struct {
		name   string
		prompt prompt
		told   chat.Usage
		want   cost
	}{
		{"an unmasked conversation", prompt{unmasked: 8000, sent: 8000}, chat.Usage{Input: 1000, Cached: 400,
			CacheWrite: 500},
			cost{40 + 625 + 100, 765}},
		{"not a conversation", prompt{}, chat.Usage{Input: 1000, Cached: 400}, cost{640, 640}},
		{"no conversation and no usage", prompt{}, chat.Usage{}, cost{}},
		{"masked results that would have been read from the cache", kept, chat.Usage{Input: 20_000, Cached: 18_000,
			CacheWrite: 2000},
			cost{1800 + 2500, 2800 + 2500}},
		{"a provider that does not bill writes", kept, chat.Usage{Input: 20_000, Cached: 18_000},
			cost{1800 + 2000, 2800 + 2000}},
		{"a provider that caches nothing", kept, chat.Usage{Input: 20_000}, cost{20_000, 30_000}},
		{"a cache that has expired", kept, chat.Usage{Input: 20_000, CacheWrite: 20_000}, cost{25_000, 37_500}},
		{"a prompt that is fully cached", kept, chat.Usage{Input: 20_000, Cached: 20_000}, cost{2000, 3000}},
		{"a move", moved, chat.Usage{Input: 20_000, Cached: 10_000, CacheWrite: 10_000},
			cost{1000 + 12_500, 2800 + 2500}},
		{"a move where everything was written", moved, chat.Usage{Input: 20_000, CacheWrite: 20_000},
			cost{25_000, 2800 + 2500}},
		{"a move with a prompt that is fully cached", moved, chat.Usage{Input: 20_000, Cached: 20_000},
			cost{2000, 2800 + 2500}},
		{"a move at a provider that caches nothing", moved, chat.Usage{Input: 20_000}, cost{20_000, 30_000}},
		{"more tokens per byte", moved, chat.Usage{Input: 40_000, Cached: 20_000, CacheWrite: 20_000},
			cost{2000 + 25_000, 5600 + 5000}},
		{"an estimate without usage", kept, chat.Usage{}, cost{1800 + 2500, 2800 + 2500}},
		{"an estimate of a move without usage", moved, chat.Usage{}, cost{1000 + 12_500, 2800 + 2500}},
		{"an estimate of a beginning too short for the cache", prompt{unmasked: 8000, unmaskedShared: 4000, sent: 6000,
			shared: 4000}, chat.Usage{},
			cost{1875, 2500}},
		{"inconsistent usage", kept, chat.Usage{Input: 20_000, Cached: 30_000, CacheWrite: 10_000},
			cost{3000, 4000}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := test.prompt.cost(test.told, prices)
			if math.Abs(got.sent-test.want.sent) > 1e-6 || math.Abs(got.unmasked-test.want.unmasked) > 1e-6 {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// With two masks, the sent lengths are those of the second.
func TestPromptOfTwoMasks(t *testing.T) {
	got := prompt{unmasked: 100, unmaskedShared: 80, sent: 60, shared: 40}
	got.maskedBy(prompt{unmasked: 60, unmaskedShared: 40, sent: 50, shared: 30, broken: true})
	if want := (prompt{100, 80, 50, 30, true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got.maskedBy(prompt{}) // a mask that passed the request unchanged
	if want := (prompt{100, 80, 50, 30, true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	var first prompt
	if first.maskedBy(got); first != got {
		t.Errorf("got %+v, want %+v", first, got)
	}
}

// The cost of a stream without usage is estimated. Other responses without usage, such as a token
// count, have no cost.
func TestCostWithoutUsage(t *testing.T) {
	h := provision(t, `{"window_turns":1,"route":"untold"}`)
	long := strings.Repeat("A", 40_000)
	for _, test := range []struct {
		contentType, answer string
		sent, unmasked      float64
	}{
		// The first result is masked for the first time, so the whole prompt is written to the cache.
		{"text/event-stream", "data: {}\n\n", 1.25 * 10_000, .1*10_000 + 1.25*10_000},
		{"application/json", `{"input_tokens":20000}`, 0, 0},
	} {
		sent, unmasked := count(promptCost, "untold", "sent"), count(promptCost, "untold", "unmasked")
		send(t, h, post(turns(long, long)), func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", test.contentType)
			_, _ = io.WriteString(w, test.answer)
		})
		sent, unmasked = count(promptCost, "untold", "sent")-sent, count(promptCost, "untold", "unmasked")-unmasked
		const around = 200 // tokens of the request without its results
		if math.Abs(sent-test.sent) > around || math.Abs(unmasked-test.unmasked) > around {
			t.Errorf("%s: %v, unmasked %v", test.contentType, sent, unmasked)
		}
	}
}
