package auth

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

func init() {
	caddy.RegisterModule(MTLS{})
}

// MTLS identifies clients by the certificates of their TLS connections.
//
// Caddy requests and verifies the certificate. Configure it in the site block:
//
//	tls {
//		client_auth {
//			mode       require_and_verify
//			trust_pool file /etc/caddy/clients-ca.pem
//		}
//	}
//
// With verify_if_given instead of require_and_verify, clients without a certificate can use
// another provider. Certificates that Caddy did not verify are refused, because anyone can
// make one. So are certificates that expire during their connection.
//
// The certificate is that of the connection to Caddy. Behind a proxy that terminates TLS,
// requests have none.
type MTLS struct {
	// Part of the certificate that names the client:
	//
	//	Field       | The client
	//	------------|-----------
	//	cn          | the common name of the subject
	//	dns         | the first DNS name, in lower case
	//	email       | the first email address
	//	uri         | the first URI, such as a SPIFFE id
	//	subject     | the whole subject as RFC 2253 writes it, such as CN=alice,O=Example
	//	fingerprint | the SHA-256 of the certificate, in hex
	//
	// Default: cn
	Field string `json:"field,omitempty"`
}

// mtlsFields holds the fields, each with a function that returns the name of the client in
// a certificate, or "".
var mtlsFields = map[string]func(*x509.Certificate) string{
	"cn":          certCommonName,
	"dns":         func(c *x509.Certificate) string { return strings.ToLower(firstName(c.DNSNames)) },
	"email":       func(c *x509.Certificate) string { return firstName(c.EmailAddresses) },
	"uri":         certURI,
	"subject":     certSubject,
	"fingerprint": certFingerprint,
}

const mtlsFieldNames = "cn, dns, email, uri, subject or fingerprint"

// CaddyModule returns the Caddy module information.
func (MTLS) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_gateway.auth.mtls",
		New: func() caddy.Module { return new(MTLS) },
	}
}

// Provision fills in the default.
func (m *MTLS) Provision(caddy.Context) error {
	m.Field = cmp.Or(m.Field, "cn")
	return nil
}

// Validate ensures that the field exists.
func (m *MTLS) Validate() error {
	if mtlsFields[m.Field] == nil {
		return fmt.Errorf("field: %q must be %s", m.Field, mtlsFieldNames)
	}
	return nil
}

// Authenticate implements Provider.
func (m *MTLS) Authenticate(r *Request) (string, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", nil
	}
	chains := r.TLS.VerifiedChains
	if len(chains) == 0 || len(chains[0]) == 0 {
		return "", errors.New("the client certificate has not been verified: " +
			"set client_auth { mode require_and_verify } and a trust_pool in tls")
	}
	leaf := chains[0][0]
	// The handshake checked this, but the connection may be old.
	if now := time.Now(); now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return "", errors.New("the client certificate has expired or is not valid yet")
	}
	identity := mtlsFields[m.Field](leaf)
	if identity == "" {
		return "", fmt.Errorf("the client certificate has no usable %s", m.Field)
	}
	if err := CheckIdentity(identity); err != nil {
		return "", fmt.Errorf("the %s of the client certificate: %w", m.Field, err)
	}
	return identity, nil
}

var oidCommonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// certCommonName returns the common name. It returns "" if there are several, because other
// software may read another one.
func certCommonName(c *x509.Certificate) string {
	count := 0
	for _, name := range c.Subject.Names {
		if name.Type.Equal(oidCommonName) {
			count++
		}
	}
	if count > 1 {
		return ""
	}
	return c.Subject.CommonName
}

func certURI(c *x509.Certificate) string {
	if len(c.URIs) == 0 {
		return ""
	}
	return c.URIs[0].String()
}

// certSubject returns the names in the order of the certificate. pkix.Name reorders them,
// so that different subjects would be equal.
func certSubject(c *x509.Certificate) string {
	var names pkix.RDNSequence
	if _, err := asn1.Unmarshal(c.RawSubject, &names); err != nil {
		return ""
	}
	return names.String()
}

func certFingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

func firstName(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// BodyNeeded implements Provider.
func (*MTLS) BodyNeeded(*http.Request) int64 { return 0 }

// CredentialHeaders implements Provider. A certificate is not in the headers.
func (*MTLS) CredentialHeaders() []string { return nil }

// UnmarshalCaddyfile sets up the provider from Caddyfile tokens. Syntax:
//
//	auth mtls [cn | dns | email | uri | subject | fingerprint]
func (m *MTLS) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume provider name
	switch d.CountRemainingArgs() {
	case 0:
	case 1:
		if err := setting.Text(&m.Field)(d); err != nil {
			return err
		}
		if err := m.Validate(); err != nil {
			return d.Errf("auth mtls: %w", err)
		}
	default:
		return setting.Expected(d, "auth mtls", "[<field>]")
	}
	if d.NextBlock(0) {
		return d.Errf("auth mtls takes no block")
	}
	return nil
}

// Interface guards
var (
	_ Provider              = (*MTLS)(nil)
	_ caddy.Provisioner     = (*MTLS)(nil)
	_ caddy.Validator       = (*MTLS)(nil)
	_ caddyfile.Unmarshaler = (*MTLS)(nil)
)
