package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"
)

// offlineAccess is the scope that some authorization servers require for refresh tokens.
const offlineAccess = "offline_access"

// A Pending is a login in progress. The caller seals it into the state parameter, which comes back
// with the callback. It contains a secret.
type Pending struct {
	Account     string   `json:"account,omitempty"`
	Issuer      string   `json:"issuer"`
	Resource    string   `json:"resource"` // as sent to the issuer
	Verifier    string   `json:"verifier"`
	RedirectURL string   `json:"redirect_url"`
	ClientID    string   `json:"client_id"`
	Scopes      []string `json:"scopes,omitempty"`
}

// Format keeps secrets out of formatted text.
func (Pending) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Pending") }

// Begin finds out where to log in, registers a client if needed, and returns the URL of the
// authorization server to open in a browser. The browser comes back to redirectURL with the state
// that seal returns. clientDocument is where the caller publishes a client-ID metadata document; it
// is used if it is an https URL.
func (a *Account) Begin(
	ctx context.Context, redirectURL, clientDocument string, seal func(*Pending) (state string),
) (address string, err error) {
	defer func() { a.noteResult(err) }()
	s := a.server
	if s.config.Grant != AuthorizationCode {
		return "", errors.New("this grant needs no login")
	}
	l, err := a.read(ctx)
	if err != nil {
		return "", err
	}
	found, err := s.discover(ctx, l.Demand.Metadata, l.Issuer)
	if err != nil {
		return "", err
	}
	if found.AuthorizationEndpoint == "" {
		return "", fmt.Errorf("the issuer %q has no authorization_endpoint", printable(found.Issuer))
	}
	c, err := s.chooseClient(ctx, found.serverMetadata, redirectURL, clientDocument)
	if err != nil {
		return "", err
	}
	p := &Pending{
		Account: a.id, Issuer: found.Issuer, Resource: found.resource, Verifier: oauth2.GenerateVerifier(),
		RedirectURL: redirectURL, ClientID: c.ID, Scopes: s.chooseScopes(found, l.Demand.Scopes),
	}
	config := oauth2.Config{
		ClientID: c.ID, RedirectURL: redirectURL, Scopes: p.Scopes,
		Endpoint: oauth2.Endpoint{AuthURL: found.AuthorizationEndpoint},
	}
	options := []oauth2.AuthCodeOption{
		oauth2.S256ChallengeOption(p.Verifier), oauth2.SetAuthURLParam("resource", p.Resource),
	}
	if slices.Contains(p.Scopes, offlineAccess) {
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent")) // required by OpenID Connect
	}
	state := seal(p)
	if state == "" {
		return "", errors.New("the login has no state")
	}
	return config.AuthCodeURL(state, options...), nil
}

// chooseScopes returns the scopes to request.
func (s *Server) chooseScopes(found loginTarget, demanded []string) []string {
	if s.config.Scopes != nil {
		return s.config.Scopes
	}
	scopes := found.scopes
	if len(demanded) > 0 {
		scopes = demanded
	}
	if s.config.Grant == AuthorizationCode && slices.Contains(found.Scopes, offlineAccess) {
		scopes = union(scopes, []string{offlineAccess})
	}
	return scopes
}

// Finish handles the query of the callback, and gets the tokens.
func (a *Account) Finish(ctx context.Context, p *Pending, query url.Values) (err error) {
	defer func() { a.noteResult(err) }()
	s := a.server
	if p.Account != a.id {
		return errors.New("the login belongs to another account")
	}
	metadata, err := s.issuerMetadata(ctx, p.Issuer)
	if err != nil {
		return err
	}
	code, err := callbackCode(metadata, query)
	if err != nil {
		return err
	}
	c, err := s.knownClient(ctx, metadata, p.ClientID, p.RedirectURL)
	if err != nil {
		return err
	}
	requested := s.now()
	token, err := s.requestToken(ctx, metadata, c, url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {p.RedirectURL},
		"code_verifier": {p.Verifier}, "resource": {p.Resource},
	})
	if err != nil {
		return err
	}
	if err := a.acquire(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	defer a.release()
	_, err = a.update(context.WithoutCancel(ctx), func(l *login) error {
		*l = login{
			Issuer: p.Issuer, Resource: p.Resource, ClientID: p.ClientID, RedirectURL: p.RedirectURL, Scopes: p.Scopes,
			Demand: l.Demand,
		}
		l.setToken(token, requested)
		return nil
	})
	return err
}

// callbackCode returns the code of a callback. It compares the issuer first (RFC 9207): the
// callback may come from another authorization server, whose error text must not be shown.
func callbackCode(metadata *serverMetadata, query url.Values) (string, error) {
	for _, name := range []string{"iss", "error", "error_description", "code"} {
		if len(query[name]) > 1 {
			return "", fmt.Errorf("the callback has more than one %s", name)
		}
	}
	switch iss := query.Get("iss"); {
	case query.Has("iss") && iss != metadata.Issuer:
		return "", fmt.Errorf("the callback comes from issuer %q, but the login began at %q",
			printable(iss), printable(metadata.Issuer))
	case !query.Has("iss") && metadata.IssParameter:
		return "", fmt.Errorf("the callback has no iss, which %q always sends", printable(metadata.Issuer))
	case query.Has("error"):
		reason := strings.TrimSpace(query.Get("error") + " " + query.Get("error_description"))
		return "", fmt.Errorf("%s refused the login: %s", printable(metadata.Issuer), printable(reason))
	case query.Get("code") == "":
		return "", errors.New("the callback has no code")
	}
	return query.Get("code"), nil
}
