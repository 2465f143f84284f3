package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// prunerKey is a key that must not appear in logs, responses or configurations.
const prunerKey = "sk_deepinfra_g3h31m"

// prunerVariables are all variables that the pruner reads. runPruner clears them, so the
// environment of the tests does not matter.
var prunerVariables = []string{
	"MCP_PRUNER_MAX_INPUT_CHARS", "MCP_PRUNER_PRUNE_ID_TTL_S", "MCP_PRUNER_CACHE_TTL_S", "MCP_PRUNER_CACHE_MAX_ITEMS",
	"MCP_PRUNER_CACHE_MAX_ENTRIES", "MCP_PRUNER_HOST", "MCP_PRUNER_PORT",
	"KIMI_PRUNING_BACKEND", "DEEPINFRA_API_KEY", "DEEPINFRA_ENDPOINT_URL", "DEEPINFRA_TIMEOUT_MS", "DEEPINFRA_MAX_DOCS",
}

// runPruner runs the built binary with a pruner and these variables, and returns the URL of
// its /rpc endpoint.
func runPruner(t *testing.T, directive string, env ...string) (r *caddyProcess, endpoint string) {
	t.Helper()
	none := make([]string, len(prunerVariables))
	for i, name := range prunerVariables {
		none[i] = name + "="
	}
	r = run(t, writeCaddyfile(t, block("", "debug")+"\n"+block(":8080", "bind 127.0.0.1", "log", directive)),
		append(none, env...)...)
	return r, "http://" + r.address + "/rpc"
}

// A fakeReranker handles each request like the path of mcptest.Reranker in mood, whatever
// the path of the request is.
type fakeReranker struct {
	mcptest.Reranker
	mood atomic.Value
}

func newFakeReranker(t *testing.T, mood string) (rr *fakeReranker, url string) {
	t.Helper()
	rr = new(fakeReranker)
	rr.mood.Store(mood)
	return rr, "http://" + upstream(t, rr) + "/v1/inference/model"
}

func (rr *fakeReranker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/inference/model" { // not the target of a redirect
		r.URL.Path = rr.mood.Load().(string)
	}
	rr.Reranker.ServeHTTP(w, r)
}

// documents returns the documents of the last request.
func (rr *fakeReranker) documents(t *testing.T) (documents []string) {
	t.Helper()
	var request struct{ Documents []string }
	if err := json.Unmarshal([]byte(rr.Last().Body), &request); err != nil {
		t.Fatal(err)
	}
	return request.Documents
}

// rerankerEnv returns the variables that make a pruner use the reranker.
func rerankerEnv(url string, more ...string) []string {
	return append([]string{"KIMI_PRUNING_BACKEND=deepinfra", "DEEPINFRA_API_KEY=" + prunerKey, "DEEPINFRA_ENDPOINT_URL=" +
		url}, more...)
}

// keepLines returns n lines. The reranker at /ok keeps those with these numbers.
func keepLines(n int, numbers ...int) string {
	others := map[int]string{}
	for _, number := range numbers {
		others[number] = fmt.Sprintf("keep %d", number)
	}
	return withLines(n, "ligne %d", others)
}

