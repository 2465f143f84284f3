package gateway

import (
	"context"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A Config describes a gateway.
type Config struct {
	inbound.Config
	Naming     mcp.Naming
	Resumable  bool // other processes with the same Key may continue sessions
	MaxClients int  // idle clients that are remembered
	Discovery  bool // list the tools for discovery instead of all tools
	Observer   Observer

	// Generation identifies the Caddy configuration that the gateway is part of.
	Generation any

	// Replaces is the gateway of the same Generation whose clients this one takes over; nil for
	// none.
	Replaces *Gateway

	// Detach returns a context for requests that outlive the handler of ctx. Derive accepts it like
	// ctx. It is never done, and holds nothing of the handler, such as its response writer.
	// Required.
	Detach func(ctx context.Context) context.Context

	// ReportMissing adds the names of unreachable servers to the instructions for clients.
	ReportMissing bool

	NotificationRoutes []NotificationRoute

	// Originals of results that were removed from requests to models; nil for none.
	Originals Originals
}

// Originals are tool results that were removed from requests to models. The server that they came
// from is unknown. Results kept by other replicas are found, too.
type Originals interface {
	// Kept reports whether originals are stored.
	Kept() bool

	// Original returns the result stored for a client under a handle, as the body of a JSON string.
	// user is the user that a handler before the gateway authenticated.
	Original(user, address, handle string) (body []byte, ok bool)

	// Fetch loads a result from other replicas, so that Original and the masks of all servers find
	// it. It fails if the shared store is unavailable.
	Fetch(ctx context.Context, client, user, address, handle string) error
}

// A NotificationRoute selects the servers that get a notification of a client.
type NotificationRoute struct {
	Method  string // pattern: * matches any characters
	Servers []string
}

// An Observer counts and logs events.
type Observer interface {
	inbound.Observer

	// ServerFailed is called when a handshake or a list request fails. ServerAnswered is called
	// when a handshake succeeds.
	ServerFailed(*upstream.Fault)
	ServerAnswered(server string)

	// Listed is called when a server has listed its items of a kind, such as tools or prompts.
	Listed(server, kind string, items int)

	// ToolInvalid is called when a tool is hidden because its definition is invalid.
	ToolInvalid(server, tool string, reason error)

	// ToolMissing is called when a server does not list a tool that has a [toolview.Override].
	ToolMissing(server, tool string)
}
