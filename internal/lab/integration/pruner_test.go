package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// pruner returns an mcp_pruner directive with subdirectives.
func pruner(lines ...string) string { return block("mcp_pruner", lines...) }

// A prunable holds the arguments of a prune_text call. Zero values other than text mean the
// default, with a timeout long enough for a busy machine.
type prunable struct {
	text, goal, source string
	ratio              string // a JSON number
	minKeep            int    // min_keep_lines - 1
	timeout            int    // in milliseconds
	annotate, unmarked bool
}

func (p prunable) arguments() string {
	orDefault := func(value, fallback string) string {
		if value == "" {
			return fallback
		}
		return value
	}
	timeout := p.timeout
	if timeout == 0 {
		timeout = 60000
	}
	return fmt.Sprintf(`{"text":%s,"goal_hint":%s,"source_type":%s,"options":{"max_prune_ratio":%s,`+
		`"min_keep_lines":%d,"timeout_ms":%d,"annotate_lines":%t,"include_markers":%t}}`,
		quote(p.text), quote(orDefault(p.goal, "zzzz")), quote(orDefault(p.source, "docs")), orDefault(p.ratio, "0.55"),
		p.minKeep+1, timeout, p.annotate, !p.unmarked)
}

func (p prunable) request() string { return toolCall{"prune_text", p.arguments()}.request() }

// allowed returns how many of the lines may be removed (P29, P30).
func (p prunable) allowed(lines int) int {
	ratio, _ := new(big.Rat).SetString(p.ratio)
	if p.ratio == "" {
		ratio = big.NewRat(55, 100)
	}
	product := new(big.Rat).Mul(ratio, big.NewRat(int64(lines), 1))
	product.Add(product, big.NewRat(1, 1e9)) // accepts rounded ratios such as 0.3333333333333333
	most := int(new(big.Int).Quo(product.Num(), product.Denom()).Int64())
	return min(most, lines-min(lines, p.minKeep+1))
}

// pruned is the result of prune_text.
type pruned struct {
	PruneID     string `json:"prune_id"`
	Text        string `json:"pruned_text"`
	Annotations []struct {
		Kind   string `json:"kind"`
		Start  int    `json:"original_start_line"`
		End    int    `json:"original_end_line"`
		Count  int    `json:"pruned_line_count"`
		Reason string `json:"reason"`
		Marker string `json:"marker"`
	} `json:"annotations"`
	Stats struct {
		Original int     `json:"original_lines"`
		Kept     int     `json:"kept_lines"`
		Pruned   int     `json:"pruned_lines"`
		Ratio    float64 `json:"pruned_ratio"`
		Before   int     `json:"tokens_est_before"`
		After    int     `json:"tokens_est_after"`
		Saved    int     `json:"tokens_saved_est"`
		Cost     float64 `json:"cost_estimated_usd"`
		Elapsed  int     `json:"elapsed_ms"`
		Fallback bool    `json:"used_fallback"`
		Backend  string  `json:"backend"`

		Latency *int  `json:"deepinfra_latency_ms"`
		Scored  *int  `json:"deepinfra_docs_scored"`
		Total   *int  `json:"deepinfra_docs_total"`
		Status  *int  `json:"deepinfra_http_status"`
		Cached  *bool `json:"deepinfra_cached"`
	} `json:"stats"`
	Warnings []string `json:"warnings"`
}

// keptLines returns the numbers of the kept lines.
func (p pruned) keptLines() (lines []int) {
	next := 1
	for _, a := range p.Annotations {
		for ; next < a.Start; next++ {
			lines = append(lines, next)
		}
		next = a.End + 1
	}
	for ; next <= p.Stats.Original; next++ {
		lines = append(lines, next)
	}
	return lines
}

// removed describes the removed lines, with the reasons.
func (p pruned) removed() string {
	var b strings.Builder
	for _, a := range p.Annotations {
		fmt.Fprintf(&b, "%d-%d (%s) ", a.Start, a.End, a.Reason)
	}
	return b.String()
}

// payload decodes the object that a tool returned, and checks that the text (P12) and
// structuredContent (P79) are equal.
func payload[T any](t *testing.T, message string) (value T) {
	t.Helper()
	var response struct {
		Result struct {
			Content    []struct{ Type, Text string }
			Structured any `json:"structuredContent"`
		}
	}
	if err := json.Unmarshal([]byte(message), &response); err != nil || len(response.Result.Content) != 1 ||
		response.Result.Content[0].Type != "text" {
		t.Fatalf("P12 %v: %.300s", err, message)
	}
	text := response.Result.Content[0].Text
	var same any
	if err := json.Unmarshal([]byte(text), &same); err != nil || !reflect.DeepEqual(same, response.Result.Structured) {
		t.Errorf("P79 %v: structuredContent differs from the text: %.600s", err, message)
	}
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%v: %.300s", err, text)
	}
	return value
}

// pruneText prunes a text at a JSON-RPC endpoint, and checks the result.
func pruneText(t *testing.T, endpoint string, p prunable, headers ...string) pruned {
	t.Helper()
	got := post(t, endpoint, p.request(), headers...)
	if got.StatusCode != 200 || got.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %v %.300s", got.StatusCode, got.Header, got.body)
	}
	answered := payload[pruned](t, got.body)
	p.check(t, answered)
	return answered
}

