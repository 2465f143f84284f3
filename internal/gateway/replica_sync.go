package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Any replica may get the next request of a client. Replicas tell each other about changes with
// three kinds of topics: one that all replicas subscribe to, one per session for replicas with a
// stream of the client, and one per replica.
//
// Messages are not repeated. A replica that misses one, because the store was unavailable or the
// replica has just started, finds the lasting state in the store, see session_record.go.

// topicAll is the topic that all replicas subscribe to.
const topicAll = "everywhere"

func sessionTopic(id string) string      { return "session " + id }
func replicaTopic(replica string) string { return "replica " + replica }

// A replicaMessage is a message from one replica to others. Its field names are part of the format.
type replicaMessage struct {
	From    string         // sending replica
	Session string         `json:",omitempty"` // session id, if it is about a session
	Ended   *sessionEnd    `json:",omitempty"`
	Greeted bool           `json:",omitempty"` // servers have got notifications/initialized
	Change  *sessionChange `json:",omitempty"`
	Said    *serverMessage `json:",omitempty"` // message of a server for a stream of the client
	Notice  *clientMessage `json:",omitempty"` // message of the client
	Resumed *resumedStream `json:",omitempty"`
	Lists   listChanges    `json:",omitempty"`
	Refresh string         `json:",omitempty"` // ID of a server to refresh
	Wants   string         `json:",omitempty"` // acknowledgement requested from replicas with a stream of the client
	Ack     string         `json:",omitempty"` // acknowledgement sent
}

const (
	// maxReplicaMessage limits the bytes of a message. Only responses of clients come near.
	maxReplicaMessage = 4 << 20
	// maxForwardedNotification limits the bytes of client notifications that are sent to other
	// replicas.
	maxForwardedNotification = 4 << 10
	// subscribePause is the pause before another attempt to subscribe to a topic.
	subscribePause = time.Second
)

// A replicaSync keeps this replica and the others up to date. It is nil if there are no others: the
// methods that the rest of the gateway calls then do nothing.
type replicaSync struct {
	state   *State
	bus     *bus
	work    *clientWork
	lists   *listBroadcast
	ends    *sessionEnds
	records *sessionRecords
	notices *quota.Meter // messages of clients that are being sent to other replicas, or handled for them
}

var (
	forwardedMessagesQuota = quota.NewKind("forwarded_messages")
	noticeLimits           = quota.Limits{Entries: 10_000, OwnerEntries: 100, Bytes: 256 << 20, OwnerBytes: 16 << 20}
)

// newReplicaSync returns the replicaSync of a State, nil if space is nil. It is subscribed when
// newReplicaSync returns, or as soon as the store is available.
func newReplicaSync(s *State, space *replicas.Space) *replicaSync {
	if space == nil {
		return nil
	}
	b, work := newBus(s, space), &clientWork{clients: s.clients, queues: map[*client]*workQueue{}}
	ends := &sessionEnds{state: s, bus: b}
	rs := &replicaSync{
		state: s, bus: b, work: work, ends: ends,
		lists:   &listBroadcast{state: s, bus: b},
		records: &sessionRecords{state: s, bus: b, work: work, ends: ends},
		notices: quota.NewMeter(forwardedMessagesQuota, noticeLimits),
	}
	b.subscribe(topicAll, rs.receive)
	b.subscribe(replicaTopic(space.Replica), rs.receive)
	return rs
}

// close ends all subscriptions.
func (rs *replicaSync) close() {
	if rs != nil {
		rs.bus.close()
		rs.lists.stop()
		rs.notices.Close()
	}
}

// handEndsToStore passes unsent ends to the store when the State has ended.
func (rs *replicaSync) handEndsToStore() {
	if rs != nil {
		rs.ends.handToStore()
	}
}

// noteNewSession notes that a session begins here, so there is no record to read.
func (rs *replicaSync) noteNewSession(c *client) {
	if rs != nil {
		c.record.readAt.Store(rs.records.gaps() + 1)
		c.readyAnnounced.Store(true)
	}
}

// shareChange stores a change and tells other replicas. If the client has a stream at one of them,
// it waits until that replica has applied a subscription, at most joinWait.
func (rs *replicaSync) shareChange(ctx context.Context, c *client, change sessionChange) {
	if rs != nil && c.key != "" {
		rs.records.share(ctx, c, change)
	}
}

