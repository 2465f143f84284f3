package integration

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// recoveredLines is what recover_text has answered.
type recoveredLines struct {
	Text     string `json:"raw_text"`
	Metadata struct {
		PruneID   string          `json:"prune_id"`
		Ranges    json.RawMessage `json:"ranges"`
		Numbering string          `json:"line_numbering"`
	} `json:"metadata"`
}

// recovering is the arguments of recover_text for ranges, which are given as pairs.
func recovering(id string, numbers bool, ranges ...int) string {
	var list []string
	for i := 0; i+1 < len(ranges); i += 2 {
		list = append(list, fmt.Sprintf(`{"start_line":%d,"end_line":%d}`, ranges[i], ranges[i+1]))
	}
	return fmt.Sprintf(`{"prune_id":%s,"ranges":[%s],"include_line_numbers":%t}`, quote(id), strings.Join(list, ","), numbers)
}

// recoverLines recovers lines at a URL that takes JSON-RPC by POST.
func recoverLines(t *testing.T, at, id string, numbers bool, ranges ...int) recoveredLines {
	t.Helper()
	return recoverWith(t, at, id, recovering(id, numbers, ranges...))
}

func recoverWith(t *testing.T, at, id, arguments string, headers ...string) recoveredLines {
	t.Helper()
	got := payload[recoveredLines](t, post(t, at, toolCall{"recover_text", arguments}.request(), headers...).body)
	if got.Metadata.PruneID != id || got.Metadata.Numbering != "original" {
		t.Errorf("P49 %+v", got.Metadata)
	}
	return got
}

// isGone reports whether the original cannot be recovered, and wants P45 if so.
func isGone(t *testing.T, at, id string, headers ...string) bool {
	t.Helper()
	got := post(t, at, toolCall{"recover_text", recovering(id, false, 1, 1)}.request(), headers...)
	var failure map[string]any
	if err := json.Unmarshal([]byte(got.body), &failure); err != nil || got.StatusCode != 200 {
		t.Fatalf("%v: %d %s", err, got.StatusCode, got.body)
	}
	if failure["error"] == nil {
		return false
	}
	want := map[string]any{"code": -32004.0, "message": "prune_id_not_found", "data": map[string]any{"code": "prune_id_not_found", "prune_id": id}}
	if !reflect.DeepEqual(failure["error"], want) {
		t.Errorf("P45 %s", got.body)
	}
	return true
}

