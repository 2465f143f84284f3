package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A sessionRecord is the state of a session that replicas share and its id does not carry. It is
// written on each change. A replica reads it when it continues the session, and again after each
// gap, see [sessionRecords.gaps].
type sessionRecord struct {
	Ended      bool                         `json:",omitempty"`
	Level      string                       `json:",omitempty"` // log level that the client wants
	Subscribed map[string]map[string]string `json:",omitempty"` // aliases of subscribed resources, by server ID and URI
	Links      map[string]linkTicket        `json:",omitempty"` // sessions that began after the client's, by server ID
}

const (
	// maxRecord limits the bytes of a record. Beyond that, the state is known only to the replica
	// that got the request.
	maxRecord = 256 << 10
	// recordBytes limits the bytes of records written per owner in sessionTime, the lifetime of
	// records. Each record counts recordSize more.
	recordBytes, recordSize = 64 << 20, 256
	// maxUnsaved limits the changes of a client that wait for the store.
	maxUnsaved = maxSubscriptions
	// maxSwaps limits the attempts to write a record that others write at the same time.
	maxSwaps = 16
	// recordName is the name of the record in the store.
	recordName = "session"
)

// A sessionChange is a change of the log level or of a subscription. Its field names are part of
// the format of replica messages.
type sessionChange struct {
	Level string `json:",omitempty"` // log level; or:

	Server string `json:",omitempty"` // ID of the server of the resource
	URI    string `json:",omitempty"`
	Shown  string `json:",omitempty"` // URI that the client uses, if different
	On     bool   `json:",omitempty"` // subscribed; false for unsubscribed

	// Told has the sessions with servers in which the server knows the change, by server ID.
	Told map[string]string `json:",omitempty"`
}

// knownIn reports whether the server of a link knows the change.
func (change *sessionChange) knownIn(l *link) bool {
	session, ok := change.Told[l.serverID]
	return ok && session != "" && session == l.session.current().Session
}

// replaces reports whether the change makes another one obsolete.
func (change *sessionChange) replaces(other *sessionChange) bool {
	return (change.Level != "") == (other.Level != "") && change.Server == other.Server && change.URI == other.URI
}

// apply applies a change to the record.
func (r *sessionRecord) apply(change *sessionChange) {
	switch {
	case change.Level != "":
		r.Level = change.Level
	case change.On:
		if r.Subscribed == nil {
			r.Subscribed = map[string]map[string]string{}
		}
		if r.Subscribed[change.Server] == nil {
			r.Subscribed[change.Server] = map[string]string{}
		}
		r.Subscribed[change.Server][change.URI] = change.Shown
	default:
		delete(r.Subscribed[change.Server], change.URI)
		if len(r.Subscribed[change.Server]) == 0 {
			delete(r.Subscribed, change.Server)
		}
	}
}

// A recordState is what this replica knows about the record of a client's session.
type recordState struct {
	// readAt is [sessionRecords.gaps] when the record was last read, plus 1; 0 if it was never read.
	readAt atomic.Uint64

	mu      sync.Mutex      // held while state is exchanged with other replicas
	unsaved []sessionChange // changes not written to the store yet
}

// add adds an unsaved change. The caller holds the lock.
func (s *recordState) add(change sessionChange) {
	for i := range s.unsaved {
		if change.replaces(&s.unsaved[i]) {
			s.unsaved = append(s.unsaved[:i:i], s.unsaved[i+1:]...)
			break
		}
	}
	change.Told = nil
	if len(s.unsaved) < maxUnsaved {
		s.unsaved = append(s.unsaved, change)
	}
}

// A sessionRecords reads and writes the records of sessions, and applies changes that clients make
// at other replicas.
type sessionRecords struct {
	state *State
	bus   *bus
	work  *clientWork
	ends  *sessionEnds

	missed    atomic.Uint64 // number of times that messages may have been lost
	mu        sync.Mutex
	reloading bool // reload runs
}

// gaps returns how often this replica may have missed messages or could not use the store.
func (sr *sessionRecords) gaps() uint64 { return sr.bus.space.Outages() + sr.missed.Load() }

// noteGap notes that messages may have been lost. Session records keep their lasting effects: the
// records of clients with open streams are read now, others with the next request.
func (sr *sessionRecords) noteGap() {
	sr.mu.Lock()
	sr.missed.Add(1)
	begin := !sr.reloading
	sr.reloading = true
	sr.mu.Unlock()
	if begin {
		sr.state.run(sr.reload)
	}
}