// shareEnd tells current and future replicas that a request has ended the session of a client.
// While the store is unavailable, it retries in the background.
func (rs *replicaSync) shareEnd(ctx context.Context, c *client, request *http.Request) {
	if rs != nil {
		rs.ends.share(context.WithoutCancel(ctx), c, request)
	}
}

// listsChanged tells other replicas that a server sent list-changed notifications to the clients of
// links.
func (rs *replicaSync) listsChanged(notice string, links ...*link) {
	if rs != nil {
		rs.lists.send(notice, links)
	}
}

// serverRefreshed tells other replicas to refresh a server.
func (rs *replicaSync) serverRefreshed(s *upstream.Server) {
	if rs != nil {
		rs.bus.publish(topicAll, replicaMessage{Refresh: s.ID})
	}
}

// callResumed tells other replicas that a client has resumed the stream of a call. The replica with
// the call stops it.
func (rs *replicaSync) callResumed(c *client, call []byte, server string) {
	if rs != nil {
		rs.bus.publish(topicAll, replicaMessage{Session: c.key, Resumed: &resumedStream{call, server}})
	}
}

// receive handles a message of another replica. A nil text means that messages may have been lost.
// It does not block.
func (rs *replicaSync) receive(text []byte) {
	if text == nil {
		rs.records.noteGap()
		return
	}
	if len(text) > maxForwardedNotification && !rs.isRelevant(text) {
		return
	}
	msg, ok := rs.bus.parse(text)
	switch {
	case !ok:
	case msg.Ack != "":
		rs.bus.receiveAck(msg.Ack)
	case msg.Lists != nil:
		rs.lists.receive(msg.From, msg.Lists)
	case msg.Refresh != "":
		for _, g := range rs.state.gateways() {
			if s := g.byID[msg.Refresh]; s != nil {
				g.notify.forgetLists(s)
			}
		}
	case msg.Session != "":
		rs.receiveSession(msg, int64(len(text)))
	}
}

// isRelevant reports whether a message is about a session known here, about the end of a session,
// or about no session.
func (rs *replicaSync) isRelevant(text []byte) bool {
	var msg struct {
		Session string
		Ended   *struct{}
	}
	if json.Unmarshal(text, &msg) != nil {
		return false
	}
	if msg.Session == "" || msg.Ended != nil {
		return true
	}
	c := rs.state.clients.lookUp(msg.Session, nil)
	if c != nil {
		rs.state.clients.release(c)
	}
	return c != nil
}

// receiveSession handles a message of some bytes about a session.
func (rs *replicaSync) receiveSession(msg *replicaMessage, bytes int64) {
	if msg.Ended != nil {
		rs.ends.note(msg.Session, msg.Ended) // before lookUp: a client that is added later is refused
	}
	c := rs.state.clients.lookUp(msg.Session, nil)
	if c == nil {
		return
	}
	defer rs.state.clients.release(c)
	switch {
	case msg.Ended != nil:
		rs.state.clients.runFor(c, func() { rs.ends.endHere(c, msg.Ended) })
	case msg.Greeted:
		c.noteReadyAnnounced(rs.state.gateways())
	case msg.Change != nil:
		rs.work.add(c, 0, func() {
			if rs.records.applyChange(c, msg.Change) && msg.Wants != "" {
				rs.bus.publish(replicaTopic(msg.From), replicaMessage{Ack: msg.Wants})
			}
		})
	case msg.Notice != nil:
		// The client does not wait for the server, so nothing else limits how many there are.
		if !rs.notices.Take(c.owner, bytes) {
			return
		}
		handle := func() {
			defer rs.notices.Give(c.owner, bytes)
			rs.handleClientMessage(c, msg.Notice)
		}
		if !rs.state.clients.runFor(c, handle) {
			rs.notices.Give(c.owner, bytes)
		}
	case msg.Resumed != nil:
		if call := c.calls.get(msg.Resumed.Call); call != nil && call.link.serverID == msg.Resumed.Server {
			call.active.Cancel(nil)
		}
	}
}

