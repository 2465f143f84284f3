package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// mtlsAuthority signs certificates.
type mtlsAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newMTLSAuthority(t *testing.T) *mtlsAuthority {
	t.Helper()
	a := &mtlsAuthority{key: newMTLSKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = parseMTLSCert(t, template, template, a.key, a.key)
	return a
}

func newMTLSKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func parseMTLSCert(t *testing.T, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// issue returns a client certificate. By default it has been valid for an hour, and will be for
// another.
func (a *mtlsAuthority) issue(t *testing.T, template x509.Certificate) *tls.Certificate {
	t.Helper()
	template.SerialNumber = big.NewInt(2)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	key := newMTLSKey(t)
	parent, signer := a.cert, a.key
	if parent == nil { // self-signed
		parent, signer = &template, key
	}
	leaf := parseMTLSCert(t, &template, parent, key, signer)
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

// mtlsServer serves TLS as Caddy does, and responds with the identity of the client.
type mtlsServer struct {
	*httptest.Server
	resumed bool
}

func newMTLSServer(
	t *testing.T, provider Provider, ca *mtlsAuthority, mode tls.ClientAuthType, now func() time.Time,
) *mtlsServer {
	t.Helper()
	s := new(mtlsServer)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.resumed = r.TLS.DidResume
		identity, err := provider.Authenticate(&Request{Request: r})
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, identity)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	s.TLS = &tls.Config{ClientAuth: mode, ClientCAs: pool, Time: now}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// mtlsAsk returns the status and body of a response, or the TLS error.
func mtlsAsk(t *testing.T, server *mtlsServer, config *tls.Config) (status int, text string) {
	t.Helper()
	config.RootCAs = x509.NewCertPool()
	config.RootCAs.AddCert(server.Certificate())
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A provider that trusts headers would find another client.
	r.Header.Set("X-Forwarded-Client-Cert", `Subject="CN=root"`)
	r.Header.Set("X-Client-Cert-Cn", "root")
	resp, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(body))
}

func mtlsConfig(cert *tls.Certificate) *tls.Config {
	return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if cert == nil {
			return new(tls.Certificate), nil
		}
		return cert, nil // even if the server does not trust the signer
	}}
}

func mtlsURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// mtlsAlice returns a certificate with all fields that can name a client.
func mtlsAlice(t *testing.T) x509.Certificate {
	return x509.Certificate{
		Subject:        pkix.Name{CommonName: "alice", Organization: []string{"Example, Inc"}},
		DNSNames:       []string{"Alice.example.com", "other.example.com"},
		EmailAddresses: []string{"alice@example.com", "other@example.com"},
		URIs:           []*url.URL{mtlsURL(t, "spiffe://example.com/alice"), mtlsURL(t, "spiffe://example.com/other")},
	}
}

func TestCertificates(t *testing.T) { // A78
	ca := newMTLSAuthority(t)
	alice := ca.issue(t, mtlsAlice(t))
	sum := sha256.Sum256(alice.Certificate[0])
	tests := []struct {
		name, config string
		mode         tls.ClientAuthType
		cert         *tls.Certificate
		want         string
	}{
		{"the common name is the default", `{}`, tls.RequireAndVerifyClientCert, alice, "alice"},
		{"the common name", `{"field":"cn"}`, tls.RequireAndVerifyClientCert, alice, "alice"},
		{"the first DNS name", `{"field":"dns"}`, tls.RequireAndVerifyClientCert, alice, "alice.example.com"},
		{"the first email address", `{"field":"email"}`, tls.RequireAndVerifyClientCert, alice, "alice@example.com"},
		{"the first URI", `{"field":"uri"}`, tls.RequireAndVerifyClientCert, alice, "spiffe://example.com/alice"},
		{"the subject", `{"field":"subject"}`, tls.RequireAndVerifyClientCert, alice, `CN=alice,O=Example\, Inc`},
		{"the fingerprint", `{"field":"fingerprint"}`, tls.RequireAndVerifyClientCert, alice, hex.EncodeToString(sum[:])},
		{"an optional certificate", `{}`, tls.VerifyClientCertIfGiven, alice, "alice"},
		{"no identity without a certificate", `{}`, tls.VerifyClientCertIfGiven, nil, ""},
		{"no identity without a certificate that is only requested", `{}`, tls.RequestClientCert, nil, ""},
		{"no identity if the server does not request a certificate", `{}`, tls.NoClientCert, alice, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			provider, _ := mustOpenGuest(t, "mtls", tt.config)
			status, got := mtlsAsk(t, newMTLSServer(t, provider, ca, tt.mode, nil), mtlsConfig(tt.cert))
			if status != 200 || got != tt.want {
				t.Errorf("got %d %s, want %s", status, got, tt.want)
			}
		})
	}
	t.Run("no identity without TLS", func(t *testing.T) {
		provider, _ := mustOpenGuest(t, "mtls", `{}`)
		if got, err := provider.Authenticate(tokenRequest("")); got != "" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		if got := provider.CredentialHeaders(); got != nil {
			t.Errorf("credential headers %s, want none", got)
		}
	})
}

