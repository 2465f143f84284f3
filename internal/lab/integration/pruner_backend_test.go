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

// prunerKey is a key that must not show anywhere.
const prunerKey = "sk_deepinfra_g3h31m"

// prunerVariables are all that the pruner reads. A process that is started here has
// none of them, whatever the environment of the tests is.
var prunerVariables = []string{
	"MCP_PRUNER_MAX_INPUT_CHARS", "MCP_PRUNER_PRUNE_ID_TTL_S", "MCP_PRUNER_CACHE_TTL_S", "MCP_PRUNER_CACHE_MAX_ITEMS", "MCP_PRUNER_CACHE_MAX_ENTRIES", "MCP_PRUNER_HOST", "MCP_PRUNER_PORT",
	"KIMI_PRUNING_BACKEND", "DEEPINFRA_API_KEY", "DEEPINFRA_ENDPOINT_URL", "DEEPINFRA_TIMEOUT_MS", "DEEPINFRA_MAX_DOCS",
}

// runPruner runs the built binary with a site that is a pruner, in an environment with
// these variables, and returns where it takes messages.
func runPruner(t *testing.T, directive string, env ...string) (r *running, at string) {
	t.Helper()
	none := make([]string, len(prunerVariables))
	for i, name := range prunerVariables {
		none[i] = name + "="
	}
	r = run(t, inFile(t, block("", "debug")+"\n"+block(":8080", "bind 127.0.0.1", "log", directive)), append(none, env...)...)
	return r, "http://" + r.address + "/rpc"
}

// A moodyReranker does what its mood says, a path of mcptest.Reranker, whatever the
// path of the request is.
type moodyReranker struct {
	mcptest.Reranker
	mood atomic.Value
}

func newMoodyReranker(t *testing.T, mood string) (rr *moodyReranker, url string) {
	t.Helper()
	rr = new(moodyReranker)
	rr.mood.Store(mood)
	return rr, "http://" + upstream(t, rr) + "/v1/inference/model"
}

func (rr *moodyReranker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/inference/model" { // not what a redirection points to
		r.URL.Path = rr.mood.Load().(string)
	}
	rr.Reranker.ServeHTTP(w, r)
}

// asked is the documents of the last request.
func (rr *moodyReranker) asked(t *testing.T) (documents []string) {
	t.Helper()
	var request struct{ Documents []string }
	if err := json.Unmarshal([]byte(rr.Last().Body), &request); err != nil {
		t.Fatal(err)
	}
	return request.Documents
}

// inCloud are the variables that make a pruner use the reranker.
func inCloud(url string, more ...string) []string {
	return append([]string{"KIMI_PRUNING_BACKEND=deepinfra", "DEEPINFRA_API_KEY=" + prunerKey, "DEEPINFRA_ENDPOINT_URL=" + url}, more...)
}

// keepers is n lines of which those with these numbers are to be kept, as /ok sees it.
func keepers(n int, numbers ...int) string {
	others := map[int]string{}
	for _, number := range numbers {
		others[number] = fmt.Sprintf("keep %d", number)
	}
	return withLines(n, "ligne %d", others)
}

