package stdio

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// clients are the sessions that use a server.
type clients struct {
	server *server
	at     address // of the server; becomeLegacy may change it
}

func (s *server) clients() clients {
	s.mu.Lock()
	defer s.mu.Unlock()
	return clients{s, s.address}
}

// each calls f for every session.
func (cs clients) each(f func(*session)) {
	switch {
	case cs.server.owner != nil:
		f(cs.server.owner)
	case cs.at.era == mcp.Legacy:
		cs.server.pool.sessions.each(func(s *session) {
			if s.group == cs.at.group {
				f(s)
			}
		})
	}
}

// isSubscribed reports whether a session has subscribed to a resource.
func (cs clients) isSubscribed(uri string) (wanted bool) {
	cs.each(func(s *session) { wanted = wanted || s.subscriptions.has(uri) })
	return wanted
}

// level returns the most verbose log level that a session has set, or "" if none has.
func (cs clients) level() string {
	lowest := len(mcp.LogLevels)
	cs.each(func(s *session) {
		if i := slices.Index(mcp.LogLevels, s.logLevel()); i >= 0 {
			lowest = min(lowest, i)
		}
	})
	if lowest == len(mcp.LogLevels) {
		return ""
	}
	return mcp.LogLevels[lowest]
}

// restore restores the state of the clients after a restart: the child gets their subscriptions and
// log level, and they get notifications that its lists may have changed.
func (cs clients) restore(c *child) {
	uris := map[string]bool{}
	cs.each(func(s *session) {
		for _, uri := range s.subscriptions.all() {
			uris[uri] = true
		}
	})
	for uri := range uris {
		ctx, cancel := context.WithTimeout(context.Background(), cs.server.pool.config.StartTimeout)
		_, err := c.request(ctx, "resources/subscribe", mcp.URIParams(uri))
		cancel()
		if err != nil {
			cs.server.log().Warn("resubscribing after a restart failed", zap.Error(err))
			break
		}
	}
	c.level.update()
	for _, list := range c.handshake.lists {
		var m jsonrpc.Message
		if m.Read(jsonrpc.Notification("notifications/"+list+"/list_changed", nil)) == nil {
			cs.listChanged(&m)
		}
	}
}

// broadcast sends a notification to the streams of the sessions that it concerns.
func (cs clients) broadcast(m *jsonrpc.Message, concerns func(*session) bool) {
	cs.each(func(s *session) {
		if concerns(s) && !s.streamInbox.Put(letter{message: frame{m.Raw}}) {
			cs.server.noteDropped()
		}
	})
}

// listChanged broadcasts a notification that a list has changed, and tells the watchers which
// sessions have no open stream to receive it.
func (cs clients) listChanged(m *jsonrpc.Message) {
	if watchers := cs.server.pool.watchers.at(cs.at.host); len(watchers) > 0 {
		var unread []string
		cs.each(func(s *session) {
			if !s.hasStream() {
				unread = append(unread, s.id)
			}
		})
		for _, watch := range watchers {
			(*watch)(m.Text(jsonrpc.Method), unread)
		}
	}
	cs.broadcast(m, func(*session) bool { return true })
}

// withdraw notifies a client that a child cancels its request.
func (cs clients) withdraw(c *child, m *jsonrpc.Message) {
	cs.each(func(s *session) {
		number, to := s.serverRequests.withdraw(c, m.Literal(jsonrpc.RequestID))
		if to != nil {
			to.Put(letter{message: replaceFields(m, fmt.Append(nil, number), jsonrpc.RequestID)})
		}
	})
}

// sole returns the session that gets notifications outside of calls: the only one, if the child has
// had no calls of other clients. If there is a single client, all sessions are that client's, and
// it is the latest.
func (cs clients) sole(c *child) *session {
	if cs.server.owner != nil {
		return cs.server.owner
	}
	var all []*session
	cs.each(func(s *session) { all = append(all, s) })
	if cs.server.pool.config.SoleClient && len(all) > 0 {
		return slices.MaxFunc(all, func(a, b *session) int { return a.created.Compare(b.created) })
	}
	if len(all) != 1 || !c.calls.workedOnlyFor(all[0]) {
		return nil
	}
	return all[0]
}

// owner returns the only session that a child serves, or nil if it may be shared.
func (cs clients) owner(c *child) *session {
	if cs.server.owner == nil && cs.server.pool.config.SoleClient {
		return cs.sole(c)
	}
	return cs.server.owner
}