var (
	// lineIn matches a line with its line end (P27).
	lineIn = regexp.MustCompile(`[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+$`)
	// markerLine matches the marker of P22.
	markerLine = regexp.MustCompile(`^⟦PRUNÉ: prune_id=(?P<prune_id>[^\s]+) lignes (?P<start>\d+)-(?P<end>\d+) ` +
		`\((?P<count>\d+)\) raison=(?P<reason>.*)⟧$`)
	// pruneID matches the ids of R5.
	pruneID = regexp.MustCompile(`^prn_[A-Za-z0-9]{10}$`)
)

// check checks the requirements that every result must meet.
func (p prunable) check(t *testing.T, got pruned) {
	t.Helper()
	lines := lineIn.FindAllString(p.text, -1)
	s := got.Stats
	if !pruneID.MatchString(got.PruneID) {
		t.Errorf("R5 prune_id is %q", got.PruneID)
	}
	if got.Annotations == nil || got.Warnings == nil {
		t.Error("P18 annotations or warnings are missing")
	}
	if s.Original != len(lines) || s.Kept+s.Pruned != s.Original || s.Kept < 0 || s.Pruned < 0 || s.Before < 0 ||
		s.After < 0 || s.Elapsed < 0 {
		t.Errorf("P20 of %d lines: %+v", len(lines), s)
	}
	if ratio := float64(s.Pruned) / float64(max(1, s.Original)); math.Abs(s.Ratio-ratio) > 0.00005001 {
		t.Errorf("P20 pruned_ratio is %v, want %v", s.Ratio, ratio)
	}
	if most := p.allowed(len(lines)); s.Pruned > most {
		t.Errorf("P29, P30: %d of %d lines removed, at most %d allowed: %s", s.Pruned, len(lines), most,
			p.arguments()[len(p.arguments())-130:])
	}
	if s.Saved != max(0, s.Before-s.After) || math.Abs(s.Cost-float64(s.Saved)*0.01/1e6) > 0.5000001e-8 {
		t.Errorf("P66 %d → %d tokens: saved %d, %v dollars", s.Before, s.After, s.Saved, s.Cost)
	}
	if s.Backend == "heuristic" && len(lines) >= 60 && s.After > s.Before && !p.annotate {
		t.Errorf("P76 %d lines, %d → %d tokens", len(lines), s.Before, s.After)
	}
	if s.Pruned == 0 && !p.annotate && got.Text != p.text {
		t.Errorf("P40 no line was removed, but the text differs: %.200q\nwant %.200q", got.Text, p.text)
	}
	p.checkBlocks(t, got)
	p.checkText(t, got, lines)
}

// checkBlocks checks the annotations (P21, P22).
func (p prunable) checkBlocks(t *testing.T, got pruned) {
	t.Helper()
	removed, last := 0, -1
	for _, a := range got.Annotations {
		if a.Kind != "pruned_block" || a.Start < 1 || a.End < a.Start || a.End > got.Stats.Original ||
			a.Count != a.End-a.Start+1 || a.Start <= last+1 {
			t.Errorf("P21 after line %d: %+v", last, a)
		}
		want := fmt.Sprintf("⟦PRUNÉ: prune_id=%s lignes %d-%d (%d) raison=%s⟧", got.PruneID, a.Start, a.End, a.Count,
			a.Reason)
		if a.Marker != want || !markerLine.MatchString(a.Marker) || strings.ContainsAny(a.Reason, "\r\n\u2028\u2029⟧") ||
			strings.TrimSpace(a.Reason) == "" {
			t.Errorf("P22, R4 marker %q\nwant %q", a.Marker, want)
		}
		removed, last = removed+a.Count, a.End
	}
	if removed != got.Stats.Pruned {
		t.Errorf("P21 the annotations have %d lines, the statistics %d", removed, got.Stats.Pruned)
	}
}

// checkText checks the pruned text against the original and the annotations: kept lines are
// unchanged, and markers replace the others (P23–P28, P34).
func (p prunable) checkText(t *testing.T, got pruned, lines []string) {
	t.Helper()
	type line struct{ content, end string }
	var want []line
	blocks := got.Annotations
	for n := 1; n <= len(lines); n++ {
		if len(blocks) > 0 && blocks[0].Start == n {
			if !p.unmarked {
				want = append(want, line{content: blocks[0].Marker})
			}
			n, blocks = max(n, blocks[0].End), blocks[1:]
			continue
		}
		content := strings.TrimRight(lines[n-1], "\r\n")
		end := lines[n-1][len(content):]
		if p.annotate {
			content = strconv.Itoa(n) + "│ " + content
		}
		want = append(want, line{content, end})
	}
	shown := lineIn.FindAllString(got.Text, -1)
	for i := range min(len(shown), len(want)) {
		content := strings.TrimRight(shown[i], "\r\n")
		if end := shown[i][len(content):]; content != want[i].content || i+1 < len(shown) && want[i].end != "" &&
			end != want[i].end {
			t.Errorf("P23–P28 line %d of the pruned text is %.200q, want %.200q%q", i+1, shown[i], want[i].content, want[i].end)
			return
		}
	}
	if len(shown) != len(want) {
		t.Errorf("P23–P28 the pruned text has %d lines, want %d", len(shown), len(want))
	}
}

