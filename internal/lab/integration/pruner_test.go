package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
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
