package mcp

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A Target is the object of a request, such as a tool.
type Target struct {
	Server string // "" for none in particular
	Kind   TargetKind
	Name   string // name of the tool or prompt, or the URI of the resource at the server
}

// A TargetKind is the kind of a Target.
type TargetKind uint8

// Kinds of targets.
const (
	Anything TargetKind = iota
	Tool
	Prompt
	Resource
	Other // a task, or anything MCP does not define
)

// String returns the name of the kind.
func (k TargetKind) String() string {
	return [...]string{"", "tool", "prompt", "resource", "other"}[k]
}

// HasTarget reports whether requests of a method have a tool, a prompt, a resource or a task as
// their target.
func HasTarget(method string) bool {
	switch method {
	case "tools/call", "prompts/get", "completion/complete",
		"resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get",
		"tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
		return true
	}
	return false
}

// TargetOf returns the target of a message to a server, as the server parses it. ok is false if
// that is ambiguous: a name is not a string, or there are two.
func TargetOf(server string, m *jsonrpc.Message) (target Target, ok bool) {
	named := func(kind TargetKind, f jsonrpc.Field) (Target, bool) {
		return Target{server, kind, m.Text(f)}, m.Kind(f) == jsonspan.String
	}
	method := m.Text(jsonrpc.Method)
	switch method {
	case "tools/call":
		return named(Tool, jsonrpc.Name)
	case "prompts/get":
		return named(Prompt, jsonrpc.Name)
	case "resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get":
		return named(Resource, jsonrpc.URI)
	case "completion/complete":
		switch {
		case m.Has(jsonrpc.RefURI) && m.Has(jsonrpc.RefName):
			return Target{Server: server}, false
		case m.Has(jsonrpc.RefURI):
			return named(Resource, jsonrpc.RefURI)
		}
		return named(Prompt, jsonrpc.RefName)
	}
	_, known := KnownMethod(method)
	notifies := strings.HasPrefix(method, "notifications/") && !m.Has(jsonrpc.ID)
	if m.Has(jsonrpc.Method) && (!known || strings.HasPrefix(method, "tasks/")) && !notifies {
		return Target{Server: server, Kind: Other}, true
	}
	return Target{Server: server}, true
}
