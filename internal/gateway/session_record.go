package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpsse"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// A sessionRecord is the state of a session that replicas share and its id does not carry. It is
// written on each change. A replica reads it when it continues the session, and again after each
// gap, see [replicaSync.gaps].
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
	return ok && session != "" && session == l.sessionID()
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

// readRecord returns the record of a session, empty if there is none.
func (rs *replicaSync) readRecord(
	ctx context.Context, c *client,
) (r sessionRecord, version replicas.Version, err error) {
	text, version, err := rs.space.Get(ctx, c.key, recordName)
	if err == nil && text != nil && json.Unmarshal(text, &r) != nil {
		r = sessionRecord{} // incompatible format
	}
	return r, version, err
}

// syncSession applies the session record to the client, unless it was read since the last gap. If
// the store is unavailable, the session continues with what its id carries.
func (rs *replicaSync) syncSession(ctx context.Context, c *client) {
	if rs == nil || c.era != mcp.Legacy {
		return
	}
	gap := rs.gaps() + 1
	if c.recordRead.Load() == gap {
		return
	}
	c.syncing.Lock()
	defer c.syncing.Unlock()
	if c.recordRead.Load() == gap {
		return
	}
	rs.writeUnsaved(ctx, c)
	r, _, err := rs.readRecord(ctx, c)
	if err != nil {
		return
	}
	if r.Ended {
		end := &sessionEnd{c.owner, c.issued, defaultEndRequest}
		rs.noteEnded(c.key, end)
		rs.runFor(c, func() { rs.endLocally(c, end) })
	}
	if r.Level != "" {
		rs.applyLevel(c, &sessionChange{Level: r.Level})
	}
	for server, uris := range r.Subscribed {
		for uri, shown := range uris {
			change := &sessionChange{Server: server, URI: uri, Shown: shown, On: true}
			if rs.applySubscription(c, change) {
				rs.enqueue(c, queuedTask{func() { c.applyToStreams(change) }, 0})
			}
		}
	}
	if c.recordRead.Swap(gap) > 0 {
		return
	}
	for server, t := range r.Links { // newer than those in the session id
		if s := rs.serverByID(server); s != nil {
			c.linkTo(s).useRecorded(t)
		}
	}
}

// gaps returns how often this replica may have missed messages or could not use the store.
func (rs *replicaSync) gaps() uint64 { return rs.space.Outages() + rs.missedMessages.Load() }

// noteNewSession notes that a session begins here, so there is no record to read.
func (rs *replicaSync) noteNewSession(c *client) {
	if rs != nil {
		c.recordRead.Store(rs.gaps() + 1)
		c.readyAnnounced.Store(true)
	}
}

// shareChange stores a change and tells other replicas. If the client has a stream at one of them,
// it waits until that replica has applied a subscription, at most joinWait.
func (rs *replicaSync) shareChange(ctx context.Context, c *client, change sessionChange) {
	if rs == nil || c.key == "" {
		return
	}
	rs.save(context.WithoutCancel(ctx), c, change)
	msg := replicaMessage{Session: c.key, Change: &change}
	if change.URI == "" || len(c.openStreams()) > 0 {
		rs.publish(topicAll, msg)
		return
	}
	id, wait, forget := rs.expectAck()
	defer forget()
	msg.Wants = id
	if rs.publish(topicAll, msg) && rs.publish(sessionTopic(c.key), replicaMessage{}) { // the client has a stream
		wait(ctx)
	}
}

// save writes a change to the record.
func (rs *replicaSync) save(ctx context.Context, c *client, change sessionChange) {
	c.syncing.Lock()
	defer c.syncing.Unlock()
	for i := range c.unsaved {
		if change.replaces(&c.unsaved[i]) {
			c.unsaved = append(c.unsaved[:i:i], c.unsaved[i+1:]...)
			break
		}
	}
	change.Told = nil
	if len(c.unsaved) < maxUnsaved {
		c.unsaved = append(c.unsaved, change)
	}
	rs.writeUnsaved(ctx, c)
}

