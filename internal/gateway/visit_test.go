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
	if got := headerNames(nil, header, isIdentifying); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A server may choose tools by a header of any name, but not by those that differ in each request.
func TestHeadersThatServersMayChooseBy(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{
		"Authorization", "X-Plan", "User-Agent", "Accept-Language", "X-Forwarded-For",
		"Accept", "Content-Type", "Content-Length", "Mcp-Session-Id", "Mcp-Protocol-Version", "Last-Event-Id", "Sec-Fetch-Mode",
		"Traceparent", "X-Request-Id", "X-B3-Spanid",
	} {
		header.Set(name, "value")
	}
	want := []string{"Accept-Language", "Authorization", "User-Agent", "X-Forwarded-For", "X-Plan"}
	if got := headerNames(nil, header, mayChoose); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