// A clientWork runs work that other replicas cause, in order for each client.
type clientWork struct {
	clients *clientTable

	mu     sync.Mutex // never held while the clientTable is locked or work runs
	queues map[*client]*workQueue
}

// A workQueue is the work for one client.
type workQueue struct {
	work  []queuedWork // the first one runs
	bytes int
}

type queuedWork struct {
	run   func()
	bytes int // bytes that it holds
}

// maxQueuedWork and maxQueuedBytes limit the work for a client.
const maxQueuedWork, maxQueuedBytes = 1_000, 1 << 20

// add runs f after the client's earlier work. f holds this many bytes. If there is too much work,
// add drops f.
func (w *clientWork) add(c *client, bytes int, f func()) {
	w.mu.Lock()
	q := w.queues[c]
	first := q == nil
	if first {
		q = new(workQueue)
		w.queues[c] = q
	}
	if len(q.work) < maxQueuedWork && q.bytes <= maxQueuedBytes {
		q.work, q.bytes = append(q.work, queuedWork{f, bytes}), q.bytes+bytes
	}
	w.mu.Unlock() // runFor locks the clientTable
	if first && !w.clients.runFor(c, func() { w.run(c, q) }) {
		w.mu.Lock()
		delete(w.queues, c) // the State has ended
		w.mu.Unlock()
	}
}

// run runs the work in a queue until it is empty.
func (w *clientWork) run(c *client, q *workQueue) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(q.work) > 0 {
		next := q.work[0]
		w.mu.Unlock()
		next.run()
		w.mu.Lock()
		q.work, q.bytes = q.work[1:], q.bytes-next.bytes
	}
	delete(w.queues, c)
}

// subscribeToReplicas subscribes the stream to messages for its client, now or as soon as the store
// is available.
func (s *stream) subscribeToReplicas() {
	rs := s.req.g.replicaSync
	if rs == nil || s.trySubscribe(rs) {
		return
	}
	s.work.runAsync(func() {
		for backoff.Sleep(s.ctx, subscribePause) && !s.trySubscribe(rs) {
		}
	})
}

// trySubscribe subscribes the stream once. It reports whether that succeeded.
func (s *stream) trySubscribe(rs *replicaSync) bool {
	receive := func(text []byte) { s.receiveFromReplica(rs, text) }
	stop, err := rs.bus.space.Subscribe(s.ctx, sessionTopic(s.req.client.key), receive)
	if err != nil {
		return false
	}
	s.work.setUnsubscribe(stop)
	return true
}

// A serverMessage is a message of a server for a client whose stream is at another replica.
type serverMessage struct {
	Server  string          // server ID
	Message json.RawMessage // as the server sent it
	Shown   json.RawMessage // as the client gets it
}

// sendToReplica sends a message of a server to the replica with the client's stream. It reports
// whether there is one.
func (u unsolicited) sendToReplica(m *jsonrpc.Message) (delivered bool) {
	rs, c := u.g.replicaSync, u.link.client
	if rs == nil || c.era != mcp.Legacy || !c.hasKey() || len(c.openStreams()) > 0 {
		return false
	}
	return rs.bus.publish(sessionTopic(c.key), replicaMessage{Session: c.key, Said: &serverMessage{
		u.link.serverID, m.Raw, u.link.translator(u.g).message(m),
	}})
}

// receiveFromReplica handles a message of another replica for the client. Only the newest stream of
// the client delivers it.
func (s *stream) receiveFromReplica(rs *replicaSync, text []byte) {
	c := s.req.client
	msg, ok := rs.bus.parse(text)
	if !ok || msg.Said == nil {
		return
	}
	if all := c.openStreams(); len(all) == 0 || all[0] != s {
		return
	}
	var m jsonrpc.Message
	if m.Read(msg.Said.Message) != nil {
		return
	}
	rs.work.add(c, len(text), func() {
		g := s.g.Load()
		server := g.byID[msg.Said.Server]
		if server == nil || isListChange(&m) && !s.work.listensTo(server.ID) || !s.accepts(g, c.linkTo(server), &m) {
			return
		}
		s.req.out.Event(&streamable.Event{Data: msg.Said.Shown})
	})
}