func TestPrunerReranker(t *testing.T) {
	isolate(t)
	rr, url := newFakeReranker(t, "/ok")
	_, endpoint := runPruner(t, pruner("backend heuristic"), rerankerEnv(url)...)

	t.Run("P63, W1 the request", func(t *testing.T) {
		p := prunable{text: "first <b>\nkeep é\r\n\"third\"\n\nlast", goal: "keep it"}
		pruneText(t, endpoint, p)
		last := rr.Last()
		same(t, last.Body, `{"queries":["keep it"],"documents":["first <b>","keep é","\"third\"","","last"]}`)
		if rr.Count() != 1 || last.Method != "POST" || last.Headers.Get("Authorization") != "Bearer "+prunerKey ||
			last.Headers.Get("Content-Type") != "application/json" {
			t.Errorf("%d requests, the last %s with %v", rr.Count(), last.Method, last.Headers)
		}
	})
	selections := []struct {
		name, mood string
		p          prunable
		want       []int
	}{
		{"P64 the four to keep", "/ok", prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6", minKeep: 2},
			[]int{2, 5, 6, 9}},
		{"P64 the best", "/desc", prunable{text: numbered(10), ratio: "0.5", goal: "some"}, []int{1, 2, 3, 4, 5}},
		{"P64 lower line numbers win ties", "/ok", prunable{text: numbered(10), ratio: "0.7", goal: "ties"}, []int{1, 2, 3}},
		{"P64 ties among the best", "/ok", prunable{text: keepLines(10, 3, 5, 7, 9), ratio: "0.8"}, []int{3, 5}},
		{"P64, P30 min_keep_lines wins over the ratio", "/ok", prunable{text: keepLines(10, 4), ratio: "0.9", minKeep: 3},
			[]int{1, 2, 3, 4}},
		{"P64, P29 half of an odd number is rounded up", "/desc", prunable{text: numbered(9), ratio: "0.5"},
			[]int{1, 2, 3, 4, 5}},
		{"P64 nothing may be removed", "/desc", prunable{text: numbered(9), ratio: "0"}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"P64 all but one may be removed", "/ok", prunable{text: keepLines(9, 7), ratio: "1"}, []int{7}},
		{"P64 code is not protected in docs", "/ok", prunable{text: "import os\nkeep\ndef f():\nx\n", ratio: "0.75"},
			[]int{2}},
		{"W1 a list of index and score", "/idx", prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6", goal: "idx"},
			[]int{2, 5, 6, 9}},
		{"W1 a bare list", "/list", prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6", goal: "list"}, []int{2, 5, 6, 9}},
		{"W1 one level deeper", "/deep", prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6", goal: "deep"},
			[]int{2, 5, 6, 9}},
		{"W1 fewer scores than documents", "/short", prunable{text: keepLines(10, 2, 5), ratio: "0.8", goal: "short"},
			[]int{2, 5}},
	}
	for _, tt := range selections {
		t.Run(tt.name, func(t *testing.T) {
			rr.mood.Store(tt.mood)
			got := pruneText(t, endpoint, tt.p)
			if kept := got.keptLines(); !reflect.DeepEqual(kept, tt.want) {
				t.Errorf("kept %v, want %v", kept, tt.want)
			}
			if s := got.Stats; s.Fallback || s.Backend != "deepinfra" || tt.mood != "/short" && len(got.Warnings) != 0 {
				t.Errorf("%+v %v", s, got.Warnings)
			}
		})
	}
	rr.mood.Store("/ok")
	t.Run("P65, P66 statistics", func(t *testing.T) {
		got := pruneText(t, endpoint, prunable{text: keepLines(60, 2, 5, 6, 9), goal: "statistics"})
		s := got.Stats
		if s.Backend != "deepinfra" || s.Fallback || s.Latency == nil || *s.Latency < 0 || s.Scored == nil ||
			*s.Scored != 60 || s.Total == nil || *s.Total != 60 ||
			s.Status == nil || *s.Status != 200 || s.Cached != nil && *s.Cached || len(got.Warnings) != 0 {
			t.Errorf("%+v %v", s, got.Warnings)
		}
	})
	t.Run("P67 more lines than max_docs", func(t *testing.T) {
		for _, ratio := range []string{"0.55", "0.9", "0.1"} {
			p := prunable{text: numbered(1000), ratio: ratio, goal: "many"}
			got := pruneText(t, endpoint, p)
			documents := rr.documents(t)
			if len(documents) != 64 || documents[0] != "ligne 1" || documents[63] != "ligne 1000" {
				t.Errorf("%d documents from %s to %s", len(documents), documents[0], documents[len(documents)-1])
			}
			last, narrow, wide := 0, 1000, 0
			for i, document := range documents {
				var n int
				if _, err := fmt.Sscanf(document, "ligne %d", &n); err != nil {
					t.Fatal(err)
				}
				if i > 0 {
					narrow, wide = min(narrow, n-last), max(wide, n-last)
				}
				last = n
			}
			if narrow < 1 || wide-narrow > 2 {
				t.Errorf("the documents are %d to %d lines apart", narrow, wide)
			}
			s := got.Stats // P75
			if s.Fallback || fmt.Sprint(got.Warnings) != "[deepinfra_docs_truncated]" || *s.Scored != 64 || *s.Total != 1000 ||
				*s.Status != 200 {
				t.Errorf("%+v %v", s, got.Warnings)
			}
			if s.Pruned == 0 {
				t.Error("no line was removed")
			}
		}
	})
	t.Run("P38 protected lines", func(t *testing.T) {
		p := prunable{text: noPrune("ligne %d"), ratio: "0.9"}
		expectKept(t, "deepinfra", p, pruneText(t, endpoint, p), protected(200, 260)...)
	})
	t.Run("P40 an empty text", func(t *testing.T) {
		before := rr.Count()
		got := pruneText(t, endpoint, prunable{})
		if rr.Count() != before || got.Stats.Fallback || len(got.Warnings) != 0 || got.Stats.Original != 0 {
			t.Errorf("%d requests, %+v %v", rr.Count()-before, got.Stats, got.Warnings)
		}
	})
	t.Run("P73–P75 the same request again", func(t *testing.T) {
		p := prunable{text: keepLines(300, 100, 200, 201, 202), goal: "once more"}
		first, before := pruneText(t, endpoint, p), rr.Count()
		again := pruneText(t, endpoint, p)
		s := again.Stats
		if rr.Count() != before || !slices.Contains(again.Warnings, "cache_hit") || s.Cached == nil || !*s.Cached ||
			s.Latency == nil || *s.Latency != 0 || s.Fallback || s.Backend != "deepinfra" {
			t.Errorf("%d more requests, %+v %v", rr.Count()-before, s, again.Warnings)
		}
		if again.PruneID != first.PruneID || again.Text != first.Text || !reflect.DeepEqual(again.Annotations,
			first.Annotations) {
			t.Error("the second result differs")
		}
		for _, a := range again.Annotations {
			found := markerLine.FindStringSubmatch(a.Marker)
			if got := recoverLines(t, endpoint, found[1], false, a.Start, a.Start); got.Text != strings.Split(p.text,
				"\n")[a.Start-1] {
				t.Errorf("%s stands for %s", a.Marker, got.Text)
			}
		}
	})
	t.Run("P74 each difference causes a new request", func(t *testing.T) {
		p := prunable{text: keepLines(50, 7), goal: "anew"}
		pruneText(t, endpoint, p)
		for what, other := range map[string]prunable{
			"text": {text: keepLines(50, 8), goal: p.goal}, "goal_hint": {text: p.text, goal: "a new"},
			"source_type":     {text: p.text, goal: p.goal, source: "logs"},
			"max_prune_ratio": {text: p.text, goal: p.goal, ratio: "0.56"}, "min_keep_lines": {text: p.text, goal: p.goal,
				minKeep: 1}, "timeout_ms": {text: p.text, goal: p.goal, timeout: 59999},
			"annotate_lines": {text: p.text, goal: p.goal, annotate: true}, "include_markers": {text: p.text, goal: p.goal,
				unmarked: true},
		} {
			before := rr.Count()
			got := pruneText(t, endpoint, other)
			if rr.Count() != before+1 || slices.Contains(got.Warnings, "cache_hit") {
				t.Errorf("%s: %d requests, %v", what, rr.Count()-before, got.Warnings)
			}
		}
	})
}

// TestPrunerRerankerFails uses rerankers that fail. The pruner falls back to the heuristic
// (P68–P72).
func TestPrunerRerankerFails(t *testing.T) {
	isolate(t)
	rr, url := newFakeReranker(t, "/ok")
	_, local := runPruner(t, pruner())
	p := prunable{text: withLines(300, "2026-02-26 13:00:00 INFO request %d served", map[int]string{100: "ERROR keep",
		200: "request keep"}), source: "logs", goal: "why was it lost"}
	want := pruneText(t, local, p).removed()
	check := func(t *testing.T, got pruned, fault string, status int) {
		t.Helper()
		s := got.Stats
		if !s.Fallback || s.Backend != "deepinfra" || !slices.Contains(got.Warnings, "deepinfra_error") ||
			!slices.Contains(got.Warnings, "deepinfra_"+fault+"_error") || len(got.Warnings) != 2 {
			t.Errorf("%+v %v", s, got.Warnings)
		}
		if status == 0 && s.Status != nil || status != 0 && (s.Status == nil || *s.Status != status) {
			t.Errorf("deepinfra_http_status is %v, want %d", s.Status, status)
		}
		if s.Pruned == 0 || got.removed() != want {
			t.Errorf("P72 removed other lines than the heuristic: %s\nwant %s", got.removed(), want)
		}
	}
	tests := []struct {
		name, mood, fault string
		status            int
	}{
		{"P69 401", "/401", "http", 401},
		{"P69 402", "/402", "http", 402},
		{"P69 429", "/429", "http", 429},
		{"P69 500", "/500", "http", 500},
		{"P69 503", "/503", "http", 503},
		{"P69 a path not found", "/nowhere", "http", 404},
		{"W1 a redirect", "/redirect", "http", 307},
		{"W1 another redirect", "/302", "http", 302},
		{"P70 a broken connection", "/reset", "http", 0},
		{"P71 a text", "/text", "parse", -1},
		{"P71 no scores", "/empty", "parse", -1},
		{"P71 scores that are not numbers", "/nan", "parse", -1},
		{"P71 an endless response", "/huge", "parse", -1},
	}
	_, endpoint := runPruner(t, pruner(), rerankerEnv(url)...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rr.mood.Store(tt.mood)
			for range 2 { // P74 not from the cache
				before := rr.Count()
				got := pruneText(t, endpoint, p)
				if rr.Count() != before+1 {
					t.Errorf("%d requests", rr.Count()-before)
				}
				status := tt.status
				if status < 0 { // absent, as P65 says
					status = 0
				}
				check(t, got, tt.fault, status)
			}
			// P50
			if got := recoverLines(t, endpoint, pruneText(t, endpoint, p).PruneID, false, 100, 100); got.Text != "ERROR keep" {
				t.Errorf("%+v", got)
			}
		})
	}
	for _, request := range rr.Requests() {
		if request.Path == "/ok" {
			t.Error("W1 a redirect was followed")
		}
	}
	t.Run("P70 a timeout", func(t *testing.T) {
		_, endpoint := runPruner(t, pruner(), rerankerEnv(url, "DEEPINFRA_TIMEOUT_MS=200")...)
		for _, mood := range []string{"/hang", "/slowbody"} {
			rr.mood.Store(mood)
			got := pruneText(t, endpoint, p)
			check(t, got, "http", 0)
			expectTimedOut(t, got)
		}
	})
	t.Run("P70 connection refused", func(t *testing.T) {
		_, endpoint := runPruner(t, pruner(), rerankerEnv("http://127.0.0.1:1/")...)
		check(t, pruneText(t, endpoint, p), "http", 0)
	})
	t.Run("P68 no key", func(t *testing.T) {
		before := rr.Count()
		for _, key := range []string{"", " \t"} {
			_, endpoint := runPruner(t, pruner(), rerankerEnv(url, "DEEPINFRA_API_KEY="+key)...)
			check(t, pruneText(t, endpoint, p), "config", 0)
		}
		if rr.Count() != before {
			t.Errorf("%d requests", rr.Count()-before)
		}
	})
	t.Run("P68 not an HTTP URL", func(t *testing.T) {
		_, endpoint := runPruner(t, pruner(), rerankerEnv("ftp://127.0.0.1/")...)
		check(t, pruneText(t, endpoint, p), "config", 0)
	})
}

