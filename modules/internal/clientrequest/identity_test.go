package clientrequest

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

func TestIdentity(t *testing.T) {
	tests := []struct {
		name                string
		client, user, wants string
	}{
		{"not authenticated", "", "", ""},
		{"authenticated by Caddy", "", "alice", "alice"},
		{"authenticated by the gateway", "tenant", "alice", "tenant"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repl := caddy.NewReplacer()
			repl.Set("http.mcp.client", tt.client)
			repl.Set("http.auth.user.id", tt.user)
			r := httptest.NewRequest("GET", "/", nil)
			r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
			if got := Identity(r); got != tt.wants {
				t.Errorf("got %q, want %q", got, tt.wants)
			}
		})
	}
	if got := Identity(httptest.NewRequest("GET", "/", nil)); got != "" {
		t.Errorf("without a replacer: got %q", got)
	}
}
