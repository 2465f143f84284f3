package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrunerMetrics(t *testing.T) {
	isolate(t)
	rr, rerankerURL := newMoodyReranker(t, "/cohere")
	address := freeAddress(t)
	config := site(address, block("handle /cloud/*", pruner(block("backend rerank", "url "+rerankerURL))), pruner("max_input_chars 50000"))
	load(t, config)
	local, cloud := "http://"+address+"/rpc", "http://"+address+"/cloud/rpc"
	grown := growth(t)
	expect := func(want map[string]float64) {
		t.Helper()
		got := grown()
		for sample := range got {
			if strings.HasPrefix(sample, "prune_duration_seconds_bucket") || strings.HasPrefix(sample, "prune_duration_seconds_sum") || !strings.HasPrefix(sample, "prune") {
				delete(got, sample)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("grown by %v\nwant %v", got, want)
		}
	}
	one := pruneBy(t, local, prunable{text: numbered(1000)}).Stats
	want := map[string]float64{
		`pruned_lines_total{backend="heuristic"}`:           float64(one.Pruned),
		`prune_tokens_saved_total{backend="heuristic"}`:     float64(one.Saved),
		`prune_duration_seconds_count{backend="heuristic"}`: 1,
	}
	expect(want)
	pruneBy(t, local, prunable{text: numbered(20000)})
	want[`prune_fallbacks_total{backend="heuristic",reason="input_too_large"}`] = 1
	want[`prune_duration_seconds_count{backend="heuristic"}`]++
	expect(want)

	two := pruneBy(t, cloud, prunable{text: keepers(60, 7)}).Stats
	want[`pruned_lines_total{backend="rerank"}`] = float64(two.Pruned)
	want[`prune_duration_seconds_count{backend="rerank"}`] = 1
	if two.Saved > 0 {
		want[`prune_tokens_saved_total{backend="rerank"}`] = float64(two.Saved)
	}
	expect(want)
	rr.mood.Store("/429")
	three := pruneBy(t, cloud, prunable{text: numbered(500)}).Stats
	want[`pruned_lines_total{backend="rerank"}`] += float64(three.Pruned)
	want[`prune_tokens_saved_total{backend="rerank"}`] += float64(three.Saved)
	want[`prune_duration_seconds_count{backend="rerank"}`]++
	want[`prune_fallbacks_total{backend="rerank",reason="rerank_http_error"}`] = 1
	expect(want)

	load(t, config+site(freeAddress(t), "respond x")) // counts outlive a reload
	failsWith(t, local, toolCall{"prune_text", `{}`}.request(), -32602)
	post(t, local, toolCall{"health", `{}`}.request())
	expect(want)
	four := pruneBy(t, local, prunable{text: numbered(1000)}).Stats
	want[`pruned_lines_total{backend="heuristic"}`] += float64(four.Pruned)
	want[`prune_tokens_saved_total{backend="heuristic"}`] += float64(four.Saved)
	want[`prune_duration_seconds_count{backend="heuristic"}`]++
	expect(want)
}

func TestPrunerAccessLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		block("handle /alone/*", pruner("max_input_chars 50000")), gateway("separator __", block("server pruner", "mask off", pruner())))
	alone := url + "/alone/rpc"
	const secret = "geheim"
	text := strings.Repeat(secret+" text\n", 1000)
	type fields struct {
		Server   *string `json:"mcp_server"`
		Tool     *string `json:"mcp_tool"`
		Backend  *string `json:"mcp_prune_backend"`
		Lines    *int    `json:"mcp_pruned_lines"`
		Saved    *int    `json:"mcp_prune_tokens_saved"`
		Fallback *string `json:"mcp_prune_fallback"`
	}
	good, large := prunable{text: text, goal: secret + "er"}, prunable{text: strings.Repeat(text, 10), goal: secret}
	answered := pruneBy(t, alone, good)
	lines, saved := answered.Stats.Pruned, answered.Stats.Saved
	tests := []struct {
		name, at, request string
		want              fields
	}{
		{"a text that is pruned", alone, good.request(), fields{Tool: new("prune_text"), Backend: new("heuristic"), Lines: &lines, Saved: &saved}},
		{"a text that is too large", alone, large.request(), fields{Tool: new("prune_text"), Backend: new("heuristic"), Lines: new(0), Saved: new(0), Fallback: new("input_too_large")}},
		{"lines that are recovered", alone, toolCall{"recover_text", recovering(answered.PruneID, false, 1, 1)}.request(), fields{Tool: new("recover_text")}},
		{"lines that are not there", alone, toolCall{"recover_text", recovering("prn_"+secret, false, 1, 1)}.request(), fields{Tool: new("recover_text")}},
		{"health", alone, toolCall{"health", `{}`}.request(), fields{Tool: new("health")}},
		{"arguments that are wrong", alone, toolCall{"prune_text", `{"` + secret + `":1}`}.request(), fields{Tool: new("prune_text")}},
		{"no call", alone, rpc("tools/list", `{}`), fields{}},
		{"no message", alone, "{" + secret, fields{}},
		{"behind a gateway", rpcAt(url, "pruner"), good.request(), fields{Server: new("pruner"), Tool: new("prune_text"), Backend: new("heuristic"), Lines: &lines, Saved: &saved}},
	}
	one := oneByOne(t)
	skip := len(linesOf(t, file))
	for _, tt := range tests {
		send(t, one, "POST", tt.at, tt.request)
	}
	send(t, one, "GET", url, "")
	logs := linesOf(t, file)[skip:]
	if all := strings.Join(logs, "\n"); strings.Contains(all, secret) || strings.Contains(all, answered.PruneID) {
		t.Error("texts, goals or ids are in the log")
	}
	if len(logs) < len(tests) {
		t.Fatalf("%d lines", len(logs))
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			logged(t, logs[i], tt.want)
			for _, field := range []string{`"mcp_tool":`, `"mcp_prune_backend":`, `"mcp_pruned_lines":`} {
				if strings.Count(logs[i], field) > 1 {
					t.Errorf("%s is there twice: %s", field, logs[i])
				}
			}
		})
	}
}
