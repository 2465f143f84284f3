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

// A sessionRecord is what replicas share of a session that its id does not carry. It is written when it
// changes, and read once by each replica that goes on with the session, and once after each of its [elsewhere.gaps].
type sessionRecord struct {
	Ended      bool                         `json:",omitempty"`
	Level      string                       `json:",omitempty"` // of the log messages that the client wants
	Subscribed map[string]map[string]string `json:",omitempty"` // what the client calls resources, by server ID and URI
	Links      map[string]linkTicket        `json:",omitempty"` // sessions that began after that of the client, by server ID
}

const (
	// longestRecord is how many bytes a record may have. What a client asks for beyond is known where it has asked.
	longestRecord = 256 << 10
	// recordBytes is how many bytes of records are written for an owner in sessionTime, which is how long they are
	// kept. Each counts recordSize more.
	recordBytes, recordSize = 64 << 20, 256
	// maxUnsaved is how many changes are kept until they can be written.
	maxUnsaved = maxSubscriptions
	// maxSwaps is how often a record is tried to be written while others write it.
	maxSwaps = 16
	// recordName is the name of the record among what is kept for a session.
	recordName = "session"
)

// A sessionChange is something that a client has asked for in its session.
type sessionChange struct {
	Level string `json:",omitempty"` // of log messages; or

	Server string `json:",omitempty"` // ID of the server whose resource it has subscribed to
	URI    string `json:",omitempty"`
	Shown  string `json:",omitempty"` // what the client calls it, if that is another URI
	On     bool   `json:",omitempty"` // else it has unsubscribed

	// Told are the sessions in which servers know of it, by their IDs.
	Told map[string]string `json:",omitempty"`
}

// knownIn reports whether the server of a link has been told.
func (change *sessionChange) knownIn(l *link) bool {
	session, told := change.Told[l.id]
	return told && session != "" && session == l.sessionID()
}

// replaces reports whether nothing is left of another change after this one.
func (change *sessionChange) replaces(other *sessionChange) bool {
	return (change.Level != "") == (other.Level != "") && change.Server == other.Server && change.URI == other.URI
}

// apply makes the change in a record.
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
		if delete(r.Subscribed[change.Server], change.URI); len(r.Subscribed[change.Server]) == 0 {
			delete(r.Subscribed, change.Server)
		}
	}
}

// readRecord returns the record of a session.
func (e *elsewhere) readRecord(ctx context.Context, c *client) (r sessionRecord, v replicas.Version, err error) {
	text, v, err := e.space.Get(ctx, c.key, recordName)
	if err == nil && text != nil && json.Unmarshal(text, &r) != nil {
		r = sessionRecord{} // of a version of this program that writes others
	}
	return r, v, err
}

// recall has a session go on as other replicas have left it, unless that is known. If the store is unavailable,
// it goes on from what its id carries.
func (e *elsewhere) recall(ctx context.Context, c *client) {
	if e == nil || c.era != mcp.Legacy {
		return
	}
	now := e.gaps() + 1
	if c.recalled.Load() == now {
		return
	}
	c.syncing.Lock()
	defer c.syncing.Unlock()
	if c.recalled.Load() == now {
		return
	}
	e.writeUnsaved(ctx, c)
	r, _, err := e.readRecord(ctx, c)
	if err != nil {
		return
	}
	if r.Ended {
		end := &sessionEnd{c.owner, c.issued, plainEnd}
		e.noteOver(c.key, end)
		e.runFor(c, func() { e.endHere(c, end) })
	}
	if r.Level != "" {
		e.applyLevel(c, &sessionChange{Level: r.Level})
	}
	for server, uris := range r.Subscribed {
		for uri, shown := range uris {
			change := &sessionChange{Server: server, URI: uri, Shown: shown, On: true}
			if e.applySubscription(c, change) {
				e.inOrder(c, order{func() { c.applyToStreams(change) }, 0})
			}
		}
	}
	if c.recalled.Swap(now) > 0 {
		return
	}
	for server, t := range r.Links { // later ones than its id carries
		if s := e.serverWith(server); s != nil {
			c.link(s).recall(t)
		}
	}
}

// gaps returns how often this replica may not have heard what others tell, or could not read or write.
func (e *elsewhere) gaps() uint64 { return e.space.Outages() + e.missed.Load() }