// numbered returns the lines ligne 1 to ligne n.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "ligne %d\n", i+1)
	}
	return b.String()
}

// rpcError is an error response.
type rpcError struct {
	ID    json.RawMessage
	Error *struct {
		Code    int
		Message string
		Data    map[string]any
	}
}

// failsWith sends a message and checks the error code of the response.
func failsWith(t *testing.T, endpoint, message string, code int, headers ...string) rpcError {
	t.Helper()
	got := post(t, endpoint, message, headers...)
	var failure rpcError
	if err := json.Unmarshal([]byte(got.body), &failure); err != nil || failure.Error == nil {
		t.Fatalf("%.300s: %d %.300s", message, got.StatusCode, got.body)
	}
	if failure.Error.Code != code || failure.Error.Message == "" || failure.Error.Data["code"] == nil {
		t.Errorf("%.300s: %s\nwant %d", message, got.body, code)
	}
	if got.StatusCode != 200 && (code != -32700 || got.StatusCode != 400) {
		t.Errorf("P10 %.300s: status %d", message, got.StatusCode)
	}
	return failure
}

// resultOf sends a request to an /rpc endpoint and returns the result.
func resultOf[T any](t *testing.T, endpoint, method, params string) (value T) {
	t.Helper()
	got := post(t, endpoint, rpc(method, params))
	var response struct {
		ID     json.RawMessage
		Result *T
	}
	if err := json.Unmarshal([]byte(got.body), &response); err != nil || response.Result == nil ||
		got.StatusCode != 200 || string(response.ID) != "1" {
		t.Fatalf("%s: %v: %d %.300s", method, err, got.StatusCode, got.body)
	}
	return *response.Result
}

// TestPrunerCall sends the documented call, with its white space (P5).
func TestPrunerCall(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner()) + "/rpc"
	got := post(t, endpoint, `{
    "jsonrpc":"2.0",
    "id":2,
    "method":"tools/call",
    "params":{
      "name":"prune_text",
      "arguments":{
        "text":"L1\nL2\nL3\nL4",
        "goal_hint":"garder L1",
        "source_type":"docs",
        "options":{
          "max_prune_ratio":0.75,
          "min_keep_lines":1,
          "timeout_ms":1500,
          "annotate_lines":true,
          "include_markers":true
        }
      }
    }
  }`)
	prunable{text: "L1\nL2\nL3\nL4", ratio: "0.75", annotate: true}.check(t, payload[pruned](t, got.body))
}

func TestPrunerHealth(t *testing.T) {
	isolate(t)
	url := serve(t, pruner())
	type health map[string]any
	direct := send(t, client, "GET", url+"/health", "")
	var ways [3]health
	if err := json.Unmarshal([]byte(direct.body), &ways[0]); err != nil || direct.StatusCode != 200 ||
		direct.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("P1 %v: %d %v %s", err, direct.StatusCode, direct.Header, direct.body)
	}
	ways[1] = resultOf[health](t, url+"/rpc", "health", `{}`)
	ways[2] = payload[health](t, post(t, url+"/rpc", toolCall{"health", `{}`}.request()).body)
	for i, got := range ways {
		stamp, _ := got["timestamp"].(string)
		if _, err := time.Parse(time.RFC3339, stamp); err != nil {
			t.Errorf("P8 %v", err)
		}
		delete(got, "timestamp")
		if !reflect.DeepEqual(got, ways[0]) {
			t.Errorf("P7 way %d returned %v, want %v", i, got, ways[0])
		}
	}
	want := []any{"prune_text", "recover_text", "annotations", "markers"}
	if got := ways[0]; got["status"] != "healthy" || got["server"] != "mcp-pruner" || got["version"] != "0.1.0" ||
		!reflect.DeepEqual(got["capabilities"], want) {
		t.Errorf("P8 got %v", got)
	}
	if got := send(t, client, "HEAD", url+"/health", ""); got.StatusCode != 200 || got.body != "" {
		t.Errorf("HEAD: %d %q", got.StatusCode, got.body)
	}
}

