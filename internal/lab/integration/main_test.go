// Package integration tests the built Caddy: real configurations, a real
// reverse_proxy, real connections, all on loopback. Each test runs Caddy in a process of
// its own, so tests run in parallel. Go begins with the tests of the last file: the test of
// web_console_test.go takes longest.
package integration

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules"
)

// patience is how long a test waits for something that must happen.
const patience = await.Patience

func TestMain(m *testing.M) {
	flag.Parse()
	const tests = 8 // run at least this many in parallel: tests mostly wait
	if runtime.GOMAXPROCS(0) < tests {
		if err := flag.Set("test.parallel", strconv.Itoa(tests)); err != nil {
			log.Fatal(err)
		}
	}
	os.Exit(m.Run())
}

// serve starts Caddy with one site that has these directives, and returns its URL.
func serve(t *testing.T, directives ...string) string {
	t.Helper()
	address := freeAddress(t)
	load(t, site(address, directives...))
	return "http://" + address
}

// site returns the Caddyfile of a site at a loopback address.
func site(address string, directives ...string) string {
	_, port, _ := net.SplitHostPort(address)
	return block(":"+port, append([]string{"bind 127.0.0.1"}, directives...)...) + "\n"
}

// block returns a Caddyfile block. An empty name gives the global options.
func block(name string, lines ...string) string {
	return strings.TrimSpace(name+" {") + "\n" + strings.Join(lines, "\n") + "\n}"
}

// mask returns an observation_mask directive with subdirectives.
func mask(lines ...string) string { return block("observation_mask", lines...) }

// withAdmin sets the address of the admin API in the global options.
func withAdmin(caddyfile, address string) string { return withOptions(caddyfile, "admin "+address) }

// withOptions adds lines to the global options.
func withOptions(caddyfile string, lines ...string) string {
	options := "{\n\t" + strings.Join(lines, "\n\t") + "\n"
	start := strings.Index("\n"+caddyfile, "\n{\n")
	if start < 0 {
		return options + "}\n" + caddyfile
	}
	return caddyfile[:start] + options + caddyfile[start+len("{\n"):]
}

// freeAddress returns a loopback address with a free port.
func freeAddress(t *testing.T) string {
	t.Helper()
	ports, err := loopback.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0])
}

func listen(t *testing.T) *net.TCPListener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// upstream serves a handler on loopback and returns its address.
func upstream(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections() // or Close would wait for streams
		server.Close()
	})
	return server.Listener.Addr().String()
}

// A remoteServer is an MCP server over HTTP whose responses the test defines.
type remoteServer struct {
	*mcptest.Script
	address string
}

// newRemoteServer starts a legacy server with these tools. It requires sessions.
func newRemoteServer(t *testing.T, tools ...string) *remoteServer {
	t.Helper()
	return serveScript(t, &mcptest.Script{Sessions: true, Legacy: true, Capabilities: `{"tools":{"listChanged":true}}`,
		Tools: tools})
}

// newLenientServer starts a server with these tools that supports both eras. It accepts
// requests without a session, so it answers at every endpoint of a gateway.
func newLenientServer(t *testing.T, tools ...string) *remoteServer {
	t.Helper()
	return serveScript(t, &mcptest.Script{Tools: tools})
}

func serveScript(t *testing.T, script *mcptest.Script) *remoteServer {
	t.Helper()
	return &remoteServer{script, upstream(t, script)}
}

// line returns the server directive for the gateway's configuration.
func (s *remoteServer) line(name string) string {
	return "server " + name + " http://" + s.address + "/mcp"
}

// params returns the params of all received requests with this method.
func (s *remoteServer) params(method string) (all []string) {
	for _, r := range s.Received(method) {
		all = append(all, string(r.Params))
	}
	return all
}

// proxy returns a reverse_proxy directive to an address.
func proxy(address string) string { return "reverse_proxy " + address }

// client does not compress or decompress: tests handle Content-Encoding themselves.
var client = &http.Client{
	Transport: &http.Transport{DisableCompression: true},
	Timeout:   patience,
}

// An httpResponse is a response with its body already read.
type httpResponse struct {
	*http.Response
	body string
}

// post sends a JSON-RPC message. Headers have the form "Name: value"; a header without
// a value is not sent.
func post(t *testing.T, url, message string, headers ...string) httpResponse {
	t.Helper()
	return send(t, client, "POST", url, message, headers...)
}

func send(t *testing.T, client *http.Client, method, url, message string, headers ...string) httpResponse {
	t.Helper()
	res := open(t, client, method, url, message, headers...)
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	return httpResponse{res, string(body)}
}

// open sends a message and returns the response with its body unread. The request is
// cancelled when the test ends.
func open(t *testing.T, client *http.Client, method, url, message string, headers ...string) *http.Response {
	t.Helper()
	res, err := client.Do(request(t, t.Context(), method, url, message, headers...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

func request(t *testing.T, ctx context.Context, method, url, message string, headers ...string) *http.Request {
	t.Helper()
	req, err := mcpclient.NewRequest(ctx, method, url, message, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// rpc returns a JSON-RPC request with id 1.
func rpc(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":` + quote(method) + `,"params":` + params + `}`
}

// result returns a JSON-RPC response with id 1.
func result(value string) string {
	return `{"jsonrpc":"2.0","id":1,"result":` + value + `}`
}

// raw returns a request that makes the stub respond with this body. Members are further
// parameters of the stub's raw method, as JSON: `"chunked":true`.
func raw(body string, members ...string) string {
	return rpc("raw", "{"+strings.Join(append(members, `"body":`+quote(body)), ",")+"}")
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // marshaling a string never fails
	}
	return string(b)
}

// cut returns a string of n times s after masking, JSON-encoded without quotes. s is one
// character in any JSON spelling.
func cut(s string, n, head, tail int) string {
	return strings.Repeat(s, head) + marker(n, head, tail, "") + strings.Repeat(s, tail)
}

// hint is the text after a marker with a handle.
const hint = " To see more, call recover_observation with this id and a goal."

// marker returns the marker of O3 in JSON, with a handle if that is not empty (O23).
func marker(original, head, tail int, handle string) string {
	end := "]"
	if handle != "" {
		end = " id=" + handle + "]" + hint
	}
	return fmt.Sprintf(`\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=%d tail=%d%s ...\n`, original, head,
		tail, end)
}

// same fails the test with an excerpt around the first difference.
func same(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	excerpt := func(s string) string { return s[max(0, i-80):min(len(s), i+160)] }
	t.Errorf("differs at byte %d of %d\n got …%q…\nwant …%q…", i, len(got), excerpt(got), excerpt(want))
}