// begun notes that a session begins here: there is nothing to recall.
func (e *elsewhere) begun(c *client) {
	if e != nil {
		c.recalled.Store(e.gaps() + 1)
		c.begunHere.Store(true)
	}
}

// change has other replicas know what a client has asked for. Those where it listens have done what it takes
// when change returns, unless that takes long.
func (e *elsewhere) change(ctx context.Context, c *client, change sessionChange) {
	if e == nil || c.key == "" {
		return
	}
	e.save(context.WithoutCancel(ctx), c, change)
	d := dispatch{Session: c.key, Change: &change}
	if change.URI == "" || len(c.listening()) > 0 {
		e.tell(everywhere, d)
		return
	}
	id, wait, forget := e.expectAck()
	defer forget()
	d.Wants = id
	if e.tell(everywhere, d) && e.tell(topicOfSession(c.key), dispatch{}) { // there is a stream
		wait(ctx)
	}
}

// save writes a change to the record.
func (e *elsewhere) save(ctx context.Context, c *client, change sessionChange) {
	c.syncing.Lock()
	defer c.syncing.Unlock()
	for i := range c.unsaved {
		if change.replaces(&c.unsaved[i]) {
			c.unsaved = append(c.unsaved[:i:i], c.unsaved[i+1:]...)
			break
		}
	}
	if change.Told = nil; len(c.unsaved) < maxUnsaved {
		c.unsaved = append(c.unsaved, change)
	}
	e.writeUnsaved(ctx, c)
}

// writeUnsaved writes the changes to the record that are not there yet. They are kept if the store is
// unavailable. The caller holds c.syncing.
func (e *elsewhere) writeUnsaved(ctx context.Context, c *client) {
	for range maxSwaps {
		if len(c.unsaved) == 0 {
			return
		}
		r, version, err := e.readRecord(ctx, c)
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
		written, err := e.writeRecord(ctx, c, version, text)
		switch {
		case written:
			c.unsaved = nil
			return
		case errors.Is(err, replicas.ErrUnavailable), ctx.Err() != nil:
			return
		case err != nil: // it would be the same the next time
			c.unsaved = nil
			return
		}
	}
	c.unsaved = nil
}

// writeRecord writes a record in the place of a version, if that is still there.
func (e *elsewhere) writeRecord(
	ctx context.Context, c *client, v replicas.Version, text []byte,
) (written bool, err error) {
	left := sessionTime - time.Since(c.issued)
	fits := left > 0 && len(text) <= longestRecord
	if fits {
		if fits, err = e.hasRoom(ctx, c, len(text)); err != nil {
			return false, err
		}
	}
	if !fits {
		e.logger().Warn("session not shared with other replicas: its client has asked for too much",
			zap.Int("bytes", len(text)))
		return false, replicas.ErrFull
	}
	return e.space.Swap(ctx, c.key, recordName, v, text, left)
}

// hasRoom reports whether so many bytes may be written for the owner of a session.
func (e *elsewhere) hasRoom(ctx context.Context, c *client, bytes int) (bool, error) {
	b := replicas.Bucket{
		Key: "session records", Rate: recordBytes / sessionTime.Seconds(), Burst: recordBytes,
		Want: float64(bytes + recordSize),
	}
	taken, _, err := e.space.Spend(ctx, c.owner, []replicas.Bucket{b})
	switch {
	case err != nil || len(taken) == 0:
		return false, err
	case taken[0] >= b.Want:
		return true, nil
	}
	b.Want = -taken[0] // a part is of no use
	_, _, err = e.space.Spend(context.WithoutCancel(ctx), c.owner, []replicas.Bucket{b})
	return false, err
}

// A session with a server that begins after that of the client is not in its id: the server could not be reached then,
// or has forgotten the one before. Replicas find it in the record, so that the client has one session with the server.

// sharesLinks reports whether sessions of a link are in the record of the client.
func (e *elsewhere) sharesLinks(l *link, s *upstream.Server) bool {
	c := l.client
	return e != nil && c.era == mcp.Legacy && c.key != "" && c.inspection == nil && !s.ChildrenOnly
}

// adopt goes on with a session that another replica has begun with a server, and reports whether there is one that is
// still good.
func (e *elsewhere) adopt(o behalf, l *link, s *upstream.Server) bool {
	if !e.sharesLinks(l, s) {
		return false
	}
	r, _, err := e.readRecord(o.ctx, l.client)
	t, ok := r.Links[s.ID]
	return err == nil && ok && l.goOn(o, t)
}

