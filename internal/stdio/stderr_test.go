package stdio

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

func TestCauseLine(t *testing.T) {
	tests := []struct {
		name   string
		stderr string
		want   string
	}{
		{"one line", "Error: API_KEY environment variable is required\n", "Error: API_KEY environment variable is required"},
		{
			"an error with members",
			"Error: getaddrinfo ENOTFOUND api.test\n    at x (y:1)\n  errno: -3008,\n  code: " +
				"'ENOTFOUND',\n" +
				"  syscall: 'getaddrinfo',\n  hostname: 'api.test'\n}\n",
			"Error: getaddrinfo ENOTFOUND api.test",
		},
		{"an error of Node.js", `/app/index.js:3
    throw new Error("API_KEY is required");
    ^

Error: API_KEY is required
    at Object.<anonymous> (/app/index.js:3:11)
    at Module._compile (node:internal/modules/cjs/loader:1554:14)
    at Object..js (node:internal/modules/cjs/loader:1706:10)
    at Module.load (node:internal/modules/cjs/loader:1289:32)
    at node:internal/main/run_main_module:36:49

Node.js v22.14.0
`, "Error: API_KEY is required"},
		{"an error of npm", `npm error code E404
npm error 404 Not Found - GET https://registry.example.com/server-filesytem - Not found
npm error 404
npm error 404  'server-filesytem@*' is not in this registry.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git folder.
npm error A complete log of this run can be found in: /root/.npm/_logs/x-debug-0.log
`, "npm error 404  'server-filesytem@*' is not in this registry."},
		{"an error of npm with an update", `npm error code E404
npm error 404 Not Found - GET https://registry.example.com/x - The requested resource 'x' could not be found
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm notice
npm notice New major version of npm available! 10.9.2 -> 11.6.0
npm notice Changelog: https://example.com/v11.6.0
npm notice To update run: npm install -g npm@11.6.0
npm notice
`, "npm error 404 Not Found - GET https://registry.example.com/x - The requested resource 'x' could not be found"},
		{"an error of Python", `Traceback (most recent call last):
  File "/app/server.py", line 3, in <module>
    raise KeyError("API_KEY")
KeyError: 'API_KEY'
`, "KeyError: 'API_KEY'"},
		{"lines without a cause", "hello\nbye\n", "bye"},
		{"control characters", "\x1b[31mError:\x1b[0m no\x07\x1b]0;title\n", `Error: no\a\x1b]0;title`},
		{"no output", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var kept tail
			for line := range strings.Lines(tt.stderr) {
				kept.add([]byte(strings.TrimRight(line, "\n")))
			}
			equal(t, "line", causeLine(kept.all()), tt.want)
		})
	}
}

func TestTailIsBounded(t *testing.T) {
	var kept tail
	for i := range 1000 {
		kept.add([]byte(strings.Repeat("\x01", 5000) + strconv.Itoa(i)))
		kept.add([]byte("short " + strconv.Itoa(i)))
	}
	size := 0
	for _, line := range kept.all() {
		size += len(line)
	}
	if lines := kept.all(); len(lines) > maxTailLines || size > maxTailBytes || lines[len(lines)-1] != "short 999" {
		t.Errorf("%d lines of %d bytes: %q", len(lines), size, lines)
	}
}

// Operators see what a child wrote to stderr before it ended. Clients do not.
func TestStderrOfAChildThatEnds(t *testing.T) {
	p := newPoolOf(t, []string{"sh", "-c", "echo one >&2; echo Error: no key sk-secret >&2; exit 3"})
	_, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
	if err == nil {
		t.Fatal("got a response")
	}
	const reason = "exited with status 3 during initialize: Error: no key sk-secret"
	contains(t, "error", err.Error(), reason)
	got := p.Status("alpha:1")[0]
	equal(t, "last error", got.LastError, reason)
	equal(t, "stderr", strings.Join(got.Stderr, "|"), "one|Error: no key sk-secret")
	if err := p.Restart(t.Context(), "alpha:1"); err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("Restart: %v", err)
	}
}

