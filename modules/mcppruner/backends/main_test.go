package backends

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/goleak"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

const key = "sk_hunter2"

// setEnv sets the variables of DeepInfra, and clears those not given.
func setEnv(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, name := range []string{"DEEPINFRA_API_KEY", "DEEPINFRA_ENDPOINT_URL", "DEEPINFRA_TIMEOUT_MS",
		"DEEPINFRA_MAX_DOCS"} {
		t.Setenv(name, variables[name])
	}
}

// load loads a backend as mcp_pruner does. logs is the file with its log.
func load[T any](t *testing.T, config string) (backend *T, logs string, err error) {
	t.Helper()
	logs = filepath.Join(t.TempDir(), "log")
	writer := caddyconfig.JSON(map[string]any{"output": "file", "filename": logs, "roll": false}, nil)
	ctx, err := caddy.ProvisionContext(&caddy.Config{Logging: &caddy.Logging{Logs: map[string]*caddy.CustomLog{
		"default": {BaseLog: caddy.BaseLog{WriterRaw: writer, Level: "DEBUG"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := caddy.NewContext(ctx)
	t.Cleanup(cancel)
	var raw json.RawMessage
	if config != "" {
		raw = json.RawMessage(config)
	}
	module := any(new(T)).(caddy.Module).CaddyModule()
	loaded, err := ctx.LoadModuleByID(string(module.ID), raw)
	if err != nil {
		return nil, logs, err
	}
	return loaded.(*T), logs, nil
}

func contents(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func serve(t *testing.T) (reranker *mcptest.Reranker, url string) {
	t.Helper()
	reranker = new(mcptest.Reranker)
	server := httptest.NewServer(reranker)
	t.Cleanup(server.Close)
	return reranker, server.URL
}

func numbered(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("ligne %d", i+1)
	}
	return lines
}

func TestCleanupClosesConnections(t *testing.T) {
	closed := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(new(mcptest.Reranker))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	backend, _, err := load[Rerank](t, fmt.Sprintf(`{"url":%q}`, server.URL+"/cohere"))
	if err != nil {
		t.Fatal(err)
	}
	if _, fault := backend.Score(t.Context(), "goal", []string{"a"}); fault != nil {
		t.Fatal(fault.Err)
	}
	if err := backend.Cleanup(); err != nil {
		t.Fatal(err)
	}
	<-closed
}