// A wireRequest is an HTTP request for another replica, without its body.
type wireRequest struct {
	Method, URL, URI, Proto, Host, Remote string

	Header http.Header
}

// newWireRequest returns the wireRequest of r. It leaves out the session id, which the message has
// already.
func newWireRequest(r *http.Request) wireRequest {
	header := r.Header.Clone()
	header.Del(mcp.SessionHeader)
	return wireRequest{r.Method, r.URL.String(), r.RequestURI, r.Proto, r.Host, r.RemoteAddr, header}
}

// build returns the request with a context.
func (s *wireRequest) build(ctx context.Context) (*http.Request, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	saved := savedRequest{method: s.Method, uri: s.URI, proto: s.Proto, host: s.Host, remote: s.Remote, url: u}
	for name, values := range s.Header {
		saved.header = append(saved.header, headerField{name, values})
	}
	return saved.withContext(ctx), nil
}

// A clientMessage is a oneWayMessage for the replica with the call that it is about.
type clientMessage struct {
	Identity, Address, User string // of the client

	Request wireRequest
	Message json.RawMessage
	Settled bool // the server has got it already
}

// sendToReplica sends the message to a replica, or to all if replica is empty.
func (n oneWayMessage) sendToReplica(replica string, settled bool) {
	_ = n.forward(replica, settled, func() bool { return false })
}

// responseTimeout is how long a response is retried while the store is unavailable, every
// responsePause. Without it, the call would wait until it times out.
const responseTimeout, responsePause = 10 * time.Second, 250 * time.Millisecond

// sendResponseToReplica is like sendToReplica, and retries while the store is unavailable.
func (n oneWayMessage) sendResponseToReplica(replica string) *jsonrpc.Failure {
	ctx, cancel := context.WithTimeout(n.ctx, responseTimeout)
	defer cancel()
	return n.forward(replica, false, func() bool { return backoff.Sleep(ctx, responsePause) })
}

// forward implements sendToReplica. It tries again while retry returns true.
func (n oneWayMessage) forward(replica string, settled bool, retry func() bool) *jsonrpc.Failure {
	rs := n.g.replicaSync
	if rs == nil || n.fromReplica || n.Message.IsNotification() && len(n.Message.Raw) > maxForwardedNotification {
		return nil
	}
	owner, bytes := n.client.owner, int64(len(n.Message.Raw))
	if !rs.notices.Take(owner, bytes) {
		return jsonrpc.Busy()
	}
	defer rs.notices.Give(owner, bytes)
	topic := topicAll
	if replica != "" {
		topic = replicaTopic(replica)
	}
	text, ok := rs.bus.encode(replicaMessage{Session: n.client.key, Notice: &clientMessage{
		n.Caller.Identity, n.Caller.Address, n.Caller.User, newWireRequest(n.HTTP), n.Message.Raw, settled,
	}})
	if !ok {
		return nil
	}
	for {
		if _, err := rs.bus.space.Publish(rs.bus.ctx, topic, text); err == nil {
			return nil
		}
		if !retry() {
			return jsonrpc.StoreUnavailable("the response cannot be forwarded to the replica that needs it")
		}
	}
}

// handleClientMessage handles a message that a client sent to another replica. It does nothing
// unless the client has a call or a stream here.
func (rs *replicaSync) handleClientMessage(c *client, sent *clientMessage) {
	g, values := rs.state.gateways().latest(), c.activeContext()
	if g == nil || values == nil || c.identity != sent.Identity || rs.state.endedSessions.has(c) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(values), g.config.JoinTimeout)
	defer cancel()
	r, err := sent.Request.build(ctx)
	if err != nil {
		return
	}
	q := g.gate.NewRequest(nil, r, inbound.Endpoint{}, inbound.Peer{})
	q.Caller = g.callerOf(c)
	q.Caller.Address, q.Caller.User = sent.Address, sent.User
	if q.Message.Read(sent.Message) != nil {
		return
	}
	n := oneWayMessage{&aggregateRequest{Request: q, g: g, ctx: ctx, era: mcp.Legacy, client: c, fromReplica: true}}
	switch {
	case sent.Settled:
		c.serverRequests.take(q.Message.Literal(jsonrpc.ID), &q.Message)
	case q.Message.IsNotification():
		n.forwardNotification()
	default:
		n.forwardResponse()
	}
	n.sideRequests.Wait()
}