// reload reads the records of clients with open streams.
func (sr *sessionRecords) reload() {
	ctx := sr.bus.ctx
	for again := true; again; {
		missed := sr.missed.Load()
		for _, c := range sr.state.clients.all() {
			if len(c.openStreams()) > 0 && ctx.Err() == nil {
				sr.sync(ctx, c)
			}
		}
		sr.mu.Lock()
		sr.reloading = missed != sr.missed.Load() && ctx.Err() == nil
		again = sr.reloading
		sr.mu.Unlock()
	}
}

// sync applies the session record to the client, unless it was read since the last gap. If the
// store is unavailable, the session continues with what its id carries.
func (sr *sessionRecords) sync(ctx context.Context, c *client) {
	gap := sr.gaps() + 1
	if c.era != mcp.Legacy || c.record.readAt.Load() == gap {
		return
	}
	c.record.mu.Lock()
	defer c.record.mu.Unlock()
	if c.record.readAt.Load() == gap {
		return
	}
	sr.writeUnsaved(ctx, c)
	r, _, err := sr.read(ctx, c)
	if err != nil {
		return
	}
	if r.Ended {
		end := &sessionEnd{c.owner, c.issued, defaultEndRequest}
		sr.ends.note(c.key, end)
		sr.state.clients.runFor(c, func() { sr.ends.endHere(c, end) })
	}
	if r.Level != "" {
		sr.applyLevel(c, &sessionChange{Level: r.Level})
	}
	for server, uris := range r.Subscribed {
		for uri, shown := range uris {
			change := &sessionChange{Server: server, URI: uri, Shown: shown, On: true}
			if sr.applySubscription(c, change) {
				sr.work.add(c, 0, func() { c.applyToStreams(change) })
			}
		}
	}
	if c.record.readAt.Swap(gap) > 0 {
		return
	}
	for server, t := range r.Links { // newer than those in the session id
		if s := sr.state.gateways().server(server); s != nil {
			c.linkTo(s).session.useRecorded(t)
		}
	}
}

// share implements [replicaSync.shareChange].
func (sr *sessionRecords) share(ctx context.Context, c *client, change sessionChange) {
	c.record.mu.Lock()
	c.record.add(change)
	sr.writeUnsaved(context.WithoutCancel(ctx), c)
	c.record.mu.Unlock()
	msg := replicaMessage{Session: c.key, Change: &change}
	if change.URI == "" || len(c.openStreams()) > 0 {
		sr.bus.publish(topicAll, msg)
		return
	}
	sr.bus.publishAndWait(ctx, msg)
}

// writeUnsaved writes unsaved changes to the record. They stay unsaved if the store is unavailable.
// The caller holds c.record.mu.
func (sr *sessionRecords) writeUnsaved(ctx context.Context, c *client) {
	for range maxSwaps {
		if len(c.record.unsaved) == 0 {
			return
		}
		r, version, err := sr.read(ctx, c)
		if err != nil {
			return
		}
		if r.Ended {
			break
		}
		before := jsonrpc.Encode(r)
		for i := range c.record.unsaved {
			r.apply(&c.record.unsaved[i])
		}
		text := jsonrpc.Encode(r)
		if string(text) == string(before) {
			break
		}
		written, err := sr.write(ctx, c, version, text)
		switch {
		case written:
			c.record.unsaved = nil
			return
		case errors.Is(err, replicas.ErrUnavailable), ctx.Err() != nil:
			return
		case err != nil: // permanent, such as ErrFull
			c.record.unsaved = nil
			return
		}
	}
	c.record.unsaved = nil
}

// read returns the record of a session, empty if there is none.
func (sr *sessionRecords) read(ctx context.Context, c *client) (r sessionRecord, version replicas.Version, err error) {
	text, version, err := sr.bus.space.Get(ctx, c.key, recordName)
	if err == nil && text != nil && json.Unmarshal(text, &r) != nil {
		r = sessionRecord{} // incompatible format
	}
	return r, version, err
}

// write writes a record if the stored version has not changed.
func (sr *sessionRecords) write(
	ctx context.Context, c *client, version replicas.Version, text []byte,
) (written bool, err error) {
	left := sessionTime - time.Since(c.issued)
	fits := left > 0 && len(text) <= maxRecord
	if fits {
		if fits, err = sr.hasRoom(ctx, c, len(text)); err != nil {
			return false, err
		}
	}
	if !fits {
		sr.state.gateways().logger().Warn("session not shared with other replicas: "+
			"it has expired, its record is too large, or a quota is used up", zap.Int("bytes", len(text)))
		return false, replicas.ErrFull
	}
	return sr.bus.space.Swap(ctx, c.key, recordName, version, text, left)
}

