package mcpgateway

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

// describer returns the provider that knows where clients get credentials.
func (a *authenticator) describer() auth.Describer {
	for _, provider := range a.providers {
		if describer, ok := provider.(auth.Describer); ok {
			return describer
		}
	}
	return nil
}

// described returns where metadata of a resource is served, if that is ours. Clients ask for
// it at the path of the resource, behind [auth.MetadataPath], or without one.
func (h *Handler) described(resource string) (location, inbound.Endpoint, string) {
	switch {
	case resource == "", resource == "/":
		return metadata, inbound.Endpoint{}, strings.TrimSuffix(h.belowMCP, "/")
	case resource+"/" == h.belowMCP, strings.HasPrefix(resource, h.belowMCP), strings.HasPrefix(resource, h.belowRPC):
		return metadata, inbound.Endpoint{}, resource
	}
	return elsewhere, inbound.Endpoint{}, ""
}

// serveMetadata tells anybody how clients are let in at a path. Web pages may know it.
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