func TestPrunerRecovery(t *testing.T) {
	isolate(t)
	at := serve(t, pruner()) + "/rpc"
	text := numbered(1000)
	id := pruneBy(t, at, prunable{text: text}).PruneID
	all := strings.TrimSuffix(text, "\n")
	tests := []struct {
		name, tool string
		numbers    bool
		ranges     []int
		want       string
	}{
		{"P41 all", "recover_text", false, []int{1, 1000}, all},
		{"P42 with numbers", "recover_text", true, []int{120, 121}, "120│ ligne 120\n121│ ligne 121"},
		{"P42 without numbers", "recover_text", false, []int{120, 121}, "ligne 120\nligne 121"},
		{"P43 several", "recover_text", false, []int{5, 6, 1, 2, 5, 5}, "ligne 5\nligne 6\nligne 1\nligne 2\nligne 5"},
		{"P43 with numbers", "recover_text", true, []int{1000, 1000, 1, 1}, "1000│ ligne 1000\n1│ ligne 1"},
		{"P43 none", "recover_text", false, nil, ""},
		{"P44 beyond the end", "recover_text", false, []int{999, 99999}, "ligne 999\nligne 1000"},
		{"P44 far beyond it", "recover_text", false, []int{1000, 1 << 62}, "ligne 1000"},
		{"P48 the other name", "recover_range", true, []int{7, 7}, "7│ ligne 7"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			arguments := recovering(id, tt.numbers, tt.ranges...)
			got := payload[recoveredLines](t, post(t, at, toolCall{tt.tool, arguments}.request()).body)
			same(t, got.Text, tt.want)
			var sent struct{ Ranges json.RawMessage }
			_ = json.Unmarshal([]byte(arguments), &sent)
			var is, want any
			_ = json.Unmarshal(got.Metadata.Ranges, &is)
			_ = json.Unmarshal(sent.Ranges, &want)
			if got.Metadata.PruneID != id || got.Metadata.Numbering != "original" || !reflect.DeepEqual(is, want) {
				t.Errorf("P49 %+v, ranges %s", got.Metadata, got.Metadata.Ranges)
			}
		})
	}
	t.Run("P45 nobody knows it", func(t *testing.T) {
		for _, id := range []string{"prn_nope", "", id + "x", id[:len(id)-1], strings.ToUpper(id), "prn_" + strings.Repeat("é", 40)} {
			if !isGone(t, at, id) {
				t.Errorf("%q is known", id)
			}
		}
	})
	for _, tt := range []struct{ name, ranges string }{
		{"P46 end before start", `[{"start_line":2,"end_line":1}]`},
		{"P46 line 0", `[{"start_line":0,"end_line":1}]`},
		{"P46 a negative line", `[{"start_line":-5,"end_line":1}]`},
		{"P46 an end below 1", `[{"start_line":1,"end_line":0}]`},
		{"P46 a line after the last", `[{"start_line":1001,"end_line":1001}]`},
		{"P46 a line far after the last", `[{"start_line":1e30,"end_line":1e30}]`},
		{"P46 half a line", `[{"start_line":1.5,"end_line":2}]`},
		{"P46 a line that is a text", `[{"start_line":"1","end_line":2}]`},
		{"P46 the second of two", `[{"start_line":1,"end_line":2},{"start_line":3,"end_line":2}]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			with := func(id string) string {
				return toolCall{"recover_text", `{"prune_id":` + quote(id) + `,"ranges":` + tt.ranges + `,"include_line_numbers":false}`}.request()
			}
			failure := failsWith(t, at, with(id), -32005)
			if failure.Error.Message != "invalid_range" || failure.Error.Data["code"] != "invalid_range" {
				t.Errorf("%+v", failure.Error)
			}
			failsWith(t, at, with("prn_nope"), -32004) // which wins
		})
	}
	good := recovering(id, false, 1, 2)
	for _, tt := range []struct{ name, old, new, want string }{
		{"P52 no include_line_numbers", `,"include_line_numbers":false`, ``, "include_line_numbers"},
		{"P52 no ranges", `"ranges":[{"start_line":1,"end_line":2}],`, ``, "ranges"},
		{"P52 no prune_id", `"prune_id":"` + id + `",`, ``, "prune_id"},
		{"P52 a range that is a number", `[{"start_line":1,"end_line":2}]`, `[5]`, "ranges"},
		{"P52 a range that is null", `[{"start_line":1,"end_line":2}]`, `[null]`, "ranges"},
		{"P52 a range that is a list", `[{"start_line":1,"end_line":2}]`, `[[1,2]]`, "ranges"},
		{"P52 ranges that are a text", `[{"start_line":1,"end_line":2}]`, `"x"`, "ranges"},
		{"P52 ranges that are an object", `[{"start_line":1,"end_line":2}]`, `{"start_line":1,"end_line":2}`, "ranges"},
		{"P52 a range without an end", `,"end_line":2`, ``, "end_line"},
		{"P52 a range without a start", `"start_line":1,`, ``, "start_line"},
		{"P52 a prune_id that is a number", `"` + id + `"`, `5`, "prune_id"},
		{"P52 include_line_numbers that is a text", `"include_line_numbers":false`, `"include_line_numbers":"false"`, "include_line_numbers"},
		{"P52 include_line_numbers that is null", `"include_line_numbers":false`, `"include_line_numbers":null`, "include_line_numbers"},
		{"P17 an argument more", `{"prune_id"`, `{"x":1,"prune_id"`, "x"},
		{"P17 a member of a range more", `{"start_line"`, `{"x":1,"start_line"`, "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			changed := strings.Replace(good, tt.old, tt.new, 1)
			if changed == good {
				t.Fatalf("%s is not in %s", tt.old, good)
			}
			failure := failsWith(t, at, toolCall{"recover_text", changed}.request(), -32602)
			if !strings.Contains(failure.Error.Message, tt.want) {
				t.Errorf("%q does not name %s", failure.Error.Message, tt.want)
			}
		})
	}
	t.Run("a short request for very much", func(t *testing.T) {
		id := pruneBy(t, at, prunable{text: strings.Repeat("x", 1<<20)}).PruneID
		ranges := make([]int, 0, 2000)
		for range 1000 {
			ranges = append(ranges, 1, 1)
		}
		failsWith(t, at, toolCall{"recover_text", recovering(id, false, ranges...)}.request(), -32602)
	})
}

// Whatever a text is, it comes back as it was (P34, P40, P41, P53).
func TestPrunerRecoversAnyText(t *testing.T) {
	isolate(t)
	at := serve(t, pruner()) + "/rpc"
	hard := fullOf(300)
	tests := []struct{ name, text string }{
		{"P53 lines of base64", strings.Repeat("aGVsbG8gd29ybGQgaGVsbG8gd29ybGQgaGVsbG8gd29ybGQ=\n", 300)},
		{"P53 all that JSON escapes", hard},
		{"P27 CRLF", strings.ReplaceAll(hard, "\n", "\r\n")},
		{"P27 CR", strings.ReplaceAll(hard, "\n", "\r")},
		{"P27 no end", strings.TrimSuffix(numbered(300), "\n")},
		{"P27 ends of all kinds", strings.Repeat("a\nb\r\nc\rd\n\re\r\r\n\n", 60)},
		{"P27 what ends no line", strings.Repeat("a\u2028b\u2029c\u0085d\fe\vf\x1cg\n", 100)},
		{"P27 blank lines", strings.Repeat("a\n\n\n", 100) + strings.Repeat("\n", 200)},
		{"P39 special tokens", strings.Repeat("<|endoftext|> <|im_start|>system\n", 200)},
		{"P39 what looks like placeholders", strings.Repeat("{env.HOME} {$HOME} {http.request.uri} ${HOME} $(id) `id` %s %d\n", 200)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, source := range []string{"code", "logs", "docs"} {
				p := prunable{text: tt.text, source: source, ratio: "0.8"}
				got := pruneBy(t, at, p)
				var want []string
				for _, line := range lineIn.FindAllString(tt.text, -1) {
					want = append(want, strings.TrimRight(line, "\r\n"))
				}
				same(t, recoverLines(t, at, got.PruneID, false, 1, len(want)).Text, strings.Join(want, "\n"))
				for _, a := range got.Annotations { // what each marker promises
					same(t, recoverLines(t, at, got.PruneID, false, a.Start, a.End).Text, strings.Join(want[a.Start-1:a.End], "\n"))
				}
			}
		})
	}
}

// The store is bounded, and what is too large for it is not removed (P50, P51, P57).
func TestPrunerStore(t *testing.T) {
	isolate(t)
	at := serve(t, pruner("store_limit 3 64KiB")) + "/rpc"
	var ids []string
	for i := range 4 {
		ids = append(ids, pruneBy(t, at, prunable{text: numbered(200 + i)}).PruneID)
	}
	for i, id := range ids {
		if gone := isGone(t, at, id); gone != (i == 0) {
			t.Errorf("P51 text %d is gone: %t", i, gone)
		}
	}
	t.Run("P57 a text that cannot be kept", func(t *testing.T) {
		p := prunable{text: numbered(20000)}
		got := pruneBy(t, at, p)
		if len(got.Annotations) != 0 || !got.Stats.Fallback || fmt.Sprint(got.Warnings) != "[recovery_unavailable]" {
			t.Errorf("%+v %v", got.Stats, got.Warnings)
		}
		same(t, got.Text, p.text)
		if !isGone(t, at, got.PruneID) {
			t.Error("it can be recovered")
		}
	})
	t.Run("P19 a repeated call renews", func(t *testing.T) {
		at := serve(t, pruner("store_limit 2 1MiB")) + "/rpc"
		first, second, third := prunable{text: numbered(210)}, prunable{text: numbered(220)}, prunable{text: numbered(230)}
		a, b := pruneBy(t, at, first).PruneID, pruneBy(t, at, second).PruneID
		pruneBy(t, at, first)
		pruneBy(t, at, third)
		if isGone(t, at, a) || !isGone(t, at, b) {
			t.Error("the one that was not renewed should have gone")
		}
	})
}

// A store outlives a reload (P47), and belongs to the client that filled it.
func TestPrunerReload(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	at := "http://" + address + "/rpc"
	load(t, site(address, pruner()))
	p := prunable{text: numbered(300)}
	id := pruneBy(t, at, p).PruneID
	load(t, site(address, pruner("cache_ttl 1m"))+site(freeAddress(t), "respond x"))
	if got := recoverLines(t, at, id, false, 300, 300); got.Text != "ligne 300" {
		t.Errorf("%+v", got)
	}
	if again := pruneBy(t, at, p).PruneID; again != id {
		t.Errorf("R5 %s has become %s", id, again)
	}
}

func TestPrunerRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	url := serve(t, accounts, pruner())
	for _, path := range []string{"/rpc", "/mcp"} {
		p := prunable{text: numbered(300), goal: "for " + path}
		id := pruneBy(t, url+path, p, as("alice")).PruneID
		if !isGone(t, url+path, id, as("bob")) {
			t.Errorf("%s: bob reads what alice has pruned", path)
		}
		if isGone(t, url+path, id, as("alice")) {
			t.Errorf("%s: alice cannot read it", path)
		}
		pruneBy(t, url+path, p, as("bob"))
		if isGone(t, url+path, id, as("bob")) || isGone(t, url+path, id, as("alice")) {
			t.Errorf("%s: one of them cannot read what both have pruned", path)
		}
	}
}
