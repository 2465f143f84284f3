package mcpgateway

import (
	"net/http"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/aggregate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// offerTemplates adds the templates that the admin API has the gateway host (A67).
// What they lead to a client may see as if it had gone there itself (A69). Those of a
// server that a reload has removed wait for it to come back.
func (h *Handler) offerTemplates(config *aggregate.Config) {
	own := config.Templates
	config.Templates = func(identity string) (all [][]byte) {
		if own != nil {
			all = own(identity)
		}
		who := h.callerOf(identity)
		for _, t := range h.templates.All() {
			item, server := mcp.ListItem{Kind: mcp.Resource, Template: true, Name: t.URITemplate}, ""
			if t.Server != "" {
				s := h.byName[t.Server]
				if s == nil {
					continue
				}
				item.Name, server = t.URI, s.Name
			}
			if sees(who.policy(), server, item) {
				all = append(all, t.Descriptor())
			}
		}
		return all
	}
	read := config.ReadOwn
	config.ReadOwn = func(r *http.Request, uri string) (result []byte, ours bool) {
		if read != nil {
			if result, ours = read(r, uri); ours {
				return result, true
			}
		}
		t, text, ok := h.templates.Match(uri)
		if !ok || t.Server != "" {
			return nil, false
		}
		return contents(uri, t.MIMEType, text), true
	}
}

// lead returns the resource of a server that a URI of a hosted template leads to, or the
// template that the hosted one itself does.
func (h *Handler) lead(uri string) (server, original string, ok bool) {
	t, original, ok := h.templates.Match(uri)
	if strings.Contains(uri, "{") {
		t, original, ok = h.templates.Find(uri)
	}
	if !ok {
		return "", "", false
	}
	s := h.byName[t.Server] // which may be an alias by now
	if s == nil {
		return "", "", false
	}
	return s.Name, original, true
}
