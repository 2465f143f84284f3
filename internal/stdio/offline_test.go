package stdio

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

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
		end := s.logProgress(time.Now(), 1)
		time.Sleep(35 * time.Second)
		end()
		equal(t, "lines in 35 seconds", logs.FilterMessage("MCP server is still starting").Len(), 3)
	})
}
