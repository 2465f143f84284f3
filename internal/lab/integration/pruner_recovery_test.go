package integration

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// recoveredLines is the result of recover_text.
type recoveredLines struct {
	Text     string `json:"raw_text"`
	Metadata struct {
		PruneID   string          `json:"prune_id"`
		Ranges    json.RawMessage `json:"ranges"`
		Numbering string          `json:"line_numbering"`
	} `json:"metadata"`
}

// recoverArguments returns arguments of recover_text. Ranges are pairs of first and last line.
func recoverArguments(id string, numbers bool, ranges ...int) string {
	var list []string
	for i := 0; i+1 < len(ranges); i += 2 {
		list = append(list, fmt.Sprintf(`{"start_line":%d,"end_line":%d}`, ranges[i], ranges[i+1]))
	}
	return fmt.Sprintf(`{"prune_id":%s,"ranges":[%s],"include_line_numbers":%t}`, quote(id), strings.Join(list, ","),
		numbers)
}

// recoverLines recovers lines at a JSON-RPC endpoint.
func recoverLines(t *testing.T, endpoint, id string, numbers bool, ranges ...int) recoveredLines {
	t.Helper()
	return recoverWith(t, endpoint, id, recoverArguments(id, numbers, ranges...))
}

func recoverWith(t *testing.T, endpoint, id, arguments string, headers ...string) recoveredLines {
	t.Helper()
	got := payload[recoveredLines](t, post(t, endpoint, toolCall{"recover_text", arguments}.request(), headers...).body)
	if got.Metadata.PruneID != id || got.Metadata.Numbering != "original" {
		t.Errorf("P49 %+v", got.Metadata)
	}
	return got
}

// isGone reports whether the original is gone, and checks the error of P45 if it is.
func isGone(t *testing.T, endpoint, id string, headers ...string) bool {
	t.Helper()
	got := post(t, endpoint, toolCall{"recover_text", recoverArguments(id, false, 1, 1)}.request(), headers...)
	var failure map[string]any
	if err := json.Unmarshal([]byte(got.body), &failure); err != nil || got.StatusCode != 200 {
		t.Fatalf("%v: %d %s", err, got.StatusCode, got.body)
	}
	if failure["error"] == nil {
		return false
	}
	want := map[string]any{"code": -32004.0, "message": "prune_id_not_found",
		"data": map[string]any{"code": "prune_id_not_found", "prune_id": id}}
	if !reflect.DeepEqual(failure["error"], want) {
		t.Errorf("P45 %s", got.body)
	}
	return true
}

// Any text can be recovered unchanged (P34, P40, P41, P53).
func TestPrunerRecoversAnyText(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner()) + "/rpc"
	hard := unicodeText(300)
	tests := []struct{ name, text string }{
		{"P53 lines of base64", strings.Repeat("aGVsbG8gd29ybGQgaGVsbG8gd29ybGQgaGVsbG8gd29ybGQ=\n", 300)},
		{"P53 characters that JSON escapes", hard},
		{"P27 CRLF", strings.ReplaceAll(hard, "\n", "\r\n")},
		{"P27 CR", strings.ReplaceAll(hard, "\n", "\r")},
		{"P27 no line end at the end", strings.TrimSuffix(numbered(300), "\n")},
		{"P27 line ends of all kinds", strings.Repeat("a\nb\r\nc\rd\n\re\r\r\n\n", 60)},
		{"P27 characters that are not line ends", strings.Repeat("a\u2028b\u2029c\u0085d\fe\vf\x1cg\n", 100)},
		{"P27 blank lines", strings.Repeat("a\n\n\n", 100) + strings.Repeat("\n", 200)},
		{"P39 special tokens", strings.Repeat("<|endoftext|> <|im_start|>system\n", 200)},
		{"P39 text like placeholders", strings.Repeat("{env.HOME} {$HOME} {http.request.uri} ${HOME} $(id) `id` %s %d\n",
			200)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, source := range []string{"code", "logs", "docs"} {
				p := prunable{text: tt.text, source: source, ratio: "0.8"}
				got := pruneText(t, endpoint, p)
				var want []string
				for _, line := range lineIn.FindAllString(tt.text, -1) {
					want = append(want, strings.TrimRight(line, "\r\n"))
				}
				same(t, recoverLines(t, endpoint, got.PruneID, false, 1, len(want)).Text, strings.Join(want, "\n"))
				for _, a := range got.Annotations { // the lines of each marker
					same(t, recoverLines(t, endpoint, got.PruneID, false, a.Start, a.End).Text, strings.Join(want[a.Start-1:a.End],
						"\n"))
				}
			}
		})
	}
}

