package upstream

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

// Shared is what all exchanges of a gateway have in common.
type Shared struct {
	Logger   *zap.Logger
	Observer Observer

	JoinTimeout   time.Duration // for the handshake with a server, and for each of its lists
	ResponseLimit int64         // bytes of a response; 0 for no limit
	PinTools      bool          // withhold tools whose definition has changed
	HasClients    bool          // with rules, so that answers may depend on the client

	// Exiting is done when Caddy exits.
	Exiting context.Context

	// Reauthenticate is done when clients whose secrets the configuration does not have must
	// authenticate again.
	Reauthenticate context.Context

	Private map[string]bool // headers that servers do not get: credentials and overrides
	Sealer  seal.Sealer     // of what clients hold for us
	Tasks   *Tasks
	State   *State
}

// A State is what is known of servers. It outlives configurations.
type State struct {
	focused     *toldTools[struct{}] // by the name of the argument
	annotations *toldTools[toolNote] // by the identity of the client, and its headers
	changes     atomic.Uint64        // of the tools of all servers
	httpSSE     *httpsse.Pool        // sessions with servers of HTTP+SSE
}

// NewState returns a State that knows nothing, which has to be closed.
func NewState() *State {
	return &State{
		focused:     newToldTools[struct{}](keptFocus, focusLimits, focusTime),
		annotations: newToldTools[toolNote](keptAnnotations, annotationLimits, annotationTime),
		httpSSE:     httpsse.NewPool(),
	}
}

// Close forgets all of it.
func (s *State) Close() {
	s.focused.close()
	s.annotations.close()
	s.httpSSE.Close()
}

// An Observer counts and logs what happens in exchanges.
type Observer interface {
	// RequestDone is called at the end of each request to a server, and of each request of a
	// client that was not passed on to just one.
	RequestDone(Record)

	// Redacted is called when n parts of a message for a client were redacted.
	Redacted(client string, n int)

	// ToolChanged is called when the definition of a tool is not what it was.
	ToolChanged(server, tool string)

	// ToolHidden is called when clients do not see a tool because a [toolview.Override] gives its name to another one.
	ToolHidden(server, tool, by string)

	// ToolsSeen is called after a list of tools was read, whose definitions are pinned.
	ToolsSeen(server string)
}

// Keep ends the sessions with servers of HTTP+SSE that a configuration does not have.
func (s *State) Keep(has func(server string) bool) { s.httpSSE.Keep(has) }

// EndHTTPSSE ends a session with a server of HTTP+SSE.
func (s *State) EndHTTPSSE(session string) { s.httpSSE.End(session) }
