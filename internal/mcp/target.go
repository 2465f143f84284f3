package mcp

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"

// A Target is what a request is about.
type Target struct {
	Server string // "" if it is about none in particular
	Kind   TargetKind
	Name   string // of the tool or prompt; of a resource the URI that the server has for it
}

// A TargetKind is what a server can have.
type TargetKind uint8

const (
	Anything TargetKind = iota
	Tool
	Prompt
	Resource
)

// String returns how people write the kind.
func (k TargetKind) String() string {
	return [...]string{"", "tool", "prompt", "resource"}[k]
}

// HasTarget reports whether requests of a method are about something that a server
// has: a tool, a prompt, a resource or a task.
func HasTarget(method string) bool {
	switch method {
	case "tools/call", "prompts/get", "completion/complete",
		"resources/read", "resources/subscribe", "resources/unsubscribe",
		"tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
		return true
	}
	return false
}

// TargetOf returns what a message to a server is about. It goes by what the server
// reads in it, so escapes do not matter.
func TargetOf(server string, m *jsonrpc.Message) Target {
	switch m.Text(jsonrpc.Method) {
	case "tools/call":
		return Target{server, Tool, m.Text(jsonrpc.Name)}
	case "prompts/get":
		return Target{server, Prompt, m.Text(jsonrpc.Name)}
	case "resources/read", "resources/subscribe", "resources/unsubscribe":
		return Target{server, Resource, m.Text(jsonrpc.URI)}
	case "completion/complete":
		if m.Has(jsonrpc.RefURI) {
			return Target{server, Resource, m.Text(jsonrpc.RefURI)}
		}
		return Target{server, Prompt, m.Text(jsonrpc.RefName)}
	}
	return Target{Server: server}
}