// expectTimedOut checks that the pruner waited only the configured few hundred milliseconds, not the
// default of 20 seconds (P70).
func expectTimedOut(t *testing.T, got pruned) {
	t.Helper()
	if latency := got.Stats.Latency; latency == nil || *latency >= 15000 {
		t.Errorf("P70 deepinfra_latency_ms: %+v", got.Stats)
	}
}

// TestPrunerChoosesTheBackend sets the backend in the environment and in the configuration
// (P59, P60, P62, R16).
func TestPrunerChoosesTheBackend(t *testing.T) {
	isolate(t)
	rr, url := newFakeReranker(t, "/ok")
	other, otherURL := newFakeReranker(t, "/cohere")
	tests := []struct {
		name, variable, config, want string
	}{
		{"P60 not set", "", "", "heuristic"},
		{"P60 deepinfra", "deepinfra", "", "deepinfra"},
		{"P60 cloud with spaces", " Cloud ", "", "deepinfra"},
		{"P60 uppercase", "DEEPINFRA", "", "deepinfra"},
		{"R16 unknown value, deepinfra configured", "foo", "backend deepinfra", "heuristic"},
		{"R16 heuristic, deepinfra configured", "heuristic", "backend deepinfra", "heuristic"},
		{"R16 deepinfra, heuristic configured", "deepinfra", "backend heuristic", "deepinfra"},
		{"R16 cloud, another reranker configured", "cloud", block("backend rerank", "url "+otherURL), "deepinfra"},
		{"R16 not set, deepinfra configured", "", "backend deepinfra", "deepinfra"},
		{"R16 spaces, deepinfra configured", "  ", "backend deepinfra", "deepinfra"},
		{"P62 heuristic", "", "backend heuristic", "heuristic"},
		{"another reranker", "", block("backend rerank", "url "+otherURL), "rerank"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := map[string]int{"deepinfra": rr.Count(), "rerank": other.Count()}
			_, endpoint := runPruner(t, pruner(tt.config), rerankerEnv(url, "KIMI_PRUNING_BACKEND="+tt.variable)...)
			got := pruneText(t, endpoint, prunable{text: keepLines(100, 5)})
			if got.Stats.Backend != tt.want || got.Stats.Fallback {
				t.Errorf("%+v %v", got.Stats, got.Warnings)
			}
			for name, reranker := range map[string]*fakeReranker{"deepinfra": rr, "rerank": other} {
				want := 0
				if name == tt.want {
					want = 1
				}
				if n := reranker.Count() - before[name]; n != want {
					t.Errorf("%d requests to %s", n, name)
				}
			}
		})
	}
}