// writeUnsaved writes unsaved changes to the record. They stay unsaved if the store is unavailable.
// The caller holds c.syncing.
func (rs *replicaSync) writeUnsaved(ctx context.Context, c *client) {
	for range maxSwaps {
		if len(c.unsaved) == 0 {
			return
		}
		r, version, err := rs.readRecord(ctx, c)
		if err != nil {
			return
		}
		if r.Ended {
			break
		}
		before := jsonrpc.Encode(r)
		for i := range c.unsaved {
			r.apply(&c.unsaved[i])
		}
		text := jsonrpc.Encode(r)
		if string(text) == string(before) {
			break
		}
		written, err := rs.writeRecord(ctx, c, version, text)
		switch {
		case written:
			c.unsaved = nil
			return
		case errors.Is(err, replicas.ErrUnavailable), ctx.Err() != nil:
			return
		case err != nil: // permanent, such as ErrFull
			c.unsaved = nil
			return
		}
	}
	c.unsaved = nil
}

// writeRecord writes a record if the stored version has not changed.
func (rs *replicaSync) writeRecord(
	ctx context.Context, c *client, version replicas.Version, text []byte,
) (written bool, err error) {
	left := sessionTime - time.Since(c.issued)
	fits := left > 0 && len(text) <= maxRecord
	if fits {
		if fits, err = rs.hasRoom(ctx, c, len(text)); err != nil {
			return false, err
		}
	}
	if !fits {
		rs.logger().Warn("session not shared with other replicas: "+
			"it has expired, its record is too large, or a quota is used up", zap.Int("bytes", len(text)))
		return false, replicas.ErrFull
	}
	return rs.space.Swap(ctx, c.key, recordName, version, text, left)
}

// hasRoom reports whether the owner of a session may write this many bytes, and counts them.
func (rs *replicaSync) hasRoom(ctx context.Context, c *client, bytes int) (bool, error) {
	b := replicas.Bucket{
		Key: "session records", Rate: recordBytes / sessionTime.Seconds(), Burst: recordBytes,
		Want: float64(bytes + recordSize),
	}
	taken, _, err := rs.space.Spend(ctx, c.owner, []replicas.Bucket{b})
	switch {
	case err != nil || len(taken) == 0:
		return false, err
	case taken[0] >= b.Want:
		return true, nil
	}
	b.Want = -taken[0] // return the part that was taken
	_, _, err = rs.space.Spend(context.WithoutCancel(ctx), c.owner, []replicas.Bucket{b})
	return false, err
}

// The session id does not carry sessions with servers that begin later, because the server was
// unreachable or lost its session. Replicas share them in the record, so that the client has one
// session per server.

// sharesLink reports whether replicas share the session of a link in the client's record.
func (rs *replicaSync) sharesLink(l *link, s *upstream.Server) bool {
	c := l.client
	return rs != nil && c.era == mcp.Legacy && c.key != "" && c.inspection == nil && !s.ChildrenOnly
}

// resumeShared continues a session that another replica has begun. It reports whether the server
// knows such a session.
func (rs *replicaSync) resumeShared(sc scope, l *link, s *upstream.Server) bool {
	if !rs.sharesLink(l, s) {
		return false
	}
	r, _, err := rs.readRecord(sc.ctx, l.client)
	t, ok := r.Links[s.ID]
	return err == nil && ok && l.tryResume(sc, t)
}

// tryResume switches to a session if the server still knows it. It reports whether it does.
func (l *link) tryResume(sc scope, t linkTicket) bool {
	if t.Session == l.lastLost() {
		return false
	}
	before := l.setSession(t)
	ctx, cancel := context.WithTimeout(sc.ctx, sc.g.config.JoinTimeout)
	defer cancel()
	r, _, _ := l.newRequest(sc.withContext(ctx))
	ignore := responseHandler{handle: func(*jsonrpc.Message) *jsonrpc.Failure { return nil }}
	if _, failure := l.roundTrip(sc.g, r, jsonrpc.RequestAs(l.nextID(), "ping", nil), ignore); failure == nil {
		return true
	}
	l.setSession(before)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lostSession, l.carried, l.initialized = t.Session, false, false
	return false
}

