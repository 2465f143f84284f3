package auth

import (
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
)

func init() {
	caddy.RegisterModule(MTLS{})
}

// MTLS knows clients by the certificates of their TLS connections.
//
// It is Caddy that asks for the certificate and verifies it. Tell it whom to trust in
// the site block:
//
//	tls {
//		client_auth {
//			mode       require_and_verify
//			trust_pool file /etc/caddy/clients-ca.pem
//		}
//	}
//
// With verify_if_given in the place of require_and_verify, clients without a certificate
// can get in by another provider. A certificate that Caddy has not verified is refused:
// anybody can make one. So is one that expires while its connection lasts.
//
// The certificate must be of the connection to Caddy itself. If something before it ends
// TLS, there is none.
type MTLS struct {
	// What of the certificate is the client:
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

// mtlsFields are the ways to call the owner of a certificate.
var mtlsFields = map[string]func(*x509.Certificate) (string, error){
	"cn":          certCommonName,
	"dns":         func(c *x509.Certificate) (string, error) { return strings.ToLower(firstName(c.DNSNames)), nil },
	"email":       func(c *x509.Certificate) (string, error) { return firstName(c.EmailAddresses), nil },
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
	if m.Field == "" {
		m.Field = "cn"
	}
	return nil
}

// Validate ensures that the field is one that certificates have.
func (m *MTLS) Validate() error {
	if mtlsFields[m.Field] == nil {
		return fmt.Errorf("field: %q is not %s", m.Field, mtlsFieldNames)
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
		return "", errors.New("the client certificate has not been verified: set client_auth { mode require_and_verify } and a trust_pool in tls")
	}
	leaf := chains[0][0]
	// It was good at the handshake, which may be long ago.
	if now := time.Now(); now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return "", errors.New("the client certificate has expired or is not valid yet")
	}
	identity, err := mtlsFields[m.Field](leaf)
	if err != nil {
		return "", fmt.Errorf("the %s of the client certificate: %w", m.Field, err)
	}
	if identity == "" {
		return "", fmt.Errorf("the client certificate has no %s", m.Field)
	}
	if err := CheckIdentity(identity); err != nil {
		return "", fmt.Errorf("the %s of the client certificate: %w", m.Field, err)
	}
	return identity, nil
}

var oidCommonName = asn1.ObjectIdentifier{2, 5, 4, 3}

// certCommonName refuses a subject with two of them. Others may look at the other one.
func certCommonName(c *x509.Certificate) (string, error) {
	count := 0
	for _, name := range c.Subject.Names {
		if name.Type.Equal(oidCommonName) {
			count++
		}
	}
	if count > 1 {
		return "", errors.New("there are several")
	}
	return c.Subject.CommonName, nil
}

func certURI(c *x509.Certificate) (string, error) {
	if len(c.URIs) == 0 {
		return "", nil
	}
	return c.URIs[0].String(), nil
}

// certSubject has the names in the order of the certificate. That of pkix.Name is its
// own, so that different subjects would read alike.
func certSubject(c *x509.Certificate) (string, error) {
	var names pkix.RDNSequence
	if _, err := asn1.Unmarshal(c.RawSubject, &names); err != nil {
		return "", err
	}
	return names.String(), nil
}

func certFingerprint(c *x509.Certificate) (string, error) {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:]), nil
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

	switch args := d.RemainingArgs(); {
	case len(args) == 0:
	case len(args) > 1:
		return d.ArgErr()
	case mtlsFields[args[0]] == nil:
		return d.Errf("auth mtls: %q is not %s", args[0], mtlsFieldNames)
	default:
		m.Field = args[0]
	}
	if d.NextBlock(0) {
		return d.Errf("auth mtls: it takes no block")
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
