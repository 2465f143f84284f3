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

// offlineAccess is the scope by which some authorization servers give refresh tokens.
const offlineAccess = "offline_access"

// A Pending is a login that has begun. The caller seals it into the state of the login,
// which comes back with the callback. It has a secret in it.
type Pending struct {
	Account     string   `json:"account,omitempty"`
	Issuer      string   `json:"issuer"`
	Resource    string   `json:"resource"` // as it is sent to the issuer
	Verifier    string   `json:"verifier"`
	RedirectURL string   `json:"redirect_url"`
	ClientID    string   `json:"client_id"`
	Scopes      []string `json:"scopes,omitempty"`
}

// Format keeps secrets out of texts.
func (Pending) Format(f fmt.State, _ rune) { fmt.Fprint(f, "oauth.Pending") }

// Begin finds out where to log in, registers if needed, and returns the address of the
// authorization server to open in a browser. The browser comes back to redirectURL with
// the state that seal returns. clientDocument is where the caller publishes a client-ID
// metadata document, used if it is an https URL.
func (a *Account) Begin(ctx context.Context, redirectURL, clientDocument string, seal func(*Pending) (state string)) (address string, err error) {
	defer func() { a.note(err) }()
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
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(p.Verifier), oauth2.SetAuthURLParam("resource", p.Resource)}
	if slices.Contains(p.Scopes, offlineAccess) {
		options = append(options, oauth2.SetAuthURLParam("prompt", "consent")) // OpenID Connect demands it
	}
	state := seal(p)
	if state == "" {
		return "", errors.New("the login has no state")
	}
	return config.AuthCodeURL(state, options...), nil
}

// chooseScopes returns the scopes to ask for.
func (s *Server) chooseScopes(found place, demanded []string) []string {
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

// Finish takes the query of the callback, and gets the tokens.
func (a *Account) Finish(ctx context.Context, p *Pending, query url.Values) (err error) {
	defer func() { a.note(err) }()
	s := a.server
	if p.Account != a.id {
		return errors.New("the login is of another account")
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
	asked := s.now()
	token, err := s.ask(ctx, metadata, c, url.Values{
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
		l.take(token, asked)
		return nil
	})
	return err
}

// callbackCode returns the code of a callback. The issuer is compared first (RFC 9207):
// another authorization server may have sent the browser, and what it says is not shown.
func callbackCode(metadata *serverMetadata, query url.Values) (string, error) {
	for _, name := range []string{"iss", "error", "error_description", "code"} {
		if len(query[name]) > 1 {
			return "", fmt.Errorf("the callback has several %s", name)
		}
	}
	switch iss := query.Get("iss"); {
	case query.Has("iss") && iss != metadata.Issuer:
		return "", fmt.Errorf("the callback is of the issuer %q, the login of %q", printable(iss), printable(metadata.Issuer))
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