// setSession sets the session of the link and returns the previous one.
func (l *link) setSession(t linkTicket) (before linkTicket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = linkTicket{"", l.era, l.version, l.session, l.can}
	l.setSessionLocked(t)
	return before
}

// setSessionLocked sets the session of the link. The caller holds the lock.
func (l *link) setSessionLocked(t linkTicket) {
	l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
	l.initialized, l.carried, l.used = true, true, true
}

// useRecorded replaces the session from the client's session id by the one of the record. It keeps
// a session that this replica has begun itself while the store was unavailable. An attempt to
// connect that runs now reads the record itself.
func (l *link) useRecorded(t linkTicket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.info == nil && l.opening == nil && t.Session != l.lostSession {
		l.setSessionLocked(t)
		l.ready, l.failed = true, false
	}
}

// shareSession stores a session that has begun here in the record. If another replica has stored
// one in the meantime, it uses that and ends its own.
func (rs *replicaSync) shareSession(sc scope, l *link, s *upstream.Server) {
	if !rs.sharesLink(l, s) || l.sessionID() == "" || l.isLocal(s) {
		return
	}
	for range maxSwaps {
		r, version, err := rs.readRecord(sc.ctx, l.client)
		if err != nil || r.Ended {
			return
		}
		current := l.ticket()
		if another, ok := r.Links[s.ID]; ok && l.tryResume(sc, another) {
			own := newLink(l.client, s)
			own.setSession(current)
			own.end(sc)
			return
		}
		if r.Links == nil {
			r.Links = map[string]linkTicket{}
		}
		r.Links[s.ID] = current
		written, err := rs.writeRecord(sc.ctx, l.client, version, jsonrpc.Encode(r))
		if written {
			l.mu.Lock()
			l.carried = true
			l.mu.Unlock()
		}
		if written || err != nil {
			return
		}
	}
}

