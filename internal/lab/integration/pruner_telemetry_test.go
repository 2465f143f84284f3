package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrunerMetrics(t *testing.T) {
	isolate(t)
	rr, rerankerURL := newFakeReranker(t, "/cohere")
	address := freeAddress(t)
	config := site(address, block("handle /cloud/*", pruner(block("backend rerank", "url "+rerankerURL))),
		pruner("max_input_chars 50000"))
	load(t, config)
	local, cloud := "http://"+address+"/rpc", "http://"+address+"/cloud/rpc"
	grown := growth(t)
	expect := func(want map[string]float64) {
		t.Helper()
		got := grown()
		for sample := range got {
			if strings.HasPrefix(sample, "prune_duration_seconds_bucket") || strings.HasPrefix(sample,
				"prune_duration_seconds_sum") || !strings.HasPrefix(sample, "prune") {
				delete(got, sample)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("metrics grew by %v\nwant %v", got, want)
		}
	}
	one := pruneText(t, local, prunable{text: numbered(1000)}).Stats
	want := map[string]float64{
		`pruned_lines_total{backend="heuristic"}`:           float64(one.Pruned),
		`prune_tokens_saved_total{backend="heuristic"}`:     float64(one.Saved),
		`prune_duration_seconds_count{backend="heuristic"}`: 1,
	}
	expect(want)
	pruneText(t, local, prunable{text: numbered(20000)})
	want[`prune_fallbacks_total{backend="heuristic",reason="input_too_large"}`] = 1
	want[`prune_duration_seconds_count{backend="heuristic"}`]++
	expect(want)

	two := pruneText(t, cloud, prunable{text: keepLines(60, 7)}).Stats
	want[`pruned_lines_total{backend="rerank"}`] = float64(two.Pruned)
	want[`prune_duration_seconds_count{backend="rerank"}`] = 1
	if two.Saved > 0 {
		want[`prune_tokens_saved_total{backend="rerank"}`] = float64(two.Saved)
	}
	expect(want)
	rr.mood.Store("/429")
	three := pruneText(t, cloud, prunable{text: numbered(500)}).Stats
	want[`pruned_lines_total{backend="rerank"}`] += float64(three.Pruned)
	want[`prune_tokens_saved_total{backend="rerank"}`] += float64(three.Saved)
	want[`prune_duration_seconds_count{backend="rerank"}`]++
	want[`prune_fallbacks_total{backend="rerank",reason="rerank_http_error"}`] = 1
	expect(want)

	load(t, config+site(freeAddress(t), "respond x")) // counters survive a reload
	failsWith(t, local, toolCall{"prune_text", `{}`}.request(), -32602)
	post(t, local, toolCall{"health", `{}`}.request())
	expect(want)
	four := pruneText(t, local, prunable{text: numbered(1000)}).Stats
	want[`pruned_lines_total{backend="heuristic"}`] += float64(four.Pruned)
	want[`prune_tokens_saved_total{backend="heuristic"}`] += float64(four.Saved)
	want[`prune_duration_seconds_count{backend="heuristic"}`]++
	expect(want)
}

func TestPrunerAccessLog(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "access.log")
	url := serve(t, block("log", "output file "+file, "format json"),
		block("handle /alone/*", pruner("max_input_chars 50000")), gateway("separator __", block("server pruner", "mask off",
			pruner())))
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
	answered := pruneText(t, alone, good)
	lines, saved := answered.Stats.Pruned, answered.Stats.Saved
	tests := []struct {
		name, at, request string
		want              fields
	}{
		{"a pruned text", alone, good.request(), fields{Tool: new("prune_text"), Backend: new("heuristic"), Lines: &lines,
			Saved: &saved}},
		{"a text too large", alone, large.request(), fields{Tool: new("prune_text"), Backend: new("heuristic"),
			Lines: new(0), Saved: new(0), Fallback: new("input_too_large")}},
		{"recovered lines", alone, toolCall{"recover_text", recoverArguments(answered.PruneID, false, 1, 1)}.request(),
			fields{Tool: new("recover_text")}},
		{"an unknown id", alone, toolCall{"recover_text", recoverArguments("prn_"+secret, false, 1, 1)}.request(),
			fields{Tool: new("recover_text")}},
		{"health", alone, toolCall{"health", `{}`}.request(), fields{Tool: new("health")}},
		{"invalid arguments", alone, toolCall{"prune_text", `{"` + secret + `":1}`}.request(),
			fields{Tool: new("prune_text")}},
		{"not a call", alone, rpc("tools/list", `{}`), fields{}},
		{"not a message", alone, "{" + secret, fields{}},
		{"behind a gateway", rpcAt(url, "pruner"), good.request(), fields{Server: new("pruner"), Tool: new("prune_text"),
			Backend: new("heuristic"), Lines: &lines, Saved: &saved}},
	}
	one := sequentialClient(t)
	skip := len(linesOf(t, file))
	for _, tt := range tests {
		send(t, one, "POST", tt.at, tt.request)
	}
	send(t, one, "GET", url, "")
	logs := linesOf(t, file)[skip:]
	if all := strings.Join(logs, "\n"); strings.Contains(all, secret) || strings.Contains(all, answered.PruneID) {
		t.Error("the log contains texts, goals or ids")
	}
	if len(logs) < len(tests) {
		t.Fatalf("got %d log lines, want %d", len(logs), len(tests))
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			logged(t, logs[i], tt.want)
			for _, field := range []string{`"mcp_tool":`, `"mcp_prune_backend":`, `"mcp_pruned_lines":`} {
				if strings.Count(logs[i], field) > 1 {
					t.Errorf("%s occurs twice: %s", field, logs[i])
				}
			}
		})
	}
}
