package gateway

import (
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A ToolList has the tools of a server as a client sees them in the aggregate.
type ToolList struct {
	Server  string // "" for the tools of the gateway itself
	Tools   []Tool
	Failure *jsonrpc.Failure // why the server could not be asked; nil if it could
	Reason  string           // the same in full, for operators

	// Explained is what [Operator.Explain] says of all that the server has.
	Explained []Explanation
}

// A Tool is a tool as a client sees it.
type Tool struct {
	Name         string
	Original     string   // its name at the server, if clients see another one
	Clients      []string // the Clients of the gateway that may call it, by their names
	Definition   []byte   // as JSON
	WithoutFocus []byte   // the definition without the argument of a [toolview.Focus]; the same if it has none
}

// readTools returns the tools in a list of a server, or in that of the gateway itself if s is nil.
func (g *Gateway) readTools(list *catalog.List, shared catalog.SharedUIs, s *upstream.Server) []Tool {
	all := make([]Tool, len(list.Ends))
	for i := range all {
		t := &all[i]
		t.Definition = list.From(i, i+1, shared)
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(t.Definition, &named) // which was read before
		t.Name, t.WithoutFocus = named.Name, t.Definition
		if list.Focused[t.Name] != "" {
			t.WithoutFocus = s.Focus.RemovedFrom(t.Definition)
		}
		target := g.target(list, s, t.Name)
		t.Clients = g.rules.Users(target, mcp.ReadAnnotations(t.Definition))
		if s != nil && s.Overrides.Shown(target.Name) != target.Name {
			t.Original = target.Name
		}
	}
	return all
}

// target returns what a tool of a list is to rules.
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
	target.Name = s.Overrides.Original(target.Name)
	return target
}