func TestPrunerReranker(t *testing.T) {
	isolate(t)
	rr, url := newMoodyReranker(t, "/ok")
	_, at := runPruner(t, pruner("backend heuristic"), inCloud(url)...)

	t.Run("P63, W1 the request", func(t *testing.T) {
		p := prunable{text: "first <b>\nkeep é\r\n\"third\"\n\nlast", goal: "keep it"}
		pruneBy(t, at, p)
		last := rr.Last()
		same(t, last.Body, `{"queries":["keep it"],"documents":["first <b>","keep é","\"third\"","","last"]}`)
		if rr.Count() != 1 || last.Method != "POST" || last.Headers.Get("Authorization") != "Bearer "+prunerKey || last.Headers.Get("Content-Type") != "application/json" {
			t.Errorf("%d requests, the last %s with %v", rr.Count(), last.Method, last.Headers)
		}
	})
	selections := []struct {
		name, mood string
		p          prunable
		want       []int
	}{
		{"P64 the four to keep", "/ok", prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6", minKeep: 2}, []int{2, 5, 6, 9}},
		{"P64 the best", "/desc", prunable{text: numbered(10), ratio: "0.5", goal: "some"}, []int{1, 2, 3, 4, 5}},
		{"P64 ties go by line number", "/ok", prunable{text: numbered(10), ratio: "0.7", goal: "ties"}, []int{1, 2, 3}},
		{"P64 ties among the best", "/ok", prunable{text: keepers(10, 3, 5, 7, 9), ratio: "0.8"}, []int{3, 5}},
		{"P64, P30 more than the ratio says", "/ok", prunable{text: keepers(10, 4), ratio: "0.9", minKeep: 3}, []int{1, 2, 3, 4}},
		{"P64, P29 one more than a half", "/desc", prunable{text: numbered(9), ratio: "0.5"}, []int{1, 2, 3, 4, 5}},
		{"P64 nothing may be removed", "/desc", prunable{text: numbered(9), ratio: "0"}, []int{1, 2, 3, 4, 5, 6, 7, 8, 9}},
		{"P64 all may be removed but one", "/ok", prunable{text: keepers(9, 7), ratio: "1"}, []int{7}},
		{"P64 what looks like code is not protected in docs", "/ok", prunable{text: "import os\nkeep\ndef f():\nx\n", ratio: "0.75"}, []int{2}},
		{"W1 a list of index and score", "/idx", prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6", goal: "idx"}, []int{2, 5, 6, 9}},
		{"W1 a bare list", "/list", prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6", goal: "list"}, []int{2, 5, 6, 9}},
		{"W1 one level deeper", "/deep", prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6", goal: "deep"}, []int{2, 5, 6, 9}},
		{"W1 fewer scores than documents", "/short", prunable{text: keepers(10, 2, 5), ratio: "0.8", goal: "short"}, []int{2, 5}},
	}
	for _, tt := range selections {
		t.Run(tt.name, func(t *testing.T) {
			rr.mood.Store(tt.mood)
			got := pruneBy(t, at, tt.p)
			if kept := got.kept(); !reflect.DeepEqual(kept, tt.want) {
				t.Errorf("kept %v, want %v", kept, tt.want)
			}
			if s := got.Stats; s.Fallback || s.Backend != "deepinfra" || tt.mood != "/short" && len(got.Warnings) != 0 {
				t.Errorf("%+v %v", s, got.Warnings)
			}
		})
	}
	rr.mood.Store("/ok")
	t.Run("P65, P66 statistics", func(t *testing.T) {
		got := pruneBy(t, at, prunable{text: keepers(60, 2, 5, 6, 9), goal: "statistics"})
		s := got.Stats
		if s.Backend != "deepinfra" || s.Fallback || s.Latency == nil || *s.Latency < 0 || s.Scored == nil || *s.Scored != 60 || s.Total == nil || *s.Total != 60 ||
			s.Status == nil || *s.Status != 200 || s.Cached != nil && *s.Cached || len(got.Warnings) != 0 {
			t.Errorf("%+v %v", s, got.Warnings)
		}
	})
	t.Run("P67 more lines than are sent", func(t *testing.T) {
		for _, ratio := range []string{"0.55", "0.9", "0.1"} {
			p := prunable{text: numbered(1000), ratio: ratio, goal: "many"}
			got := pruneBy(t, at, p)
			documents := rr.asked(t)
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
				t.Errorf("they are %d to %d lines apart", narrow, wide)
			}
			s := got.Stats // P75
			if s.Fallback || fmt.Sprint(got.Warnings) != "[deepinfra_docs_truncated]" || *s.Scored != 64 || *s.Total != 1000 || *s.Status != 200 {
				t.Errorf("%+v %v", s, got.Warnings)
			}
			if s.Pruned == 0 {
				t.Error("nothing is removed")
			}
		}
	})
	t.Run("P38 what must not be pruned", func(t *testing.T) {
		p := prunable{text: noPrune("ligne %d"), ratio: "0.9"}
		keeps(t, "deepinfra", p, pruneBy(t, at, p), protected(200, 260)...)
	})
	t.Run("P40 an empty text", func(t *testing.T) {
		before := rr.Count()
		got := pruneBy(t, at, prunable{})
		if rr.Count() != before || got.Stats.Fallback || len(got.Warnings) != 0 || got.Stats.Original != 0 {
			t.Errorf("%d requests, %+v %v", rr.Count()-before, got.Stats, got.Warnings)
		}
	})
	t.Run("P73–P75 the same once more", func(t *testing.T) {
		p := prunable{text: keepers(300, 100, 200, 201, 202), goal: "once more"}
		first, before := pruneBy(t, at, p), rr.Count()
		again := pruneBy(t, at, p)
		s := again.Stats
		if rr.Count() != before || !slices.Contains(again.Warnings, "cache_hit") || s.Cached == nil || !*s.Cached || s.Latency == nil || *s.Latency != 0 || s.Fallback || s.Backend != "deepinfra" {
			t.Errorf("%d more requests, %+v %v", rr.Count()-before, s, again.Warnings)
		}
		if again.PruneID != first.PruneID || again.Text != first.Text || !reflect.DeepEqual(again.Annotations, first.Annotations) {
			t.Error("the answer is another one")
		}
		for _, a := range again.Annotations {
			found := markerLine.FindStringSubmatch(a.Marker)
			if got := recoverLines(t, at, found[1], false, a.Start, a.Start); got.Text != strings.Split(p.text, "\n")[a.Start-1] {
				t.Errorf("%s stands for %s", a.Marker, got.Text)
			}
		}
	})
	t.Run("P74 whatever differs is asked for anew", func(t *testing.T) {
		p := prunable{text: keepers(50, 7), goal: "anew"}
		pruneBy(t, at, p)
		for what, other := range map[string]prunable{
			"text": {text: keepers(50, 8), goal: p.goal}, "goal_hint": {text: p.text, goal: "a new"}, "source_type": {text: p.text, goal: p.goal, source: "logs"},
			"max_prune_ratio": {text: p.text, goal: p.goal, ratio: "0.56"}, "min_keep_lines": {text: p.text, goal: p.goal, minKeep: 1}, "timeout_ms": {text: p.text, goal: p.goal, timeout: 59999},
			"annotate_lines": {text: p.text, goal: p.goal, annotate: true}, "include_markers": {text: p.text, goal: p.goal, unmarked: true},
		} {
			before := rr.Count()
			got := pruneBy(t, at, other)
			if rr.Count() != before+1 || slices.Contains(got.Warnings, "cache_hit") {
				t.Errorf("%s: %d requests, %v", what, rr.Count()-before, got.Warnings)
			}
		}
	})
}

// TestPrunerRerankerFails has rerankers that do not do their work: the text is pruned
// all the same (P68–P72).
func TestPrunerRerankerFails(t *testing.T) {
	isolate(t)
	rr, url := newMoodyReranker(t, "/ok")
	_, local := runPruner(t, pruner())
	p := prunable{text: withLines(300, "2026-02-26 13:00:00 INFO request %d served", map[int]string{100: "ERROR keep", 200: "request keep"}), source: "logs", goal: "why was it lost"}
	want := pruneBy(t, local, p).removed()
	check := func(t *testing.T, got pruned, fault string, status int) {
		t.Helper()
		s := got.Stats
		if !s.Fallback || s.Backend != "deepinfra" || !slices.Contains(got.Warnings, "deepinfra_error") || !slices.Contains(got.Warnings, "deepinfra_"+fault+"_error") || len(got.Warnings) != 2 {
			t.Errorf("%+v %v", s, got.Warnings)
		}
		if status == 0 && s.Status != nil || status != 0 && (s.Status == nil || *s.Status != status) {
			t.Errorf("deepinfra_http_status is %v, want %d", s.Status, status)
		}
		if s.Pruned == 0 || got.removed() != want {
			t.Errorf("P72 other lines are removed than by the heuristic: %s\nwant %s", got.removed(), want)
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
		{"P69 another path", "/nowhere", "http", 404},
		{"W1 a redirection", "/redirect", "http", 307},
		{"W1 another redirection", "/302", "http", 302},
		{"P70 a connection that breaks", "/reset", "http", 0},
		{"P71 a text", "/text", "parse", -1},
		{"P71 no scores", "/empty", "parse", -1},
		{"P71 scores that are no numbers", "/nan", "parse", -1},
		{"P71 an answer without end", "/huge", "parse", -1},
	}
	_, at := runPruner(t, pruner(), inCloud(url)...)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rr.mood.Store(tt.mood)
			for range 2 { // P74 not from the cache
				before := rr.Count()
				got := pruneBy(t, at, p)
				if rr.Count() != before+1 {
					t.Errorf("%d requests", rr.Count()-before)
				}
				status := tt.status
				if status < 0 { // absent, as P65 says
					status = 0
				}
				check(t, got, tt.fault, status)
			}
			if got := recoverLines(t, at, pruneBy(t, at, p).PruneID, false, 100, 100); got.Text != "ERROR keep" { // P50
				t.Errorf("%+v", got)
			}
		})
	}
	for _, request := range rr.Requests() {
		if request.Path == "/ok" {
			t.Error("W1 a redirection was followed")
		}
	}
	t.Run("P70 too late", func(t *testing.T) {
		_, at := runPruner(t, pruner(), inCloud(url, "DEEPINFRA_TIMEOUT_MS=200")...)
		for _, mood := range []string{"/hang", "/slowbody"} {
			rr.mood.Store(mood)
			got := pruneBy(t, at, p)
			check(t, got, "http", 0)
			waited(t, got)
		}
	})
	t.Run("P70 nobody there", func(t *testing.T) {
		_, at := runPruner(t, pruner(), inCloud("http://127.0.0.1:1/")...)
		check(t, pruneBy(t, at, p), "http", 0)
	})
	t.Run("P68 no key", func(t *testing.T) {
		before := rr.Count()
		for _, key := range []string{"", " \t"} {
			_, at := runPruner(t, pruner(), inCloud(url, "DEEPINFRA_API_KEY="+key)...)
			check(t, pruneBy(t, at, p), "config", 0)
		}
		if rr.Count() != before {
			t.Errorf("%d requests", rr.Count()-before)
		}
	})
	t.Run("P68 no URL", func(t *testing.T) {
		_, at := runPruner(t, pruner(), inCloud("ftp://127.0.0.1/")...)
		check(t, pruneBy(t, at, p), "config", 0)
	})
}

// waited wants a reranker to have been waited for as long as it was said, some hundred
// milliseconds, and not for the 20 seconds that are the default (P70).
func waited(t *testing.T, got pruned) {
	t.Helper()
	if latency := got.Stats.Latency; latency == nil || *latency >= 15000 {
		t.Errorf("P70 deepinfra_latency_ms: %+v", got.Stats)
	}
}

// TestPrunerChoosesTheBackend has the environment and the configuration say which
// backend it is (P59, P60, P62, R16).
func TestPrunerChoosesTheBackend(t *testing.T) {
	isolate(t)
	rr, url := newMoodyReranker(t, "/ok")
	other, otherURL := newMoodyReranker(t, "/cohere")
	tests := []struct {
		name, variable, config, want string
	}{
		{"P60 nothing is said", "", "", "heuristic"},
		{"P60 deepinfra", "deepinfra", "", "deepinfra"},
		{"P60 cloud with blanks", " Cloud ", "", "deepinfra"},
		{"P60 capitals", "DEEPINFRA", "", "deepinfra"},
		{"R16 another word, where deepinfra is configured", "foo", "backend deepinfra", "heuristic"},
		{"R16 heuristic, where deepinfra is configured", "heuristic", "backend deepinfra", "heuristic"},
		{"R16 deepinfra, where heuristic is configured", "deepinfra", "backend heuristic", "deepinfra"},
		{"R16 cloud, where another reranker is configured", "cloud", block("backend rerank", "url "+otherURL), "deepinfra"},
		{"R16 nothing, where deepinfra is configured", "", "backend deepinfra", "deepinfra"},
		{"R16 blanks, where deepinfra is configured", "  ", "backend deepinfra", "deepinfra"},
		{"P62 heuristic", "", "backend heuristic", "heuristic"},
		{"another reranker", "", block("backend rerank", "url "+otherURL), "rerank"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := map[string]int{"deepinfra": rr.Count(), "rerank": other.Count()}
			_, at := runPruner(t, pruner(tt.config), inCloud(url, "KIMI_PRUNING_BACKEND="+tt.variable)...)
			got := pruneBy(t, at, prunable{text: keepers(100, 5)})
			if got.Stats.Backend != tt.want || got.Stats.Fallback {
				t.Errorf("%+v %v", got.Stats, got.Warnings)
			}
			for name, reranker := range map[string]*moodyReranker{"deepinfra": rr, "rerank": other} {
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

// TestPrunerVariables has each variable win over the configuration, and nonsense not
// (P58, P59).
func TestPrunerVariables(t *testing.T) {
	isolate(t)
	rr, url := newMoodyReranker(t, "/ok")
	t.Run("MCP_PRUNER_MAX_INPUT_CHARS", func(t *testing.T) {
		for _, tt := range []struct {
			name, variable, config string
			want                   int
		}{
			{"alone", "800", "", 800},
			{"over the configuration", "800", "max_input_chars 100", 800},
			{"configured", "", "max_input_chars 800", 800},
			{"no whole number", "8e2", "max_input_chars 800", 800},
			{"no number", "many", "max_input_chars 800", 800},
			{"below all bounds", "-5", "max_input_chars 800", 1},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, at := runPruner(t, pruner(tt.config), "MCP_PRUNER_MAX_INPUT_CHARS="+tt.variable)
				for chars, fallback := range map[int]bool{tt.want: false, tt.want + 1: true} {
					text := strings.Repeat("é", chars)
					if got := pruneBy(t, at, prunable{text: text}); got.Stats.Fallback != fallback || slices.Contains(got.Warnings, "input_too_large") != fallback {
						t.Errorf("P54 %d characters: %+v %v", chars, got.Stats, got.Warnings)
					}
				}
			})
		}
		t.Run("the default", func(t *testing.T) {
			_, at := runPruner(t, pruner())
			for chars, fallback := range map[int]bool{2_000_000: false, 2_000_001: true} {
				if got := pruneBy(t, at, prunable{text: strings.Repeat("é", chars)}); slices.Contains(got.Warnings, "input_too_large") != fallback {
					t.Errorf("P54 %d characters: %v", chars, got.Warnings)
				}
			}
		})
	})
	t.Run("MCP_PRUNER_PRUNE_ID_TTL_S", func(t *testing.T) {
		_, at := runPruner(t, pruner("prune_id_ttl 1h"), "MCP_PRUNER_PRUNE_ID_TTL_S=1")
		renewed, left := prunable{text: numbered(200)}, prunable{text: numbered(201)}
		id, gone := pruneBy(t, at, renewed).PruneID, pruneBy(t, at, left).PruneID
		if isGone(t, at, gone) {
			t.Error("P47 it was never there")
		}
		await.Until(t, "the end of an original", func() bool {
			pruneBy(t, at, renewed)
			return isGone(t, at, gone)
		})
		if isGone(t, at, id) {
			t.Error("P19 the one that was renewed has gone, too")
		}
		await.Until(t, "the end of the other", func() bool { return isGone(t, at, id) })
	})
	t.Run("MCP_PRUNER_CACHE_TTL_S", func(t *testing.T) {
		for variable, config := range map[string]string{"1": "cache_ttl 1h", "0": "cache_ttl 1h", "x": "cache_ttl 1s"} {
			_, at := runPruner(t, pruner(config), inCloud(url, "MCP_PRUNER_CACHE_TTL_S="+variable)...)
			p, before := prunable{text: keepers(20, 3)}, rr.Count()
			pruneBy(t, at, p)
			await.Until(t, "a second request, by "+variable, func() bool { // a hit does not renew
				pruneBy(t, at, p)
				return rr.Count() == before+2
			})
		}
	})
	t.Run("MCP_PRUNER_CACHE_MAX_ITEMS", func(t *testing.T) {
		for _, tt := range []struct {
			name, config string
			env          []string
			want         int // of requests for a, b, a
		}{
			{"alone", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=1"}, 3},
			{"over the configuration", "cache_max_entries 5", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=1"}, 3},
			{"by its other name", "cache_max_entries 5", []string{"MCP_PRUNER_CACHE_MAX_ENTRIES=1"}, 3},
			{"by both names", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=2", "MCP_PRUNER_CACHE_MAX_ENTRIES=1"}, 2},
			{"no number, and by its other name", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=x", "MCP_PRUNER_CACHE_MAX_ENTRIES=1"}, 3},
			{"configured", "cache_max_entries 1", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=x"}, 3},
			{"below all bounds", "", []string{"MCP_PRUNER_CACHE_MAX_ITEMS=0"}, 3},
			{"the default", "", nil, 2},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, at := runPruner(t, pruner("cache_ttl 1h", tt.config), inCloud(url, tt.env...)...)
				a, b, before := prunable{text: keepers(20, 3)}, prunable{text: keepers(20, 4)}, rr.Count()
				for _, p := range []prunable{a, b, a} {
					pruneBy(t, at, p)
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
			{"alone", "5", "", 5},
			{"over the configuration", "5", block("backend deepinfra", "max_docs 9"), 5},
			{"configured", "", block("backend deepinfra", "max_docs 9"), 9},
			{"no whole number", "5.5", block("backend deepinfra", "max_docs 9"), 9},
			{"above all bounds", "100000", "", 512},
			{"configured above all bounds", "", block("backend deepinfra", "max_docs 513"), 512},
			{"below all bounds", "0", "", 1},
			{"the default", "", "", 64},
		} {
			t.Run(tt.name, func(t *testing.T) {
				_, at := runPruner(t, pruner(tt.config), inCloud(url, "DEEPINFRA_MAX_DOCS="+tt.variable)...)
				got := pruneBy(t, at, prunable{text: numbered(1000)})
				if n := len(rr.asked(t)); n != tt.want || *got.Stats.Scored != tt.want || got.Stats.Fallback {
					t.Errorf("P59, P67 %d documents, %+v %v", n, got.Stats, got.Warnings)
				}
			})
		}
	})
	t.Run("DEEPINFRA_TIMEOUT_MS", func(t *testing.T) {
		rr.mood.Store("/hang")
		defer rr.mood.Store("/ok")
		for variable, config := range map[string]string{"100": block("backend deepinfra", "timeout 1h"), "": block("backend deepinfra", "timeout 100ms"), "soon": block("backend deepinfra", "timeout 100ms"), "0": ""} {
			_, at := runPruner(t, pruner(config), inCloud(url, "DEEPINFRA_TIMEOUT_MS="+variable)...)
			got := pruneBy(t, at, prunable{text: numbered(200)})
			if !slices.Contains(got.Warnings, "deepinfra_http_error") || got.Stats.Pruned == 0 {
				t.Errorf("P59, P70 %s: %+v %v", variable, got.Stats, got.Warnings)
			}
			waited(t, got)
		}
	})
	t.Run("MCP_PRUNER_HOST and _PORT", func(t *testing.T) {
		address := freeAddress(t)
		host, port, _ := strings.Cut(address, ":")
		run(t, "../../../caddyfile_examples/mcp_pruner.Caddyfile", "MCP_PRUNER_HOST="+host, "MCP_PRUNER_PORT="+port)
		for range 20 { // P8: it accepts connections, so it answers
			if got := send(t, client, "GET", "http://"+address+"/health", ""); got.StatusCode != 200 || !strings.Contains(got.body, `"status":"healthy"`) {
				t.Errorf("R19, P8 %d %s", got.StatusCode, got.body)
			}
		}
	})
}

// The timeout of a request is for work on this machine, not for the reranker (R17).
func TestPrunerTimeouts(t *testing.T) {
	isolate(t)
	var rr mcptest.Reranker
	asked := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(600 * time.Millisecond) // longer than the request may take here
		r.URL.Path = "/ok"
		rr.ServeHTTP(w, r)
	})
	_, at := runPruner(t, pruner(), inCloud("http://"+upstream(t, asked))...)
	got := pruneBy(t, at, prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6", timeout: 500})
	if !reflect.DeepEqual(got.kept(), []int{2, 5, 6, 9}) || got.Stats.Fallback || len(got.Warnings) != 0 {
		t.Errorf("%+v %v", got.Stats, got.Warnings)
	}
}

// Who hangs up does not keep the reranker busy.
func TestPrunerHangUp(t *testing.T) {
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

// A configuration may go while the reranker is asked.
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
	at := "http://" + address + "/rpc"
	p := prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6"}
	answers := make(chan string, 1)
	go func() {
		defer close(answers)
		res, err := client.Do(request(t, t.Context(), "POST", at, p.request(), closes))
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
	p.judge(t, got)
	if !reflect.DeepEqual(got.kept(), []int{2, 5, 6, 9}) || got.Stats.Fallback {
		t.Errorf("%v: %+v %v", got.kept(), got.Stats, got.Warnings)
	}
	if text := recoverLines(t, at, got.PruneID, false, 2, 2).Text; text != "keep 2" {
		t.Errorf("line 2 is %q", text)
	}
}

// Many at once do not get in each other's way.
func TestPrunerManyAtOnce(t *testing.T) {
	isolate(t)
	at := serve(t, pruner()) + "/rpc"
	const clients = 40
	bodies := make([]string, clients)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for range 5 {
				res, err := client.Do(request(t, t.Context(), "POST", at, prunable{text: numbered(200 + i%20)}.request()))
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
		p.judge(t, got)
		if text := recoverLines(t, at, got.PruneID, false, 200+i%20, 999).Text; text != fmt.Sprintf("ligne %d", 200+i%20) {
			t.Errorf("client %d recovers %q", i, text)
		}
	}
}

// TestPrunerOtherReranker has a reranker that speaks as Cohere's does.
func TestPrunerOtherReranker(t *testing.T) {
	isolate(t)
	rr, url := newMoodyReranker(t, "/cohere")
	_, at := runPruner(t, pruner(block("backend rerank", "url "+url, "model some/model", "key_env OWN_KEY", "max_docs 20", "timeout 5s")), "OWN_KEY="+prunerKey)
	p := prunable{text: keepers(10, 2, 5, 6, 9), ratio: "0.6", goal: "keep it"}
	got := pruneBy(t, at, p)
	if !reflect.DeepEqual(got.kept(), []int{2, 5, 6, 9}) || got.Stats.Backend != "rerank" || len(got.Warnings) != 0 {
		t.Errorf("%v: %+v %v", got.kept(), got.Stats, got.Warnings)
	}
	last := rr.Last()
	var sent struct {
		Query, Model string
		Documents    []string
	}
	if err := json.Unmarshal([]byte(last.Body), &sent); err != nil || sent.Query != "keep it" || sent.Model != "some/model" || len(sent.Documents) != 10 || last.Headers.Get("Authorization") != "Bearer "+prunerKey {
		t.Errorf("%v: %s with %v", err, last.Body, last.Headers)
	}
	stats := payload[struct{ Stats map[string]any }](t, post(t, at, p.request()).body).Stats
	if stats["rerank_cached"] != true || stats["rerank_http_status"] != 200.0 || stats["rerank_docs_total"] != 10.0 || stats["rerank_latency_ms"] != 0.0 {
		t.Errorf("%v", stats)
	}
	rr.mood.Store("/500")
	p.goal = "another"
	if got := pruneBy(t, at, p); !got.Stats.Fallback || fmt.Sprint(got.Warnings) != "[rerank_error rerank_http_error]" {
		t.Errorf("%+v %v", got.Stats, got.Warnings)
	}
}

// Two rerankers do not get each other's scores from the cache (P74).
func TestPrunerCacheIsTheRerankersOwn(t *testing.T) {
	isolate(t)
	first, firstURL := newMoodyReranker(t, "/cohere")
	second, secondURL := newMoodyReranker(t, "/cohere")
	url := serve(t, block("handle /first/*", pruner(block("backend rerank", "url "+firstURL))), block("handle /second/*", pruner(block("backend rerank", "url "+secondURL))))
	p := prunable{text: keepers(30, 7)}
	pruneBy(t, url+"/first/rpc", p)
	pruneBy(t, url+"/second/rpc", p)
	if first.Count() != 1 || second.Count() != 1 {
		t.Errorf("%d and %d requests", first.Count(), second.Count())
	}
}

// TestPrunerKeepsTheKey looks for the key everywhere (P61).
func TestPrunerKeepsTheKey(t *testing.T) {
	isolate(t)
	rr, url := newMoodyReranker(t, "/ok")
	// What is in the URL of the endpoint is as secret as the key.
	url = strings.Replace(url, "http://", "http://user:"+prunerKey+"@", 1) + "?api_key=" + prunerKey
	for name, env := range map[string][]string{
		"a good endpoint":          inCloud(strings.Replace(strings.Split(url, "?")[0], "user:"+prunerKey+"@", "", 1)),
		"a key in the URL":         inCloud(url),
		"no endpoint":              inCloud("http://127.0.0.1:1/?key=" + prunerKey),
		"an endpoint that is none": inCloud("://" + prunerKey),
	} {
		t.Run(name, func(t *testing.T) {
			caddy, at := runPruner(t, pruner(), append(env, "DEEPINFRA_TIMEOUT_MS=300")...)
			var seen strings.Builder
			for i, mood := range []string{"/ok", "/ok", "/401", "/500", "/text", "/redirect", "/hang", "/reset", "/empty"} {
				rr.mood.Store(mood)
				got := post(t, at, prunable{text: numbered(100 + i/2)}.request())
				seen.WriteString(got.body + fmt.Sprint(got.Header))
			}
			seen.WriteString(post(t, at, rpc("health", `{}`)).body + post(t, at, "{").body + post(t, at, rpc("tools/list", `{}`)).body)
			seen.WriteString(send(t, client, "GET", strings.Replace(at, "/rpc", "/health", 1), "").body)
			admin := "http://" + caddy.moved[":2019"]
			for _, path := range []string{"/config/", "/metrics", "/debug/vars"} {
				seen.WriteString(send(t, client, "GET", admin+path, "").body)
			}
			logged := caddy.stop(t)
			if !strings.Contains(logged, "backend has not scored") {
				t.Errorf("the faults are not logged:\n%.2000s", logged)
			}
			for what, text := range map[string]string{"the log": logged, "answers": seen.String()} {
				if at := strings.Index(text, prunerKey); at >= 0 {
					t.Errorf("the key is in %s: …%s…", what, text[max(0, at-300):at+len(prunerKey)])
				}
			}
		})
	}
	t.Run("in the configuration, where the environment says heuristic", func(t *testing.T) {
		setenv(t, "KIMI_PRUNING_BACKEND", "heuristic")
		load(t, "")
		refused(t, "application/json", `{"admin":{"listen":"`+adminAddress(t)+`"},"apps":{"http":{"servers":{"s":{"listen":["`+freeAddress(t)+
			`"],"routes":[{"handle":[{"handler":"mcp_pruner","backend":{"backend":"deepinfra","api_key":"sk_x"}}]}]}}}}}`, "DEEPINFRA_API_KEY")
	})
	t.Run("in a configuration that is saved", func(t *testing.T) {
		caddy, _ := runPruner(t, pruner("backend deepinfra"), inCloud(url)...)
		home := ""
		for _, variable := range caddy.Env { // the last is what counts
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
