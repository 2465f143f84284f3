package gateway

import (
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A ToolList has the tools of a server, as a client of the aggregate endpoint sees them.
type ToolList struct {
	Server  string // "" for tools of the gateway itself
	Tools   []Tool
	Failure *jsonrpc.Failure // why the server could not be reached; nil if it could
	Reason  string           // Failure in detail, for operators

	// Explained has the decisions of [Operator.Explain] on all items of the server.
	Explained []Explanation
}

// A Tool is a tool as a client sees it.
type Tool struct {
	Name         string
	Original     string   // name at the server, if different
	Clients      []string // names of the configured clients that may call it
	Definition   []byte   // JSON
	WithoutFocus []byte   // Definition without the focus argument, see [toolview.Focus]
}

// readTools returns the tools of a list. s is nil for the list of the gateway itself.
func (g *Gateway) readTools(list *catalog.List, shared catalog.SharedUIs, s *upstream.Server) []Tool {
	all := make([]Tool, len(list.Ends))
	for i := range all {
		t := &all[i]
		t.Definition = list.From(i, i+1, shared)
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(t.Definition, &named) // valid: it was parsed before
		t.Name, t.WithoutFocus = named.Name, t.Definition
		if list.Focused[t.Name] != "" {
			t.WithoutFocus = s.Focus.RemovedFrom(t.Definition)
		}
		target := g.target(list, s, t.Name)
		t.Clients = g.rules.Users(target, mcp.ReadAnnotations(t.Definition))
		if s != nil && s.Overrides.ClientName(target.Name) != target.Name {
			t.Original = target.Name
		}
	}
	return all
}

// target returns the target of a tool for rules. shown is the name that clients see.
func (g *Gateway) target(list *catalog.List, s *upstream.Server, shown string) mcp.Target {
	target := mcp.Target{Kind: mcp.Tool, Name: shown}
	if s == nil {
		return target
	}
	target.Server = s.Name
	if original, ok := list.Short[shown]; ok {
		target.Name = original
	} else if _, name, ok := g.config.Naming.Split(shown, func(server string) bool { return server == s.Name }); ok {
		target.Name = name
	}
	target.Name = s.Overrides.ServerName(target.Name)
	return target
}
