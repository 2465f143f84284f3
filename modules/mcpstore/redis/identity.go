package redis

import (
	"net/url"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// Address implements mcpstore.Addressed.
func (r *Redis) Address() string {
	u, err := url.Parse(r.URL)
	if err != nil { // Provision rejects it
		return ""
	}
	u.User = nil
	return strings.Join(append([]string{u.String()}, r.Addresses...), " ")
}

// Files implements mcpstore.FileReader.
func (r *Redis) Files() (names []string) {
	if r.TLS == nil {
		return nil
	}
	for _, name := range []string{r.TLS.CA, r.TLS.Certificate, r.TLS.Key} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Interface guards
var (
	_ mcpstore.Addressed  = (*Redis)(nil)
	_ mcpstore.FileReader = (*Redis)(nil)
)