// goOn goes on with a session, unless the server has forgotten it, and reports whether it does.
func (l *link) goOn(o behalf, t linkTicket) bool {
	if t.Session == l.lastLost() {
		return false
	}
	before := l.adopt(t)
	ctx, cancel := context.WithTimeout(o.ctx, o.g.config.JoinTimeout)
	defer cancel()
	r, _, _ := l.prepare(o.within(ctx))
	ignore := response{take: func(*jsonrpc.Message) *jsonrpc.Failure { return nil }}
	if _, failure := l.roundTrip(o.g, r, jsonrpc.RequestAs(l.nextID(), "ping", nil), ignore); failure == nil {
		return true
	}
	l.adopt(before)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lostSession, l.carried, l.initialized = t.Session, false, false
	return false
}

// adopt makes a session that of the link, and returns the one before.
func (l *link) adopt(t linkTicket) (before linkTicket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = linkTicket{"", l.era, l.version, l.session, l.can}
	l.enter(t)
	return before
}

// enter makes a session that of the link. The caller holds the lock.
func (l *link) enter(t linkTicket) {
	l.era, l.version, l.session, l.can = t.Era, t.Version, t.Session, t.Can
	l.initialized, l.carried, l.used = true, true, true
}

// recall makes a session of the record that of the link in place of the one that the id of the client carries. If this
// replica has begun one itself, while the store was unavailable, that is in use: it stays. One that is about to begin
// looks at the record itself.
func (l *link) recall(t linkTicket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.about == nil && l.opening == nil && t.Session != l.lostSession {
		l.enter(t)
		l.ready, l.failed = true, false
	}
}

