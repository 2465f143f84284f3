package mcpgateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// BenchmarkServeHTTP calls a tool at the endpoints of a gateway: through reverse_proxy, and through
// a handler without a network, which shows the allocations of the gateway. "none" has no gateway.
func BenchmarkServeHTTP(b *testing.B) {
	b.Setenv("BENCH_TOKEN", "a-token-that-is-long-enough")
	const (
		legacy = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":{"path":"/etc/hosts"}}}`
		modern = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":{"path":"/etc/hosts"},` +
			`"_meta":{` +
			`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench",` +
			`"version":"1"},` +
			`"io.modelcontextprotocol/clientCapabilities":{}}}}`
		guarded = `"auth":[{"provider":"token","tokens":[{"token":"{env.BENCH_TOKEN}","client":"ann"}]}],` +
			`"clients":[{"name":"ann","rules":[{"action":"allow","patterns":["files::*"]}]}],"rates":[{"requests":1000000000,` +
			`"per":"1s"}],`
	)
	upstream := httptest.NewServer(http.HandlerFunc(serveTool))
	defer upstream.Close()
	for _, bench := range []struct{ name, path, tool, message, config string }{
		{name: "none", path: "/mcp/files", tool: "read", message: legacy},
		{name: "server", path: "/mcp/files", tool: "read", message: legacy,
			config: `"servers":[{"name":"files","mask":{"max_chars":0},`},
		{name: "server masked", path: "/mcp/files", tool: "read", message: legacy,
			config: `"servers":[{"name":"files","mask":{},`},
		{name: "rpc", path: "/api/mcp-gateway/files/rpc", tool: "read", message: legacy,
			config: `"servers":[{"name":"files","mask":{"max_chars":0},`},
		{name: "all", path: "/mcp", tool: "files::read", message: legacy, config: `"servers":[{"name":"files",`},
		{name: "all guarded", path: "/mcp", tool: "files::read", message: legacy,
			config: guarded + `"servers":[{"name":"files",`},
		{name: "all audited", path: "/mcp", tool: "files::read", message: legacy,
			config: `"audit":"all","servers":[{"name":"files",`},
		{name: "all modern", path: "/mcp", tool: "files::read", message: modern, config: `"servers":[{"name":"files",`},
	} {
		message := fmt.Sprintf(bench.message, bench.tool)
		for _, over := range []struct{ name, handler string }{
			{"handler", `{"handler":"bench_tool"}`},
			{"reverse_proxy", `{"handler":"reverse_proxy","upstreams":[{"dial":"` + upstream.Listener.Addr().String() + `"}]}`},
		} {
			b.Run(bench.name+"/"+over.name, func(b *testing.B) {
				config := over.handler
				if bench.config != "" {
					config = `{"handler":"mcp_gateway",` + bench.config + `"routes":[{"handle":[` + over.handler + `]}]}]}`
				}
				c := benchClient{handler: provision(b, config), path: bench.path}
				if bench.path == "/mcp" && bench.message == legacy {
					c.session = c.post(b, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",`+
						`"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`).header.Get(mcp.SessionHeader)
				}
				c.modern = bench.message == modern
				c.post(b, message)
				b.ReportAllocs()
				for b.Loop() {
					if w := c.post(b, message); w.size < 1000 {
						b.Fatal(w.size)
					}
				}
			})
		}
	}
}

// A benchClient sends messages to a handler.
type benchClient struct {
	handler       caddyhttp.MiddlewareHandler
	path, session string
	modern        bool
}

func (c *benchClient) post(b *testing.B, message string) *discard {
	w := &discard{header: http.Header{}}
	r, _ := http.NewRequest(http.MethodPost, "http://localhost"+c.path, strings.NewReader(message))
	r.Header = http.Header{
		"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"}, "User-Agent": {"bench"},
		"Authorization": {"Bearer a-token-that-is-long-enough"}, mcp.VersionHeader: {"2025-11-25"},
	}
	if c.session != "" {
		r.Header[mcp.SessionHeader] = []string{c.session}
	}
	if c.modern {
		r.Header[mcp.VersionHeader] = []string{"2026-07-28"}
		r.Header["Mcp-Method"], r.Header["Mcp-Name"] = []string{"tools/call"}, []string{"files::read"}
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, "127.0.0.1")
	r.RemoteAddr = "127.0.0.1:1234"
	if err := c.handler.ServeHTTP(w, r, nil); err != nil {
		b.Fatal(err)
	}
	return w
}

func init() { caddy.RegisterModule(benchTool{}) }

// benchTool is a handler that acts as a server with one tool.
type benchTool struct{}

// CaddyModule implements caddy.Module.
func (benchTool) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bench_tool", New: func() caddy.Module { return new(benchTool) }}
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (benchTool) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	serveTool(w, r)
	return nil
}

var toolResult = `{"content":[{"type":"text","text":"` + strings.Repeat("x", 1000) + `"}]}`

var toolAnswer = []byte(`{"jsonrpc":"2.0","id":1,"result":` + toolResult + `}`)

// serveTool responds as a server of the client's era.
func serveTool(w http.ResponseWriter, r *http.Request) {
	var buffer [1 << 10]byte
	n, _ := io.ReadFull(r.Body, buffer[:])
	w.Header()["Content-Type"] = []string{"application/json"}
	if strings.Contains(string(buffer[:n]), `"tools/call"`) {
		_, _ = w.Write(toolAnswer)
		return
	}
	var asked struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.Unmarshal(buffer[:n], &asked)
	results := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"bench",` +
			`"version":"1"}}`,
		"server/discover": `{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{}},` +
			`"serverInfo":{"name":"bench","version":"1"},"resultType":"complete"}`,
		"tools/list": `{"tools":[{"name":"read","inputSchema":{"type":"object"}}]}`,
	}
	if asked.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, asked.ID, results[asked.Method])
}

// provision returns the handler of a configuration, ready to serve.
func provision(t testing.TB, config string) caddyhttp.MiddlewareHandler {
	t.Helper()
	ctx, err := caddy.ProvisionContext(new(caddy.Config))
	if err != nil {
		t.Fatal(err)
	}
	var id struct{ Handler string }
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(config), &id); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(config), &fields)
	delete(fields, "handler")
	raw, _ := json.Marshal(fields)
	module, err := ctx.LoadModuleByID(fmt.Sprintf("http.handlers.%s", id.Handler), raw)
	if err != nil {
		t.Fatal(err)
	}
	return module.(caddyhttp.MiddlewareHandler)
}

// discard is a response writer that counts bytes.
type discard struct {
	header http.Header
	size   int
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(int)     {}
func (d *discard) Write(p []byte) (int, error) {
	d.size += len(p)
	return len(p), nil
}
