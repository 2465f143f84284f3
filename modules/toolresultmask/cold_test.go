package toolresultmask

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

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
