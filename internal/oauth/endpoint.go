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

// answered reports whether err is an answer with this code.
func answered(err error, code string) bool {
	var answer *answerError
	return errors.As(err, &answer) && answer.code == code
}

// isUnknownClient reports whether err says that the credentials of the client are wrong.
func isUnknownClient(err error) bool {
	return answered(err, "invalid_client") || answered(err, "unauthorized_client")
}

// isFinal reports whether err is an answer that stays the same if the request is repeated.
func isFinal(err error) bool {
	var answer *answerError
	if !errors.As(err, &answer) || answer.status >= 500 || answer.status == http.StatusTooManyRequests {
		return false
	}
	return answer.code != "" && answer.code != "temporarily_unavailable" && answer.code != "server_error" && answer.code != "slow_down"
}

// ask sends a grant to the token endpoint. It goes on if the caller has gone: the answer
// may be the only copy of a rotated refresh token.
func (s *Server) ask(ctx context.Context, metadata *serverMetadata, c client, params url.Values) (*oauth2.Token, error) {
	endpoint, err := s.guard.parse(metadata.TokenEndpoint)
	if err != nil {
		return nil, err
	}
	secret, style, err := s.authenticate(metadata.Issuer, c, params)
	if err != nil {
		return nil, err
	}
	config := clientcredentials.Config{ClientID: c.ID, ClientSecret: secret, TokenURL: metadata.TokenEndpoint, EndpointParams: params, AuthStyle: style}
	token, err := config.Token(context.WithValue(context.WithoutCancel(ctx), oauth2.HTTPClient, s.guard.client))
	if err != nil {
		s.dropMetadata(metadata.Issuer) // it may have moved
		err = tokenError(endpoint.Host, err, secret, params)
		if isUnknownClient(err) {
			err = errors.Join(err, s.forget(ctx, c))
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

// authenticate returns how a client authenticates, and adds an assertion to the parameters
// if it has a key.
func (s *Server) authenticate(issuer string, c client, params url.Values) (secret string, style oauth2.AuthStyle, err error) {
	switch c.Method {
	case methodBasic:
		return c.Secret, oauth2.AuthStyleInHeader, nil
	case methodPost:
		return c.Secret, oauth2.AuthStyleInParams, nil
	case methodJWT:
		assertion, err := s.assertion(issuer, c.ID)
		if err != nil {
			return "", 0, err
		}
		params.Set("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer")
		params.Set("client_assertion", assertion)
	}
	return "", oauth2.AuthStyleInParams, nil
}

// tokenError returns an error of the token endpoint without secrets in it, which some
// servers repeat.
func tokenError(host string, err error, secret string, params url.Values) error {
	var refused *oauth2.RetrieveError
	var failed *url.Error
	switch {
	case errors.As(err, &failed):
		return plain(host, failed)
	case !errors.As(err, &refused):
		return fmt.Errorf("%s: the answer has no token", host)
	}
	var pairs []string
	for _, value := range []string{
		secret, params.Get("code"), params.Get("code_verifier"), params.Get("refresh_token"),
		params.Get("subject_token"), params.Get("client_assertion"),
	} {
		if value != "" {
			pairs = append(pairs, value, "…")
		}
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

// revoke revokes the tokens of a login (RFC 7009), where the authorization server offers it.
func (s *Server) revoke(ctx context.Context, l login) error {
	metadata, err := s.issuerMetadata(ctx, l.Issuer)
	if err != nil || metadata.RevocationEndpoint == "" {
		return err
	}
	c, err := s.knownClient(ctx, metadata, l.ClientID, l.RedirectURL)
	if err != nil {
		return err
	}
	params := url.Values{"token": {l.AccessToken}, "token_type_hint": {"access_token"}, "client_id": {c.ID}}
	if l.RefreshToken != "" {
		params.Set("token", l.RefreshToken)
		params.Set("token_type_hint", "refresh_token")
	}
	secret, style, err := s.authenticate(metadata.Issuer, c, params)
	if err != nil {
		return err
	}
	if secret != "" && style == oauth2.AuthStyleInParams {
		params.Set("client_secret", secret)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, metadata.RevocationEndpoint, strings.NewReader(params.Encode()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if style == oauth2.AuthStyleInHeader {
		request.SetBasicAuth(url.QueryEscape(c.ID), url.QueryEscape(secret))
	}
	response, err := s.guard.client.Do(request)
	if err != nil {
		return plain(request.URL.Host, err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	return nil
}
