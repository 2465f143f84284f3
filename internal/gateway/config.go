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
	Resumable  bool // another process with the same Key may go on with sessions
	MaxClients int  // how many idle ones are remembered
	Discovery  bool // list tools to search tools with, in place of all tools
	Observer   Observer

	// Generation identifies the Caddy configuration that the gateway is part of.
	Generation any

	// Replaces is the gateway of the same Generation whose clients this one gets; nil for none.
	Replaces *Gateway

	// Detach returns a context for requests that outlive the handler which has ctx. Derive makes
	// the same of them, but the context holds nothing of the handler, such as its response
	// writer, and is never done. Required.
	Detach func(ctx context.Context) context.Context

	// ReportMissing names servers that cannot be reached in the instructions for clients.
	ReportMissing bool

	NotificationRoutes []NotificationRoute

	// Originals of results that were left out of requests to models; nil for none.
	Originals Originals
}

// Originals are tool results that were left out of requests to models. Which server they
// are of, if any, is not known. They also reach those that other replicas keep.
type Originals interface {
	// Kept reports whether results are kept at all.
	Kept() bool

	// Original returns the result that is kept for a client under a handle: the body of a
	// JSON string. user is whom a handler in front of the gateway has authenticated.
	Original(user, address, handle string) (body []byte, ok bool)

	// Fetch has Original, and the masks of all servers, find what another replica keeps for a
	// client under a handle. It fails if it cannot be known whether one does.
	Fetch(ctx context.Context, client, user, address, handle string) error
}

// A NotificationRoute says to which servers a notification of a client is passed on.
type NotificationRoute struct {
	Method  string // in which * stands for any characters
	Servers []string
}

// An Observer counts and logs what happens.
type Observer interface {
	inbound.Observer

	// ServerFailed is called when a handshake with a server, or a list of it, has failed.
	// ServerAnswered is called when a handshake has not.
	ServerFailed(*upstream.Fault)
	ServerAnswered(server string)

	// Listed is called when a server has listed what it has of a kind: tools, prompts, resources,
	// or nothing of that.
	Listed(server, kind string, items int)

	// ToolInvalid is called when a tool is left out because its definition is invalid.
	ToolInvalid(server, tool string, reason error)

	// ToolMissing is called when a server does not list a tool that has an [toolview.Override].
	ToolMissing(server, tool string)
}
