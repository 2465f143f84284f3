package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var sourceTypes = []string{"code", "logs", "docs"}

// withLines returns n lines. others replaces lines by number; filler is a format for the number
// of each other line.
func withLines(n int, filler string, others map[int]string) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		line, ok := others[i]
		if !ok {
			line = fmt.Sprintf(filler, i)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// expectKept checks that these lines of the original were kept.
func expectKept(t *testing.T, what string, p prunable, got pruned, lines ...int) {
	t.Helper()
	kept := got.keptLines()
	var removed []int
	for _, line := range lines {
		if !slices.Contains(kept, line) {
			removed = append(removed, line)
		}
	}
	if len(removed) > 0 {
		t.Errorf("%s: %d lines were removed, the first is %d: %q", what, len(removed), removed[0],
			strings.Split(p.text, "\n")[removed[0]-1])
	}
}

func TestPrunerAnswer(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner()) + "/rpc"
	t.Run("P18, P20 members and their types", func(t *testing.T) {
		answered := payload[map[string]any](t, post(t, endpoint, prunable{text: numbered(1000)}.request()).body)
		kinds := func(object map[string]any) map[string]string {
			kinds := map[string]string{}
			for name, value := range object {
				kinds[name] = reflect.ValueOf(value).Kind().String()
			}
			return kinds
		}
		want := map[string]string{"prune_id": "string", "pruned_text": "string", "annotations": "slice", "stats": "map",
			"warnings": "slice"}
		if got := kinds(answered); !reflect.DeepEqual(got, want) {
			t.Errorf("%v\nwant %v", got, want)
		}
		stats := kinds(answered["stats"].(map[string]any))
		for _, name := range []string{"original_lines", "kept_lines", "pruned_lines", "pruned_ratio", "tokens_est_before",
			"tokens_est_after", "elapsed_ms", "tokens_saved_est", "cost_estimated_usd"} {
			if stats[name] != "float64" {
				t.Errorf("%s is %s", name, stats[name])
			}
		}
		if stats["used_fallback"] != "bool" || stats["backend"] != "string" {
			t.Errorf("%v", stats)
		}
	})
	t.Run("P19, R5 ids", func(t *testing.T) {
		p := prunable{text: numbered(300)}
		id := pruneText(t, endpoint, p).PruneID
		if again := pruneText(t, endpoint, p).PruneID; again != id {
			t.Errorf("the id was %s, is %s", id, again)
		}
		seen := map[string]string{id: "the first"}
		for what, other := range map[string]prunable{
			"text":            {text: numbered(301)},
			"goal_hint":       {text: p.text, goal: "yyyy"},
			"source_type":     {text: p.text, source: "logs"},
			"max_prune_ratio": {text: p.text, ratio: "0.56"},
			"min_keep_lines":  {text: p.text, minKeep: 1},
			"timeout_ms":      {text: p.text, timeout: 60001},
			"annotate_lines":  {text: p.text, annotate: true},
			"include_markers": {text: p.text, unmarked: true},
		} {
			id := pruneText(t, endpoint, other).PruneID
			if seen[id] != "" {
				t.Errorf("another %s gives the same id as %s", what, seen[id])
			}
			seen[id] = what
		}
	})
	t.Run("P31 another process selects the same lines, with other ids", func(t *testing.T) {
		_, first := runPruner(t, pruner())
		_, second := runPruner(t, pruner())
		for _, source := range sourceTypes {
			for _, text := range []string{numbered(300), numbered(60), unicodeText(300),
				withLines(600, "    total = total + %d", map[int]string{300: "def f():"})} {
				p := prunable{text: text, source: source}
				one, two := pruneText(t, first, p), pruneText(t, second, p)
				if one.removed() != two.removed() || one.PruneID == two.PruneID {
					t.Errorf("%s %s removed %s\n%s removed %s", source, one.PruneID, one.removed(), two.PruneID, two.removed())
				}
			}
		}
	})
}

func TestPrunerEdges(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner()) + "/rpc"
	t.Run("P40 an empty text", func(t *testing.T) {
		for _, source := range sourceTypes {
			got := pruneText(t, endpoint, prunable{source: source})
			if s := got.Stats; got.Text != "" || s.Original+s.Kept+s.Pruned+s.Before+s.After != 0 || s.Ratio != 0 ||
				s.Fallback || len(got.Annotations)+len(got.Warnings) != 0 {
				t.Errorf("%s: %+v", source, got)
			}
			same(t, recoverLines(t, endpoint, got.PruneID, false).Text, "") // P50
			failsWith(t, endpoint, toolCall{"recover_text", recoverArguments(got.PruneID, false, 1, 1)}.request(), -32005)
		}
	})
}