// TestPrunerPathsAndMethods checks which paths and methods are served.
func TestPrunerPathsAndMethods(t *testing.T) {
	isolate(t)
	url := serve(t, pruner(), block("handle_path /below/*", pruner()), "respond next")
	list := rpc("tools/list", `{}`)
	tests := []struct {
		name, method, path, body string
		status                   int
		want                     string // substring of the body
	}{
		{"P1 a message", "POST", "/rpc", list, 200, `"prune_text"`},
		{"P1 health", "GET", "/health", "", 200, `"healthy"`},
		{"P79 a message over Streamable HTTP", "POST", "/mcp", list, 200, `"prune_text"`},
		{"a path prefix", "POST", "/some/where/rpc", list, 200, `"prune_text"`},
		{"a path prefix that handle_path removes", "POST", "/below/rpc", list, 200, `"prune_text"`},
		{"no stream", "GET", "/mcp", "", 405, ""},
		{"no session to end", "DELETE", "/mcp", "", 405, ""},
		{"GET of /rpc", "GET", "/rpc", "", 405, ""},
		{"PUT of /rpc", "PUT", "/rpc", list, 405, ""},
		{"POST to /health", "POST", "/health", list, 405, ""},
		{"another path", "POST", "/", list, 200, "next"},
		{"a longer path", "POST", "/rpc/x", list, 200, "next"},
		{"a path that only starts with it", "GET", "/healthz", "", 200, "next"},
		{"a path that only ends with it", "POST", "/xrpc", list, 200, "next"},
		{"another case", "POST", "/RPC", list, 200, "next"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := send(t, client, tt.method, url+tt.path, tt.body)
			if got.StatusCode != tt.status || !strings.Contains(got.body, tt.want) || tt.want != "next" &&
				strings.Contains(got.body, "next") {
				t.Errorf("got %d %.300s", got.StatusCode, got.body)
			}
			if tt.status == 405 && got.Header.Get("Allow") == "" {
				t.Errorf("no Allow header: %v", got.Header)
			}
		})
	}
	t.Run("a compressed body", func(t *testing.T) {
		got := post(t, url+"/rpc", list, "Content-Encoding: gzip")
		if got.StatusCode != 415 || !json.Valid([]byte(got.body)) {
			t.Errorf("got %d %s", got.StatusCode, got.body)
		}
	})
}

func TestPrunerOriginAndHost(t *testing.T) {
	isolate(t)
	tests := []struct {
		name    string
		options []string
		header  string
		want    string // error code, "" for none
	}{
		{"A43 no Origin", nil, "X: y", ""},
		{"A43 a foreign Origin", nil, "Origin: http://evil.test", "forbidden_origin"},
		{"A43 a local Origin", nil, "Origin: http://localhost:3000", ""},
		{"A43 an Origin that only starts like a local one", nil, "Origin: http://localhost.evil.test", "forbidden_origin"},
		{"A43 the Origin null", nil, "Origin: null", "forbidden_origin"},
		{"A43 a listed Origin", []string{"origins https://app.test"}, "Origin: https://app.test", ""},
		{"A43 an Origin that is not listed", []string{"origins https://app.test"}, "Origin: https://evil.test",
			"forbidden_origin"},
		{"A43 all Origins", []string{"origins *"}, "Origin: null", ""},
		{"A43 a foreign Host", nil, "Host: evil.test", "forbidden_host"},
		{"A43 a local Host", nil, "Host: localhost:1", ""},
		{"A43 a listed Host", []string{"hosts prune.test"}, "Host: prune.test", ""},
		{"A43 a Host that is not listed", []string{"hosts prune.test"}, "Host: evil.test", "forbidden_host"},
		{"A43 all Hosts", []string{"hosts *"}, "Host: evil.test", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url := serve(t, pruner(tt.options...))
			for _, path := range []string{"/rpc", "/mcp"} {
				req := request(t, t.Context(), "POST", url+path, rpc("ping", `{}`), tt.header)
				if host, ok := strings.CutPrefix(tt.header, "Host: "); ok {
					req.Host = host
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if tt.want == "" {
					same(t, string(body), result(`{}`))
				} else if failure := gatewayErrorOf(t, httpResponse{res, string(body)}); failure.Symbol != tt.want ||
					failure.Status != 403 {
					t.Errorf("%s: %+v", path, failure)
				}
			}
		})
	}
}

// TestPrunerFuzzed sends mutated requests (P57).
func TestPrunerFuzzed(t *testing.T) {
	isolate(t)
	endpoint := serve(t, pruner()) + "/rpc"
	id := pruneText(t, endpoint, prunable{text: numbered(300)}).PruneID
	seeds := []string{
		prunable{text: numbered(20), annotate: true}.request(),
		prunable{text: "⟦NO_PRUNE_BEGIN⟧\r\n```\né🙂\u2028\n", source: "code", ratio: "1"}.request(),
		toolCall{"recover_text", `{"prune_id":"` + id +
			`","ranges":[{"start_line":1,"end_line":3}],"include_line_numbers":true}`}.request(),
		toolCall{"health", `{}`}.request(),
		rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{}}`),
		rpc("tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`),
	}
	tokens := []string{`"`, `\`, `\ud800`, `{`, `}`, `[`, `]`, `:`, `,`, `null`, `true`, `-1`, `1e999`, `0.5`, `""`,
		"\x00", "\xff", `"id":`, `"jsonrpc":"2.0"`, strings.Repeat("[", 2000), strings.Repeat("9", 400)}
	random := rand.New(rand.NewPCG(4, 57))
	for i := range 1000 {
		body := []byte(seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(4) {
			cut := random.IntN(len(body) + 1)
			end := min(len(body), cut+random.IntN(30))
			switch random.IntN(6) {
			case 0:
				body = body[:cut]
			case 1:
				body = slices.Delete(body, cut, end)
			case 2:
				body = slices.Insert(body, cut, body[cut:end]...)
			case 3:
				body = slices.Insert(body, cut, []byte(tokens[random.IntN(len(tokens))])...)
			case 4:
				body = slices.Replace(body, cut, end, []byte(tokens[random.IntN(len(tokens))])...)
			default:
				if cut < len(body) {
					body[cut] ^= 1 << random.IntN(8)
				}
			}
		}
		got := post(t, endpoint, string(body))
		if got.StatusCode == http.StatusAccepted && got.body == "" && isNotification(body) {
			continue
		}
		if got.StatusCode != 200 && got.StatusCode != 400 || !json.Valid([]byte(got.body)) ||
			got.Header.Get("Content-Type") != "application/json" {
			t.Errorf("P57 body %d: %q\ngot %d %.300q", i, body, got.StatusCode, got.body)
		}
	}
	if got := recoverLines(t, endpoint, id, false, 300, 300); got.Text != "ligne 300" {
		t.Errorf("P57 afterwards recover_text returned %+v", got)
	}
}

// isNotification reports whether a message is a notification, which gets no response.
func isNotification(message []byte) bool {
	var m map[string]json.RawMessage
	return json.Unmarshal(message, &m) == nil && m["id"] == nil && bytes.HasPrefix(m["method"], []byte(`"`))
}

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

