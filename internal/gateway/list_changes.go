package gateway

import (
	"encoding/hex"
	"slices"
	"sync"
	"time"
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

// A listBroadcast tells other replicas about list-changed notifications of servers.
type listBroadcast struct {
	state *State
	bus   *bus

	mu      sync.Mutex
	pending listChanges // changes to send with the next timer
	timer   *time.Timer // sends pending; nil if no change was sent recently
}

// send tells other replicas that a server sent list-changed notifications to the clients of links.
// It sends the first change before it returns, so that clients do not get an outdated list from
// another replica. It collects later ones for changesPause.
func (b *listBroadcast) send(notice string, links []*link) {
	links = slices.DeleteFunc(links, func(l *link) bool { return l.client.inspection != nil })
	if len(links) == 0 {
		return
	}
	sessions := make([]string, len(links))
	for i, l := range links {
		if l.client.key != "" {
			hash := l.client.keyHash()
			sessions[i] = hex.EncodeToString(hash[:])
		}
	}
	addTo := func(changes listChanges) {
		for i, l := range links {
			changes.add(l.serverID, notice, sessions[i], hex.EncodeToString([]byte(l.client.audience)))
		}
	}
	b.mu.Lock()
	if b.timer != nil {
		if b.pending == nil {
			b.pending = listChanges{}
		}
		addTo(b.pending)
		b.mu.Unlock()
		return
	}
	b.timer = time.AfterFunc(changesPause, b.sendPending)
	b.mu.Unlock()
	first := listChanges{}
	addTo(first)
	b.bus.publish(topicAll, replicaMessage{Lists: first})
}

// sendPending sends the collected changes.
func (b *listBroadcast) sendPending() {
	b.mu.Lock()
	changes := b.pending
	b.pending = nil
	if changes == nil || b.bus.ctx.Err() != nil {
		b.timer = nil
		b.mu.Unlock()
		return
	}
	b.timer.Reset(changesPause)
	b.mu.Unlock()
	b.bus.publish(topicAll, replicaMessage{Lists: changes})
}

// stop stops the timer. The caller has closed the bus.
func (b *listBroadcast) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
}

// receive handles list changes from another replica.
func (b *listBroadcast) receive(from string, all listChanges) {
	for server, changes := range all {
		for notice, affected := range changes {
			for _, g := range b.state.gateways() {
				if s := g.byID[server]; s != nil && affected != nil {
					g.notifier().listsChanged(s, notice, affected, "replica "+from)
				}
			}
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
