package mcpgateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// What outlives reloads is found by keys, which stay the same as long as something is the
// same.

// place tells this gateway from others, over reloads: by its name or, if it has none, by
// what its servers, or the files that they come from, are called.
func (h *Handler) place() string {
	if h.Name != "" {
		return h.Name + "\x00" + h.MCPPath
	}
	var names []string
	if h.shell != nil {
		names = append(names, h.shell.ServersFrom...)
	} else {
		for _, s := range h.Servers {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return "\x00" + h.MCPPath + "\x00" + strings.Join(names, "\x00")
}

// sharedPlace tells this gateway from others in what replicas share. What its servers are called does not
// matter: while one replica after the other gets a configuration with more servers, it is one gateway.
func (h *Handler) sharedPlace() string { return h.Name + "\x00" + h.MCPPath }

// claimPlace makes sure that no other gateway of the configuration without a name
// has the same place. Those with the same name are meant to share.
func (h *Handler) claimPlace() error {
	if h.store == nil || h.Name != "" {
		return nil
	}
	config := h.loaded
	if h.shell != nil {
		config = h.shell.loaded // that of the files changes
	}
	switch claimed, err := mcpstore.Claim(h.ctx, h.sharedPlace(), string(config)); {
	case err != nil:
		return err
	case !claimed:
		return fmt.Errorf("name: with mcp_store, different gateways at the same mcp_path, here %s, need names", h.MCPPath)
	}
	return nil
}

// serverID returns what tells a server from all that are another for clients: one with
// the same id can be talked to as if nothing had happened. The routes are those that
// are not provisioned yet.
func serverID(h *Handler, s *Server) string {
	return s.Name + "\x00" + digest([]any{s, h.Mask, h.Focus, h.Separator, h.MaxNameLength, h.MCPPath, h.ForwardAuthHeader})
}

// serverSource returns what tells a server from others of its name: where its answers
// come from.
func serverSource(s *Server) string {
	return s.Name + "\x00" + digest([]any{s.Routes, s.Path})
}

// digest returns a text that stands for a part of a configuration.
func digest(part any) string {
	sum := sha256.Sum256(caddyconfig.JSON(part, nil))
	return hex.EncodeToString(sum[:16])
}