// prunerServer configures a pruner as a server of a gateway.
var prunerServer = block("server pruner", "mask off", "mcp_pruner")

// A prunerEndpoint is an endpoint of a pruner, with a function that calls a tool there.
type prunerEndpoint struct {
	name string
	call func(t *testing.T, tool, arguments string, headers ...string) (status int, message string)
}

// prunerEndpoints returns the endpoints of a pruner that is a server of the gateway at url.
func prunerEndpoints(url string) (endpoints []prunerEndpoint) {
	for _, era := range clientEras {
		for name, endpoint := range map[string]string{"joined": joinedAt(url), "alone": mcpAt(url, "pruner"),
			"plain": rpcAt(url, "pruner")} {
			prefix := ""
			if name == "joined" {
				prefix = "pruner__"
			}
			endpoints = append(endpoints, prunerEndpoint{name + ", " + era.name, func(t *testing.T, tool, arguments string,
				headers ...string) (int, string) {
				t.Helper()
				c := &testClient{&mcpclient.Client{URL: endpoint, Modern: era.modern, Capabilities: `{}`, Headers: headers,
					HTTP: streamClient}}
				if name == "joined" {
					c = newTestClient(t, endpoint, era.modern, `{}`, headers...)
				}
				got := c.ask(t, "tools/call", `{"name":`+quote(prefix+tool)+`,"arguments":`+arguments+`}`)
				return got.status, got.answer.Raw
			}})
		}
	}
	return endpoints
}

func TestPrunerInGateway(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", prunerServer, block("server sample", "mcp_sample")))
	for i, endpoint := range prunerEndpoints(url) {
		t.Run(endpoint.name, func(t *testing.T) {
			// A default mask would shorten this text.
			p := prunable{text: unicodeText(300), goal: fmt.Sprintf("endpoint %d", i), annotate: true}
			status, message := endpoint.call(t, "prune_text", p.arguments())
			if status != 200 {
				t.Fatalf("got %d %.300s", status, message)
			}
			got := payload[pruned](t, message)
			p.check(t, got)
			if len(got.Annotations) == 0 || strings.Contains(message, "KIMI_PROXY_OBSERVATION_MASKED") {
				t.Fatalf("got %+v", got.Stats)
			}
			lines := strings.Split(p.text, "\n")
			for _, tool := range []string{"recover_text", "recover_range"} {
				first := got.Annotations[0]
				_, message := endpoint.call(t, tool, recoverArguments(got.PruneID, false, first.Start, first.End))
				if tool == "recover_range" && strings.HasPrefix(endpoint.name, "joined") {
					continue // it is not listed, so the aggregate cannot route it
				}
				same(t, payload[recoveredLines](t, message).Text, strings.Join(lines[first.Start-1:first.End], "\n"))
			}
			_, message = endpoint.call(t, "recover_text", recoverArguments("prn_nope", false, 1, 1))
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32004 ||
				m.Error.Message != "prune_id_not_found" || !strings.Contains(string(m.Error.Data), `"prune_id":"prn_nope"`) {
				t.Errorf("P45 %s", message)
			}
			_, message = endpoint.call(t, "recover_text", recoverArguments(got.PruneID, false, 5, 4))
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32005 || m.Error.Message != "invalid_range" {
				t.Errorf("P46 %s", message)
			}
			_, message = endpoint.call(t, "prune_text", `{}`)
			if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32602 {
				t.Errorf("P13 %s", message)
			}
			_, message = endpoint.call(t, "health", `{}`)
			if health := payload[map[string]any](t, message); health["status"] != "healthy" {
				t.Errorf("P7 got %v", health)
			}
		})
	}
	t.Run("tool names", func(t *testing.T) {
		for _, era := range clientEras {
			names := map[string]bool{}
			for _, name := range toolNames(t, newTestClient(t, joinedAt(url), era.modern, `{}`)) {
				names[name] = true
			}
			for _, name := range []string{"pruner__prune_text", "pruner__recover_text", "pruner__health", "sample__read_log"} {
				if !names[name] {
					t.Errorf("%s: %s is missing in %v", era.name, name, names)
				}
			}
		}
	})
	t.Run("the RPC endpoint without a handshake", func(t *testing.T) {
		id := pruneText(t, rpcAt(url, "pruner"), prunable{text: numbered(200)}).PruneID
		if got := recoverLines(t, rpcAt(url, "pruner"), id, true, 200, 200).Text; got != "200│ ligne 200" {
			t.Errorf("got %q, want %q", got, "200│ ligne 200")
		}
	})
	t.Run("all endpoints share one store", func(t *testing.T) {
		id := pruneText(t, rpcAt(url, "pruner"), prunable{text: numbered(201)}).PruneID
		for _, endpoint := range prunerEndpoints(url) {
			_, message := endpoint.call(t, "recover_text", recoverArguments(id, false, 201, 201))
			if got := payload[recoveredLines](t, message).Text; got != "ligne 201" {
				t.Errorf("%s: %s", endpoint.name, got)
			}
		}
	})
}