// hasRoom reports whether the owner of a session may write this many bytes, and counts them.
func (sr *sessionRecords) hasRoom(ctx context.Context, c *client, bytes int) (bool, error) {
	b := replicas.Bucket{
		Key: "session records", Rate: recordBytes / sessionTime.Seconds(), Burst: recordBytes,
		Want: float64(bytes + recordSize),
	}
	taken, _, err := sr.bus.space.Spend(ctx, c.owner, []replicas.Bucket{b})
	switch {
	case err != nil || len(taken) == 0:
		return false, err
	case taken[0] >= b.Want:
		return true, nil
	}
	b.Want = -taken[0] // return the part that was taken
	_, _, err = sr.bus.space.Spend(context.WithoutCancel(ctx), c.owner, []replicas.Bucket{b})
	return false, err
}

// The session id does not carry sessions with servers that begin later, because the server was
// unreachable or lost its session. Replicas share them in the record, so that the client has one
// session per server.

// sharesSession reports whether replicas share the session in the client's record.
func (c connectAttempt) sharesSession() bool {
	client := c.link.client
	return c.g.replicaSync != nil && client.era == mcp.Legacy && client.hasKey() && client.inspection == nil &&
		!c.server.ChildrenOnly
}

// resumeShared continues a session that another replica has begun. It reports whether the server
// knows such a session.
func (c connectAttempt) resumeShared() bool {
	if !c.sharesSession() {
		return false
	}
	r, _, err := c.g.replicaSync.records.read(c.ctx, c.link.client)
	t, ok := r.Links[c.server.ID]
	return err == nil && ok && c.link.tryResume(c.scope, t)
}

// shareSession stores a session that has begun here in the record. If another replica has stored
// one in the meantime, it uses that and ends its own.
func (c connectAttempt) shareSession() {
	l, id := c.link, c.server.ID
	if !c.sharesSession() || l.session.current().Session == "" || l.isLocal(c.server) {
		return
	}
	records := c.g.replicaSync.records
	for range maxSwaps {
		r, version, err := records.read(c.ctx, l.client)
		if err != nil || r.Ended {
			return
		}
		current := l.session.current()
		if another, ok := r.Links[id]; ok && l.tryResume(c.scope, another) {
			own := newLink(l.client, c.server)
			own.session.use(current)
			own.end(c.scope)
			return
		}
		if r.Links == nil {
			r.Links = map[string]linkTicket{}
		}
		r.Links[id] = current
		written, err := records.write(c.ctx, l.client, version, jsonrpc.Encode(r))
		if written {
			l.session.markCarried()
		}
		if written || err != nil {
			return
		}
	}
}

// tryResume switches to a session if the server still knows it. It reports whether it does.
func (l *link) tryResume(sc scope, t linkTicket) bool {
	before, ok := l.session.replace(t)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(sc.ctx, sc.g.config.JoinTimeout)
	defer cancel()
	r, _ := l.newRequest(sc.withContext(ctx))
	if _, failure := l.roundTrip(sc.g, r, jsonrpc.RequestAs(l.ids.next(), "ping", nil), ignoreResult); failure == nil {
		return true
	}
	l.session.reject(t, before)
	return false
}

// applyChange applies a change that the client made at another replica. It reports whether the
// client has a stream here. Requests of the client do not wait for servers that get the change.
func (sr *sessionRecords) applyChange(c *client, change *sessionChange) (listens bool) {
	c.record.mu.Lock()
	if change.Level != "" {
		sr.applyLevel(c, change)
	} else {
		sr.applySubscription(c, change)
	}
	c.record.mu.Unlock()
	return c.applyToStreams(change)
}

// applyToStreams applies a change to the client's streams. It reports whether there are any.
func (c *client) applyToStreams(change *sessionChange) (listens bool) {
	for _, s := range c.openStreams() {
		if s.wants == nil {
			s.apply(change)
			listens = true
		}
	}
	return listens
}

// applyLevel sets the log level. Servers get it with their next request.
func (sr *sessionRecords) applyLevel(c *client, change *sessionChange) {
	c.mu.Lock()
	c.level = change.Level
	c.mu.Unlock()
	for _, l := range c.allLinks() {
		if l.session.current().Can&mcp.HasLogging != 0 && !change.knownIn(l) {
			l.markUnsynced(sr.state)
		}
	}
}

