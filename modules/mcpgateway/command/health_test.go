package command

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCommandHealth(t *testing.T) {
	tests := []struct {
		name    string
		status  int
		body    string
		want    string
		wantErr string
	}{
		{"a gateway", 200, `[{"name":"a","state":"unhealthy"},{"name":"b","state":"healthy"}]`, "a unhealthy\nb healthy\n",
			""},
		{"a last error", 200,
			`[{"name":"a","state":"unhealthy","last_error":"no\u001b[2J"},{"name":"b","state":"healthy","last_error":"no"}]`,
			"a unhealthy: no\\x1b[2J\nb healthy\n", ""},
		{"no gateway", 200, `[]`, "", "no mcp_gateway is running"},
		{"not the admin API of a gateway", 404, `not found`, "", "HTTP 404"},
		{"not JSON", 200, `hello`, "", "invalid character"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/mcp_gateway/servers" {
					t.Errorf("got request %s %s", r.Method, r.URL.Path)
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			}))
			defer admin.Close()
			var printed strings.Builder
			err := printHealth(&printed, admin.Listener.Addr().String())
			if printed.String() != tt.want {
				t.Errorf("printed %q, want %q", &printed, tt.want)
			}
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
	t.Run("no admin API", func(t *testing.T) {
		admin := httptest.NewServer(nil)
		admin.Close()
		if err := printHealth(io.Discard, admin.Listener.Addr().String()); err == nil {
			t.Error("got no error")
		}
	})
}
