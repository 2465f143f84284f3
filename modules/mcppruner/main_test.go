package mcppruner_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcppruner/backends"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// load loads a handler from its JSON configuration. The returned function unloads it; otherwise it
// is unloaded when the test ends.
func load(t testing.TB, config string) (*mcppruner.Handler, context.CancelFunc) {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	module, err := ctx.LoadModuleByID("http.handlers.mcp_pruner", []byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return module.(*mcppruner.Handler), cancel
}

// refusal returns the error of a configuration, or "".
func refusal(t *testing.T, config string) string {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	defer cancel()
	if _, err := ctx.LoadModuleByID("http.handlers.mcp_pruner", []byte(config)); err != nil {
		return err.Error()
	}
	return ""
}

// nextBody is the body of the next handler's response.
const nextBody = "next"

// serve returns a handler's response to a request of a client.
func serve(t testing.TB, h *mcppruner.Handler, client string, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	repl := caddy.NewReplacer()
	if client != "" {
		repl.Set("http.auth.user.id", client)
	}
	r = caddyhttp.PrepareRequest(r, repl, w, new(caddyhttp.Server))
	next := caddyhttp.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) error {
		_, err := w.Write([]byte(nextBody))
		return err
	})
	if err := h.ServeHTTP(w, r, next); err != nil {
		t.Fatal(err)
	}
	return w
}

// An answer is a JSON-RPC response.
type answer struct {
	Status int
	ID     json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
}

func (a *answer) code() int {
	if a.Error == nil {
		return 0
	}
	return a.Error.Code
}

// post returns a handler's response to a message of an anonymous client.
func post(t testing.TB, h *mcppruner.Handler, path, message string, header ...string) answer {
	t.Helper()
	return postAs(t, h, "", path, message, header...)
}

func postAs(t testing.TB, h *mcppruner.Handler, client, path, message string, header ...string) answer {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(message))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := serve(t, h, client, r)
	a := answer{Status: w.Code}
	if w.Body.Len() == 0 {
		return a
	}
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%v: %.300s", err, w.Body)
	}
	if (a.Error == nil) == (a.Result == nil) {
		t.Fatalf("want either a result or an error: %.300s", w.Body)
	}
	return a
}

// callTool calls a tool and returns the response.
func callTool(t testing.TB, h *mcppruner.Handler, client, tool, arguments string) answer {
	t.Helper()
	return postAs(t, h, client, "/rpc", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+tool+
		`","arguments":`+arguments+`}}`)
}

// decodeResult decodes a tool result. Its text must be equal to its structured content (P12, P79).
func decodeResult(t testing.TB, a answer, into any) {
	t.Helper()
	var result struct {
		Content           []struct{ Type, Text string }
		StructuredContent json.RawMessage
		IsError           bool
	}
	if a.Error != nil {
		t.Fatalf("error %d %s", a.Error.Code, a.Error.Message)
	}
	if err := json.Unmarshal(a.Result, &result); err != nil {
		t.Fatal(err)
	}
	if len(result.Content) != 1 || result.Content[0].Type != "text" ||
		result.Content[0].Text != string(result.StructuredContent) || result.IsError {
		t.Fatalf("got %.500s", a.Result)
	}
	if err := json.Unmarshal([]byte(result.Content[0].Text), into); err != nil {
		t.Fatal(err)
	}
}

// A pruneResult is a result of prune_text.
type pruneResult struct {
	PruneID     string           `json:"prune_id"`
	PrunedText  string           `json:"pruned_text"`
	Annotations []map[string]any `json:"annotations"`
	Stats       map[string]any   `json:"stats"`
	Warnings    []string         `json:"warnings"`
}

// prune prunes a text as docs, at most half of it.
func prune(t testing.TB, h *mcppruner.Handler, client, text, goal string) (p pruneResult) {
	t.Helper()
	decodeResult(t, callTool(t, h, client, "prune_text", arguments(text, goal)), &p)
	if p.Annotations == nil || p.Warnings == nil {
		t.Fatalf("P18: annotations or warnings missing: %+v", p)
	}
	return p
}

func arguments(text, goal string) string {
	return fmt.Sprintf(`{"text":%s,"goal_hint":%s,"source_type":"docs","options":{"max_prune_ratio":0.5,`+
		`"min_keep_lines":3,"timeout_ms":60000,"annotate_lines":false,"include_markers":true}}`,
		quoted(text), quoted(goal))
}

func quoted(s string) string {
	literal, _ := json.Marshal(s)
	return string(literal)
}

// lines returns a text of n lines that are all equally relevant.
func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "some more words that stand in the line %d\n", i+1)
	}
	return b.String()
}
