package mcpgateway

import (
	"net/http"
	"slices"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A toolListing has the tools that a client sees.
type toolListing struct {
	Tools  []toolStatus  `json:"tools"`
	Failed []toolFailure `json:"failed"`
}

// A toolStatus tells of a tool, and what its definition costs in the context of a model.
type toolStatus struct {
	Gateway     string `json:"gateway"`
	Path        string `json:"mcp_path"`         // of the gateway
	Server      string `json:"server,omitempty"` // empty for the tools of the gateway itself
	Name        string `json:"name"`             // as clients see it
	Chars       int    `json:"chars"`
	Tokens      int    `json:"tokens"`       // estimated
	FocusTokens int    `json:"focus_tokens"` // those of them that the focus argument adds

	// Clients are the names of the client blocks that may call it; null if the gateway has none.
	Clients []string `json:"clients"`
	// AllClients is whether these are all that the gateway has.
	AllClients bool `json:"all_clients,omitempty"`
}

// A toolFailure tells why the tools of a server are not listed.
type toolFailure struct {
	Gateway string `json:"gateway"`
	Path    string `json:"mcp_path"` // of the gateway
	Server  string `json:"server"`
	Code    string `json:"code"`
	Error   string `json:"error"`
}

// listTools asks the servers for their tools: those that one client sees, or all.
func (c *adminCall) listTools() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	if len(found) == 0 {
		return 0, nil, notFound("no mcp_gateway is running")
	}
	client := c.r.URL.Query().Get("client")
	if client != "" {
		found = slices.DeleteFunc(found, func(h *Handler) bool { return !hasRules(h.Clients, client) })
		if len(found) == 0 {
			return 0, nil, notFound("there is no client %q", client)
		}
	}
	all := toolListing{Tools: []toolStatus{}, Failed: []toolFailure{}}
	for _, h := range found {
		for _, list := range h.gateway.NewOperator(operatorRequest(c.r.Context()), client).ListTools() {
			all.add(h, &list)
		}
	}
	return http.StatusOK, all, nil
}

// add adds the tools of a server.
func (l *toolListing) add(h *Handler, list *gateway.ToolList) {
	for _, tool := range list.Tools {
		tokens := prune.EstimateTokens(string(tool.Definition))
		status := toolStatus{
			Gateway: h.Name, Path: h.MCPPath, Server: list.Server, Name: tool.Name,
			Chars: utf8.RuneCount(tool.Definition), Tokens: tokens,
			FocusTokens: tokens - prune.EstimateTokens(string(tool.WithoutFocus)),
		}
		if len(h.Clients) > 0 {
			status.Clients = append([]string{}, tool.Clients...)
			status.AllClients = len(tool.Clients) == len(h.Clients)
		}
		l.Tools = append(l.Tools, status)
	}
	if f := list.Failure; f != nil {
		l.Failed = append(l.Failed, toolFailure{h.Name, h.MCPPath, list.Server, f.Data.Symbol, list.Reason})
	}
}

// hasRules reports whether one of the clients has this name, or a pattern that fits.
func hasRules(clients []*Client, name string) bool {
	return slices.ContainsFunc(clients, func(c *Client) bool {
		return c != nil && (name == c.Name || slices.Contains(c.Match, name) || mcp.MatchName(c.Name, name))
	})
}