// A client cannot read the originals of another client.
func TestPrunerInGatewayIsTheClientsOwn(t *testing.T) {
	isolate(t)
	url := serve(t, basicAuthAccounts, gateway("separator __", prunerServer))
	endpoints := prunerEndpoints(url)
	for i, endpoint := range endpoints {
		t.Run(endpoint.name, func(t *testing.T) {
			p := prunable{text: numbered(300), goal: fmt.Sprintf("own %d", i)}
			_, message := endpoint.call(t, "prune_text", p.arguments(), basicAuthHeader("alice"))
			id := payload[pruned](t, message).PruneID
			ask := recoverArguments(id, false, 300, 300)
			for _, other := range endpoints {
				_, message := other.call(t, "recover_text", ask, basicAuthHeader("bob"))
				if m := mcpclient.Parse(message); m.Error == nil || m.Error.Code != -32004 {
					t.Errorf("bob read at %s: %.300s", other.name, message)
				}
				_, message = other.call(t, "recover_text", ask, basicAuthHeader("alice"))
				if got := payload[recoveredLines](t, message).Text; got != "ligne 300" {
					t.Errorf("alice read %q at %s", got, other.name)
				}
			}
		})
	}
}

// Clients of both eras use a standalone pruner.
func TestPrunerStreamableHTTP(t *testing.T) {
	isolate(t)
	url := serve(t, pruner())
	for _, path := range []string{"/mcp", "/rpc"} {
		modern := &testClient{&mcpclient.Client{URL: url + path, Modern: true, Capabilities: `{}`, HTTP: streamClient}}
		t.Run("P79 the modern era at "+path, func(t *testing.T) {
			got := modern.ask(t, "server/discover", `{}`)
			var discovered struct {
				ResultType        string
				SupportedVersions []string
				Capabilities      map[string]any
				Meta              map[string]map[string]string `json:"_meta"`
			}
			if err := json.Unmarshal(got.answer.Result, &discovered); err != nil || got.status != 200 ||
				discovered.ResultType != "complete" || discovered.Capabilities["tools"] == nil ||
				!strings.Contains(fmt.Sprint(discovered.SupportedVersions), "2026-07-28") ||
				discovered.Meta["io.modelcontextprotocol/serverInfo"]["name"] != "mcp-pruner" {
				t.Errorf("%v: %d %s", err, got.status, got.answer.Raw)
			}
			got = modern.ask(t, "tools/list", `{}`)
			if !strings.Contains(got.answer.Raw, `"ttlMs":`) || !strings.Contains(got.answer.Raw, `"cacheScope":`) ||
				!strings.Contains(got.answer.Raw, `"resultType":"complete"`) {
				t.Errorf("got %.300s", got.answer.Raw)
			}
			p := prunable{text: numbered(300)}
			got = modern.ask(t, "tools/call", `{"name":"prune_text","arguments":`+p.arguments()+`}`)
			answered := payload[pruned](t, got.answer.Raw)
			p.check(t, answered)
			got = modern.ask(t, "tools/call", `{"name":"recover_text","arguments":`+recoverArguments(answered.PruneID, false, 1,
				1)+`}`)
			if payload[recoveredLines](t, got.answer.Raw).Text != "ligne 1" || !strings.Contains(got.answer.Raw,
				`"resultType":"complete"`) {
				t.Error(got.answer.Raw)
			}
			got = modern.ask(t, "tools/call", `{"name":"recover_text","arguments":`+recoverArguments("prn_nope", false, 1, 1)+
				`}`)
			if got.status != 200 || got.answer.Error == nil || got.answer.Error.Code != -32004 {
				t.Errorf("P45 got %d %s", got.status, got.answer.Raw)
			}
			got = modern.ask(t, "foo", `{}`)
			if got.status != 404 || got.answer.Error == nil || got.answer.Error.Code != -32601 {
				t.Errorf("P9 got %d %s", got.status, got.answer.Raw)
			}
			got = modern.ask(t, "tools/list", `{}`, "Mcp-Method: tools/call")
			if got.status != 400 || got.answer.Error == nil || got.answer.Error.Code != -32020 {
				t.Errorf("a header with another method: %d %s", got.status, got.answer.Raw)
			}
		})
	}
	t.Run("P79 an unknown protocol version", func(t *testing.T) {
		got := post(t, url+"/mcp", rpc("tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2030-01-01",`+
			`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}`),
			acceptBoth, "Mcp-Protocol-Version: 2030-01-01", "Mcp-Method: tools/list")
		if got.StatusCode != 400 || !strings.Contains(got.body, "-32022") || !strings.Contains(got.body, "2026-07-28") {
			t.Errorf("got %d %s", got.StatusCode, got.body)
		}
	})
	t.Run("P79 legacy clients get no session", func(t *testing.T) {
		for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
			got := post(t, url+"/mcp", rpc("initialize", `{"protocolVersion":"`+version+
				`","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`), acceptBoth)
			if got.StatusCode != 200 || !strings.Contains(got.body, `"protocolVersion":"`+version+`"`) ||
				got.Header.Get("Mcp-Session-Id") != "" {
				t.Errorf("got %d %v %s", got.StatusCode, got.Header, got.body)
			}
			got = post(t, url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, acceptBoth,
				"Mcp-Protocol-Version: "+version)
			if got.StatusCode != 202 || got.body != "" {
				t.Errorf("got %d %s", got.StatusCode, got.body)
			}
			pruneText(t, url+"/mcp", prunable{text: numbered(100)}, acceptBoth, "Mcp-Protocol-Version: "+version)
		}
		// P9: 404 would mean to a legacy client that its session has ended
		failsWith(t, url+"/mcp", rpc("foo", `{}`), -32601, acceptBoth)
		got := post(t, url+"/mcp", "{", acceptBoth)
		if got.StatusCode != 400 || !strings.Contains(got.body, "-32700") {
			t.Errorf("P10 got %d %s", got.StatusCode, got.body)
		}
	})
}

