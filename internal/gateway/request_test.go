package gateway

import (
	"net/http"
	"slices"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A modern client is identified by certain headers, in any spelling.
func TestIdentifyingNames(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{
		// identifying
		"X-Tenant-Id", "Authorization", "Cookie", "X-API-KEY", "x_user_id", "My-Org", "X-Jwt", "Client-Cert",
		"X-Ssl-Client-S-Dn", "X-Forwarded-Groups", "X-MCP-Readonly",
		// not identifying
		"Accept", "Content-Length", "User-Agent", "Idempotency-Key", "MCP-SESSION-ID", "Sec-Ch-Ua-Token", "X-Request-Id",
		"Use-R", "_", "A",
	} {
		header[name] = []string{"value"}
	}
	want := []string{"Authorization", "Client-Cert", "Cookie", "My-Org", "X-API-KEY", "X-Forwarded-Groups", "X-Jwt",
		"X-MCP-Readonly", "X-Ssl-Client-S-Dn",
		"X-Tenant-Id", "x_user_id"}
	if got := upstream.HeaderNames(nil, header, upstream.IsIdentifying); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A server may choose its tools by any header that does not differ in each request.
func TestHeadersThatMayChooseTools(t *testing.T) {
	header := http.Header{}
	for _, name := range []string{
		"Authorization", "X-Plan", "User-Agent", "Accept-Language", "X-Forwarded-For",
		"Accept", "Content-Type", "Content-Length", "Mcp-Session-Id", "Mcp-Protocol-Version", "Last-Event-Id",
		"Sec-Fetch-Mode",
		"Traceparent", "X-Request-Id", "X-B3-Spanid",
	} {
		header.Set(name, "value")
	}
	want := []string{"Accept-Language", "Authorization", "User-Agent", "X-Forwarded-For", "X-Plan"}
	if got := upstream.HeaderNames(nil, header, upstream.MayVaryLists); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The fingerprint depends on the headers, but not on their order.
func TestFingerprint(t *testing.T) {
	fingerprintOf := func(identity, address string, header http.Header) uint64 {
		q := &inbound.Request{HTTP: &http.Request{Header: header}, Caller: access.Caller{Identity: identity},
			Peer: inbound.Peer{Address: address}}
		return (&aggregateRequest{Request: q}).fingerprint()
	}
	began := fingerprintOf("ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}})
	for name, test := range map[string]struct {
		identity, address string
		header            http.Header
		same              bool
	}{
		"no change":       {"ann", "192.0.2.1", http.Header{"X-B": {"3"}, "X-A": {"1", "2"}}, true},
		"another address": {"ann", "192.0.2.2", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}}, true},
		"a header of one request": {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}, "Accept": {"*/*"}},
			true},
		"unidentified":                {"", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}}, false},
		"an added header":             {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"3"}, "X-C": {""}}, false},
		"a missing header":            {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}}, false},
		"another value":               {"ann", "192.0.2.1", http.Header{"X-A": {"1", "2"}, "X-B": {"4"}}, false},
		"values in another order":     {"ann", "192.0.2.1", http.Header{"X-A": {"2", "1"}, "X-B": {"3"}}, false},
		"values of different headers": {"ann", "192.0.2.1", http.Header{"X-A": {"3", "2"}, "X-B": {"1"}}, false},
	} {
		if got := fingerprintOf(test.identity, test.address, test.header); (got == began) != test.same {
			t.Errorf("%s: same = %v, want %v", name, got == began, test.same)
		}
	}
	if fingerprintOf("", "192.0.2.1", nil) == fingerprintOf("", "192.0.2.2", nil) {
		t.Error("unidentified clients of two addresses have the same fingerprint")
	}
}