// activeContext returns the context of a running call or stream of the client, nil if there is
// none.
func (c *client) activeContext() context.Context {
	if call := c.calls.any(); call != nil {
		return call.active.Context
	}
	if streams := c.openStreams(); len(streams) > 0 {
		return streams[0].ctx
	}
	return nil
}

// A resumedStream is the stream of a call that a client has resumed at another replica.
type resumedStream struct {
	Call   []byte // the client's id of the call
	Server string // server ID
}

// A bus carries messages between replicas.
type bus struct {
	state  *State
	space  *replicas.Space
	ctx    context.Context // done when the bus is closed
	cancel context.CancelFunc

	mu          sync.Mutex
	unsubscribe []func()                 // ends the subscriptions to topics
	acks        map[string]chan struct{} // closed when the acknowledgement arrives
}

func newBus(s *State, space *replicas.Space) *bus {
	b := &bus{state: s, space: space, acks: map[string]chan struct{}{}}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// close ends all subscriptions.
func (b *bus) close() {
	b.cancel()
	b.mu.Lock()
	stop := b.unsubscribe
	b.unsubscribe = nil
	b.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// subscribe calls receive with each message to a topic, and with nil when messages may have been
// lost. If the store is unavailable, it subscribes as soon as it is available.
func (b *bus) subscribe(topic string, receive func(text []byte)) {
	if b.trySubscribe(topic, receive) {
		return
	}
	b.state.running.Go(func() {
		for backoff.Sleep(b.ctx, subscribePause) {
			if b.trySubscribe(topic, receive) {
				receive(nil)
				return
			}
		}
	})
}

// trySubscribe subscribes to a topic once. It reports whether that succeeded.
func (b *bus) trySubscribe(topic string, receive func(text []byte)) bool {
	stop, err := b.space.Subscribe(b.ctx, topic, receive)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ctx.Err() != nil {
		stop() // close has run already
		return true
	}
	b.unsubscribe = append(b.unsubscribe, stop)
	return true
}

// publish sends a message to the subscribers of a topic, and reports whether there are any. It
// takes no longer than the timeout of a store operation.
func (b *bus) publish(topic string, msg replicaMessage) (received bool) {
	received, _ = b.publishContext(b.ctx, topic, msg) // the store logs its outages
	return received
}

// publishContext is like publish, with a context, and returns errors.
func (b *bus) publishContext(ctx context.Context, topic string, msg replicaMessage) (received bool, err error) {
	text, ok := b.encode(msg)
	if !ok {
		return false, nil
	}
	return b.space.Publish(ctx, topic, text)
}

// encode encodes a message from this replica. It reports false if the message is too long.
func (b *bus) encode(msg replicaMessage) (text []byte, ok bool) {
	msg.From = b.space.Replica
	text = jsonrpc.Encode(msg)
	if len(text) > maxReplicaMessage {
		b.state.gateways().logger().Warn("message to other replicas dropped: too long", zap.Int("bytes", len(text)))
		return nil, false
	}
	return text, true
}

// publishAndWait sends a message about a session to all replicas. If the client has a stream at one
// of them, it waits until that replica acknowledges the message, at most joinWait.
func (b *bus) publishAndWait(ctx context.Context, msg replicaMessage) {
	msg.Wants = rand.Text()
	acked := make(chan struct{})
	b.mu.Lock()
	b.acks[msg.Wants] = acked
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.acks, msg.Wants)
	}()
	if !b.publish(topicAll, msg) || !b.publish(sessionTopic(msg.Session), replicaMessage{}) {
		return // no other replica has a stream of the client
	}
	waitToJoin(ctx, acked)
}

// receiveAck handles an acknowledgement.
func (b *bus) receiveAck(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if acked := b.acks[id]; acked != nil {
		close(acked)
		delete(b.acks, id)
	}
}

// parse parses a message. It reports false if the message is invalid or from this replica.
func (b *bus) parse(text []byte) (msg *replicaMessage, ok bool) {
	msg = new(replicaMessage)
	return msg, json.Unmarshal(text, msg) == nil && msg.From != b.space.Replica
}