// noPrune returns 600 lines. Lines 200 to 260 are protected (P38).
func noPrune(filler string) string {
	return withLines(600, filler, map[int]string{200: "⟦NO_PRUNE_BEGIN⟧", 260: "⟦NO_PRUNE_END⟧"})
}

// protected returns the line numbers in a range.
func protected(from, to int) (lines []int) {
	for n := from; n <= to; n++ {
		lines = append(lines, n)
	}
	return lines
}

// TestPrunerFailsOpen checks texts that are returned unchanged (P54, P55).
func TestPrunerFailsOpen(t *testing.T) {
	isolate(t)
	unchanged := func(t *testing.T, p prunable, got pruned, warning string) {
		t.Helper()
		same(t, got.Text, p.text)
		if len(got.Annotations) != 0 || !got.Stats.Fallback || !slices.Contains(got.Warnings, warning) ||
			got.Stats.Kept != got.Stats.Original {
			t.Errorf("%+v %v", got.Stats, got.Warnings)
		}
	}
	t.Run("P54 more than max_input_chars", func(t *testing.T) {
		endpoint := serve(t, pruner("max_input_chars 1000")) + "/rpc"
		for _, letter := range []string{"x", "é", "🙂"} { // characters, not bytes
			line := strings.Repeat(letter, 9) + "\n"
			fits := prunable{text: strings.Repeat(line, 100)}
			if got := pruneText(t, endpoint, fits); got.Stats.Fallback {
				t.Errorf("a text of 1000 %s: %v", letter, got.Warnings)
			}
			tooLong := prunable{text: strings.Repeat(line, 100) + letter, annotate: true}
			got := payload[pruned](t, post(t, endpoint, tooLong.request()).body)
			unchanged(t, tooLong, got, "input_too_large")
			if id := got.PruneID; recoverLines(t, endpoint, id, false, 101, 101).Text != letter { // P50
				t.Error("the text cannot be recovered")
			}
		}
	})
	t.Run("P55 the timeout", func(t *testing.T) {
		endpoint := serve(t, pruner()) + "/rpc"
		p := prunable{text: strings.Repeat("the quick brown fox jumps over it\n", 55000), timeout: 1, goal: "lazy dogs"}
		if got := pruneText(t, endpoint, p); got.Stats.Fallback {
			unchanged(t, p, got, "timeout")
			if isGone(t, endpoint, got.PruneID) { // P50
				t.Error("the text cannot be recovered")
			}
		}
	})
	t.Run("a body over the limit", func(t *testing.T) {
		url := serve(t, pruner("max_input_chars 10"))
		for _, path := range []string{"/rpc", "/mcp"} {
			got := post(t, url+path, prunable{text: strings.Repeat("x", 20<<20)}.request())
			var failure rpcError
			if err := json.Unmarshal([]byte(got.body), &failure); err != nil || got.StatusCode != 413 || failure.Error == nil ||
				failure.Error.Data["code"] != "payload_too_large" {
				t.Errorf("%s: %d %.300s", path, got.StatusCode, got.body)
			}
		}
	})
	t.Run("a body of unknown length", func(t *testing.T) {
		endpoint := serve(t, pruner("max_input_chars 10")) + "/rpc"
		for size, status := range map[int]int{5: 200, 20 << 20: 413} {
			res, err := client.Do(withoutLength(request(t, t.Context(), "POST", endpoint,
				prunable{text: strings.Repeat("x", size)}.request())))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.StatusCode != status || !json.Valid(body) {
				t.Errorf("%d characters: %d %.300s", size, res.StatusCode, body)
			}
		}
	})
	t.Run("half of a surrogate pair", func(t *testing.T) {
		endpoint := serve(t, pruner()) + "/rpc"
		got := post(t, endpoint, strings.Replace(prunable{}.request(), `"text":""`, `"text":"a\ud800\nb\udc00c"`, 1))
		if answered := payload[pruned](t, got.body); answered.Stats.Original != 2 {
			t.Errorf("%+v", answered.Stats)
		}
	})
	t.Run("the longest spelling of a text just over the limit", func(t *testing.T) {
		endpoint := serve(t, pruner("max_input_chars 100000")) + "/rpc"
		spelled := strings.Repeat(`\ud83d\ude42`, 100001)
		message := strings.Replace(prunable{}.request(), `"text":""`, `"text":"`+spelled+`"`, 1)
		got := payload[pruned](t, post(t, endpoint, message).body)
		unchanged(t, prunable{text: strings.Repeat("🙂", 100001)}, got, "input_too_large")
	})
}
