package oauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// An endpointError is an error response of the token endpoint.
type endpointError struct {
	host        string
	status      int
	code        string // such as invalid_grant
	description string
}

func (e *endpointError) Error() string {
	text := fmt.Sprintf("%s: status %d", e.host, e.status)
	if e.code != "" {
		text += ": " + e.code
	}
	if e.description != "" {
		text += ": " + e.description
	}
	return text
}

// hasCode reports whether err is an error response with this code.
func hasCode(err error, code string) bool {
	var answer *endpointError
	return errors.As(err, &answer) && answer.code == code
}

// isUnknownClient reports whether err means that the credentials of the client are wrong.
func isUnknownClient(err error) bool {
	return hasCode(err, "invalid_client") || hasCode(err, "unauthorized_client")
}

// isFinal reports whether err is a response that stays the same if the request is repeated.
func isFinal(err error) bool {
	var answer *endpointError
	if !errors.As(err, &answer) || answer.status >= 500 || answer.status == http.StatusTooManyRequests {
		return false
	}
	switch answer.code {
	case "", "temporarily_unavailable", "server_error", "slow_down":
		return false
	}
	return true
}

// requestToken sends a grant to the token endpoint. It goes on if ctx is canceled, because the
// response may be the only copy of a rotated refresh token.
func (s *Server) requestToken(
	ctx context.Context, metadata *serverMetadata, c client, params url.Values,
) (_ *oauth2.Token, err error) {
	if grant := params.Get("grant_type"); s.config.OnToken != nil && grant != "" { // a revocation has none
		defer func() { s.config.OnToken(grant, err) }()
	}
	endpoint, err := s.guard.parse(metadata.TokenEndpoint)
	if err != nil {
		return nil, err
	}
	config := clientcredentials.Config{
		ClientID: c.ID, TokenURL: metadata.TokenEndpoint, EndpointParams: params, AuthStyle: oauth2.AuthStyleInParams,
	}
	switch c.Method {
	case methodBasic:
		config.ClientSecret, config.AuthStyle = c.Secret, oauth2.AuthStyleInHeader
	case methodPost:
		config.ClientSecret = c.Secret
	case methodJWT:
		assertion, err := s.assertion(metadata.Issuer, c.ID)
		if err != nil {
			return nil, fmt.Errorf("private_key: %w", err)
		}
		params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		params.Set("client_assertion", assertion)
	}
	token, err := config.Token(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, s.guard.client))
	if err != nil {
		s.dropMetadata(metadata.Issuer) // the endpoint may have moved
		err = tokenError(endpoint.Host, err, c.Secret, params)
		if isUnknownClient(err) {
			err = errors.Join(err, s.forgetClient(ctx, c))
		}
		return nil, err
	}
	if !strings.EqualFold(token.TokenType, "Bearer") {
		return nil, fmt.Errorf("%s: token_type is %q, not Bearer", endpoint.Host, printable(token.TokenType))
	}
	if strings.ContainsFunc(token.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("%s: access_token has characters that cannot be sent", endpoint.Host)
	}
	return token, nil
}

// errNoToken reports that a successful response has no token.
var errNoToken = errors.New("the response has no token")

// tokenError returns an error of the token endpoint without secrets, which some servers repeat.
func tokenError(host string, err error, secret string, params url.Values) error {
	var refused *oauth2.RetrieveError
	var failed *url.Error
	switch {
	case errors.As(err, &failed):
		return hideURL(host, failed)
	case !errors.As(err, &refused):
		return fmt.Errorf("%s: %w", host, errNoToken)
	}
	var pairs []string
	for _, value := range []string{
		secret, params.Get("code"), params.Get("code_verifier"), params.Get("refresh_token"),
		params.Get("subject_token"), params.Get("client_assertion"), params.Get("token"),
	} {
		if value != "" {
			pairs = append(pairs, value, "…")
		}
	}
	scrub := strings.NewReplacer(pairs...)
	return &endpointError{
		host:        host,
		status:      refused.Response.StatusCode,
		code:        printable(scrub.Replace(refused.ErrorCode)),
		description: printable(scrub.Replace(refused.ErrorDescription)),
	}
}

// assertion returns a JWT that authenticates a client (RFC 7523).
func (s *Server) assertion(issuer, id string) (string, error) {
	var algorithm jose.SignatureAlgorithm
	switch key := s.config.PrivateKey.(type) {
	case *rsa.PrivateKey:
		algorithm = jose.RS256
	case ed25519.PrivateKey:
		algorithm = jose.EdDSA
	case *ecdsa.PrivateKey:
		if key.Curve == elliptic.P256() {
			algorithm = jose.ES256
		}
	}
	if algorithm == "" {
		return "", errors.New("the key is not RSA, ECDSA P-256 or Ed25519")
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: s.config.PrivateKey},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: id, Subject: id, Audience: jwt.Audience{issuer}, ID: rand.Text(),
		IssuedAt: jwt.NewNumericDate(s.now()), Expiry: jwt.NewNumericDate(s.now().Add(5 * time.Minute)),
	}).Serialize()
}

// revoke revokes the tokens of a login (RFC 7009), if the authorization server supports that.
func (s *Server) revoke(ctx context.Context, l login) error {
	metadata, err := s.issuerMetadata(ctx, l.Issuer)
	if err != nil || metadata.RevocationEndpoint == "" {
		return err
	}
	c, err := s.knownClient(ctx, metadata, l.ClientID, l.RedirectURL)
	if err != nil {
		return err
	}
	params := url.Values{"grant_type": nil, "token": {l.AccessToken}, "token_type_hint": {"access_token"}}
	if l.RefreshToken != "" {
		params = url.Values{"grant_type": nil, "token": {l.RefreshToken}, "token_type_hint": {"refresh_token"}}
	}
	revocation := *metadata
	revocation.TokenEndpoint = metadata.RevocationEndpoint
	if _, err := s.requestToken(ctx, &revocation, c, params); !errors.Is(err, errNoToken) {
		return err
	}
	return nil
}
