package integration

import (
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A server's failure is reported to operators in detail, logged once, and reported to clients only
// by its class.
func TestOperateFailures(t *testing.T) {
	isolate(t)
	wrong := "http://" + upstream(t, http.HandlerFunc(wrongServer))
	unused := freeAddress(t)
	served := run(t, writeCaddyfile(t, block(":8080", "bind 127.0.0.1", gateway("separator __", "join_timeout 5s",
		sampleServer,
		"server refused http://"+unused+"/mcp?key=sk-query",
		"server locked "+wrong+"/locked",
		"server page "+wrong+"/page",
		"server pathless "+wrong,
		"server missing stdio no-such-command",
		`server quits stdio sh -c "echo Error: no sk-stderr >&2; exit 3"`,
	))))
	url := "http://" + served.address
	servers := map[string]struct{ reason, cause string }{
		"refused": {"connect: connection refused", "refused (connection refused)"},
		"locked":  {"HTTP 401 from " + wrong + "/locked", "locked (HTTP status 401)"},
		"page":    {"not an MCP server: HTTP 200 text/html from " + wrong + "/page", "page (not an MCP server)"},
		"pathless": {"not an MCP server: HTTP 404 text/plain from " + wrong + "/rpc; set the path in the URL, usually /mcp",
			"pathless (HTTP status 404)"},
		"missing": {`exec: "no-such-command": executable file not found in $PATH`, "missing (not started)"},
		"quits":   {"exited with status 3 during initialize: Error: no sk-stderr", "quits (exited during the handshake)"},
	}

	c := newTestClient(t, joinedAt(url), false, `{}`)
	if tools := toolNames(t, c); !slices.Contains(tools, "sample__echo") {
		t.Errorf("tools: %q", tools)
	}
	initialized := post(t, joinedAt(url), rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
		`"clientInfo":{"name":"a","version":"1"}}`), acceptBoth).body
	for name, want := range servers {
		if !strings.Contains(initialized, want.cause) {
			t.Errorf("%s: instructions are in %s", name, initialized)
		}
		answer := c.ask(t, "tools/call", `{"name":"`+name+`__any","arguments":{}}`).answer.Raw
		if !strings.Contains(answer, `"server_name":"`+name+`"`) || strings.Contains(answer, "sk-") {
			t.Errorf("%s: a call got %s", name, answer)
		}
	}
	if strings.Contains(initialized, "sk-") {
		t.Errorf("a secret is in %s", initialized)
	}

	admin := served.addresses[":2019"]
	printed, err := caddy(t, "mcp-health", "--address", admin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	all, err := exec.CommandContext(t.Context(), "curl", "-s", admin+"/mcp_gateway/servers").Output()
	if err != nil {
		t.Fatal(err)
	}
	restarted, err := exec.CommandContext(t.Context(), "curl", "-s", "-X", "POST",
		admin+"/mcp_gateway/servers/quits/restart").Output()
	if err != nil || !strings.Contains(string(restarted), servers["quits"].reason) {
		t.Errorf("a restart got %s (%v)", restarted, err)
	}
	for name, want := range servers {
		if !strings.Contains(string(printed), name+" unhealthy: ") || !strings.Contains(string(printed), want.reason) {
			t.Errorf("mcp-health prints %s", printed)
		}
	}
	if !strings.Contains(string(all), `"stderr":["Error: no sk-stderr"]`) || strings.Contains(string(all), "sk-query") {
		t.Errorf("the admin API returned %s", all)
	}

	log := served.stop(t)
	for name := range servers {
		lines := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, `"mcp_server":"`+name+`"`) && strings.Contains(line,
				`"logger":"http.handlers.mcp_gateway"`) {
				lines++
			}
		}
		if lines != 1 {
			t.Errorf("%s: %d lines in the log:\n%s", name, lines, log)
		}
	}
	for _, message := range []string{"MCP server joined", `"tools":4`} {
		if !strings.Contains(log, message) {
			t.Errorf("the log lacks %s", message)
		}
	}
	if strings.Contains(log, "aborting with incomplete response") {
		t.Error("the log has warnings of reverse_proxy")
	}
	if strings.Contains(log, "sk-query") {
		t.Error("the log contains the query of a server's URL")
	}
}
