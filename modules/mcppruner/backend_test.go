package mcppruner_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
)

func init() {
	caddy.RegisterModule(reranker{})
	caddy.RegisterModule(panicking{})
	caddy.RegisterModule(waiting{})
}

// reranker is a backend that scores lines that contain keep, or fails as configured.
type reranker struct {
	MaxDocs int    `json:"max_docs,omitempty"`
	Fault   string `json:"fault,omitempty"`
	Status  int    `json:"status,omitempty"`
	Short   bool   `json:"short,omitempty"` // one score too few
}

// scoreCalls counts the calls of rerankers.
var scoreCalls atomic.Int64

func (reranker) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.mcp_pruner.backends.test",
		New: func() caddy.Module { return new(reranker) }}
}

func (reranker) Name() string { return "test" }

func (r reranker) Score(_ context.Context, _ string, lines []string) (*mcppruner.Scored, *mcppruner.Fault) {
	scoreCalls.Add(1)
	if r.Fault != "" {
		return nil, &mcppruner.Fault{Kind: r.Fault, Status: r.Status, Err: errors.New("it does not want to")}
	}
	s := &mcppruner.Scored{Status: 200, Scores: make([]float64, len(lines))}
	for i, line := range lines {
		switch {
		case r.MaxDocs > 0 && i >= r.MaxDocs:
			s.Scores[i] = math.NaN()
			continue
		case strings.Contains(line, "keep"):
			s.Scores[i] = 1
		}
		s.Docs++
	}
	if r.Short {
		s.Scores = s.Scores[1:]
	}
	return s, nil
}

type panicking struct{}

func (panicking) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.mcp_pruner.backends.test_panic",
		New: func() caddy.Module { return new(panicking) }}
}
func (panicking) Name() string { return "test_panic" }
func (panicking) Score(context.Context, string, []string) (*mcppruner.Scored, *mcppruner.Fault) {
	panic("no")
}

// waiting is a backend that waits until the client disconnects.
type waiting struct{}

var waitingBegan, clientGone = make(chan struct{}), make(chan struct{})

func (waiting) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.mcp_pruner.backends.test_waiting",
		New: func() caddy.Module { return new(waiting) }}
}
func (waiting) Name() string { return "test_waiting" }
func (waiting) Score(ctx context.Context, _ string, _ []string) (*mcppruner.Scored, *mcppruner.Fault) {
	close(waitingBegan)
	<-ctx.Done()
	close(clientGone)
	return nil, &mcppruner.Fault{Kind: "http", Err: ctx.Err()}
}

// markedText returns a text with a few lines that contain keep.
func markedText() string {
	return strings.ReplaceAll(lines(400), "line 7\n", "line 7, which is to keep\n")
}

func TestRerankedResults(t *testing.T) {
	const latency, docs, total, status, cached = "test_latency_ms", "test_docs_scored", "test_docs_total",
		"test_http_status", "test_cached"
	tests := []struct {
		name     string
		config   string // members of the backend after its name
		warnings string
		fallback bool
		stats    map[string]any // nil for an absent member
	}{
		{"P65: scored", ``, "[]", false, map[string]any{docs: 400.0, total: 400.0, status: 200.0, cached: false}},
		{"P67, P75: some lines are not scored", `,"max_docs":64`, "[test_docs_truncated]", false,
			map[string]any{docs: 64.0, total: 400.0, status: 200.0}},
		{"P68: not configured", `,"fault":"config"`, "[test_error test_config_error]", true,
			map[string]any{docs: 0.0, total: 400.0, status: nil}},
		{"P69: refused", `,"fault":"http","status":429`, "[test_error test_http_error]", true, map[string]any{status: 429.0}},
		{"P70: out of reach", `,"fault":"http"`, "[test_error test_http_error]", true, map[string]any{status: nil}},
		{"P71: not understood", `,"fault":"parse"`, "[test_error test_parse_error]", true, map[string]any{status: nil}},
		{"P71: too few scores", `,"short":true`, "[test_error test_parse_error]", true, map[string]any{status: nil}},
	}
	heuristic, _ := load(t, `{}`)
	byRules := prune(t, heuristic, "", markedText(), "goal").PrunedText
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, _ := load(t, `{"backend":{"backend":"test"`+tt.config+`}}`)
			p := prune(t, h, "client of "+tt.name, markedText(), "goal")
			if got := fmt.Sprint(p.Warnings); got != tt.warnings || p.Stats["used_fallback"] != tt.fallback {
				t.Errorf("warnings %s, stats %v", got, p.Stats)
			}
			if p.Stats["backend"] != "test" {
				t.Errorf("got backend %v, want test", p.Stats["backend"])
			}
			if _, ok := p.Stats[latency].(float64); !ok {
				t.Errorf("no latency in %v", p.Stats)
			}
			for key, want := range tt.stats {
				if got := p.Stats[key]; got != want {
					t.Errorf("%s: got %v, want %v", key, got, want)
				}
			}
			if same := p.PrunedText == byRules; tt.fallback && !same { // P72
				t.Error("P72: the result differs from the heuristic's")
			}
		})
	}
}

