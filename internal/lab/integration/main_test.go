// Package integration tests the whole of Caddy with the modules in it: real
// configurations, a real reverse_proxy, real connections, all on loopback.
//
// The Caddy under test runs in the test process, and there is one: a test replaces
// the configuration of the one before, so nothing here may run in parallel.
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
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	caddycore "github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddytest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/loopback"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules"
)

// adminAddress is where caddytest expects the admin API.
var adminAddress string

// patience is how long a test waits for what must happen. Only a failing test
// ever waits that long.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "ds" { // we are a child of the gateway
		os.Exit(mcptest.RunChild(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	flag.Parse()
	if !testing.Verbose() { // Caddy logs there, and what failed would be lost in it
		discard, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		if err != nil {
			log.Fatal(err)
		}
		os.Stderr = discard
	}
	os.Exit(func() int {
		// Caddy saves its configuration and its certificates: not in the home of
		// whoever runs the tests.
		home, err := os.MkdirTemp("", "integration")
		if err != nil {
			log.Fatal(err)
		}
		defer os.RemoveAll(home)
		os.Setenv("XDG_CONFIG_HOME", home)
		os.Setenv("XDG_DATA_HOME", home)
		caddycore.ConfigAutosavePath = filepath.Join(home, "autosave.json") // which was set before
		caddycore.DefaultStorage.Path = home                                // and so was this

		// Its fixed port would be shared with any other caddytest on the machine.
		ports, err := loopback.FreePorts(1)
		if err != nil {
			log.Fatal(err)
		}
		caddytest.Default.AdminPort = ports[0]
		adminAddress = fmt.Sprintf("localhost:%d", caddytest.Default.AdminPort)

		// None of Caddy's own certificates is used here, and caddytest skips every
		// test if it does not find them.
		caddytest.Default.Certificates = nil
		return m.Run()
	}())
}

// load makes Caddy run a Caddyfile, whose admin API becomes that of caddytest.
func load(t *testing.T, caddyfile string) {
	t.Helper()
	boot.Do(func() { caddytest.NewTester(t).InitServer(withAdmin("", adminAddress), "caddyfile") })
	caddyfile = withAdmin(caddyfile, adminAddress)
	if got := admin(t, "POST", "/load", caddyfile, "Content-Type: text/caddyfile"); got.StatusCode != http.StatusOK {
		t.Fatalf("not loaded: %s\n%s", got.body, caddyfile)
	}
	eventually(t, "the listeners of the configuration before to close", replaced)
	client.CloseIdleConnections() // Caddy closes them, maybe just when they are used again
	lasting.CloseIdleConnections()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// replaced reports whether no port has two listeners, as it has for a moment when one
// configuration takes the place of another. Connections that the system has given
// to the old one are lost when it closes.
func replaced() bool {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return true // not Linux
	}
	const address, state, listening = 1, 3, "0A"
	listeners := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > state && fields[state] == listening {
			if listeners[fields[address]] {
				return false
			}
			listeners[fields[address]] = true
		}
	}
	return true
}

var boot sync.Once // Caddy

// admin asks Caddy's admin API. Each configuration has a server of its own for it,
// and while one takes the place of the other, a request may be lost.
func admin(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		res, err := client.Do(request(t, t.Context(), method, "http://"+adminAddress+path, body, headers...))
		if err != nil && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		return answer{res, string(body)}
	}
}

// serve makes Caddy run one site with these directives and returns its URL.
func serve(t *testing.T, directives ...string) string {
	t.Helper()
	address := freeAddress(t)
	load(t, site(address, directives...))
	return "http://" + address
}

// site is the Caddyfile of a site at a loopback address.
func site(address string, directives ...string) string {
	_, port, _ := net.SplitHostPort(address)
	return block(":"+port, append([]string{"bind 127.0.0.1"}, directives...)...) + "\n"
}

// block is anything in a Caddyfile that has lines in braces.
func block(name string, lines ...string) string {
	return strings.TrimSpace(name+" {") + "\n" + strings.Join(lines, "\n") + "\n}"
}

// mask is observation_mask with subdirectives.
func mask(lines ...string) string { return block("observation_mask", lines...) }

// withAdmin puts the address of the admin API into the global options.
func withAdmin(caddyfile, address string) string {
	option := "{\n\tadmin " + address + "\n"
	at := strings.Index("\n"+caddyfile, "\n{\n")
	if at < 0 {
		return option + "}\n" + caddyfile
	}
	return caddyfile[:at] + option + caddyfile[at+len("{\n"):]
}

// freeAddress returns a loopback address that nobody listens on.
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

// upstream serves a handler and returns its address.
func upstream(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections() // else Close waits for streams
		server.Close()
	})
	return server.Listener.Addr().String()
}

// proxy is the directive that forwards to an address.
func proxy(address string) string { return "reverse_proxy " + address }

// client leaves compression to the test.
var client = &http.Client{
	Transport: &http.Transport{DisableCompression: true},
	Timeout:   patience,
}

// answer is a response with its body read.
type answer struct {
	*http.Response
	body string
}

// post sends a JSON-RPC message. Headers are given as "Name: value"; one without
// a value is not sent.
func post(t *testing.T, url, message string, headers ...string) answer {
	t.Helper()
	return send(t, client, "POST", url, message, headers...)
}

func send(t *testing.T, client *http.Client, method, url, message string, headers ...string) answer {
	t.Helper()
	res := open(t, client, method, url, message, headers...)
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("read response: %v", err)
	}
	return answer{res, string(body)}
}

// open sends a message and leaves the response to be read. The test's end cancels
// the request.
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
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = strings.Contains(url, adminAddress) // a reload closes kept connections
	req.Header.Set("Content-Type", "application/json")
	for _, header := range headers {
		if name, value, _ := strings.Cut(header, ": "); value != "" {
			req.Header.Set(name, value)
		}
	}
	return req
}

// rpc is the JSON-RPC request with id 1.
func rpc(method, params string) string {
	return `{"jsonrpc":"2.0","id":1,"method":` + quote(method) + `,"params":` + params + `}`
}

// result is the JSON-RPC response to it.
func result(value string) string {
	return `{"jsonrpc":"2.0","id":1,"result":` + value + `}`
}

// raw asks the stub for a response with this body. More parameters of the stub's
// raw are given as JSON members: `"chunked":true`.
func raw(body string, members ...string) string {
	return rpc("raw", "{"+strings.Join(append(members, `"body":`+quote(body)), ",")+"}")
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return string(b)
}

// cut is what masking leaves of s repeated n times, as it stands between quotes
// in JSON; s must be one character there, spelled in any way.
func cut(s string, n, head, tail int) string {
	return strings.Repeat(s, head) + marker(n, head, tail, "") + strings.Repeat(s, tail)
}

// marker is the contract's marker in JSON, with a handle if there is one.
func marker(original, head, tail int, handle string) string {
	if handle != "" {
		handle = " id=" + handle
	}
	return fmt.Sprintf(`\n... [KIMI_PROXY_OBSERVATION_MASKED original_chars=%d head=%d tail=%d%s] ...\n`, original, head, tail, handle)
}

// same fails the test with an excerpt around the first difference.
func same(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	excerpt := func(s string) string { return s[max(0, at-80):min(len(s), at+160)] }
	t.Errorf("differs at byte %d of %d\n got …%q…\nwant …%q…", at, len(got), excerpt(got), excerpt(want))
}
