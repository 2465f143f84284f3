package integration

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
)

// Unknown paths get a 404 that names the endpoint of the gateway.
func TestGatewayUnknownPaths(t *testing.T) { // A2
	isolate(t)
	const token = "0123456789abcdef0123456789abcdef"
	sample := block("server sample", "mcp_sample")
	first, second := freeAddress(t), freeAddress(t)
	load(t, site(first, gateway("separator __", block("client c", "token "+token), sample), "respond /served next")+
		site(second, block("handle_path /tools/*", gateway("separator __", sample))))
	url, behind := "http://"+first, "http://"+second
	for _, tt := range []struct {
		name, endpoint, method string
		description            string
		mcp                    string // endpoint in the body; empty for OAuth errors
	}{
		{"too deep", url + "/mcp/sample/x", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"a message to a path that is too deep", url + "/mcp/sample/x", "POST", "the MCP endpoint is /mcp", "/mcp"},
		{"the prefix of /rpc endpoints", url + "/api/mcp-gateway", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"an /rpc endpoint without rpc", url + "/api/mcp-gateway/sample", "POST", "the MCP endpoint is /mcp", "/mcp"},
		{"an /rpc endpoint with another suffix", url + "/api/mcp-gateway/sample/other", "POST", "the MCP endpoint is /mcp",
			"/mcp"},
		{"a common health path", url + "/health", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"the old transport", url + "/sse", "GET", "the MCP endpoint is /mcp", "/mcp"},
		{"behind a prefix", behind + "/tools/mcp/sample/x", "GET", "the MCP endpoint is /tools/mcp", "/tools/mcp"},
		{"a login", url + "/.well-known/oauth-protected-resource/mcp", "GET",
			"no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"a login at the root", url + "/.well-known/oauth-authorization-server", "GET",
			"no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"a login below mcp_path", url + "/mcp/.well-known/openid-configuration", "GET",
			"no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"registration", url + "/register", "POST", "no OAuth login: send the header Authorization: Bearer <token>", ""},
		{"a login without tokens", behind + "/tools/register", "POST", "this gateway has no OAuth login", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := send(t, client, tt.method, tt.endpoint, "")
			var body struct {
				Error       string
				Description string `json:"error_description"`
				Endpoints   struct{ MCP string }
			}
			if err := json.Unmarshal([]byte(got.body), &body); err != nil {
				t.Fatalf("%v: %q", err, got.body)
			}
			if got.StatusCode != 404 || got.Header.Get("Content-Type") != "application/json" || body.Error != "not_found" {
				t.Errorf("got %d %v %s", got.StatusCode, got.Header, got.body)
			}
			if !strings.Contains(body.Description, tt.description) || body.Endpoints.MCP != tt.mcp {
				t.Errorf("got %s", got.body)
			}
		})
	}
	if got := send(t, client, "GET", url+"/served", ""); got.StatusCode != 200 || got.body != "next" {
		t.Errorf("path of another handler: %d %s", got.StatusCode, got.body)
	}
	for _, path := range []string{"/mcp/sample", "/mcp/sample/"} {
		if got := post(t, url+path, rpc("tools/list", `{}`), acceptBoth, bearer(token)); !strings.Contains(got.body,
			`"tools"`) {
			t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
		}
	}
	got := send(t, client, "GET", behind+"/tools/mcp", "", "Accept: text/html")
	if gatewayErrorOf(t, got).Status != 405 || !strings.Contains(got.body,
		"this address is for MCP clients, not for browsers") {
		t.Errorf("a browser: %d %s", got.StatusCode, got.body)
	}
}

// The same site can have an authorization server, or the metadata of one.
func TestGatewayLeavesLoginsToOthers(t *testing.T) {
	isolate(t)
	url := serve(t, gateway("separator __", block("server sample", "mcp_sample")), `respond /.well-known/* "{}"`,
		"respond /register 201")
	for path, status := range map[string]int{
		"/.well-known/oauth-protected-resource": 200, "/.well-known/oauth-protected-resource/mcp": 200, "/register": 201,
		"/token": 404,
	} {
		if got := send(t, client, "GET", url+path, ""); got.StatusCode != status {
			t.Errorf("%s: %d %s", path, got.StatusCode, got.body)
		}
	}
}

// Health probes show the state of servers, need no credentials, and do not count as client
// requests.
func TestGatewayReadiness(t *testing.T) {
	isolate(t)
	const token = "0123456789abcdef0123456789abcdef"
	url := serve(t, gateway("separator __", "hosts mcp.test", block("client c", "token "+token),
		child("good"), "server bad stdio /nonexistent/server", block("server extra stdio /nonexistent/server", "optional")))
	health := func(method string) httpResponse { return send(t, client, method, url+"/mcp/health", "") }
	if got := health("GET"); got.StatusCode != 200 || got.body != "{\"status\":\"ready\"}\n" {
		t.Errorf("before any request: %d %s", got.StatusCode, got.body)
	}
	if got := health("HEAD"); got.StatusCode != 200 || got.body != "" {
		t.Errorf("HEAD: %d %s", got.StatusCode, got.body)
	}
	r := request(t, t.Context(), "GET", url+"/mcp/health", "")
	r.Host = "10.0.0.7:8080" // as Kubernetes does
	if res, err := client.Do(r); err != nil || res.StatusCode != 200 {
		t.Errorf("with a pod address: %v %v", res, err)
	}
	metrics := admin(t, "GET", "/metrics", "").body
	if strings.Contains(metrics, "caddy_mcp_requests_total{") {
		t.Errorf("probes count as requests:\n%s", metrics)
	}

	call := func(server string) {
		post(t, rpcAt(url, server), rpc("tools/list", `{}`), bearer(token))
	}
	call("good")
	call("extra")
	if got := health("GET"); got.StatusCode != 200 {
		t.Errorf("with an optional server down: %d %s", got.StatusCode, got.body)
	}
	call("bad")
	got := health("GET")
	if got.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got.body,
		`{"status":"not ready","servers":{"bad":"`) || strings.Contains(got.body, "nonexistent") {
		t.Errorf("with a server down: %d %s", got.StatusCode, got.body)
	}
}