// askWithSDK sends requests with the official TypeScript SDK. The SDK prints warnings about
// capabilities that the server lacks, such as prompts, before the results.
func askWithSDK(t *testing.T, endpoint, era string, requests ...peerRequest) (saw joinedResult) {
	t.Helper()
	asked, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	cmd := peer(t, "joined.mjs", endpoint, era, "peer", "mute")
	var complaints strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(string(asked)), &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %.2000s", err, &complaints)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &saw); err != nil {
		t.Fatalf("%v: %.2000s", err, out)
	}
	return saw
}

// TestPrunerPeers prunes with the official clients, directly and through a gateway. They
// validate structuredContent against the outputSchema (P79).
func TestPrunerPeers(t *testing.T) {
	isolate(t)
	url := serve(t, block("handle /alone/*", pruner()), gateway("separator __", prunerServer))
	p := prunable{text: unicodeText(200), annotate: true}
	for _, place := range []struct{ name, at, prefix string }{
		{"alone", url + "/alone/mcp", ""}, {"a server of a gateway", mcpAt(url, "pruner"), ""},
		{"joined", joinedAt(url), "pruner__"},
	} {
		for era, version := range map[string]string{"v1": "2025-11-25", "legacy": "2025-11-25", "auto": "2026-07-28",
			"modern": "2026-07-28"} {
			if place.prefix != "" && era != "v1" && era != "auto" {
				continue // the eras of the gateway are tested with its own servers
			}
			t.Run("P79 "+place.name+", TypeScript SDK "+era, func(t *testing.T) {
				call := func(tool, arguments string) peerRequest {
					return peerRequest{"tools/call", json.RawMessage(`{"name":` + quote(place.prefix+tool) + `,"arguments":` +
						arguments + `}`)}
				}
				id := pruneText(t, url+"/alone/rpc", p).PruneID // the store is the same
				saw := askWithSDK(t, place.at, era, call("prune_text", p.arguments()),
					call("recover_text", recoverArguments(id, true, 7, 8)), call("health", `{}`),
					call("recover_text", recoverArguments("prn_nope", true, 1, 1)))
				if saw.Version != version || len(saw.Tools) != 3 || len(saw.Prompts)+len(saw.Resources)+len(saw.Templates) != 0 ||
					len(saw.Requests) != 4 {
					t.Fatalf("P6 got %+v", saw)
				}
				for i, request := range saw.Requests[:3] {
					if request.Error != nil {
						t.Fatalf("request %d: %s", i, request.Error.Message)
					}
				}
				p.check(t, payload[pruned](t, `{"result":`+string(saw.Requests[0].Result)+`}`))
				lines := strings.Split(p.text, "\n")
				same(t, payload[recoveredLines](t, `{"result":`+string(saw.Requests[1].Result)+`}`).Text, "7│ "+lines[6]+"\n8│ "+
					lines[7])
				if failure := saw.Requests[3].Error; failure == nil || !strings.Contains(failure.Message, "prune_id_not_found") {
					t.Errorf("P45 %+v", failure)
				}
			})
		}
	}
	for _, era := range []string{"legacy", "modern"} {
		t.Run("P79 Inspector "+era, func(t *testing.T) {
			small := prunable{text: numbered(100)}
			saw := callWithInspector(t, peerCalls{endpoint: url + "/alone/mcp", era: era,
				calls: []toolCall{{"prune_text", small.arguments()}}})
			if len(saw.Tools) != 3 || saw.Calls[0].Result.IsError {
				t.Fatalf("got %+v", saw)
			}
			var got pruned
			if err := json.Unmarshal([]byte(saw.Calls[0].Result.text()), &got); err != nil {
				t.Fatal(err)
			}
			small.check(t, got)
		})
	}
	t.Run("P79 Go SDK", func(t *testing.T) {
		saw := callWithGo(t, peerCalls{endpoint: url + "/alone/mcp",
			calls: []toolCall{{"prune_text", p.arguments()}, {"health", `{}`}}})
		var got pruned
		if err := json.Unmarshal([]byte(saw.Calls[0].Result.text()), &got); err != nil || len(saw.Tools) != 3 {
			t.Fatalf("%v: %+v", err, saw)
		}
		p.check(t, got)
	})
}