// offer has other replicas go on with a session that has begun here. If one of them has begun another meanwhile, that
// is good, and this one is ended.
func (e *elsewhere) offer(o behalf, l *link, s *upstream.Server) {
	if !e.sharesLinks(l, s) || l.sessionID() == "" || l.isLocal(s) {
		return
	}
	for range maxSwaps {
		r, version, err := e.readRecord(o.ctx, l.client)
		if err != nil || r.Ended {
			return
		}
		mine := l.ticket()
		if another, ok := r.Links[s.ID]; ok && l.goOn(o, another) {
			own := newLink(l.client, s)
			own.adopt(mine)
			own.end(o)
			return
		}
		if r.Links == nil {
			r.Links = map[string]linkTicket{}
		}
		r.Links[s.ID] = mine
		written, err := e.writeRecord(o.ctx, l.client, version, jsonrpc.Encode(r))
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

// apply does here what a client has asked for elsewhere. It reports whether the client listens here. Servers that are
// told of it may be slow: requests of the client do not wait for them.
func (e *elsewhere) apply(c *client, change *sessionChange) (listens bool) {
	c.syncing.Lock()
	if change.Level != "" {
		e.applyLevel(c, change)
	} else {
		e.applySubscription(c, change)
	}
	c.syncing.Unlock()
	return c.applyToStreams(change)
}

// applyToStreams has the streams of the client hear what it has asked for elsewhere, and reports whether there are any.
func (c *client) applyToStreams(change *sessionChange) (listens bool) {
	for _, s := range c.listening() {
		if s.wants == nil {
			s.apply(change)
			listens = true
		}
	}
	return listens
}

// applyLevel notes which log messages the client wants. Servers get to know it when they are used next.
func (e *elsewhere) applyLevel(c *client, change *sessionChange) {
	c.mu.Lock()
	c.level = change.Level
	c.mu.Unlock()
	for _, l := range c.allLinks() {
		if _, can := l.state(); can&mcp.HasLogging != 0 && !change.knownIn(l) {
			l.fallBehind(e)
		}
	}
}

// applySubscription notes what the client has subscribed to, and reports whether that was not known. A server of the
// legacy era gets to know it when it is used next, unless the client listens here.
func (e *elsewhere) applySubscription(c *client, change *sessionChange) (added bool) {
	server := e.serverWith(change.Server)
	if server == nil {
		return false
	}
	l := c.link(server)
	if !change.On {
		l.subscriptions.remove(e.subscribing, c.owner, change.URI)
		return false
	}
	added, ok := l.subscriptions.add(e.subscribing, c.owner, change.URI, change.Shown, maxSubscriptions)
	if ok && !change.knownIn(l) && len(c.listening()) == 0 {
		l.fallBehind(e)
	}
	return added
}

// fallBehind notes that the client has asked the server for something elsewhere. In a session that replicas
// share, the server knows.
func (l *link) fallBehind(e *elsewhere) {
	server := e.serverWith(l.id)
	l.mu.Lock()
	defer l.mu.Unlock()
	own := !l.carried || server != nil && server.ChildrenOnly || httpsse.IsSession(l.session)
	l.behind = l.behind || own && l.ready && l.era == mcp.Legacy
}

// fallBehindAfter notes that the server is to be told again, if there was not enough time.
func (l *link) fallBehindAfter(o behalf) {
	if o.ctx.Err() != nil {
		l.fallBehind(o.g.elsewhere)
	}
}

// apply does for the stream what its client has asked for elsewhere. It takes about as long as joining may.
func (s *stream) apply(change *sessionChange) {
	g := s.g.Load()
	ctx, cancel := context.WithTimeout(s.ctx, g.config.JoinTimeout)
	defer cancel()
	o := behalf{ctx: ctx, g: g, r: s.visit.request.in(s.ctx)}
	if change.Level != "" {
		var telling sync.WaitGroup
		for _, l := range s.visit.client.allLinks() {
			if g.of(l) != nil && l.isOpen() {
				telling.Go(func() {
					l.sendInitialized(o)
					l.fallBehindAfter(o)
				})
			}
		}
		telling.Wait()
		return
	}
	server := g.byID(change.Server)
	if server == nil || !g.rules.Sees(s.visit.caller.Identity, server.Name) {
		return
	}
	l := s.visit.client.link(server)
	if l.open(o) != nil {
		return // which is logged
	}
	defer l.fallBehindAfter(o)
	key := listenerKey{l.id, change.URI}
	switch era, _ := l.state(); {
	case era == mcp.Modern && change.On:
		s.listenAndWait(key)
	case era == mcp.Modern:
		s.stop(key)
	case change.knownIn(l):
	case change.On:
		l.repeat(o, "resources/subscribe", mcp.URIParams(change.URI))
	default:
		l.repeat(o, "resources/unsubscribe", mcp.URIParams(change.URI))
	}
}

// A sessionEnd is how others get to know that a session has ended.
type sessionEnd struct {
	Owner   string
	Issued  time.Time
	Request sentRequest // that has ended it
}

// An untoldEnd is the end of a session that other replicas are to know of.
type untoldEnd struct {
	key  string
	end  *sessionEnd
	kept bool // in the store
	told bool // to those that hear it
}

const (
	// maxUntoldEnds is how many ends wait for the store. Those beyond are known here only.
	maxUntoldEnds = 10_000
	// longestUntold is how many bytes the request that has ended a session may have while the end waits.
	longestUntold = 4 << 10
)

// endElsewhere has other replicas know that a session has ended, also those that begin later. If the store is
// unavailable, they get to know it when it is back.
func (v *visit) endElsewhere() {
	e, c := v.g.elsewhere, v.client
	if e == nil {
		return
	}
	u := &untoldEnd{key: c.key, end: &sessionEnd{c.owner, c.issued, sentRequestOf(v.HTTP)}}
	if e.tellEnd(context.WithoutCancel(v.ctx), u) == nil {
		return
	}
	if len(jsonrpc.Encode(u.end.Request)) > longestUntold {
		u.end.Request = plainEnd
	}
	e.mu.Lock()
	if len(e.untold) < maxUntoldEnds {
		e.untold = append(e.untold, u)
	}
	begin := !e.telling
	e.telling = true
	e.mu.Unlock()
	if begin && !e.runFor(c, e.tellEnds) {
		e.leaveEnds() // the State has ended
	}
}

// plainEnd is a request that ends a session, if the one that did is not known.
var plainEnd = sentRequest{Method: http.MethodDelete, URL: "/"}

// tellEnd tells others of an end as far as they have not been told. A replica that reads the record before
// the end is in it hears the message. It costs its owner nothing: a client that has used up its budget can
// still end sessions.
func (e *elsewhere) tellEnd(ctx context.Context, u *untoldEnd) (err error) {
	if left := sessionTime - time.Since(u.end.Issued); !u.kept && left > 0 {
		err = e.space.Set(ctx, u.key, recordName, jsonrpc.Encode(sessionRecord{Ended: true}), left)
		u.kept = err == nil
	}
	if !u.told {
		_, failed := e.publish(ctx, everywhere, dispatch{Session: u.key, Ended: u.end})
		u.told = failed == nil
		err = errors.Join(err, failed)
	}
	return err
}

// tellEnds tells others of ends that could not be told, until there are none.
func (e *elsewhere) tellEnds() {
	for backoff.Sleep(e.ctx, followPause) {
		for {
			e.mu.Lock()
			if len(e.untold) == 0 {
				e.untold, e.telling = nil, false
				e.mu.Unlock()
				return
			}
			u := e.untold[0]
			e.mu.Unlock()
			if errors.Is(e.tellEnd(e.ctx, u), replicas.ErrUnavailable) {
				break
			}
			e.mu.Lock()
			e.untold = e.untold[1:]
			e.mu.Unlock()
		}
	}
}

// leaveEnds leaves ends that could not be told to the store, when the State has ended: it tries once more when it is
// closed, if not before, and logs it if that is in vain.
func (e *elsewhere) leaveEnds() {
	if e == nil {
		return
	}
	e.mu.Lock()
	left := e.untold
	e.untold, e.telling = nil, false
	e.mu.Unlock()
	for _, u := range left {
		tell := func(ctx context.Context) error { return e.tellEnd(ctx, u) }
		e.space.Behind(u.key, recordName, len(u.key)+longestUntold, tell, nil)
	}
}

// noteOver notes that a session has ended elsewhere.
func (e *elsewhere) noteOver(id string, end *sessionEnd) {
	e.State.mu.Lock()
	defer e.State.mu.Unlock()
	e.over.add(overKeyOf(id), sessionOver{end.Owner, end.Issued})
}

// endHere ends what a session that has ended elsewhere has here: its streams, and sessions with servers that no
// other replica can end.
func (e *elsewhere) endHere(c *client, end *sessionEnd) {
	c.ended.Store(true)
	for _, s := range c.listening() {
		s.end()
	}
	g := e.serving()
	if g == nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, g.config.JoinTimeout)
	defer cancel()
	r, err := end.Request.in(&inbound.Context{Context: ctx, Caller: g.callerOf(c)})
	if err != nil {
		return
	}
	for _, l := range c.allLinks() {
		if server := g.of(l); server != nil && l.isLocal(server) {
			l.end(behalf{ctx: r.Context(), g: g, r: r})
		}
	}
}

// greet has servers know that the client of a session that was begun elsewhere is ready. That it was begun is all
// that its id says.
func (n clientNotice) greet() {
	e, c := n.g.elsewhere, n.client
	if e == nil || c.begunHere.Swap(true) {
		return
	}
	n.linked(func(s *upstream.Server, l *link) {
		if !l.isLocal(s) {
			l.setInitialized(false)
		}
	})
	n.linked(func(_ *upstream.Server, l *link) { l.sendInitialized(n.behalf()) })
	e.tell(everywhere, dispatch{Session: c.key, Greeted: true})
}

// noteGreeted notes that servers know that the client is ready.
func (c *client) noteGreeted(e *elsewhere) {
	c.begunHere.Store(true)
	for _, l := range c.allLinks() {
		if s := e.serverWith(l.id); s != nil && !l.isLocal(s) {
			l.setInitialized(true)
		}
	}
}

// setInitialized notes whether a server of the legacy era knows that the client is ready.
func (l *link) setInitialized(initialized bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ready && l.carried && l.era == mcp.Legacy {
		l.initialized = initialized
	}
}

// isLocal reports whether no other replica can use the session with a server: it is that of a child process, or the
// server has this process hold a stream for it.
func (l *link) isLocal(s *upstream.Server) bool {
	return s.ChildrenOnly || httpsse.IsSession(l.sessionID())
}

// told returns the sessions of links that others may have, too, by the IDs of their servers.
func (g *Gateway) told(links ...*link) map[string]string {
	told := map[string]string{}
	for _, l := range links {
		if s := g.of(l); s != nil && !l.isLocal(s) && l.isOpen() {
			told[l.id] = l.sessionID()
		}
	}
	return told
}