// TestPrunerVariables checks that each variable overrides the configuration, unless its value
// is invalid (P58, P59).
func TestPrunerVariables(t *testing.T) {
	isolate(t)
	rr, url := newFakeReranker(t, "/ok")
	t.Run("MCP_PRUNER_MAX_INPUT_CHARS", func(t *testing.T) {
		for _, tt := range []struct {
			name, variable, config string
			want                   int
		}{
			{"variable", "800", "", 800},
			{"variable and configured", "800", "max_input_chars 100", 800},
			{"configured", "", "max_input_chars 800", 800},
			{"not an integer", "8e2", "max_input_chars 800", 800},
			{"not a number", "many", "max_input_chars 800", 800},
			{"below the minimum", "-5", "max_input_chars 800", 1},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, endpoint := runPruner(t, pruner(tt.config), "MCP_PRUNER_MAX_INPUT_CHARS="+tt.variable)
				for chars, fallback := range map[int]bool{tt.want: false, tt.want + 1: true} {
					text := strings.Repeat("é", chars)
					if got := pruneText(t, endpoint, prunable{text: text}); got.Stats.Fallback != fallback ||
						slices.Contains(got.Warnings, "input_too_large") != fallback {
						t.Errorf("P54 %d characters: %+v %v", chars, got.Stats, got.Warnings)
					}
				}
			})
		}
		t.Run("the default", func(t *testing.T) {
			_, endpoint := runPruner(t, pruner())
			for chars, fallback := range map[int]bool{2_000_000: false, 2_000_001: true} {
				if got := pruneText(t, endpoint, prunable{text: strings.Repeat("é", chars)}); slices.Contains(got.Warnings,
					"input_too_large") != fallback {
					t.Errorf("P54 %d characters: %v", chars, got.Warnings)
				}
			}
		})
	})
	t.Run("MCP_PRUNER_PRUNE_ID_TTL_S", func(t *testing.T) {
		_, endpoint := runPruner(t, pruner("prune_id_ttl 1h"), "MCP_PRUNER_PRUNE_ID_TTL_S=1")
		renewed, left := prunable{text: numbered(200)}, prunable{text: numbered(201)}
		id, gone := pruneText(t, endpoint, renewed).PruneID, pruneText(t, endpoint, left).PruneID
		if isGone(t, endpoint, gone) {
			t.Error("P47 it was never stored")
		}
		await.Until(t, "the end of an original", func() bool {
			pruneText(t, endpoint, renewed)
			return isGone(t, endpoint, gone)
		})
		if isGone(t, endpoint, id) {
			t.Error("P19 the renewed original is gone, too")
		}
		await.Until(t, "the end of the renewed original", func() bool { return isGone(t, endpoint, id) })
	})
	t.Run("MCP_PRUNER_CACHE_TTL_S", func(t *testing.T) {
		for variable, config := range map[string]string{"1": "cache_ttl 1h", "0": "cache_ttl 1h", "x": "cache_ttl 1s"} {
			_, endpoint := runPruner(t, pruner(config), rerankerEnv(url, "MCP_PRUNER_CACHE_TTL_S="+variable)...)
			p, before := prunable{text: keepLines(20, 3)}, rr.Count()
			pruneText(t, endpoint, p)
			await.Until(t, "a second request, with "+variable, func() bool { // a hit does not renew the entry
				pruneText(t, endpoint, p)
				return rr.Count() == before+2
			})
		}
	})
	t.Run("MCP_PRUNER_CACHE_MAX_ITEMS", func(t *testing.T) {
		for _, tt := range []struct {
			name, config string
			env          []string
			want         int // requests when a, b, a are pruned
		}{
			{"variable", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=1"}, 3},
			{"variable and configured", "cache_max_entries 5", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=1"}, 3},
			{"alias", "cache_max_entries 5", []string{"MCP_PRUNER_CACHE_MAX_ENTRIES=1"}, 3},
			{"both names", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=2", "MCP_PRUNER_CACHE_MAX_ENTRIES=1"}, 2},
			{"not a number, and alias", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=x", "MCP_PRUNER_CACHE_MAX_ENTRIES=1"}, 3},
			{"configured", "cache_max_entries 1", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=x"}, 3},
			{"below the minimum", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=0"}, 3},
			{"the default", "", nil, 2},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, endpoint := runPruner(t, pruner("cache_ttl 1h", tt.config), rerankerEnv(url, tt.env...)...)
				a, b, before := prunable{text: keepLines(20, 3)}, prunable{text: keepLines(20, 4)}, rr.Count()
				for _, p := range []prunable{a, b, a} {
					pruneText(t, endpoint, p)
				}
				if n := rr.Count() - before; n != tt.want {
					t.Errorf("P74 %d requests, want %d", n, tt.want)
				}
			})
		}
	})
	t.Run("DEEPINFRA_MAX_DOCS", func(t *testing.T) {
		for _, tt := range []struct {
			name, variable, config string
			want                   int
		}{
			{"variable", "5", "", 5},
			{"variable and configured", "5", block("backend deepinfra", "max_docs 9"), 5},
			{"configured", "", block("backend deepinfra", "max_docs 9"), 9},
			{"not an integer", "5.5", block("backend deepinfra", "max_docs 9"), 9},
			{"above the maximum", "100000", "", 512},
			{"configured above the maximum", "", block("backend deepinfra", "max_docs 513"), 512},
			{"below the minimum", "0", "", 1},
			{"the default", "", "", 64},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, endpoint := runPruner(t, pruner(tt.config), rerankerEnv(url, "DEEPINFRA_MAX_DOCS="+tt.variable)...)
				got := pruneText(t, endpoint, prunable{text: numbered(1000)})
				if n := len(rr.documents(t)); n != tt.want || *got.Stats.Scored != tt.want || got.Stats.Fallback {
					t.Errorf("P59, P67 %d documents, %+v %v", n, got.Stats, got.Warnings)
				}
			})
		}
	})
	t.Run("DEEPINFRA_TIMEOUT_MS", func(t *testing.T) {
		rr.mood.Store("/hang")
		defer rr.mood.Store("/ok")
		for variable, config := range map[string]string{"100": block("backend deepinfra", "timeout 1h"),
			"": block("backend deepinfra", "timeout 100ms"), "soon": block("backend deepinfra", "timeout 100ms"), "0": ""} {
			_, endpoint := runPruner(t, pruner(config), rerankerEnv(url, "DEEPINFRA_TIMEOUT_MS="+variable)...)
			got := pruneText(t, endpoint, prunable{text: numbered(200)})
			if !slices.Contains(got.Warnings, "deepinfra_http_error") || got.Stats.Pruned == 0 {
				t.Errorf("P59, P70 %s: %+v %v", variable, got.Stats, got.Warnings)
			}
			expectTimedOut(t, got)
		}
	})
	t.Run("MCP_PRUNER_HOST and _PORT", func(t *testing.T) {
		address := freeAddress(t)
		host, port, _ := strings.Cut(address, ":")
		run(t, "../../../caddyfile_examples/mcp_pruner.Caddyfile", "MCP_PRUNER_HOST="+host, "MCP_PRUNER_PORT="+port)
		for range 20 { // P8: every connection gets a response
			if got := send(t, client, "GET", "http://"+address+"/health", ""); got.StatusCode != 200 ||
				!strings.Contains(got.body, `"status":"healthy"`) {
				t.Errorf("R19, P8 %d %s", got.StatusCode, got.body)
			}
		}
	})
}

// The timeout of a request limits local work, not the reranker (R17).
func TestPrunerTimeouts(t *testing.T) {
	isolate(t)
	var rr mcptest.Reranker
	asked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(600 * time.Millisecond) // longer than the timeout of the request
		r.URL.Path = "/ok"
		rr.ServeHTTP(w, r)
	})
	_, endpoint := runPruner(t, pruner(), rerankerEnv("http://"+upstream(t, asked))...)
	got := pruneText(t, endpoint, prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6", timeout: 500})
	if !reflect.DeepEqual(got.keptLines(), []int{2, 5, 6, 9}) || got.Stats.Fallback || len(got.Warnings) != 0 {
		t.Errorf("%+v %v", got.Stats, got.Warnings)
	}
}

