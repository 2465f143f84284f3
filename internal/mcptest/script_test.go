package mcptest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

func startScript(t *testing.T, script *mcptest.Script) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(script)
	t.Cleanup(func() {
		s.CloseClientConnections() // otherwise Close waits for streams
		s.Close()
	})
	return s
}

func TestScriptAnswers(t *testing.T) {
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	modern := []string{"Mcp-Protocol-Version", "2026-07-28"}
	for _, tt := range []struct {
		name    string
		script  *mcptest.Script
		message string
		headers []string
		status  int
		want    string
	}{
		{"a call returns its params", &mcptest.Script{}, call("echo", `{}`), nil, 200,
			`"text":"{\"name\":\"echo\",\"arguments\":{}}"`},
		{"a notification is accepted", &mcptest.Script{}, ready, nil, 202, ""},
		{"an unknown method gets an error", &mcptest.Script{}, strings.Replace(list, "tools/list", "x", 1), nil, 200,
			"-32601"},
		{"tools are names or descriptors", &mcptest.Script{Tools: []string{"a", `{"name":"b"}`}}, list, nil, 200,
			`{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"b"}]}`},
		{"a reply by method", &mcptest.Script{Replies: map[string]string{"tools/list": `"result":1.0`}}, list, nil, 200,
			`{"jsonrpc":"2.0","id":1,"result":1.0}`},
		{"a reply by tool", &mcptest.Script{Replies: map[string]string{"echo": mcptest.Text("x"),
			"tools/call": `"result":{}`}}, call("echo", `{}`), nil, 200, `"text":"x"`},
		{"events", &mcptest.Script{Events: true}, list, nil, 200, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,"},
		{"messages before the response", &mcptest.Script{Before: []string{`{"method":"x"}`}}, call("echo", `{}`), nil, 200,
			"data: {\"method\":\"x\"}\n\nevent: message\ndata: {\"jsonrpc\""},
		{"a legacy handshake", &mcptest.Script{Capabilities: `{"tools":{}}`}, handshake, nil, 200,
			`"protocolVersion":"2025-11-25","capabilities":{"tools":{}}`},
		{"a modern result", &mcptest.Script{}, modernCall("echo"), modern, 200, `"resultType":"complete"`},
		{"no discovery for a legacy server", &mcptest.Script{Legacy: true}, strings.Replace(list, "tools/list",
			"server/discover", 1), nil, 200, "-32601"},
		{"no session", &mcptest.Script{Sessions: true}, list, nil, 400, ""},
		{"an unknown session", &mcptest.Script{Sessions: true}, list, []string{"Mcp-Session-Id", "x"}, 404, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startScript(t, tt.script)
			if res, body := postTo(t, s, tt.message, tt.headers...); res.StatusCode != tt.status ||
				!strings.Contains(body,
					tt.want) {
				t.Errorf("got %d %s, want %d with %q", res.StatusCode, body, tt.status, tt.want)
			}
			if got := tt.script.Received(); len(got) != 1 || got[0].Body != tt.message {
				t.Errorf("received %v, want the message", got)
			}
		})
	}
}

func TestScriptLegacyIgnoresModernHeaders(t *testing.T) {
	s := startScript(t, &mcptest.Script{Legacy: true})
	if _, body := postTo(t, s, modernCall("echo"), "Mcp-Protocol-Version", "2026-07-28"); !strings.Contains(
		body,
		`"result":{"content"`,
	) {
		t.Errorf("got %s, want a legacy result", body)
	}
}

func TestScriptSession(t *testing.T) {
	script := &mcptest.Script{Sessions: true}
	s := startScript(t, script)
	begun, _ := postTo(t, s, handshake)
	session := begun.Header.Get("Mcp-Session-Id")
	if res, body := postTo(t, s, call("echo", `{}`), "Mcp-Session-Id", session); session == "" || res.StatusCode != 200 {
		t.Fatalf("in session %q: got %d %s, want 200", session, res.StatusCode, body)
	}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Mcp-Session-Id", session)
	stream, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	await.Until(t, "the stream", func() bool { return script.Listeners() == 1 })
	const message = `{"jsonrpc":"2.0","method":"x"}`
	script.Say(message)
	want := "event: message\ndata: " + message + "\n\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(stream.Body, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	stream.Body.Close()
	await.Until(t, "the end of the stream", func() bool { return script.Listeners() == 0 })

	script.Forget()
	if res, body := postTo(t, s, call("echo", `{}`), "Mcp-Session-Id", session); res.StatusCode != 404 {
		t.Errorf("after Forget: got %d %s, want 404", res.StatusCode, body)
	}
	if n := script.Count("tools/call"); n != 2 {
		t.Errorf("received %d calls, want 2", n)
	}
}

func TestScriptSessionless(t *testing.T) {
	s := startScript(t, &mcptest.Script{Sessionless: true})
	if res, body := postTo(t, s, handshake); res.StatusCode != 200 || res.Header.Get("Mcp-Session-Id") != "" {
		t.Errorf("got %d %v %s, want no session", res.StatusCode, res.Header, body)
	}
	res, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: got %d, want 405", res.StatusCode)
	}
}

func TestScriptHandle(t *testing.T) {
	s := startScript(t, &mcptest.Script{Handle: func(w http.ResponseWriter, r *mcptest.Received) bool {
		if r.Tool() != "teapot" {
			return false
		}
		w.WriteHeader(http.StatusTeapot)
		r.Answer(w, `"result":`+r.Param("arguments"))
		return true
	}})
	if res, body := postTo(t, s, call("teapot", `{"a":1.0}`)); res.StatusCode != 418 ||
		body != `{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}` {
		t.Errorf("got %d %s, want the handler's response", res.StatusCode, body)
	}
	if res, body := postTo(t, s, call("echo", `{}`)); res.StatusCode != 200 || !strings.Contains(body, `"content"`) {
		t.Errorf("got %d %s, want the server's response", res.StatusCode, body)
	}
}