// The error of a call during which the child ended has the cause from stderr. The message for the
// client does not.
func TestStderrOfAChildThatDies(t *testing.T) {
	script := `read hello; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}'; ` +
		`read initialized; read call; echo 'panic: out of sk-secret' >&2; exit 7`
	p := newPoolOf(t, []string{"sh", "-c", script})
	_, err := p.client().do(http.MethodPost, toolCall(`1`, "echo", `{}`))
	if err == nil {
		t.Fatal("got a response")
	}
	contains(t, "error", err.Error(), "exited with status 7: panic: out of sk-secret")
	contains(t, "error", err.Error(), jsonrpc.ConnectError("alpha", jsonrpc.CauseEnded).Message)
	p.until("the child has ended", func() bool { return len(p.exited) == 1 })
	p.eventually("the error is recorded", func() bool { return p.Status("alpha:1")[0].LastError != "" })
	equal(t, "stderr", strings.Join(p.Status("alpha:1")[0].Stderr, "|"), "panic: out of sk-secret")
}

func TestLooksOffline(t *testing.T) {
	for line, want := range map[string]bool{
		"npm error code SELF_SIGNED_CERT_IN_CHAIN":                                                         true,
		"npm ERR! code UNABLE_TO_GET_ISSUER_CERT_LOCALLY":                                                  true,
		"npm error request to https://registry.npmjs.org/x failed, reason: getaddrinfo ENOTFOUND registry": true,
		"[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local":                  true,
		"  Caused by: invalid peer certificate: UnknownIssuer":                                             true,
		"npm error 404 Not Found - GET https://registry.npmjs.org/no-such-package":                         false,
		"Error: API_KEY environment variable is required":                                                  false,
	} {
		equal(t, line, looksOffline([]byte(line)), want)
	}
}

// If a child fails to start because it cannot reach the network, the log names variables that it
// may need, once for each failed start.
func TestVariablesForTheNetwork(t *testing.T) {
	const failing, working = `echo 'npm error code SELF_SIGNED_CERT_IN_CHAIN' >&2; echo 'npm error ENOTFOUND' >&2; exit 1`,
		`echo 'npm error ENOTFOUND' >&2; read -r l; echo '{"id":1,"result":{"protocolVersion":"2025-11-25",` +
			`"capabilities":{}}}'; cat >/dev/null`
	tests := []struct {
		name, script string
		withheld     []string
		want         int
	}{
		{"a child without network", failing, []string{"HTTPS_PROXY", "NODE_EXTRA_CA_CERTS"}, 1},
		{"a child with all variables", failing, nil, 0},
		{"a child that starts", working, []string{"HTTPS_PROXY"}, 0},
		{"a child that fails for another reason", "echo 'no key' >&2; exit 1", []string{"HTTPS_PROXY"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPoolOf(t, []string{"sh", "-c", tt.script}, func(c *Config) { c.Withheld = tt.withheld })
			_, _ = p.client().do(http.MethodPost, request(`1`, "initialize", `{}`))
			p.within("Close", p.Close) // returns after all of stderr was read
			logged := p.logs.FilterMessageSnippet("env inherit").All()
			equal(t, "warnings", len(logged), tt.want)
			if tt.want > 0 {
				equal(t, "variables", len(logged[0].ContextMap()["inherit"].([]any)), len(tt.withheld))
			}
		})
	}
}

// The log reports when a start begins, ends and takes long. It does not contain arguments, because
// they may be secrets.
func TestStartsAreLogged(t *testing.T) {
	p := newPool(t, "")
	p.client().call("echo", `{}`)
	begun, up := p.logs.FilterMessage("starting MCP server").All(), p.logs.FilterMessage("MCP server is up").All()
	if len(begun) != 1 || len(up) != 1 {
		t.Fatalf("got %v, %v", begun, up)
	}
	equal[any](t, "arguments", begun[0].ContextMap()["args"], int64(len(p.config.Command)-1))
	equal[any](t, "command", begun[0].ContextMap()["command"], p.config.Command[0])
	equal[any](t, "pid", up[0].ContextMap()["pid"], int64(p.started[0]))
	if _, ok := up[0].ContextMap()["duration"]; !ok {
		t.Error("no duration in the log")
	}
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		pool := NewPool(Config{StartTimeout: time.Minute, Logger: func() *zap.Logger { return zap.New(core) }}, nil)
		defer pool.Close()
		s := newServer(pool, address{host: "alpha:1"}, nil)
		end := (&startAttempt{server: s}).logProgress(time.Now(), 1)
		time.Sleep(35 * time.Second)
		end()
		equal(t, "lines in 35 seconds", logs.FilterMessage("MCP server is still starting").Len(), 3)
	})
}
