package toolresultmask

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
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

// A dialog is a conversation that grows by a turn with each request. It is so short that masking
// pays off only if the cache has nothing of it.
type dialog struct {
	t        *testing.T
	h        *Handler
	contents []string
}

func newDialog(t *testing.T, config string) *dialog {
	d := &dialog{t: t, h: provision(t, config)}
	for range 13 {
		d.contents = append(d.contents, strings.Repeat("x", 4000))
	}
	return d
}

// masked sends the next request, whose response has a usage, and returns the number of masked
// results.
func (d *dialog) masked(body func(contents ...string) string, usage string) int {
	d.t.Helper()
	d.contents = append(d.contents, strings.Repeat("x", 4000))
	got, _ := send(d.t, d.h, post(body(d.contents...)), func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"usage":%s}`, usage)
	})
	return strings.Count(got.body, "Observation masqu")
}

func usage(input, cached int) string {
	return fmt.Sprintf(`{"prompt_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}`, input, cached)
}

// results returns a function that returns the body of a request to Anthropic's API. mark is added
// to the last result.
func results(mark string) func(contents ...string) string {
	return func(contents ...string) string {
		var messages []string
		for i, content := range contents {
			if i+1 < len(contents) {
				content += `"`
			} else {
				content += `"` + mark
			}
			messages = append(messages, fmt.Sprintf(`{"role":"assistant","content":[{"type":"tool_use","id":"t%d",`+
				`"name":"read","input":{}}]}`, i),
				fmt.Sprintf(`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"%s}]}`, i, content))
		}
		return `{"messages":[` + strings.Join(messages, ",") + `]}`
	}
}

const anAuto = `{"clear_at_least":"auto"`

// After cache_ttl, all old results are masked. Before, results are masked only if that pays off.
func TestExpiredCache(t *testing.T) {
	for config, want := range map[string][]int{
		anAuto + `}`:                     {0, 0, 0},
		anAuto + `,"cache_ttl":1}`:       {0, 7, 8}, // 1 ns
		`{"cache_ttl":1}`:                {6, 7, 8}, // the window moves with every turn
		`{"step_turns":6,"cache_ttl":1}`: {6, 6, 6},
	} {
		d := newDialog(t, config)
		var got []int
		for range want {
			got = append(got, d.masked(turns, usage(10_000, 9_000)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: masked %v, want %v", config, got, want)
		}
	}
}

// If responses report that nothing was cached, masking is free, until a response reports cached
// tokens.
func TestProviderWithoutCache(t *testing.T) {
	d := newDialog(t, anAuto+`}`)
	var got []int
	for range 6 {
		got = append(got, d.masked(turns, usage(10_000, 0)))
	}
	if want := []int{0, 0, 0, 0, 10, 11}; !slices.Equal(got, want) {
		t.Errorf("masked %v, want %v", got, want)
	}
	d.masked(turns, usage(10_000, 5_000))
	if last, next := d.masked(turns, usage(10_000, 5_000)), d.masked(turns, usage(10_000, 5_000)); last != 12 ||
		next != 12 {
		t.Errorf("masked %d and %d after cached tokens were reported", last, next)
	}
	d = newDialog(t, anAuto+`}`)
	for range 6 { // responses without usage do not count as misses
		if n := d.masked(turns, `{}`); n != 0 {
			t.Errorf("masked %d, want 0", n)
		}
	}
}

// Anthropic caches only marked parts. Other providers with the same API may cache without marks.
func TestRequestsWithoutMarks(t *testing.T) {
	d := newDialog(t, anAuto+`}`)
	if n := d.masked(results(""), `{"input_tokens":10000}`); n != 6 {
		t.Errorf("masked %d without marks, want 6", n)
	}
	d = newDialog(t, anAuto+`}`)
	if n := d.masked(results(`,"cache_control":{"type":"ephemeral"}`), `{"input_tokens":10000}`); n != 0 {
		t.Errorf("masked %d with marks, want 0", n)
	}
	d = newDialog(t, anAuto+`}`)
	d.h.provider.used.Store(true)
	if n := d.masked(results(""), `{"input_tokens":10000}`); n != 0 {
		t.Errorf("masked %d although the provider has a cache, want 0", n)
	}
}
