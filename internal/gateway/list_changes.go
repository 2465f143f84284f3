package gateway

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// listChanges are the lists that have changed, by server ID and method of the notification.
type listChanges map[string]map[string]*affectedClients

// affectedClients are the clients that a change affects: those that were notified, and their
// audiences.
type affectedClients struct {
	Sessions  []string `json:",omitempty"` // hashes of session ids
	Audiences []string `json:",omitempty"` // keys in hex
	All       bool     `json:",omitempty"` // too many to name
}

const (
	// changesPause is how long changes are collected after the first one was sent.
	changesPause = 20 * time.Millisecond
	// maxAffected limits the sessions and audiences per change.
	maxAffected = 1_000
)

// add adds a change that a server sent to a client.
func (c listChanges) add(server, notice, session, audience string) {
	if c[server] == nil {
		c[server] = map[string]*affectedClients{}
	}
	affected := c[server][notice]
	if affected == nil {
		affected = new(affectedClients)
		c[server][notice] = affected
	}
	if session != "" && !slices.Contains(affected.Sessions, session) {
		affected.Sessions = append(affected.Sessions, session)
	}
	if !slices.Contains(affected.Audiences, audience) {
		affected.Audiences = append(affected.Audiences, audience)
	}
	if affected.All || len(affected.Sessions) > maxAffected || len(affected.Audiences) > maxAffected {
		affected.All = true
		affected.Sessions, affected.Audiences = nil, nil
	}
}

// listsChanged tells other replicas that a server sent list-changed notifications to the clients of
// links. It sends the first change before it returns, so that clients do not get an outdated list
// from another replica. It collects later ones for changesPause.
func (rs *replicaSync) listsChanged(notice string, links ...*link) {
	if rs == nil {
		return
	}
	links = slices.DeleteFunc(links, func(l *link) bool { return l.client.inspection != nil })
	if len(links) == 0 {
		return
	}
	sessions := make([]string, len(links))
	for i, l := range links {
		if l.client.key != "" {
			hash := rs.endedKey(l.client)
			sessions[i] = hex.EncodeToString(hash[:])
		}
	}
	addTo := func(changes listChanges) {
		for i, l := range links {
			changes.add(l.serverID, notice, sessions[i], hex.EncodeToString([]byte(l.client.audience)))
		}
	}
	rs.mu.Lock()
	if rs.changesTimer != nil {
		if rs.pendingChanges == nil {
			rs.pendingChanges = listChanges{}
		}
		addTo(rs.pendingChanges)
		rs.mu.Unlock()
		return
	}
	rs.changesTimer = time.AfterFunc(changesPause, rs.sendChanges)
	rs.mu.Unlock()
	first := listChanges{}
	addTo(first)
	rs.publish(topicAll, replicaMessage{Lists: first})
}

// ChildListChanged tells other replicas about a list-changed notification of a child process, for
// sessions without an open stream. It does not block.
func (g *Gateway) ChildListChanged(server, notice string, unread []string) {
	s := g.servers[server]
	if g.replicaSync == nil || s == nil || len(unread) == 0 {
		return
	}
	concerned := setOf(unread)
	var links []*link
	for _, c := range g.clients() {
		if l := c.existingLink(s); l != nil && concerned[l.sessionID()] {
			links = append(links, l)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(links) > 0 && !g.ended {
		g.running.Go(func() { g.replicaSync.listsChanged(notice, links...) })
	}
}

// sendChanges sends the collected changes.
func (rs *replicaSync) sendChanges() {
	rs.mu.Lock()
	changes := rs.pendingChanges
	rs.pendingChanges = nil
	if changes == nil || rs.ctx.Err() != nil {
		rs.changesTimer = nil
		rs.mu.Unlock()
		return
	}
	rs.changesTimer.Reset(changesPause)
	rs.mu.Unlock()
	rs.publish(topicAll, replicaMessage{Lists: changes})
}

// receiveListChanges handles list changes from another replica.
func (rs *replicaSync) receiveListChanges(from string, all listChanges) {
	for server, changes := range all {
		for notice, affected := range changes {
			for _, g := range rs.gateways() {
				if s := g.byID(server); s != nil && affected != nil {
					g.listsChangedAtReplica(s, notice, affected, "replica "+from)
				}
			}
		}
	}
}

// listsChangedAtReplica invalidates lists and notifies clients, as if the server had sent the
// notification to this replica.
func (g *Gateway) listsChangedAtReplica(s *upstream.Server, notice string, affected *affectedClients, source string) {
	if notice == mcp.ListKinds[mcp.Tools].Notice {
		g.shared.Retained.ToolsChanged(s)
	}
	sessions, audiences := setOf(affected.Sessions), setOf(affected.Audiences)
	for _, c := range g.clients() {
		l := c.existingLink(s)
		if l == nil {
			continue
		}
		if hash := g.endedKey(c); affected.All || sessions[hex.EncodeToString(hash[:])] {
			if own := l.ownLists(); own != nil {
				own.Changed(notice, source)
			}
		}
	}
	var keys []string
	g.audiences.each(func(a *audience) {
		if (affected.All || audiences[hex.EncodeToString([]byte(a.key))]) && a.profile(s.ID).lists.Changed(notice, source) {
			keys = append(keys, a.key)
		}
	})
	var m jsonrpc.Message
	if m.Read(jsonrpc.Notification(notice, nil)) != nil {
		return
	}
	for _, audience := range keys {
		listeners := g.followers(audience, s.ID)
		if s.ChildrenOnly { // streams of this replica listen to another child process
			listeners = g.streamsSeeing(audience, s.ID)
		}
		for _, stream := range listeners {
			stream.runAsync(func() { stream.deliver(g, newLink(stream.req.client, s), &m, "") })
		}
	}
}

func setOf(all []string) map[string]bool {
	set := make(map[string]bool, len(all))
	for _, one := range all {
		set[one] = true
	}
	return set
}

// serverRefreshed tells other replicas to refresh a server.
func (rs *replicaSync) serverRefreshed(s *upstream.Server) {
	if rs != nil {
		rs.publish(topicAll, replicaMessage{Refresh: s.ID})
	}
}

// receiveRefresh refreshes a server for another replica.
func (rs *replicaSync) receiveRefresh(server string) {
	for _, g := range rs.gateways() {
		if s := g.byID(server); s != nil {
			g.forgetLists(s)
		}
	}
}
