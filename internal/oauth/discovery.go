package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	maxIssuers   = 16
	metadataTime = 15 * time.Minute // how long metadata of an authorization server are cached
)

// resourceMetadata are the metadata of a protected resource (RFC 9728).
type resourceMetadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	Scopes               []string `json:"scopes_supported"`
}

// serverMetadata are the metadata of an authorization server (RFC 8414, OpenID Connect Discovery).
type serverMetadata struct {
	Issuer                string   `json:"issuer"`
	AuthorizationEndpoint string   `json:"authorization_endpoint"`
	TokenEndpoint         string   `json:"token_endpoint"`
	RegistrationEndpoint  string   `json:"registration_endpoint"`
	RevocationEndpoint    string   `json:"revocation_endpoint"`
	Scopes                []string `json:"scopes_supported"`
	ChallengeMethods      []string `json:"code_challenge_methods_supported"`
	AuthMethods           []string `json:"token_endpoint_auth_methods_supported"`
	ClientDocuments       bool     `json:"client_id_metadata_document_supported"`
	IssParameter          bool     `json:"authorization_response_iss_parameter_supported"`
}

// cachedMetadata are metadata and the time when they were read.
type cachedMetadata struct {
	*serverMetadata
	since time.Time
}

// A loginTarget says where to log in to a resource.
type loginTarget struct {
	*serverMetadata
	resource string   // as sent to the authorization server
	scopes   []string // supported by the resource
}

// discover finds out where to log in. metadataURL comes from a challenge and may be empty. An
// existing login keeps its current issuer if the resource still names it.
func (s *Server) discover(ctx context.Context, metadataURL, current string) (loginTarget, error) {
	published, err := s.resourceMetadata(ctx, metadataURL)
	if err != nil {
		return loginTarget{}, err
	}
	found := loginTarget{resource: s.resource()}
	if published != nil {
		found.resource, found.scopes = published.Resource, published.Scopes
	}
	issuer, err := s.chooseIssuer(published, current)
	if err != nil {
		return loginTarget{}, err
	}
	found.serverMetadata, err = s.fetchMetadata(ctx, issuer, published == nil && s.isOwnIssuer(issuer))
	return found, err
}

// chooseIssuer returns the configured issuer, regardless of the resource. Otherwise it returns the
// current issuer, or the first one, of those that the resource names. A resource that publishes
// nothing is its own issuer.
func (s *Server) chooseIssuer(published *resourceMetadata, current string) (string, error) {
	switch {
	case s.config.Issuer != "":
		return s.config.Issuer, nil
	case published == nil && s.config.Grant == TokenExchange:
		return "", errors.New("the resource publishes no metadata, and tokens of callers are not sent to a " +
			"guessed authorization server: set issuer")
	case published == nil:
		return s.origin(), nil
	case len(published.AuthorizationServers) == 0:
		return "", errors.New("the metadata of the resource name no authorization servers")
	case slices.Contains(published.AuthorizationServers, current):
		return current, nil
	}
	return published.AuthorizationServers[0], nil
}

// isOwnIssuer reports whether the name of an issuer is the origin of the resource.
func (s *Server) isOwnIssuer(issuer string) bool {
	return strings.TrimSuffix(issuer, "/") == s.origin()
}

// resourceMetadata returns the metadata of the resource, or nil if it publishes none. metadataURL
// comes from a challenge and may be empty.
func (s *Server) resourceMetadata(ctx context.Context, metadataURL string) (*resourceMetadata, error) {
	path := strings.TrimSuffix(s.config.Resource.EscapedPath(), "/")
	addresses := []string{s.origin() + "/.well-known/oauth-protected-resource" + path}
	if path != "" {
		addresses = append(addresses, s.origin()+"/.well-known/oauth-protected-resource")
	}
	if metadataURL != "" {
		u, err := s.guard.parse(metadataURL)
		if err != nil {
			return nil, fmt.Errorf("resource_metadata: %w", err)
		}
		if !s.guard.trusts(u) {
			return nil, fmt.Errorf("resource_metadata: %w", &refusal{u.Host, "its origin is not " + s.origin()})
		}
		addresses = append([]string{metadataURL}, addresses...)
	}
	for _, address := range addresses {
		var published resourceMetadata
		found, err := s.guard.get(ctx, address, &published)
		if err != nil {
			return nil, fmt.Errorf("metadata of the resource: %w", err)
		}
		if !found {
			continue
		}
		if !s.covers(published.Resource) {
			return nil, fmt.Errorf("the metadata at %s are for resource %q, not %q",
				printable(address), printable(published.Resource), s.resource())
		}
		return &published, nil
	}
	return nil, nil
}