// When the client disconnects, the request to the reranker is cancelled.
func TestPrunerDisconnects(t *testing.T) {
	isolate(t)
	asked, left := make(chan struct{}, 1), make(chan struct{}, 1)
	reranker := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	})
	url := serve(t, pruner(block("backend rerank", "url http://"+upstream(t, reranker), "timeout 2m")))
	for _, path := range []string{"/rpc", "/mcp"} {
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			if res, err := client.Do(request(t, ctx, "POST", url+path, prunable{text: numbered(100)}.request())); err == nil {
				res.Body.Close()
			}
		}()
		wait(t, asked, "the request")
		hangUp()
		wait(t, left, "the end of the request")
	}
}

// A reload does not interrupt a request to the reranker.
func TestPrunerReloadsWhileAsking(t *testing.T) {
	isolate(t)
	asked, proceed := make(chan struct{}, 1), make(chan struct{})
	var rr mcptest.Reranker
	reranker := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-proceed:
		case <-r.Context().Done():
		}
		r.URL.Path = "/cohere"
		rr.ServeHTTP(w, r)
	})
	address := freeAddress(t)
	config := site(address, pruner(block("backend rerank", "url http://"+upstream(t, reranker))))
	load(t, config)
	endpoint := "http://" + address + "/rpc"
	p := prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6"}
	answers := make(chan string, 1)
	go func() {
		defer close(answers)
		res, err := client.Do(request(t, t.Context(), "POST", endpoint, p.request(), connectionClose))
		if err != nil {
			return
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		answers <- string(body)
	}()
	wait(t, asked, "the request")
	load(t, config+site(freeAddress(t), "respond x"))
	close(proceed)
	got := payload[pruned](t, <-answers)
	p.check(t, got)
	if !reflect.DeepEqual(got.keptLines(), []int{2, 5, 6, 9}) || got.Stats.Fallback {
		t.Errorf("%v: %+v %v", got.keptLines(), got.Stats, got.Warnings)
	}
	if text := recoverLines(t, endpoint, got.PruneID, false, 2, 2).Text; text != "keep 2" {
		t.Errorf("line 2 is %q", text)
	}
}

