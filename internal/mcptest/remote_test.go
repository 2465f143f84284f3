package mcptest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// postTo posts a message with headers: names, each followed by its value.
func postTo(t *testing.T, s *httptest.Server, message string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func startRemote(t *testing.T, remote *mcptest.Remote) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(remote)
	t.Cleanup(s.Close)
	t.Cleanup(remote.Close) // before the server waits for its requests
	return s
}

func TestRemoteSessions(t *testing.T) {
	remote := &mcptest.Remote{Name: "far", Legacy: true}
	s := startRemote(t, remote)
	begun, body := postTo(t, s, handshake)
	session := begun.Header.Get("Mcp-Session-Id")
	if begun.StatusCode != 200 || session == "" || !strings.Contains(body, `"protocolVersion":"2025-06-18"`) {
		t.Fatalf("%d %v %s", begun.StatusCode, begun.Header, body)
	}
	for _, tt := range []struct {
		name, message string
		headers       []string
		status        int
		want          string
	}{
		{"a request in the session is served", call("echo", `{}`), []string{"Mcp-Session-Id", session}, 200,
			`"text":"{\"name\":\"echo\",\"arguments\":{}}"`},
		{"a notification is accepted", ready, []string{"Mcp-Session-Id", session}, 202, ""},
		{"a request without a session is refused", call("echo", `{}`), nil, 400, "-32000"},
		{"a request of another session is refused", call("echo", `{}`), []string{"Mcp-Session-Id", "x"}, 404, "-32001"},
		{"a request of another version is refused", call("echo", `{}`), []string{"Mcp-Session-Id", session,
			"Mcp-Protocol-Version", "2025-11-25"}, 400, "-32000"},
		{"a modern request is refused", modernCall("echo"), []string{"Mcp-Protocol-Version", "2026-07-28"}, 400,
			"-32000"},
		{"a tool of RunChild is unknown", call("die", `{}`), []string{"Mcp-Session-Id", session}, 200, "Unknown tool: die"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if res, body := postTo(t, s, tt.message, tt.headers...); res.StatusCode != tt.status ||
				!strings.Contains(body,
					tt.want) {
				t.Errorf("%d %s", res.StatusCode, body)
			}
		})
	}
	remote.Forget()
	if res, body := postTo(t, s, call("echo", `{}`), "Mcp-Session-Id", session); res.StatusCode != 404 {
		t.Errorf("after Forget: %d %s", res.StatusCode, body)
	}
	if seen := remote.Seen("notifications/initialized"); len(seen) != 1 || seen[0].Session != session ||
		seen[0].Body != ready {
		t.Errorf("got %v", seen)
	}
}

func modernCall(tool string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","_meta":{` + modernMeta + `}}}`
}

func TestRemoteChecksHeaders(t *testing.T) {
	s := startRemote(t, &mcptest.Remote{Name: "far", Modern: true})
	headers := func(name string, more ...string) []string {
		return append([]string{"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", name}, more...)
	}
	for _, tt := range []struct {
		name, message string
		headers       []string
		status        int
		want          string
	}{
		{"headers that repeat the body", modernCall("echo"), headers("echo"), 200, `"resultType":"complete"`},
		{"a name in base64", modernCall("echo"), headers("=?base64?ZWNobw==?="), 200, `"resultType":"complete"`},
		{"no version", modernCall("echo"), nil, 400, "header mismatch"},
		{"another name", modernCall("echo"), headers("ask"), 400, "header mismatch: Mcp-Name"},
		{"a header without its argument", modernCall("echo"), headers("echo", "Mcp-Param-Region", "x"), 400,
			"header mismatch: Mcp-Param-Region"},
		{"no capabilities", strings.Replace(modernCall("echo"), `"io.modelcontextprotocol/clientCapabilities":{}`, `"x":1`,
			1), headers("echo"), 400, "-32602"},
		{"an unknown method", strings.Replace(modernCall("echo"), "tools/call", "x", 1), headers("", "Mcp-Method", "x"), 404,
			"-32601"},
		{"a legacy request", handshake, nil, 400, `"supported":["2026-07-28"]`},
		{"responses without the state", strings.Replace(modernCall("ask-all"), `"name"`, `"inputResponses":{},"name"`, 1),
			headers("ask-all"), 200, "requestState is not of this server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if res, body := postTo(t, s, tt.message, tt.headers...); res.StatusCode != tt.status ||
				!strings.Contains(body,
					tt.want) {
				t.Errorf("%d %s", res.StatusCode, body)
			}
		})
	}
}
