package mcpgateway

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// describer returns the provider that publishes where clients get credentials, or nil.
func (a *authenticator) describer() auth.Describer {
	for _, provider := range a.providers {
		if describer, ok := provider.(auth.Describer); ok {
			return describer
		}
	}
	return nil
}

// metadataLocation returns the location of the metadata of a resource, if it is an endpoint of this
// gateway. Clients append the path of the resource to [auth.MetadataPath], or nothing.
func (h *Handler) metadataLocation(resource string) (location, inbound.Endpoint, string) {
	switch {
	case resource == "", resource == "/":
		return metadata, inbound.Endpoint{}, strings.TrimSuffix(h.mcpPrefix, "/")
	case resource+"/" == h.mcpPrefix, strings.HasPrefix(resource, h.mcpPrefix), strings.HasPrefix(resource, h.rpcPrefix):
		return metadata, inbound.Endpoint{}, resource
	}
	return otherPath, inbound.Endpoint{}, ""
}

// serveMetadata serves the OAuth metadata of a path. It needs no credentials, and pages of any
// origin may read it.
func (h *Handler) serveMetadata(w http.ResponseWriter, r *http.Request, path string) error {
	if r.Method != http.MethodGet && r.Method != http.MethodHead && r.Method != http.MethodOptions {
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil
	}
	w.Header().Set("Access-Control-Allow-Origin", "*")
	w.Header().Set("Access-Control-Allow-Headers", "Mcp-Protocol-Version")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=300")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
	_, err = w.Write(h.auth.describer().Metadata(r, path))
	return err
}