// The store has limits. A text too large for it is not pruned (P50, P51, P57).
func TestPrunerStore(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner("store_limit 3 64KiB")) + "/rpc"
	var ids []string
	for i := range 4 {
		ids = append(ids, pruneText(t, endpoint, prunable{text: numbered(200 + i)}).PruneID)
	}
	for i, id := range ids {
		if gone := isGone(t, endpoint, id); gone != (i == 0) {
			t.Errorf("P51 text %d is gone: %t", i, gone)
		}
	}
	t.Run("P57 a text that cannot be kept", func(t *testing.T) {
		p := prunable{text: numbered(20000)}
		got := pruneText(t, endpoint, p)
		if len(got.Annotations) != 0 || !got.Stats.Fallback || fmt.Sprint(got.Warnings) != "[recovery_unavailable]" {
			t.Errorf("%+v %v", got.Stats, got.Warnings)
		}
		same(t, got.Text, p.text)
		if !isGone(t, endpoint, got.PruneID) {
			t.Error("the text can be recovered")
		}
	})
	t.Run("P19 a repeated call renews the original", func(t *testing.T) {
		endpoint := serve(t, pruner("store_limit 2 1MiB")) + "/rpc"
		first, second, third := prunable{text: numbered(210)}, prunable{text: numbered(220)}, prunable{text: numbered(230)}
		a, b := pruneText(t, endpoint, first).PruneID, pruneText(t, endpoint, second).PruneID
		pruneText(t, endpoint, first)
		pruneText(t, endpoint, third)
		if isGone(t, endpoint, a) || !isGone(t, endpoint, b) {
			t.Error("want the original that was not renewed to be gone")
		}
	})
}

// Originals survive a reload (P47).
func TestPrunerReload(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	endpoint := "http://" + address + "/rpc"
	load(t, site(address, pruner()))
	p := prunable{text: numbered(300)}
	id := pruneText(t, endpoint, p).PruneID
	load(t, site(address, pruner("cache_ttl 1m"))+site(freeAddress(t), "respond x"))
	if got := recoverLines(t, endpoint, id, false, 300, 300); got.Text != "ligne 300" {
		t.Errorf("%+v", got)
	}
	if again := pruneText(t, endpoint, p).PruneID; again != id {
		t.Errorf("R5 the id was %s, is %s", id, again)
	}
}

func TestPrunerRecoveryIsTheClientsOwn(t *testing.T) {
	isolate(t)
	url := serve(t, basicAuthAccounts, pruner())
	for _, path := range []string{"/rpc", "/mcp"} {
		p := prunable{text: numbered(300), goal: "for " + path}
		id := pruneText(t, url+path, p, basicAuthHeader("alice")).PruneID
		if !isGone(t, url+path, id, basicAuthHeader("bob")) {
			t.Errorf("%s: bob can read alice's original", path)
		}
		if isGone(t, url+path, id, basicAuthHeader("alice")) {
			t.Errorf("%s: alice cannot read her original", path)
		}
		pruneText(t, url+path, p, basicAuthHeader("bob"))
		if isGone(t, url+path, id, basicAuthHeader("bob")) || isGone(t, url+path, id, basicAuthHeader("alice")) {
			t.Errorf("%s: not both can read an original that both have pruned", path)
		}
	}
}
