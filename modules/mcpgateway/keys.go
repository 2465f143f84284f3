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

// reloadKey identifies this gateway over reloads: by its name, or else by the names of its servers
// or of the files in servers_from.
func (h *Handler) reloadKey() string {
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

// sharedKey identifies this gateway among replicas. It does not depend on the names of servers,
// which may differ while replicas get a new configuration one by one.
func (h *Handler) sharedKey() string { return h.Name + "\x00" + h.MCPPath }

// claimSharedKey checks that no other unnamed gateway of the configuration has the same sharedKey.
// Gateways with the same name share state on purpose.
func (h *Handler) claimSharedKey() error {
	if h.store == nil || h.Name != "" {
		return nil
	}
	config := h.rawConfig
	if h.shell != nil {
		config = h.shell.rawConfig // that of h changes with the files
	}
	switch claimed, err := mcpstore.Claim(h.ctx, h.sharedKey(), string(config)); {
	case err != nil:
		return err
	case !claimed:
		return fmt.Errorf("name: required with mcp_store, because another gateway has the same mcp_path %s", h.MCPPath)
	}
	return nil
}

// serverID returns an ID that changes with every setting of a server that clients can notice. After
// a reload, sessions continue with a server of the same ID. The routes must not be provisioned yet,
// because provisioning clears their configuration.
func serverID(h *Handler, s *Server) string {
	return s.Name + "\x00" +
		digest([]any{s, h.Mask, h.Focus, h.Separator, h.MaxNameLength, h.MCPPath, h.ForwardAuthHeader})
}

// serverSource identifies a server by its name and by the routes and path that produce its
// responses.
func serverSource(s *Server) string {
	return s.Name + "\x00" + digest([]any{s.Routes, s.Path})
}

// digest returns a hash of a part of a configuration.
func digest(part any) string {
	sum := sha256.Sum256(caddyconfig.JSON(part, nil))
	return hex.EncodeToString(sum[:16])
}