// covers reports whether a published resource is the configured one or a parent of it.
func (s *Server) covers(published string) bool {
	u, err := url.Parse(published)
	if err != nil || u.Host == "" || u.Fragment != "" || u.User != nil || origin(u) != s.origin() {
		return false
	}
	if u.RawQuery != "" && u.RawQuery != s.config.Resource.RawQuery {
		return false
	}
	parent := strings.TrimSuffix(u.EscapedPath(), "/") + "/"
	return strings.HasPrefix(s.config.Resource.EscapedPath()+"/", parent)
}

// issuerMetadata returns the metadata of the issuer of an existing login.
func (s *Server) issuerMetadata(ctx context.Context, issuer string) (*serverMetadata, error) {
	s.mu.Lock()
	cached, ok := s.metadata.Get(issuer)
	s.mu.Unlock()
	if ok && s.now().Sub(cached.since) < metadataTime {
		return cached.serverMetadata, nil
	}
	return s.fetchMetadata(ctx, issuer, s.isOwnIssuer(issuer))
}

// fetchMetadata fetches the metadata of an issuer. With fallback, an issuer without metadata gets
// the default endpoints of MCP 2025-03-26.
func (s *Server) fetchMetadata(ctx context.Context, issuer string, fallback bool) (*serverMetadata, error) {
	u, err := s.guard.parse(issuer)
	if err != nil {
		return nil, fmt.Errorf("issuer: %w", err)
	}
	if u.RawQuery != "" {
		return nil, fmt.Errorf("issuer: %q has a query", printable(issuer))
	}
	base, path := origin(u), strings.TrimSuffix(u.EscapedPath(), "/")
	addresses := []string{
		base + "/.well-known/oauth-authorization-server" + path, base + "/.well-known/openid-configuration" + path,
	}
	if path != "" {
		addresses = append(addresses, base+path+"/.well-known/openid-configuration")
	}
	for _, address := range addresses {
		metadata := &serverMetadata{}
		found, err := s.guard.get(ctx, address, metadata)
		if err != nil {
			return nil, fmt.Errorf("metadata of the authorization server: %w", err)
		}
		if !found {
			continue
		}
		if metadata.Issuer != issuer && !(fallback && strings.TrimSuffix(metadata.Issuer, "/") == issuer) {
			return nil, fmt.Errorf("the metadata at %s are for issuer %q, not %q",
				printable(address), printable(metadata.Issuer), printable(issuer))
		}
		return s.cacheMetadata(metadata)
	}
	if !fallback {
		return nil, fmt.Errorf("the issuer %q publishes no metadata", printable(issuer))
	}
	return s.cacheMetadata(&serverMetadata{
		Issuer:                issuer,
		AuthorizationEndpoint: base + "/authorize",
		TokenEndpoint:         base + "/token",
		RegistrationEndpoint:  base + "/register",
	})
}

// cacheMetadata checks metadata and caches them.
func (s *Server) cacheMetadata(metadata *serverMetadata) (*serverMetadata, error) {
	for name, endpoint := range map[string]string{
		"authorization_endpoint": metadata.AuthorizationEndpoint, "token_endpoint": metadata.TokenEndpoint,
		"registration_endpoint": metadata.RegistrationEndpoint, "revocation_endpoint": metadata.RevocationEndpoint,
	} {
		if endpoint == "" {
			continue
		}
		if _, err := s.guard.parse(endpoint); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if pinned := s.config.Issuer; pinned != "" && metadata.Issuer != pinned {
		return nil, fmt.Errorf("the issuer is %q, not %q as configured", printable(metadata.Issuer), pinned)
	}
	if metadata.TokenEndpoint == "" {
		return nil, fmt.Errorf("the issuer %q has no token_endpoint", printable(metadata.Issuer))
	}
	if metadata.ChallengeMethods != nil && !slices.Contains(metadata.ChallengeMethods, "S256") {
		return nil, fmt.Errorf("the issuer %q does not support PKCE with S256", printable(metadata.Issuer))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metadata.Add(metadata.Issuer, cachedMetadata{metadata, s.now()})
	return metadata, nil
}

// dropMetadata removes the metadata of an issuer from the cache.
func (s *Server) dropMetadata(issuer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.metadata.Remove(issuer)
}
