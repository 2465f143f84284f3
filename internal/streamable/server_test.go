package streamable

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

func TestReadBody(t *testing.T) {
	const limit = 10
	tests := []struct {
		name   string
		body   io.Reader
		change func(*http.Request)
		status int
	}{
		{"a body of the limit", strings.NewReader(strings.Repeat("x", limit)), nil, 0},
		{"no body", http.NoBody, nil, 0},
		{"a Content-Length that is too large", strings.NewReader(strings.Repeat("x", limit+1)), nil,
			http.StatusRequestEntityTooLarge},
		{"a body that is too large", strings.NewReader(strings.Repeat("x", limit+1)),
			func(r *http.Request) { r.ContentLength = -1 }, http.StatusRequestEntityTooLarge},
		{"a body that an earlier handler limits", strings.NewReader("xxxxx"),
			func(r *http.Request) { r.Body = http.MaxBytesReader(nil, r.Body, 3) }, http.StatusRequestEntityTooLarge},
		{"a compressed body", strings.NewReader("x"), func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") },
			http.StatusUnsupportedMediaType},
		{"an aborted body", io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrUnexpectedEOF)), nil,
			http.StatusBadRequest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodPost, "/mcp", tt.body)
			if tt.change != nil {
				tt.change(r)
			}
			_, failure := ReadBody(r, limit)
			if got := statusOf(failure); got != tt.status {
				t.Errorf("got status %d, want %d", got, tt.status)
			}
		})
	}
}

// statusOf returns the status of a failure, or 0 for none.
func statusOf(failure *jsonrpc.Failure) int {
	if failure == nil {
		return 0
	}
	return failure.Status
}

func TestInspect(t *testing.T) {
	const (
		call = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
		meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
			`"io.modelcontextprotocol/clientCapabilities":{}}`
		fresh = `{"jsonrpc":"2.0","id":1,"method":"ping","params":{` + meta + `}}`
	)
	modern := map[string]string{"Mcp-Protocol-Version": mcp.Stateless, "Mcp-Method": "ping"}
	tests := []struct {
		name, method, body string
		header             map[string]string
		want               Request
		status             int
		allow              string
	}{
		{name: "a call", body: call, want: Request{Session: "s"}},
		{name: "initialize", body: `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, want: Request{Kind: Initialize}},
		{name: "an initialize without an id", body: `{"jsonrpc":"2.0","method":"initialize"}`,
			want: Request{Kind: Notification, Session: "s"}},
		{name: "a notification", body: `{"jsonrpc":"2.0","method":"n"}`, want: Request{Kind: Notification, Session: "s"}},
		{name: "an answer", body: `{"jsonrpc":"2.0","id":1,"result":{}}`, want: Request{Kind: Answer, Session: "s"}},
		{name: "an error", body: `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}`, want: Request{Kind: Answer,
			Session: "s"}},
		{name: "another version of JSON-RPC", body: `{"id":1,"method":"ping"}`, want: Request{Session: "s"}, status: 400},
		{name: "a modern call", body: fresh, header: modern, want: Request{Era: mcp.Modern}},
		{name: "a modern call without its headers", body: fresh, want: Request{Era: mcp.Modern}, status: 400},
		{name: "a legacy call with a modern header", body: call, header: modern, want: Request{Era: mcp.Modern}, status: 400},
		{name: "a modern notification", body: `{"jsonrpc":"2.0","method":"n"}`,
			header: map[string]string{"Mcp-Protocol-Version": mcp.Stateless}, want: Request{Kind: Notification,
				Era: mcp.Modern}},
		{name: "GET", method: http.MethodGet, want: Request{Kind: Listen, Session: "s"}},
		{name: "DELETE", method: http.MethodDelete, header: map[string]string{"Mcp-Protocol-Version": "2025-11-25"},
			want: Request{Kind: End, Session: "s"}},
		{name: "a modern GET", method: http.MethodGet, header: modern, want: Request{Kind: Listen, Session: "s"}, status: 405,
			allow: "POST"},
		{name: "a modern DELETE", method: http.MethodDelete, header: modern, want: Request{Kind: End, Session: "s"},
			status: 405, allow: "POST"},
		{name: "PUT", method: http.MethodPut, want: Request{Session: "s"}, status: 405, allow: "POST, GET, DELETE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.method == "" {
				tt.method = http.MethodPost
			}
			r := httptest.NewRequest(tt.method, "/mcp", nil)
			r.Header.Set("Mcp-Session-Id", "s")
			for name, value := range tt.header {
				r.Header.Set(name, value)
			}
			var m jsonrpc.Message
			if tt.body != "" {
				if failure := m.ReadRequest([]byte(tt.body)); failure != nil {
					t.Fatal(failure)
				}
			}
			got, failure := Inspect(r, &m)
			if got != tt.want || statusOf(failure) != tt.status {
				t.Errorf("got %+v, %+v, want %+v, status %d", got, failure, tt.want, tt.status)
			}
			if failure != nil && failure.Allow != tt.allow {
				t.Errorf("Allow: got %q, want %q", failure.Allow, tt.allow)
			}
		})
	}
}

func TestCheckVersion(t *testing.T) {
	for version, status := range map[string]int{mcp.Stateless: 0, "2027-01-01": http.StatusBadRequest,
		"": http.StatusBadRequest} {
		var m jsonrpc.Message
		if failure := m.Read([]byte(`{"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version +
			`"}}}`)); failure != nil {
			t.Fatal(failure)
		}
		if got := statusOf(CheckVersion(&m)); got != status {
			t.Errorf("%q: got status %d, want %d", version, got, status)
		}
	}
}
