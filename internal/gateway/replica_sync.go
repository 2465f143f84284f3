package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
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

// A replicaSync exchanges messages and session records with other replicas. It is nil if there are
// none; most methods then do nothing.
type replicaSync struct {
	*State
	space  *replicas.Space
	ctx    context.Context // done when the State has ended
	cancel context.CancelFunc

	mu             sync.Mutex
	unsubscribe    []func()                 // ends the subscriptions to topics
	acks           map[string]chan struct{} // closed when the acknowledgement arrives
	pendingChanges listChanges              // changes to send with the next timer
	changesTimer   *time.Timer              // sends pendingChanges; nil if no change was sent recently

	unsentEnds  []*unsentEnd // oldest first
	sendingEnds bool         // sendEnds runs

	missedMessages atomic.Uint64 // number of times that messages may have been lost
	reloading      bool          // reloadRecords runs
}

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

// newReplicaSync returns the replicaSync of a State, nil if space is nil. It is subscribed when
// newReplicaSync returns, or as soon as the store is available.
func newReplicaSync(s *State, space *replicas.Space) *replicaSync {
	if space == nil {
		return nil
	}
	rs := &replicaSync{State: s, space: space, acks: map[string]chan struct{}{}}
	rs.ctx, rs.cancel = context.WithCancel(context.Background())
	for _, topic := range []string{topicAll, replicaTopic(space.Replica)} {
		if !rs.subscribe(topic) {
			s.running.Go(func() {
				for backoff.Sleep(rs.ctx, subscribePause) {
					if rs.subscribe(topic) {
						rs.noteGap()
						return
					}
				}
			})
		}
	}
	return rs
}

// subscribe subscribes to a topic. It reports whether that succeeded.
func (rs *replicaSync) subscribe(topic string) bool {
	stop, err := rs.space.Subscribe(rs.ctx, topic, rs.receive)
	if err != nil {
		return false
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.ctx.Err() != nil {
		stop() // close has run already
		return true
	}
	rs.unsubscribe = append(rs.unsubscribe, stop)
	return true
}

// close ends all subscriptions.
func (rs *replicaSync) close() {
	if rs == nil {
		return
	}
	rs.cancel()
	rs.mu.Lock()
	stop := rs.unsubscribe
	rs.unsubscribe = nil
	if rs.changesTimer != nil {
		rs.changesTimer.Stop()
	}
	rs.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// publish sends a message to the subscribers of a topic, and reports whether there are any. It
// takes no longer than the timeout of a store operation.
func (rs *replicaSync) publish(topic string, msg replicaMessage) (received bool) {
	received, _ = rs.publishContext(rs.ctx, topic, msg) // the store logs its outages
	return received
}

// publishContext is like publish, with a context, and returns errors.
func (rs *replicaSync) publishContext(
	ctx context.Context, topic string, msg replicaMessage,
) (received bool, err error) {
	msg.From = rs.space.Replica
	text := jsonrpc.Encode(msg)
	if len(text) > maxReplicaMessage {
		rs.logger().Warn("message to other replicas dropped: too long", zap.Int("bytes", len(text)))
		return false, nil
	}
	return rs.space.Publish(ctx, topic, text)
}

// logger returns the logger of the latest Gateway.
func (rs *replicaSync) logger() *zap.Logger {
	if g := rs.latestGateway(); g != nil {
		return g.config.Logger
	}
	return zap.NewNop()
}

// latestGateway returns the Gateway that serves now, nil if there is none.
func (rs *replicaSync) latestGateway() *Gateway {
	all := rs.gateways()
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1]
}

// gateways returns all Gateways of the State, newest last.
func (s *State) gateways() []*Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.activeGateways)
}

// serverByID returns the server with an ID from the newest Gateway that has it, nil if none does.
func (rs *replicaSync) serverByID(id string) *upstream.Server {
	for _, g := range slices.Backward(rs.gateways()) {
		if s := g.byID(id); s != nil {
			return s
		}
	}
	return nil
}

// receive handles a message of another replica. A nil text means that messages may have been lost.
// It does not block.
func (rs *replicaSync) receive(text []byte) {
	if text == nil {
		rs.noteGap()
		return
	}
	if len(text) > maxForwardedNotification && !rs.isRelevant(text) {
		return
	}
	var msg replicaMessage
	if json.Unmarshal(text, &msg) != nil || msg.From == rs.space.Replica {
		return
	}
	switch {
	case msg.Ack != "":
		rs.receiveAck(msg.Ack)
	case msg.Lists != nil:
		rs.receiveListChanges(msg.From, msg.Lists)
	case msg.Refresh != "":
		rs.receiveRefresh(msg.Refresh)
	case msg.Session != "":
		rs.receiveSession(&msg)
	}
}

