package mcp

import (
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

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
	Other // what nobody can tell: a task, or what the protocol does not know
)

// String returns how people write the kind.
func (k TargetKind) String() string {
	return [...]string{"", "tool", "prompt", "resource", "other"}[k]
}

// HasTarget reports whether requests of a method are about something that a server
// has: a tool, a prompt, a resource or a task.
func HasTarget(method string) bool {
	switch method {
	case "tools/call", "prompts/get", "completion/complete",
		"resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get",
		"tasks/get", "tasks/result", "tasks/cancel", "tasks/update":
		return true
	}
	return false
}

// TargetOf returns what a message to a server is about. It goes by what the server
// reads in it, so escapes do not matter. It is not ok if nobody can know what the server
// reads: a name that is no string, or two of them.
func TargetOf(server string, m *jsonrpc.Message) (target Target, ok bool) {
	is := func(kind TargetKind, f jsonrpc.Field) (Target, bool) {
		return Target{server, kind, m.Text(f)}, m.Kind(f) == jsonspan.String
	}
	method := m.Text(jsonrpc.Method)
	switch method {
	case "tools/call":
		return is(Tool, jsonrpc.Name)
	case "prompts/get":
		return is(Prompt, jsonrpc.Name)
	case "resources/read", "resources/subscribe", "resources/unsubscribe", "resources/directory/read", "skills/get":
		return is(Resource, jsonrpc.URI)
	case "completion/complete":
		switch {
		case m.Has(jsonrpc.RefURI) && m.Has(jsonrpc.RefName):
			return Target{Server: server}, false
		case m.Has(jsonrpc.RefURI):
			return is(Resource, jsonrpc.RefURI)
		}
		return is(Prompt, jsonrpc.RefName)
	}
	_, known := KnownMethod(method)
	notifies := strings.HasPrefix(method, "notifications/") && !m.Has(jsonrpc.ID)
	if m.Has(jsonrpc.Method) && (!known || strings.HasPrefix(method, "tasks/")) && !notifies {
		return Target{Server: server, Kind: Other}, true
	}
	return Target{Server: server}, true
}