// Concurrent requests do not affect each other.
func TestPrunerManyAtOnce(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner()) + "/rpc"
	const clients = 40
	bodies := make([]string, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for range 5 {
				res, err := client.Do(request(t, t.Context(), "POST", endpoint, prunable{text: numbered(200 + i%20)}.request()))
				if err != nil {
					return
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				bodies[i] = string(body)
			}
		})
	}
	all.Wait()
	for i, body := range bodies {
		p := prunable{text: numbered(200 + i%20)}
		got := payload[pruned](t, body)
		p.check(t, got)
		if text := recoverLines(t, endpoint, got.PruneID, false, 200+i%20, 999).Text; text != fmt.Sprintf("ligne %d",
			200+i%20) {
			t.Errorf("client %d recovers %q", i, text)
		}
	}
}

// TestPrunerOtherReranker uses a reranker with Cohere's API.
func TestPrunerOtherReranker(t *testing.T) {
	isolate(t)
	rr, url := newFakeReranker(t, "/cohere")
	_, endpoint := runPruner(t, pruner(block("backend rerank", "url "+url, "model some/model", "key_env OWN_KEY",
		"max_docs 20", "timeout 5s")), "OWN_KEY="+prunerKey)
	p := prunable{text: keepLines(10, 2, 5, 6, 9), ratio: "0.6", goal: "keep it"}
	got := pruneText(t, endpoint, p)
	if !reflect.DeepEqual(got.keptLines(), []int{2, 5, 6, 9}) || got.Stats.Backend != "rerank" || len(got.Warnings) != 0 {
		t.Errorf("%v: %+v %v", got.keptLines(), got.Stats, got.Warnings)
	}
	last := rr.Last()
	var sent struct {
		Query, Model string
		Documents    []string
	}
	if err := json.Unmarshal([]byte(last.Body), &sent); err != nil || sent.Query != "keep it" ||
		sent.Model != "some/model" || len(sent.Documents) != 10 || last.Headers.Get("Authorization") != "Bearer "+prunerKey {
		t.Errorf("%v: %s with %v", err, last.Body, last.Headers)
	}
	stats := payload[struct{ Stats map[string]any }](t, post(t, endpoint, p.request()).body).Stats
	if stats["rerank_cached"] != true || stats["rerank_http_status"] != 200.0 || stats["rerank_docs_total"] != 10.0 ||
		stats["rerank_latency_ms"] != 0.0 {
		t.Errorf("%v", stats)
	}
	rr.mood.Store("/500")
	p.goal = "another"
	if got := pruneText(t, endpoint, p); !got.Stats.Fallback ||
		fmt.Sprint(got.Warnings) != "[rerank_error rerank_http_error]" {
		t.Errorf("%+v %v", got.Stats, got.Warnings)
	}
}