// noteGap notes that messages may have been lost. Session records keep their lasting effects: the
// records of clients with open streams are read now, others with the next request.
func (rs *replicaSync) noteGap() {
	rs.mu.Lock()
	rs.missedMessages.Add(1)
	begin := !rs.reloading
	rs.reloading = true
	rs.mu.Unlock()
	rs.State.mu.Lock()
	defer rs.State.mu.Unlock()
	if begin && !rs.ended {
		rs.running.Go(rs.reloadRecords)
	}
}

// reloadRecords reads the records of clients with open streams.
func (rs *replicaSync) reloadRecords() {
	for {
		missed := rs.missedMessages.Load()
		for _, c := range rs.clients() {
			if len(c.openStreams()) > 0 && rs.ctx.Err() == nil {
				rs.syncSession(rs.ctx, c)
			}
		}
		rs.mu.Lock()
		rs.reloading = missed != rs.missedMessages.Load() && rs.ctx.Err() == nil
		again := rs.reloading
		rs.mu.Unlock()
		if !again {
			return
		}
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
	c := rs.lookUp(msg.Session, nil)
	if c != nil {
		rs.release(c)
	}
	return c != nil
}

// receiveSession handles a message about a session.
func (rs *replicaSync) receiveSession(msg *replicaMessage) {
	if msg.Ended != nil {
		rs.noteEnded(msg.Session, msg.Ended)
	}
	c := rs.lookUp(msg.Session, nil)
	if c == nil {
		return
	}
	defer rs.release(c)
	switch {
	case msg.Ended != nil:
		rs.runFor(c, func() { rs.endLocally(c, msg.Ended) })
	case msg.Greeted:
		c.noteReadyAnnounced(rs)
	case msg.Change != nil:
		rs.enqueue(c, queuedTask{func() {
			if rs.applyChange(c, msg.Change) && msg.Wants != "" {
				rs.publish(replicaTopic(msg.From), replicaMessage{Ack: msg.Wants})
			}
		}, 0})
	case msg.Notice != nil:
		rs.runFor(c, func() { rs.handleClientMessage(c, msg.Notice) })
	case msg.Resumed != nil:
		if call := c.calls.get(msg.Resumed.Call); call != nil && call.link.serverID == msg.Resumed.Server {
			call.Cancel(nil)
		}
	}
}

// A queuedTask is work for a client that must run in order.
type queuedTask struct {
	run   func()
	bytes int // bytes that it holds
}

// maxQueuedTasks and maxQueuedBytes limit the queue of a client.
const maxQueuedTasks, maxQueuedBytes = 1_000, 1 << 20

// enqueue runs a task after the client's earlier ones. It drops the task if the queue is full.
func (rs *replicaSync) enqueue(c *client, task queuedTask) {
	c.mu.Lock()
	if len(c.queue) == maxQueuedTasks || c.queuedBytes > maxQueuedBytes {
		c.mu.Unlock()
		return
	}
	c.queue, c.queuedBytes = append(c.queue, task), c.queuedBytes+task.bytes
	first := len(c.queue) == 1
	c.mu.Unlock() // runFor locks the State; the lock order is State before client
	if first && !rs.runFor(c, c.runQueue) {
		c.mu.Lock()
		c.queue, c.queuedBytes = nil, 0 // the State has ended
		c.mu.Unlock()
	}
}

// runQueue runs the tasks of the client in order.
func (c *client) runQueue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		task := c.queue[0]
		c.mu.Unlock()
		task.run()
		c.mu.Lock()
		c.queue, c.queuedBytes = c.queue[1:], c.queuedBytes-task.bytes
	}
	c.queue = nil
}