func TestScoresAreCached(t *testing.T) {
	const config = `{"backend":{"backend":"test"},"cache_max_entries":2,"cache_ttl":"59m"}`
	h, unload := load(t, config)
	ask := func(client, goal string) (hit bool) {
		t.Helper()
		before := scoreCalls.Load()
		p := prune(t, h, client, markedText(), goal)
		hit = slices.Contains(p.Warnings, "cache_hit")
		if (scoreCalls.Load() == before) != hit || p.Stats["test_cached"] != hit || p.Stats["used_fallback"] != false {
			t.Errorf("P73, P75: hit %t, stats %v", hit, p.Stats)
		}
		if hit && (p.Stats["test_latency_ms"] != 0.0 || p.Stats["test_http_status"] != 200.0 ||
			p.Stats["test_docs_scored"] != 400.0) {
			t.Errorf("P73: stats %v", p.Stats)
		}
		for _, a := range p.Annotations {
			if !strings.Contains(a["marker"].(string), p.PruneID) {
				t.Errorf("P73: marker %v", a["marker"])
			}
		}
		return hit
	}
	for i, step := range []struct {
		client, goal string
		hit          bool
	}{
		{"a", "one", false},
		{"a", "one", true},
		{"b", "one", false}, // clients do not share entries
		{"a", "one", true},
		{"a", "two", false}, // the third entry replaces the oldest of the client with the most
		{"b", "one", true},
		{"a", "one", false},
		{"a", "two", false},
	} {
		if hit := ask(step.client, step.goal); hit != step.hit {
			t.Errorf("P74: step %d: hit %t", i, hit)
		}
	}
	after, _ := load(t, config)
	unload()
	h = after
	if !ask("a", "two") {
		t.Error("a reload empties the cache")
	}
}

func TestFaultsAreNotCached(t *testing.T) { // P74
	h, _ := load(t, `{"backend":{"backend":"test","fault":"http"}}`)
	for range 2 {
		before := scoreCalls.Load()
		if p := prune(t, h, "", markedText(), "not cached"); scoreCalls.Load() == before || slices.Contains(p.Warnings,
			"cache_hit") {
			t.Errorf("warnings %v", p.Warnings)
		}
	}
}

// The key of the cache contains all options.
func TestCacheKeyHasAllOptions(t *testing.T) { // P74
	h, _ := load(t, `{"backend":{"backend":"test"},"cache_ttl":"58m"}`)
	base := arguments(markedText(), "goal")
	seen := scoreCalls.Load()
	for _, change := range [][2]string{
		{"", ""}, {"0.5", "0.6"}, {`"min_keep_lines":3`, `"min_keep_lines":4`}, {"60000", "59999"},
		{`"annotate_lines":false`, `"annotate_lines":true`}, {`"include_markers":true`, `"include_markers":false`},
		{`"docs"`, `"logs"`},
	} {
		var p pruneResult
		decodeResult(t, callTool(t, h, "", "prune_text", strings.Replace(base, change[0], change[1], 1)), &p)
		if seen++; scoreCalls.Load() != seen {
			t.Fatalf("%v: the scores were cached", change)
		}
	}
}

func TestDisconnectCancelsScoring(t *testing.T) {
	h, _ := load(t, `{"backend":{"backend":"test_waiting"}}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = h.ServeHTTP(w, r, nil)
	}))
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-waitingBegan
		cancel()
	}()
	message := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"prune_text","arguments":` +
		arguments(markedText(), "goal") + `}}`
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/rpc", strings.NewReader(message))
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	if response, err := transport.RoundTrip(r); err == nil {
		_ = response.Body.Close()
		t.Error("got a response")
	}
	<-clientGone
}

func TestMetrics(t *testing.T) {
	count := func(h string) (total float64) {
		t.Helper()
		ctx, err := caddy.ProvisionContext(new(caddy.Config))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := caddy.NewContext(ctx)
		defer cancel()
		if _, err := ctx.LoadModuleByID("http.handlers.mcp_pruner", nil); err != nil {
			t.Fatal(err)
		}
		families, err := ctx.GetMetricsRegistry().Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				name := family.GetName()
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				if name == h {
					total += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
		return total
	}
	names := []string{
		"caddy_mcp_pruned_lines_total test", "caddy_mcp_prune_tokens_saved_total test",
		"caddy_mcp_prune_fallbacks_total test test_http_error", "caddy_mcp_prune_duration_seconds test",
	}
	var before []float64
	for _, name := range names {
		before = append(before, count(name))
	}
	h, _ := load(t, `{"backend":{"backend":"test","fault":"http"}}`)
	p := prune(t, h, "", markedText(), "metrics")
	for i, want := range []float64{p.Stats["pruned_lines"].(float64), p.Stats["tokens_saved_est"].(float64), 1, 1} {
		if got := count(names[i]) - before[i]; got != want {
			t.Errorf("%s increased by %v, want %v", names[i], got, want)
		}
	}
}

func TestBackendVariable(t *testing.T) { // P60, R16
	tests := []struct {
		name, said, configured, want string
	}{
		{"no variable", "", `{}`, "heuristic"},
		{"no variable, but a configured backend", "", `{"backend":{"backend":"test"}}`, "test"},
		{"a blank variable and a configured backend", "  ", `{"backend":{"backend":"test"}}`, "test"},
		{"deepinfra", "deepinfra", `{}`, "deepinfra"},
		{"deepinfra instead of the configured backend", "deepinfra", `{"backend":{"backend":"test"}}`, "deepinfra"},
		{"the other name, with spaces and capitals", " Cloud ", `{"backend":{"backend":"heuristic"}}`, "deepinfra"},
		{"an unknown name", "foo", `{"backend":{"backend":"deepinfra"}}`, "heuristic"},
		{"heuristic", "heuristic", `{"backend":{"backend":"deepinfra"}}`, "heuristic"},
		{"the configured backend", "deepinfra", `{"backend":{"backend":"deepinfra"}}`, "deepinfra"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("KIMI_PRUNING_BACKEND", tt.said)
			h, _ := load(t, tt.configured)
			var health struct{ Backend string }
			if err := json.Unmarshal(post(t, h, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"health"}`).Result,
				&health); err != nil {
				t.Fatal(err)
			}
			if health.Backend != tt.want {
				t.Errorf("got %s, want %s", health.Backend, tt.want)
			}
		})
	}
}
