package gateway

import (
	"net/http"
	"slices"
	"testing"
)

// A client of the modern era is known by the headers that say who it is, however they are spelled.
func TestIdentifyingNames(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{
		"X-Tenant-Id", "Authorization", "Cookie", "X-API-KEY", "x_user_id", "My-Org", "X-Jwt", "Client-Cert", "X-Ssl-Client-S-Dn", "X-Forwarded-Groups", "X-MCP-Readonly", // which do
		"Accept", "Content-Length", "User-Agent", "Idempotency-Key", "MCP-SESSION-ID", "Sec-Ch-Ua-Token", "X-Request-Id", "Use-R", "_", "A", // which do not
	} {
		header[name] = []string{"value"}
	}
	want := []string{"Authorization", "Client-Cert", "Cookie", "My-Org", "X-API-KEY", "X-Forwarded-Groups", "X-Jwt", "X-MCP-Readonly", "X-Ssl-Client-S-Dn",
		"X-Tenant-Id", "x_user_id"}
	if got := identifyingNames(header); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