func TestWrongCertificates(t *testing.T) { // A78
	ca, other := newMTLSAuthority(t), newMTLSAuthority(t)
	hour := time.Hour
	named := func(name string) x509.Certificate { return x509.Certificate{Subject: pkix.Name{CommonName: name}} }
	with := func(c x509.Certificate, change func(*x509.Certificate)) x509.Certificate {
		change(&c)
		return c
	}
	expired := with(named("alice"),
		func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(-3*hour), time.Now().Add(-hour) })
	early := with(named("alice"),
		func(c *x509.Certificate) { c.NotBefore = time.Now().Add(hour); c.NotAfter = time.Now().Add(3 * hour) })
	twoNames := x509.Certificate{Subject: pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
		{Type: oidCommonName, Value: "alice"}, {Type: oidCommonName, Value: "root"},
	}}}
	email := x509.Certificate{EmailAddresses: []string{"alice@example.com"}} // without a subject
	const verify = tls.RequireAndVerifyClientCert
	tests := []struct {
		name, field string
		mode        tls.ClientAuthType
		signer      *mtlsAuthority // nil for self-signed
		cert        x509.Certificate
		clock       time.Duration // offset of the clock during the handshake
		want        string
	}{
		{"self-signed, and only requested", "cn", tls.RequestClientCert, nil, named("alice"), 0,
			"mode require_and_verify"},
		{"self-signed, and only required", "cn", tls.RequireAnyClientCert, nil, named("alice"), 0,
			"mode require_and_verify"},
		{"signed by another CA, and only required", "cn", tls.RequireAnyClientCert, other, named("alice"), 0,
			"mode require_and_verify"},
		{"signed by the right CA, but not verified", "cn", tls.RequireAnyClientCert, ca, named("alice"), 0,
			"mode require_and_verify"},
		{"the fingerprint of an unverified certificate", "fingerprint", tls.RequestClientCert, ca, named("alice"), 0,
			"mode require_and_verify"},
		{"self-signed", "cn", verify, nil, named("alice"), 0, "tls: "},
		{"signed by another CA", "cn", verify, other, named("alice"), 0, "tls: "},
		{"signed by another CA, if given", "cn", tls.VerifyClientCertIfGiven, other, named("alice"), 0, "tls: "},
		{"a server certificate", "cn", verify, ca,
			with(named("alice"), func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
			0, "tls: "},
		{"expired", "cn", verify, ca, expired, 0, "tls: "},
		{"expired, and not verified", "cn", tls.RequireAnyClientCert, ca, expired, 0, "mode require_and_verify"},
		{"expired since the handshake", "cn", verify, ca, expired, -2 * hour, "the client certificate has expired"},
		{"expired since the handshake, with the field fingerprint", "fingerprint", verify, ca, expired, -2 * hour,
			"the client certificate has expired"},
		{"not valid yet", "cn", verify, ca, early, 0, "tls: "},
		{"not valid yet since the clock was set back", "cn", verify, ca, early, 2 * hour, "not valid yet"},
		{"without a common name", "cn", verify, ca, x509.Certificate{Subject: pkix.Name{Organization: []string{"alice"}}}, 0,
			"has no usable cn"},
		{"with two common names", "cn", verify, ca, twoNames, 0, "has no usable cn"},
		{"without a DNS name", "dns", verify, ca, named("alice.example.com"), 0, "has no usable dns"},
		{"without an email address", "email", verify, ca, named("alice@example.com"), 0, "has no usable email"},
		{"without a URI", "uri", verify, ca, named("spiffe://example.com/alice"), 0, "has no usable uri"},
		{"without a subject", "subject", verify, ca, email, 0, "has no usable subject"},
		{"a newline in the name", "cn", verify, ca, named("alice\nroot"), 0, "control characters"},
		{"a NUL in the name", "cn", verify, ca, named("root\x00.example.com"), 0, "control characters"},
		{"a newline in the subject", "subject", verify, ca, named("alice\nroot"), 0, "control characters"},
		{"a name that is too long", "cn", verify, ca, named(strings.Repeat("a", 257)), 0, "longer than 256"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			provider, _ := mustOpenGuest(t, "mtls", fmt.Sprintf(`{"field":%q}`, tt.field))
			signer := tt.signer
			if signer == nil {
				signer = new(mtlsAuthority)
			}
			server := newMTLSServer(t, provider, ca, tt.mode, func() time.Time { return time.Now().Add(tt.clock) })
			config := mtlsConfig(signer.issue(t, tt.cert))
			status, got := mtlsAsk(t, server, config)
			if status == 200 || !strings.Contains(got, tt.want) {
				t.Errorf("got %d %s, want … %s …", status, got, tt.want)
			}
		})
	}
}