// applySubscription adds or removes a subscription. It reports whether it is new. Without a stream
// of the client here, legacy servers get it with their next request.
func (sr *sessionRecords) applySubscription(c *client, change *sessionChange) (added bool) {
	server, meter := sr.state.gateways().server(change.Server), sr.state.subscriptionMeter
	if server == nil {
		return false
	}
	l := c.linkTo(server)
	if !change.On {
		l.subscriptions.remove(meter, c.owner, change.URI)
		return false
	}
	added, ok := l.subscriptions.add(meter, c.owner, change.URI, change.Shown, maxSubscriptions)
	if ok && !change.knownIn(l) && len(c.openStreams()) == 0 {
		l.markUnsynced(sr.state)
	}
	return added
}

// markUnsynced notes that the server misses a change from another replica.
func (l *link) markUnsynced(s *State) {
	server := s.gateways().server(l.serverID)
	l.session.markUnsynced(server != nil && server.ChildrenOnly)
}

// apply sends a change to the servers that the stream listens to, within JoinTimeout.
func (s *stream) apply(change *sessionChange) {
	g := s.g.Load()
	ctx, cancel := context.WithTimeout(s.ctx, g.config.JoinTimeout)
	defer cancel()
	sc := scope{ctx: ctx, g: g, r: s.req.request.withContext(s.ctx)}
	repeatOnTimeout := func(l *link) {
		if ctx.Err() != nil {
			l.markUnsynced(g.State) // the next request sends the change again
		}
	}
	if change.Level != "" {
		var sending sync.WaitGroup
		for _, l := range s.req.client.allLinks() {
			if g.linkServer(l) != nil && l.session.isOpen() {
				sending.Go(func() {
					l.sendInitialized(sc)
					repeatOnTimeout(l)
				})
			}
		}
		sending.Wait()
		return
	}
	server := g.byID[change.Server]
	if server == nil || !g.rules.Sees(s.req.caller.Identity, server.Name) {
		return
	}
	l := s.req.client.linkTo(server)
	if l.open(sc) != nil {
		return // open logs failures
	}
	defer repeatOnTimeout(l)
	key := listenerKey{l.serverID, change.URI}
	switch era := l.session.current().Era; {
	case era == mcp.Modern && change.On:
		s.listenAndWait(key)
	case era == mcp.Modern:
		s.work.stop(key)
	case change.knownIn(l):
	case change.On:
		l.repeat(sc, "resources/subscribe", mcp.URIParams(change.URI))
	default:
		l.repeat(sc, "resources/unsubscribe", mcp.URIParams(change.URI))
	}
}

// announceReady sends notifications/initialized to servers, for a session that began at another
// replica. A session id does not say whether that was done.
func (n oneWayMessage) announceReady() {
	rs, c := n.g.replicaSync, n.client
	if rs == nil || c.readyAnnounced.Swap(true) {
		return
	}
	n.forEachOpenLink(func(s *upstream.Server, l *link) {
		if !l.isLocal(s) {
			l.session.setInitialized(false)
		}
	})
	n.forEachOpenLink(func(_ *upstream.Server, l *link) { l.sendInitialized(n.scope()) })
	rs.bus.publish(topicAll, replicaMessage{Session: c.key, Greeted: true})
}

// noteReadyAnnounced notes that servers have got notifications/initialized from another replica.
func (c *client) noteReadyAnnounced(all gatewayList) {
	c.readyAnnounced.Store(true)
	for _, l := range c.allLinks() {
		if s := all.server(l.serverID); s != nil && !l.isLocal(s) {
			l.session.setInitialized(true)
		}
	}
}

// isLocal reports whether other replicas cannot use the session: its server is a child process, or
// an HTTP+SSE server, whose stream this process holds.
func (l *link) isLocal(s *upstream.Server) bool {
	return s.ChildrenOnly || httpsse.IsSession(l.session.current().Session)
}

// sharedSessions returns the sessions of links that other replicas can use, by server ID.
func (g *Gateway) sharedSessions(links ...*link) map[string]string {
	sessions := map[string]string{}
	for _, l := range links {
		if s := g.linkServer(l); s != nil && !l.isLocal(s) && l.session.isOpen() {
			sessions[l.serverID] = l.session.current().Session
		}
	}
	return sessions
}