// pruneCommand runs `caddy prune` and returns its standard output, standard error and exit code.
func pruneCommand(t *testing.T, input string, args ...string) (out, messages string, code int) {
	t.Helper()
	cmd := caddy(t, append([]string{"prune"}, args...)...)
	// the command ignores these
	cmd.Env = append(cmd.Env, "KIMI_PRUNING_BACKEND=deepinfra", "DEEPINFRA_ENDPOINT_URL=http://127.0.0.1:1/")
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return stdout.String(), stderr.String(), code
}

func TestPruneCommand(t *testing.T) {
	isolate(t)
	text := withLines(400, "some words in line %d", map[int]string{123: "the fluxcapacitor is here"})
	dir := t.TempDir()
	file := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	goal := []string{"--goal", "where is the fluxcapacitor"}
	statistics := regexp.MustCompile(`^(code|logs|docs): [\d,]+ of 400 lines kept, [\d,]+ → [\d,]+ tokens \(\d+ % ` +
		`saved\), \d+ ms\n$`)
	tests := []struct {
		name, input string
		args        []string
		source      string // the detected source type
	}{
		{"standard input", text, goal, "code"},
		{"standard input by name", text, append(goal, "-"), "code"},
		{"standard input of a type", text, append(goal, "--type", "logs"), "logs"},
		{"a file of code", "", append(goal, file("a.go")), "code"},
		{"a log", "", append(goal, file("a.log")), "logs"},
		{"a document", "", append(goal, file("a.md")), "docs"},
		{"a document with another type", "", append(goal, "--type", "code", file("b.md")), "code"},
		{"a little", text, append(goal, "--ratio", "0.1"), "code"},
		{"many lines kept", text, append(goal, "--min-keep", "350"), "code"},
		{"no markers", text, append(goal, "--no-markers"), "code"},
		{"numbers", text, append(goal, "--numbers"), "code"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, messages, code := pruneCommand(t, tt.input, tt.args...)
			found := statistics.FindStringSubmatch(messages)
			if code != 0 || found == nil || found[1] != tt.source {
				t.Fatalf("exit code %d: %s", code, messages)
			}
			args := strings.Join(tt.args, " ")
			if strings.Contains(out, "prune_id=") || strings.Contains(out, "⟦PRUNÉ: lignes ") == strings.Contains(args,
				"--no-markers") || strings.Contains(out, "123│ the flux") != strings.Contains(args, "--numbers") {
				t.Errorf("%.500s", out)
			}
			removed := 400
			for line := range strings.Lines(out) {
				if !strings.HasPrefix(line, "⟦") {
					removed--
				}
			}
			most := map[string]int{"a little": 40, "many lines kept": 50}[tt.name]
			if most == 0 {
				most = 280 // 0.7 of them
			}
			if removed == 0 || removed > most || !strings.Contains(out, "the fluxcapacitor is here\n") {
				t.Errorf("%d of 400 lines were removed", removed)
			}
		})
	}
	t.Run("empty input", func(t *testing.T) {
		if out, messages, code := pruneCommand(t, "", goal...); code != 0 || out != "" || !strings.Contains(messages,
			"0 of 0 lines kept") {
			t.Errorf("%d %q %q", code, out, messages)
		}
	})
	t.Run("unchanged", func(t *testing.T) {
		odd := "a\r\nb\rc\n\xff\xfe\x00\nd"
		if out, messages, code := pruneCommand(t, odd, append(goal, "--ratio", "0")...); code != 0 || out != odd {
			t.Errorf("%d %q %q", code, out, messages)
		}
	})
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"no goal", nil, "--goal"},
		{"a blank goal", []string{"--goal", " "}, "--goal"},
		{"an unknown type", append(goal, "--type", "yaml"), "yaml"},
		{"a ratio above 1", append(goal, "--ratio", "1.5"), "--ratio"},
		{"a ratio below 0", append(goal, "--ratio=-0.1"), "--ratio"},
		{"a ratio in words", append(goal, "--ratio", "half"), "ratio"},
		{"a ratio that is not a number", append(goal, "--ratio", "NaN"), "--ratio"},
		{"a negative number of lines", append(goal, "--min-keep=-1"), "--min-keep"},
		{"half a line", append(goal, "--min-keep", "1.5"), "min-keep"},
		{"an unknown flag", append(goal, "--lines", "5"), "lines"},
		{"two files", append(goal, "a", "b"), "one file"},
		{"a missing file", append(goal, filepath.Join(dir, "nowhere.go")), "nowhere.go"},
		{"a folder", append(goal, dir), filepath.Base(dir)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, messages, code := pruneCommand(t, text, tt.args...)
			if code == 0 || out != "" || !strings.Contains(messages, tt.want) {
				t.Errorf("exit code %d, printed %.100q, messages %q", code, out, messages)
			}
		})
	}
}
