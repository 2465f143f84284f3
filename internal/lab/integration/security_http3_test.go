package integration

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// HTTP/3 requests are checked like those over TCP. Requests in early data, before the handshake is
// complete, are refused: they can be replayed.
func TestSecurityHTTP3(t *testing.T) {
	isolate(t)
	server := newLenientServer(t, "echo")
	authority := newAuthority(t, "trusted")
	certificate, key := writePEM(t, authority.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "localhost"},
		DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}))
	address := freeAddress(t)
	load(t, block("", "auto_https disable_redirects")+"\n"+
		site(address, "tls "+certificate+" "+key, gateway(twoTokens(), block("client thief", "deny alpha::echo"),
			server.line("alpha"))))
	_, port, _ := net.SplitHostPort(address)
	url := "https://localhost:" + port

	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost",
			ClientSessionCache: tls.NewLRUClientSessionCache(8)},
		QUICConfig: &quic.Config{TokenStore: quic.NewLRUTokenStore(1, 1)},
	}
	t.Cleanup(func() { transport.Close() })
	h3 := &http.Client{Transport: transport, Timeout: patience}
	call := rpc("tools/call", `{`+echoes+`}`)
	if got := sendAllHeaders(t, h3, "POST", mcpAt(url, "alpha"), call, bearer(victimToken)); got.StatusCode != 200 ||
		got.ProtoMajor != 3 {
		t.Fatalf("%s %d %s", got.Proto, got.StatusCode, got.body)
	}
	before := server.Count()
	for _, way := range endpointsOf(url, "alpha") {
		expectRefused(t, sendAllHeaders(t, h3, "POST", way.url, call), 401)
		if f := gatewayErrorOf(t, sendAllHeaders(t, h3, "POST", way.url, call, bearer(victimToken),
			"Origin: https://evil.example")); f.Symbol != "forbidden_origin" {
			t.Errorf("%s: %+v", way.name, f)
		}
		if f := gatewayErrorOf(t, sendAllHeaders(t, h3, "POST", way.url, call, bearer(victimToken),
			"Content-Type: application/json; charset=utf-7")); f.Status != 415 {
			t.Errorf("%s: %+v", way.name, f)
		}
	}
	expectRefused(t, sendAllHeaders(t, h3, "POST", mcpAt(url, "alpha"), call, bearer(thiefToken)), 403)
	if server.Count() != before {
		t.Error("the server received a request")
	}

	// A new connection sends its first request in early data, if possible.
	await.Until(t, "a request in early data", func() bool {
		transport.CloseIdleConnections()
		before := server.Count()
		req := request(t, t.Context(), http3.MethodGet0RTT, mcpAt(url, "alpha"), "", "Accept: text/event-stream",
			bearer(victimToken))
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusTooEarly {
			return false
		}
		text, _ := io.ReadAll(res.Body)
		if !strings.Contains(string(text), `"invalid_request"`) || server.Count() != before {
			t.Errorf("%s; the server received %d requests", text, server.Count()-before)
		}
		return true
	})
}
