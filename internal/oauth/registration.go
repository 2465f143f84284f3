package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Authentication methods of clients at the token endpoint.
const (
	methodBasic = "client_secret_basic"
	methodPost  = "client_secret_post"
	methodNone  = "none"
	methodJWT   = "private_key_jwt"
)

// registeredMethods are the methods of clients that register themselves, the best one first.
var registeredMethods = []string{methodBasic, methodPost, methodNone}

// A client is an OAuth client that an authorization server knows. Registered clients are stored.
type client struct {
	ID      string    `json:"client_id"`
	Secret  string    `json:"client_secret,omitempty"`
	Method  string    `json:"method"`
	Expires time.Time `json:"expires,omitzero"` // expiry of Secret

	key string // storage key of a registered client; "" for others
}

// isDocument reports whether a client ID is the URL of a metadata document.
func isDocument(id string) bool { return strings.HasPrefix(id, "https://") }

// chooseClient returns the client for a new login.
func (s *Server) chooseClient(
	ctx context.Context, metadata *serverMetadata, redirectURL, document string,
) (client, error) {
	id := s.config.ClientID
	switch {
	case id != "" && !isDocument(id), isDocument(id) && metadata.ClientDocuments:
		return s.configuredClient(metadata), nil
	case isDocument(document) && metadata.ClientDocuments:
		return client{ID: document, Method: methodNone}, nil
	case metadata.RegistrationEndpoint != "" && redirectURL != "":
		return s.registeredClient(ctx, metadata, redirectURL)
	}
	return client{}, fmt.Errorf("client_id is not set, and a client cannot register itself at %s",
		printable(metadata.Issuer))
}

// knownClient returns the client of an existing login.
func (s *Server) knownClient(ctx context.Context, metadata *serverMetadata, id, redirectURL string) (client, error) {
	switch {
	case id == s.config.ClientID:
		return s.configuredClient(metadata), nil
	case isDocument(id):
		return client{ID: id, Method: methodNone}, nil
	}
	c, err := s.loadClient(ctx, metadata.Issuer, redirectURL)
	if err == nil && c.ID != id {
		return client{}, fmt.Errorf("%w: the registration at %s has ended", ErrLoginRequired, printable(metadata.Issuer))
	}
	return c, err
}

// configuredClient returns the configured client. A client with a metadata document has no secret.
func (s *Server) configuredClient(metadata *serverMetadata) client {
	c := client{ID: s.config.ClientID, Secret: s.config.ClientSecret}
	switch offered := metadata.AuthMethods; {
	case s.config.PrivateKey != nil:
		c.Method = methodJWT
	case c.Secret == "" || isDocument(c.ID):
		c.Method = methodNone
	case slices.Contains(offered, methodPost) && !slices.Contains(offered, methodBasic):
		c.Method = methodPost
	default:
		c.Method = methodBasic
	}
	return c
}

// loadClient returns the client that is registered for a redirect URL, or an empty one.
func (s *Server) loadClient(ctx context.Context, issuer, redirectURL string) (client, error) {
	key := s.storeKey("clients", issuer, redirectURL)
	c, err := loadJSON[client](ctx, s.config.Store, key)
	if err != nil || !c.Expires.IsZero() && !s.now().Before(c.Expires) {
		return client{}, err
	}
	c.key = key
	return c, nil
}

// registeredClient returns the client that is registered for a redirect URL, and registers one if
// needed.
func (s *Server) registeredClient(ctx context.Context, metadata *serverMetadata, redirectURL string) (client, error) {
	key := s.storeKey("clients", metadata.Issuer, redirectURL)
	if err := s.config.Store.Lock(ctx, key); err != nil {
		return client{}, fmt.Errorf("lock registration: %w", err)
	}
	defer func() { _ = s.config.Store.Unlock(context.WithoutCancel(ctx), key) }()
	c, err := s.loadClient(ctx, metadata.Issuer, redirectURL)
	if err != nil || c.ID != "" {
		return c, err
	}
	c, err = s.register(ctx, metadata, redirectURL)
	if err != nil {
		return client{}, fmt.Errorf("register at %s: %w", printable(metadata.Issuer), err)
	}
	c.key = key
	return c, storeJSON(ctx, s.config.Store, key, c)
}

// register registers a client (RFC 7591).
func (s *Server) register(ctx context.Context, metadata *serverMetadata, redirectURL string) (client, error) {
	offered := metadata.AuthMethods
	if len(offered) == 0 {
		offered = []string{methodBasic} // the default of RFC 8414
	}
	i := slices.IndexFunc(registeredMethods, func(method string) bool { return slices.Contains(offered, method) })
	if i < 0 {
		return client{}, errors.New("no supported authentication method: set client_id")
	}
	method := registeredMethods[i]
	body, err := json.Marshal(map[string]any{
		"client_name":                s.config.ClientName,
		"redirect_uris":              []string{redirectURL},
		"grant_types":                []string{"authorization_code", "refresh_token"},
		"response_types":             []string{"code"},
		"token_endpoint_auth_method": method,
		"application_type":           applicationType(redirectURL),
	})
	if err != nil {
		return client{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, metadata.RegistrationEndpoint, bytes.NewReader(body))
	if err != nil {
		return client{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	var answer struct {
		ClientID      string `json:"client_id"`
		ClientSecret  string `json:"client_secret"`
		SecretExpires int64  `json:"client_secret_expires_at"`
		Method        string `json:"token_endpoint_auth_method"`
		Error         string `json:"error"`
		Description   string `json:"error_description"`
	}
	registered, err := s.guard.send(request, &answer)
	switch {
	case err != nil:
		return client{}, err
	case !registered:
		reason := strings.TrimSpace(answer.Error + " " + answer.Description)
		return client{}, fmt.Errorf("refused: %s; set client_id instead", printable(reason))
	case answer.ClientID == "":
		return client{}, errors.New("the response has no client_id")
	}
	c := client{ID: answer.ClientID, Secret: answer.ClientSecret, Method: method}
	if answer.Method != "" {
		c.Method = answer.Method
	}
	if c.Secret == "" {
		c.Method = methodNone
	} else if answer.SecretExpires > 0 {
		c.Expires = time.Unix(answer.SecretExpires, 0)
	}
	if !slices.Contains(registeredMethods, c.Method) {
		return client{}, fmt.Errorf("unexpected token_endpoint_auth_method %q", printable(c.Method))
	}
	return c, nil
}

// forgetClient deletes a registered client that the authorization server no longer knows.
func (s *Server) forgetClient(ctx context.Context, c client) error {
	if c.key == "" {
		return nil
	}
	current, err := loadJSON[client](ctx, s.config.Store, c.key)
	if err != nil || current.ID != c.ID {
		return err // another process has registered again
	}
	return s.config.Store.Delete(context.WithoutCancel(ctx), c.key)
}

// applicationType returns the application type of OpenID Connect Registration. A native application
// is only reachable from its own machine.
func applicationType(redirectURL string) string {
	u, err := url.Parse(redirectURL)
	if err != nil {
		return "web"
	}
	address, err := netip.ParseAddr(u.Hostname())
	if u.Hostname() == "localhost" || err == nil && address.IsLoopback() {
		return "native"
	}
	return "web"
}