// Rerankers do not share cached scores (P74).
func TestPrunerCacheIsTheRerankersOwn(t *testing.T) {
	isolate(t)
	first, firstURL := newFakeReranker(t, "/cohere")
	second, secondURL := newFakeReranker(t, "/cohere")
	url := serve(t, block("handle /first/*", pruner(block("backend rerank", "url "+firstURL))),
		block("handle /second/*", pruner(block("backend rerank", "url "+secondURL))))
	p := prunable{text: keepLines(30, 7)}
	pruneText(t, url+"/first/rpc", p)
	pruneText(t, url+"/second/rpc", p)
	if first.Count() != 1 || second.Count() != 1 {
		t.Errorf("got %d and %d requests, want one each", first.Count(), second.Count())
	}
}

// TestPrunerKeepsTheKey searches responses, logs, metrics and configurations for the key (P61).
func TestPrunerKeepsTheKey(t *testing.T) {
	isolate(t)
	rr, url := newFakeReranker(t, "/ok")
	// Credentials in the endpoint's URL are as secret as the key.
	url = strings.Replace(url, "http://", "http://user:"+prunerKey+"@", 1) + "?api_key=" + prunerKey
	for name, env := range map[string][]string{
		"a working endpoint":      rerankerEnv(strings.Replace(strings.Split(url, "?")[0], "user:"+prunerKey+"@", "", 1)),
		"a key in the URL":        rerankerEnv(url),
		"an unreachable endpoint": rerankerEnv("http://127.0.0.1:1/?key=" + prunerKey),
		"an invalid URL":          rerankerEnv("://" + prunerKey),
	} {
		t.Run(name, func(t *testing.T) {
			caddy, endpoint := runPruner(t, pruner(), append(env, "DEEPINFRA_TIMEOUT_MS=300")...)
			var seen strings.Builder
			for i, mood := range []string{"/ok", "/ok", "/401", "/500", "/text", "/redirect", "/hang", "/reset", "/empty"} {
				rr.mood.Store(mood)
				got := post(t, endpoint, prunable{text: numbered(100 + i/2)}.request())
				seen.WriteString(got.body + fmt.Sprint(got.Header))
			}
			seen.WriteString(post(t, endpoint, rpc("health", `{}`)).body + post(t, endpoint, "{").body + post(t, endpoint,
				rpc("tools/list", `{}`)).body)
			seen.WriteString(send(t, client, "GET", strings.Replace(endpoint, "/rpc", "/health", 1), "").body)
			admin := "http://" + caddy.addresses[":2019"]
			for _, path := range []string{"/config/", "/metrics", "/debug/vars"} {
				seen.WriteString(send(t, client, "GET", admin+path, "").body)
			}
			logged := caddy.stop(t)
			if !strings.Contains(logged, "backend failed to score lines") {
				t.Errorf("the faults are not logged:\n%.2000s", logged)
			}
			for what, text := range map[string]string{"the log": logged, "responses": seen.String()} {
				if start := strings.Index(text, prunerKey); start >= 0 {
					t.Errorf("the key is in %s: …%s…", what, text[max(0, start-300):start+len(prunerKey)])
				}
			}
		})
	}
	t.Run("in the configuration, with heuristic in the environment", func(t *testing.T) {
		setenv(t, "KIMI_PRUNING_BACKEND", "heuristic")
		load(t, "")
		expectConfigError(t, "application/json", `{"admin":{"listen":"`+adminAddress(t)+
			`"},"apps":{"http":{"servers":{"s":{"listen":["`+freeAddress(t)+
			`"],"routes":[{"handle":[{"handler":"mcp_pruner","backend":{"backend":"deepinfra","api_key":"sk_x"}}]}]}}}}}`,
			"DEEPINFRA_API_KEY")
	})
	t.Run("in the saved configuration", func(t *testing.T) {
		caddy, _ := runPruner(t, pruner("backend deepinfra"), rerankerEnv(url)...)
		home := ""
		for _, variable := range caddy.Env { // the last value wins
			if value, ok := strings.CutPrefix(variable, "XDG_CONFIG_HOME="); ok {
				home = value
			}
		}
		await.Until(t, "the configuration to be saved", func() bool {
			saved, err := os.ReadFile(filepath.Join(home, "caddy", "autosave.json"))
			if strings.Contains(string(saved), prunerKey) {
				t.Fatalf("the key is saved: %s", saved)
			}
			return err == nil && strings.Contains(string(saved), `"mcp_pruner"`)
		})
	})
}
