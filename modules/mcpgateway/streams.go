package mcpgateway

import (
	"context"

	"github.com/caddyserver/caddy/v2"
)

// A streamScope is the context of the streams that clients open to one server. It ends when no
// handler has the same server with the same clients and credentials any longer; clients then
// reconnect and authenticate again. It outlives reloads, so that a later reload still ends the
// streams of earlier configurations.
type streamScope struct {
	context.Context
	end context.CancelFunc
}

// streamScopes holds the scopes in use.
var streamScopes = caddy.NewUsagePool()

// Destruct implements caddy.Destructor.
func (s *streamScope) Destruct() error {
	s.end()
	return nil
}

// openStreams acquires the scopes of all servers. Streams at /mcp need no scope, because the
// gateway that replaces this one continues them.
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
		s.cancelExitHook = context.AfterFunc(h.exiting, s.streams.end)
	}
	return nil
}

// closeStreams releases the scope of the server.
func (s *Server) closeStreams() error {
	if s.streamsKey == "" {
		return nil
	}
	s.cancelExitHook()
	_, err := streamScopes.Delete(s.streamsKey)
	s.streamsKey = ""
	return err
}

// Interface guard
var _ caddy.Destructor = (*streamScope)(nil)