// expectAck returns an id that another replica is to acknowledge, and a function that waits for it,
// at most joinWait.
func (rs *replicaSync) expectAck() (id string, wait func(context.Context), forget func()) {
	id = rand.Text()
	acked := make(chan struct{})
	rs.mu.Lock()
	rs.acks[id] = acked
	rs.mu.Unlock()
	wait = func(ctx context.Context) {
		timer := time.NewTimer(joinWait)
		defer timer.Stop()
		select {
		case <-acked:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return id, wait, func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		delete(rs.acks, id)
	}
}

// receiveAck handles an acknowledgement.
func (rs *replicaSync) receiveAck(id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if acked := rs.acks[id]; acked != nil {
		close(acked)
		delete(rs.acks, id)
	}
}

// subscribeToReplicas subscribes the stream to messages for its client, now or as soon as the store
// is available.
func (s *stream) subscribeToReplicas() {
	rs := s.req.g.replicaSync
	if rs == nil || s.trySubscribe(rs) {
		return
	}
	s.runAsync(func() {
		for backoff.Sleep(s.ctx, subscribePause) && !s.trySubscribe(rs) {
		}
	})
}

// trySubscribe subscribes the stream once. It reports whether that succeeded.
func (s *stream) trySubscribe(rs *replicaSync) bool {
	receive := func(text []byte) { s.receiveFromReplica(rs, text) }
	stop, err := rs.space.Subscribe(s.ctx, sessionTopic(s.req.client.key), receive)
	if err != nil {
		return false
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.unsubscribe = stop
	}
	s.mu.Unlock()
	if closed {
		stop()
	}
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
	if rs == nil || c.era != mcp.Legacy || c.key == "" || len(c.openStreams()) > 0 {
		return false
	}
	return rs.publish(sessionTopic(c.key), replicaMessage{Session: c.key, Said: &serverMessage{
		u.link.serverID, m.Raw, u.link.translator(u.g).message(m),
	}})
}

// receiveFromReplica handles a message of another replica for the client. Only the newest stream of
// the client delivers it.
func (s *stream) receiveFromReplica(rs *replicaSync, text []byte) {
	var msg replicaMessage
	c := s.req.client
	if json.Unmarshal(text, &msg) != nil || msg.From == rs.space.Replica || msg.Said == nil {
		return
	}
	if all := c.openStreams(); len(all) == 0 || all[0] != s {
		return
	}
	var m jsonrpc.Message
	if m.Read(msg.Said.Message) != nil {
		return
	}
	rs.enqueue(c, queuedTask{func() {
		g := s.g.Load()
		server := g.byID(msg.Said.Server)
		if server == nil || isListChange(&m) && !s.listensTo(server.ID) || !s.accepts(g, c.linkTo(server), &m) {
			return
		}
		s.req.out.Event(&streamable.Event{Data: msg.Said.Shown})
	}, len(text)})
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
func (n oneWayMessage) sendToReplica(replica string, settled bool) error {
	rs := n.g.replicaSync
	if rs == nil || n.fromReplica || n.Message.IsNotification() && len(n.Message.Raw) > maxForwardedNotification {
		return nil
	}
	topic := topicAll
	if replica != "" {
		topic = replicaTopic(replica)
	}
	_, err := rs.publishContext(rs.ctx, topic, replicaMessage{Session: n.client.key, Notice: &clientMessage{
		n.Caller.Identity, n.Caller.Address, n.Caller.User, newWireRequest(n.HTTP), n.Message.Raw, settled,
	}})
	return err
}

// responseTimeout is how long a response is retried while the store is unavailable, every
// responsePause. Without it, the call would wait until it times out.
const responseTimeout, responsePause = 10 * time.Second, 250 * time.Millisecond

// sendResponseToReplica is like sendToReplica, and retries while the store is unavailable.
func (n oneWayMessage) sendResponseToReplica(replica string) *jsonrpc.Failure {
	ctx, cancel := context.WithTimeout(n.ctx, responseTimeout)
	defer cancel()
	for n.sendToReplica(replica, false) != nil {
		if !backoff.Sleep(ctx, responsePause) {
			return jsonrpc.StoreUnavailable("the response cannot be forwarded to the replica that needs it")
		}
	}
	return nil
}

// handleClientMessage handles a message that a client sent to another replica. It does nothing
// unless the client has a call or a stream here.
func (rs *replicaSync) handleClientMessage(c *client, sent *clientMessage) {
	g, values := rs.latestGateway(), c.activeContext()
	if g == nil || values == nil || c.identity != sent.Identity || rs.hasEnded(c) {
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
		return call.Context
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

// callResumed tells other replicas that a client has resumed the stream of a call. The replica with
// the call stops it.
func (rs *replicaSync) callResumed(c *client, call []byte, server string) {
	if rs != nil {
		rs.publish(topicAll, replicaMessage{Session: c.key, Resumed: &resumedStream{call, server}})
	}
}