// applyChange applies a change that the client made at another replica. It reports whether the
// client has a stream here. Requests of the client do not wait for servers that get the change.
func (rs *replicaSync) applyChange(c *client, change *sessionChange) (listens bool) {
	c.syncing.Lock()
	if change.Level != "" {
		rs.applyLevel(c, change)
	} else {
		rs.applySubscription(c, change)
	}
	c.syncing.Unlock()
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
func (rs *replicaSync) applyLevel(c *client, change *sessionChange) {
	c.mu.Lock()
	c.level = change.Level
	c.mu.Unlock()
	for _, l := range c.allLinks() {
		if _, can := l.state(); can&mcp.HasLogging != 0 && !change.knownIn(l) {
			l.markUnsynced(rs)
		}
	}
}

// applySubscription adds or removes a subscription. It reports whether it is new. Without a stream
// of the client here, legacy servers get it with their next request.
func (rs *replicaSync) applySubscription(c *client, change *sessionChange) (added bool) {
	server := rs.serverByID(change.Server)
	if server == nil {
		return false
	}
	l := c.linkTo(server)
	if !change.On {
		l.subscriptions.remove(rs.subscriptionMeter, c.owner, change.URI)
		return false
	}
	added, ok := l.subscriptions.add(rs.subscriptionMeter, c.owner, change.URI, change.Shown, maxSubscriptions)
	if ok && !change.knownIn(l) && len(c.openStreams()) == 0 {
		l.markUnsynced(rs)
	}
	return added
}

// markUnsynced notes that the server misses a change from another replica. Servers whose session is
// shared have got it there.
func (l *link) markUnsynced(rs *replicaSync) {
	server := rs.serverByID(l.serverID)
	l.mu.Lock()
	defer l.mu.Unlock()
	own := !l.carried || server != nil && server.ChildrenOnly || httpsse.IsSession(l.session)
	l.unsynced = l.unsynced || own && l.ready && l.era == mcp.Legacy
}

// markUnsyncedOnTimeout marks the link if the scope's context is done, so that the change is sent
// again.
func (l *link) markUnsyncedOnTimeout(sc scope) {
	if sc.ctx.Err() != nil {
		l.markUnsynced(sc.g.replicaSync)
	}
}

// apply sends a change to the servers that the stream listens to, within JoinTimeout.
func (s *stream) apply(change *sessionChange) {
	g := s.g.Load()
	ctx, cancel := context.WithTimeout(s.ctx, g.config.JoinTimeout)
	defer cancel()
	sc := scope{ctx: ctx, g: g, r: s.req.request.withContext(s.ctx)}
	if change.Level != "" {
		var sending sync.WaitGroup
		for _, l := range s.req.client.allLinks() {
			if g.linkServer(l) != nil && l.isOpen() {
				sending.Go(func() {
					l.sendInitialized(sc)
					l.markUnsyncedOnTimeout(sc)
				})
			}
		}
		sending.Wait()
		return
	}
	server := g.byID(change.Server)
	if server == nil || !g.rules.Sees(s.req.caller.Identity, server.Name) {
		return
	}
	l := s.req.client.linkTo(server)
	if l.open(sc) != nil {
		return // open logs failures
	}
	defer l.markUnsyncedOnTimeout(sc)
	key := listenerKey{l.serverID, change.URI}
	switch era, _ := l.state(); {
	case era == mcp.Modern && change.On:
		s.listenAndWait(key)
	case era == mcp.Modern:
		s.stop(key)
	case change.knownIn(l):
	case change.On:
		l.repeat(sc, "resources/subscribe", mcp.URIParams(change.URI))
	default:
		l.repeat(sc, "resources/unsubscribe", mcp.URIParams(change.URI))
	}
}

// A sessionEnd tells other replicas that a session has ended.
type sessionEnd struct {
	Owner   string
	Issued  time.Time
	Request wireRequest // request that ended it
}

// An unsentEnd is the end of a session that other replicas have not got yet.
type unsentEnd struct {
	key    string
	end    *sessionEnd
	stored bool // written to the store
	sent   bool // published to replicas
}

const (
	// maxUnsentEnds limits the ends that wait for the store. Other replicas never learn about those
	// beyond.
	maxUnsentEnds = 10_000
	// maxUnsentRequest limits the bytes of the request in a waiting end.
	maxUnsentRequest = 4 << 10
)

// endAtReplicas tells current and future replicas that the session has ended. While the store is
// unavailable, it retries in the background.
func (req *aggregateRequest) endAtReplicas() {
	rs, c := req.g.replicaSync, req.client
	if rs == nil {
		return
	}
	u := &unsentEnd{key: c.key, end: &sessionEnd{c.owner, c.issued, newWireRequest(req.HTTP)}}
	if rs.sendEnd(context.WithoutCancel(req.ctx), u) == nil {
		return
	}
	if len(jsonrpc.Encode(u.end.Request)) > maxUnsentRequest {
		u.end.Request = defaultEndRequest
	}
	rs.mu.Lock()
	if len(rs.unsentEnds) < maxUnsentEnds {
		rs.unsentEnds = append(rs.unsentEnds, u)
	}
	begin := !rs.sendingEnds
	rs.sendingEnds = true
	rs.mu.Unlock()
	if begin && !rs.runFor(c, rs.sendEnds) {
		rs.handEndsToStore() // the State has ended
	}
}

// defaultEndRequest is used if the request that ended the session is unknown or too large.
var defaultEndRequest = wireRequest{Method: http.MethodDelete, URL: "/"}

// sendEnd stores and publishes an end, as far as that is not done. It does both, because a replica
// may read the record before it is written. It does not count for the owner's quota: a client
// without quota can still end sessions.
func (rs *replicaSync) sendEnd(ctx context.Context, u *unsentEnd) (err error) {
	if left := sessionTime - time.Since(u.end.Issued); !u.stored && left > 0 {
		err = rs.space.Set(ctx, u.key, recordName, jsonrpc.Encode(sessionRecord{Ended: true}), left)
		u.stored = err == nil
	}
	if !u.sent {
		_, failed := rs.publishContext(ctx, topicAll, replicaMessage{Session: u.key, Ended: u.end})
		u.sent = failed == nil
		err = errors.Join(err, failed)
	}
	return err
}

// sendEnds sends unsent ends until there are none.
func (rs *replicaSync) sendEnds() {
	for backoff.Sleep(rs.ctx, subscribePause) {
		for {
			rs.mu.Lock()
			if len(rs.unsentEnds) == 0 {
				rs.unsentEnds, rs.sendingEnds = nil, false
				rs.mu.Unlock()
				return
			}
			u := rs.unsentEnds[0]
			rs.mu.Unlock()
			if errors.Is(rs.sendEnd(rs.ctx, u), replicas.ErrUnavailable) {
				break
			}
			rs.mu.Lock()
			rs.unsentEnds = rs.unsentEnds[1:]
			rs.mu.Unlock()
		}
	}
}

// handEndsToStore passes unsent ends to the store when the State has ended. The store tries again,
// at the latest when it is closed, and logs failures.
func (rs *replicaSync) handEndsToStore() {
	if rs == nil {
		return
	}
	rs.mu.Lock()
	left := rs.unsentEnds
	rs.unsentEnds, rs.sendingEnds = nil, false
	rs.mu.Unlock()
	for _, u := range left {
		send := func(ctx context.Context) error { return rs.sendEnd(ctx, u) }
		rs.space.WriteLater(u.key, recordName, len(u.key)+maxUnsentRequest, send, nil)
	}
}

// noteEnded notes that a session has ended at another replica.
func (rs *replicaSync) noteEnded(id string, end *sessionEnd) {
	rs.State.mu.Lock()
	defer rs.State.mu.Unlock()
	rs.endedSessions.add(endedKeyOf(id), endedSession{end.Owner, end.Issued})
}

// endLocally ends the streams of a session, and its sessions with servers that no other replica can
// end.
func (rs *replicaSync) endLocally(c *client, end *sessionEnd) {
	c.ended.Store(true)
	for _, s := range c.openStreams() {
		s.end()
	}
	g := rs.latestGateway()
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(rs.ctx, g.config.JoinTimeout)
	defer cancel()
	r, err := end.Request.build(&inbound.Context{Context: ctx, Caller: g.callerOf(c)})
	if err != nil {
		return
	}
	for _, l := range c.allLinks() {
		if server := g.linkServer(l); server != nil && l.isLocal(server) {
			l.end(scope{ctx: r.Context(), g: g, r: r})
		}
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
			l.setInitialized(false)
		}
	})
	n.forEachOpenLink(func(_ *upstream.Server, l *link) { l.sendInitialized(n.scope()) })
	rs.publish(topicAll, replicaMessage{Session: c.key, Greeted: true})
}

// noteReadyAnnounced notes that servers have got notifications/initialized from another replica.
func (c *client) noteReadyAnnounced(rs *replicaSync) {
	c.readyAnnounced.Store(true)
	for _, l := range c.allLinks() {
		if s := rs.serverByID(l.serverID); s != nil && !l.isLocal(s) {
			l.setInitialized(true)
		}
	}
}

// setInitialized notes whether a legacy server has got notifications/initialized.
func (l *link) setInitialized(initialized bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready && l.carried && l.era == mcp.Legacy {
		l.initialized = initialized
	}
}

// isLocal reports whether other replicas cannot use the session: its server is a child process, or
// an HTTP+SSE server, whose stream this process holds.
func (l *link) isLocal(s *upstream.Server) bool {
	return s.ChildrenOnly || httpsse.IsSession(l.sessionID())
}

// sharedSessions returns the sessions of links that other replicas can use, by server ID.
func (g *Gateway) sharedSessions(links ...*link) map[string]string {
	sessions := map[string]string{}
	for _, l := range links {
		if s := g.linkServer(l); s != nil && !l.isLocal(s) && l.isOpen() {
			sessions[l.serverID] = l.sessionID()
		}
	}
	return sessions
}
