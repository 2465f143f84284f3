package mcpgateway

import (
	"context"

	"github.com/caddyserver/caddy/v2"
)

// A streamScope is how long clients may listen to one server: as long as a handler has the server as
// it is, and lets in the same clients. It outlives reloads, so that a stream which was opened
// several configurations ago ends, too, when the server goes. Clients come back, and are asked again.
type streamScope struct {
	context.Context
	end context.CancelFunc
}

// streamScopes are those in use.
var streamScopes = caddy.NewUsagePool()

// Destruct implements caddy.Destructor.
func (s *streamScope) Destruct() error {
	s.end()
	return nil
}

// openStreams finds the scopes of streams to the servers. Streams to all servers at once do not need
// one: the gateway that takes the place of another goes on with them.
func (h *Handler) openStreams() error {
	admits := h.Name + "\x00" + h.MCPPath + "\x00" + h.auth.fingerprint + "\x00" + digest(h.Clients) + "\x00"
	for _, s := range h.Servers {
		key := admits + s.id
		value, _, err := streamScopes.LoadOrNew(key, func() (caddy.Destructor, error) {
			scope := new(streamScope)
			scope.Context, scope.end = context.WithCancel(context.Background())
			return scope, nil
		})
		if err != nil {
			return err
		}
		s.streams, s.streamsKey = value.(*streamScope), key
		s.unfollow = context.AfterFunc(h.exiting, s.streams.end)
	}
	return nil
}

// closeStreams gives up the scope of the server.
func (s *Server) closeStreams() error {
	if s.streamsKey == "" {
		return nil
	}
	s.unfollow()
	_, err := streamScopes.Delete(s.streamsKey)
	s.streamsKey = ""
	return err
}

// Interface guard
var _ caddy.Destructor = (*streamScope)(nil)
