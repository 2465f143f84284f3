package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

// Shared is common to all exchanges of a gateway.
type Shared struct {
	Logger   *zap.Logger
	Observer Observer

	JoinTimeout   time.Duration // timeout of the handshake with a server, and of each of its lists
	ResponseLimit int64         // in bytes; 0 for no limit
	PinTools      bool          // withhold tools whose definition has changed
	HasClients    bool          // clients have rules, so responses may depend on the client

	// Exiting is done when Caddy exits.
	Exiting context.Context

	// Reauthenticate is done when clients without secrets in the configuration must authenticate
	// again.
	Reauthenticate context.Context

	Private  map[string]bool // headers that servers do not get: credentials and overrides
	Sealer   seal.Sealer     // seals ids and states that clients hold
	Tasks    *Tasks
	Retained *Retained
}

// A Retained has facts about servers that are retained over configuration reloads.
type Retained struct {
	focused     *toolCache[struct{}] // by the name of the focus argument
	annotations *toolCache[toolNote] // by the identity of the client, and its headers
	changes     atomic.Uint64        // number of tool changes of all servers
	httpSSE     *httpsse.Pool        // sessions with servers that use HTTP+SSE
}

// NewRetained returns an empty Retained. The caller must close it.
func NewRetained() *Retained {
	return &Retained{
		focused:     newToolCache[struct{}](focusQuota, focusLimits, focusTime),
		annotations: newToolCache[toolNote](annotationsQuota, annotationLimits, annotationTime),
		httpSSE:     httpsse.NewPool(),
	}
}

// Close drops everything, and ends the HTTP+SSE sessions.
func (r *Retained) Close() {
	r.focused.close()
	r.annotations.close()
	r.httpSSE.Close()
}

// An Observer counts and logs events of exchanges.
type Observer interface {
	// RequestDone is called at the end of each request to a server, and of each request of a client
	// that was not forwarded to exactly one server.
	RequestDone(Record)

	// Redacted is called when n parts of a message for a client were redacted.
	Redacted(client string, n int)

	// ToolChanged is called when the definition of a tool differs from its pin.
	ToolChanged(server, tool string)

	// ToolHidden is called when a tool is hidden because a [toolview.Override] gives its name to
	// another tool. renamed is the server's name of that tool.
	ToolHidden(server, tool, renamed string)

	// ToolsSeen is called after a list of tools was read whose definitions are pinned.
	ToolsSeen(server string)
}

// EndRemovedSessions ends the HTTP+SSE sessions with servers for which exists returns false.
func (r *Retained) EndRemovedSessions(exists func(server string) bool) { r.httpSSE.Keep(exists) }

// EndHTTPSSE ends a session with a server that uses HTTP+SSE.
func (r *Retained) EndHTTPSSE(session string) { r.httpSSE.End(session) }
