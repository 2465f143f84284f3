package oauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// An answerError is an error that the token endpoint has answered with.
type answerError struct {
	host        string
	status      int
	code        string // such as invalid_grant
	description string
}

func (e *answerError) Error() string {
	text := fmt.Sprintf("%s: status %d", e.host, e.status)
	if e.code != "" {
		text += ": " + e.code
	}
	if e.description != "" {
		text += ": " + e.description
	}
	return text
}

// answered reports whether err is an answer with one of these codes.
func answered(err error, codes ...string) bool {
	var answer *answerError
	if !errors.As(err, &answer) {
		return false
	}
	for _, code := range codes {
		if answer.code == code {
			return true
		}
	}
	return false
}

// final reports whether err is an answer that stays the same when the request is repeated.
func final(err error) bool {
	var answer *answerError
	return errors.As(err, &answer) && answer.status < 500 && answer.status != http.StatusTooManyRequests &&
		!answered(err, "temporarily_unavailable", "server_error", "slow_down")
}

// ask sends a grant to the token endpoint. It goes on if the caller has gone: the answer
// may be the only copy of a rotated refresh token.
func (s *Server) ask(ctx context.Context, metadata *serverMetadata, c client, params url.Values) (*oauth2.Token, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	config := clientcredentials.Config{ClientID: c.ID, TokenURL: metadata.TokenEndpoint, EndpointParams: params, AuthStyle: oauth2.AuthStyleInParams}
	switch c.Method {
	case methodBasic:
		config.ClientSecret, config.AuthStyle = c.Secret, oauth2.AuthStyleInHeader
	case methodPost:
		config.ClientSecret = c.Secret
	case methodJWT:
		assertion, err := s.assertion(metadata.Issuer, c.ID)
		if err != nil {
			return nil, err
		}
		params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		params.Set("client_assertion", assertion)
	}
	endpoint, err := s.guard.parse(metadata.TokenEndpoint)
	if err != nil {
		return nil, err
	}
	token, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, s.guard.client))
	if err != nil {
		return nil, tokenError(endpoint.Host, err, c.Secret, params)
	}
	if !strings.EqualFold(token.TokenType, "Bearer") {
		return nil, fmt.Errorf("%s: token_type is %q, not Bearer", endpoint.Host, printable(token.TokenType))
	}
	return token, nil
}

// tokenError returns an error of the token endpoint without secrets in it, which some
// servers repeat.
func tokenError(host string, err error, secret string, params url.Values) error {
	var refused *oauth2.RetrieveError
	if !errors.As(err, &refused) {
		var failed *url.Error
		if errors.As(err, &failed) {
			return fmt.Errorf("%s: %w", host, plain(failed.Err))
		}
		return fmt.Errorf("%s: the answer has no token", host)
	}
	var pairs []string
	for _, name := range []string{"code", "code_verifier", "refresh_token", "subject_token", "client_assertion"} {
		if value := params.Get(name); value != "" {
			pairs = append(pairs, value, "…")
		}
	}
	if secret != "" {
		pairs = append(pairs, secret, "…")
	}
	scrub := strings.NewReplacer(pairs...)
	return &answerError{
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
		return "", errors.New("private_key: not RSA, ECDSA P-256 or Ed25519")
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: s.config.PrivateKey}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return "", fmt.Errorf("private_key: %w", err)
	}
	now := s.now()
	claims, err := json.Marshal(map[string]any{
		"iss": id, "sub": id, "aud": issuer, "jti": rand.Text(),
		"iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(),
	})
	if err != nil {
		return "", err
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		return "", fmt.Errorf("private_key: %w", err)
	}
	return signed.CompactSerialize()
}

// revoke revokes the tokens of a login (RFC 7009).
func (s *Server) revoke(ctx context.Context, l login) error {
	metadata, err := s.issuerMetadata(ctx, l.Issuer)
	if err != nil || metadata.RevocationEndpoint == "" {
		return err
	}
	c, err := s.knownClient(ctx, metadata, l.ClientID, l.RedirectURL)
	if err != nil {
		return err
	}
	token, hint := l.RefreshToken, "refresh_token"
	if token == "" {
		token, hint = l.AccessToken, "access_token"
	}
	params := url.Values{"token": {token}, "token_type_hint": {hint}}
	return s.postRevocation(ctx, metadata, c, params)
}

func (s *Server) postRevocation(ctx context.Context, metadata *serverMetadata, c client, params url.Values) error {
	switch c.Method {
	case methodPost:
		params.Set("client_secret", c.Secret)
		fallthrough
	case methodNone:
		params.Set("client_id", c.ID)
	case methodJWT:
		assertion, err := s.assertion(metadata.Issuer, c.ID)
		if err != nil {
			return err
		}
		params.Set("client_id", c.ID)
		params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		params.Set("client_assertion", assertion)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, metadata.RevocationEndpoint, strings.NewReader(params.Encode()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if c.Method == methodBasic {
		request.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(c.Secret))
	}
	response, err := s.guard.client.Do(request)
	if err != nil {
		return plain(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &statusError{request.URL.Host, response.StatusCode}
	}
	return nil
}
