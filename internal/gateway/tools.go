package gateway

import (
	"bytes"
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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
	WithoutFocus []byte   // the definition without the argument of a [Focus]; the same if it has none
}

// readTools returns the tools in a list of a server, or in that of the gateway itself if s is nil.
func (g *Gateway) readTools(list *listing, shared sharedUIs, s *Server) []Tool {
	all := make([]Tool, len(list.ends))
	for i := range all {
		t := &all[i]
		t.Definition = list.from(i, i+1, shared)
		var named struct {
			Name string `json:"name"`
		}
		_ = json.Unmarshal(t.Definition, &named) // which was read before
		t.Name, t.WithoutFocus = named.Name, t.Definition
		if list.focused[t.Name] != "" {
			t.WithoutFocus = s.Focus.removedFrom(t.Definition)
		}
		target := g.target(list, s, t.Name)
		t.Clients = g.rules.users(target, mcp.ReadAnnotations(t.Definition))
		if s != nil && s.Overrides.shown(target.Name) != target.Name {
			t.Original = target.Name
		}
	}
	return all
}

// target returns what a tool of a list is to rules.
func (g *Gateway) target(list *listing, s *Server, shown string) mcp.Target {
	target := mcp.Target{Kind: mcp.Tool, Name: shown}
	if s == nil {
		return target
	}
	target.Server = s.Name
	if original, ok := list.short[shown]; ok {
		target.Name = original
	} else if _, name, ok := g.config.Naming.Split(shown, func(server string) bool { return server == s.Name }); ok {
		target.Name = name
	}
	target.Name = s.Overrides.original(target.Name)
	return target
}

// removedFrom returns the definition of a tool, as clients got it, without the argument.
func (f *Focus) removedFrom(tool []byte) []byte {
	for _, added := range [][]byte{append([]byte{','}, f.property...), f.property} {
		if before, after, ok := bytes.Cut(tool, added); ok {
			return append(bytes.Clone(before), after...)
		}
	}
	return tool
}