func TestResumedSessionsHaveTheirCertificate(t *testing.T) { // A78
	ca := newMTLSAuthority(t)
	provider, _ := mustOpenGuest(t, "mtls", `{}`)
	server := newMTLSServer(t, provider, ca, tls.RequireAndVerifyClientCert, nil)
	config := mtlsConfig(ca.issue(t, mtlsAlice(t)))
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for _, resumed := range []bool{false, true} {
		if status, got := mtlsAsk(t, server, config); status != 200 || got != "alice" || server.resumed != resumed {
			t.Errorf("got %d %s, resumed %t, want %t", status, got, server.resumed, resumed)
		}
	}
}

func TestSubjectsKeepTheirOrder(t *testing.T) { // A78
	ca := newMTLSAuthority(t)
	provider, _ := mustOpenGuest(t, "mtls", `{"field":"subject"}`)
	server := newMTLSServer(t, provider, ca, tls.RequireAndVerifyClientCert, nil)
	name := func(id int, value string) pkix.RelativeDistinguishedNameSET {
		return pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 5, 4, id}, Value: value}}
	}
	const commonName, organization = 3, 10
	for want, names := range map[string]pkix.RDNSequence{
		"CN=alice,O=Example": {name(organization, "Example"), name(commonName, "alice")},
		"O=Example,CN=alice": {name(commonName, "alice"), name(organization, "Example")},
	} {
		raw, err := asn1.Marshal(names)
		if err != nil {
			t.Fatal(err)
		}
		if status, got := mtlsAsk(t, server, mtlsConfig(ca.issue(t, x509.Certificate{RawSubject: raw}))); status != 200 ||
			got != want {
			t.Errorf("got %d %s, want %s", status, got, want)
		}
	}
}

func TestMTLSCaddyfile(t *testing.T) { // A78
	tests := []struct{ name, input, want, err string }{
		{"no field", "mtls", `{}`, ""},
		{"a field", "mtls fingerprint", `{"field":"fingerprint"}`, ""},
		{"an empty field", `mtls ""`, "", "is empty"},
		{"two fields", "mtls cn dns", "", `expected "auth mtls [<field>]"`},
		{"a block", "mtls {\n cn\n}", "", "takes no block"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m MTLS
			err := m.UnmarshalCaddyfile(caddyfile.NewTestDispenser(tt.input))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want … %s …", err, tt.err)
				}
				return
			}
			if config, _ := json.Marshal(m); err != nil || string(config) != tt.want {
				t.Errorf("got %s, %v, want %s", config, err, tt.want)
			}
		})
	}
	t.Run("an unknown field in JSON", func(t *testing.T) {
		if _, _, err := openGuest(t, "mtls", `{"field":"CN"}`); err == nil ||
			!strings.Contains(err.Error(), `field: "CN" must be cn`) {
			t.Errorf("got %v", err)
		}
	})
}
