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

// Replicas serve each other's sessions: any of them may get the next request of a client. What one does
// that concerns the others, it tells them by three kinds of topics: one that all replicas hear, one for
// each session that those hear where the client has a stream, and one for each replica.
//
// Nothing that is told is told again. Who does not hear it, because the store is unavailable or the
// replica has just begun, finds in the store what lasts: see recall.go.

// An elsewhere is how a State deals with those of other replicas. If there are none it is nil, and its
// methods do nothing.
type elsewhere struct {
	*State
	space  *replicas.Space
	ctx    context.Context // done when the State has ended
	cancel context.CancelFunc

	mu   sync.Mutex
	stop []func()                 // hearing topics
	acks map[string]chan struct{} // closed when they come
	news listNews                 // that waits to be told
	told *time.Timer              // tells it; nil if there was none for a while

	untold  []*untoldEnd // sessions, the first to be told next
	telling bool         // tellEnds runs

	missed     atomic.Uint64 // how often what was told may not have been heard here
	catchingUp bool          // catchUp runs
}

// The topics.
const everywhere = "everywhere"

func topicOfSession(id string) string      { return "session " + id }
func topicOfReplica(replica string) string { return "replica " + replica }

// A dispatch is what one replica tells another.
type dispatch struct {
	From    string         // the replica
	Session string         `json:",omitempty"` // its id, if it is about one
	Ended   *sessionEnd    `json:",omitempty"`
	Greeted bool           `json:",omitempty"` // servers know that the client is ready
	Change  *sessionChange `json:",omitempty"`
	Said    *serverMessage `json:",omitempty"`
	Notice  *clientMessage `json:",omitempty"`
	Resumed *resumedStream `json:",omitempty"`
	Lists   listNews       `json:",omitempty"`
	Refresh string         `json:",omitempty"` // the ID of a server that is to be asked again
	Wants   string         `json:",omitempty"` // what is to be acknowledged by those who have a stream of the client
	Ack     string         `json:",omitempty"` // what is
}

const (
	// longestDispatch is how many bytes one may have. Only answers of clients come near.
	longestDispatch = 4 << 20
	// longestNotice is how many bytes a notification of a client may have that others are told of.
	longestNotice = 4 << 10
	// followPause is the pause before a topic is asked for again that could not be had.
	followPause = time.Second
)

// newElsewhere returns that of a State. It hears what is told from when it returns, or from when the store is
// available.
func newElsewhere(s *State, space *replicas.Space) *elsewhere {
	if space == nil {
		return nil
	}
	e := &elsewhere{State: s, space: space, acks: map[string]chan struct{}{}}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	for _, topic := range []string{everywhere, topicOfReplica(space.Replica)} {
		if !e.hear(topic) {
			s.running.Go(func() {
				for backoff.Sleep(e.ctx, followPause) {
					if e.hear(topic) {
						e.miss()
						return
					}
				}
			})
		}
	}
	return e
}

// hear begins to hear a topic, and reports whether it could.
func (e *elsewhere) hear(topic string) bool {
	stop, err := e.space.Subscribe(e.ctx, topic, e.take)
	if err != nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ctx.Err() != nil {
		stop() // close has stopped the others
		return true
	}
	e.stop = append(e.stop, stop)
	return true
}

// close stops to hear, and to tell.
func (e *elsewhere) close() {
	if e == nil {
		return
	}
	e.cancel()
	e.mu.Lock()
	stop := e.stop
	e.stop = nil
	if e.told != nil {
		e.told.Stop()
	}
	e.mu.Unlock()
	for _, f := range stop {
		f()
	}
}

// tell tells something to those who hear a topic, and reports whether anyone does. It takes no longer than an
// operation of the store may.
func (e *elsewhere) tell(topic string, d dispatch) (heard bool) {
	heard, _ = e.publish(e.ctx, topic, d) // the store says itself that it is unavailable
	return heard
}

// publish does so, and returns why it could not.
func (e *elsewhere) publish(ctx context.Context, topic string, d dispatch) (heard bool, err error) {
	d.From = e.space.Replica
	text := jsonrpc.Encode(d)
	if len(text) > longestDispatch {
		e.logger().Warn("message for other replicas left out: too long", zap.Int("bytes", len(text)))
		return false, nil
	}
	return e.space.Publish(ctx, topic, text)
}

// logger returns that of the Gateway that serves now.
func (e *elsewhere) logger() *zap.Logger {
	if g := e.serving(); g != nil {
		return g.config.Logger
	}
	return zap.NewNop()
}

// serving returns the Gateway that serves now, nil if there is none.
func (e *elsewhere) serving() *Gateway {
	members := e.gateways()
	if len(members) == 0 {
		return nil
	}
	return members[len(members)-1]
}

// gateways returns all Gateways of the State, the latest last.
func (s *State) gateways() []*Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.members)
}

// serverWith returns the server with an ID, as the latest Gateway has it that has one; nil if none has.
func (e *elsewhere) serverWith(id string) *upstream.Server {
	for _, g := range slices.Backward(e.gateways()) {
		if s := g.byID(id); s != nil {
			return s
		}
	}
	return nil
}

// take takes what another replica tells. It does not block.
func (e *elsewhere) take(text []byte) {
	if text == nil {
		e.miss()
		return
	}
	if len(text) > longestNotice && !e.concerns(text) {
		return
	}
	var d dispatch
	if json.Unmarshal(text, &d) != nil || d.From == e.space.Replica {
		return
	}
	switch {
	case d.Ack != "":
		e.acknowledged(d.Ack)
	case d.Lists != nil:
		e.takeLists(d.From, d.Lists)
	case d.Refresh != "":
		e.takeRefresh(d.Refresh)
	case d.Session != "":
		e.takeOfSession(&d)
	}
}

// miss notes that something may have been told that was not heard here. Records of sessions have what lasts
// of it: those of clients that listen here are read at once, others with the next request.
func (e *elsewhere) miss() {
	e.mu.Lock()
	e.missed.Add(1)
	begin := !e.catchingUp
	e.catchingUp = true
	e.mu.Unlock()
	e.State.mu.Lock()
	defer e.State.mu.Unlock()
	if begin && !e.ended {
		e.running.Go(e.catchUp)
	}
}

// catchUp reads the records of clients that listen here.
func (e *elsewhere) catchUp() {
	for {
		missed := e.missed.Load()
		for _, c := range e.clients() {
			if len(c.listening()) > 0 && e.ctx.Err() == nil {
				e.recall(e.ctx, c)
			}
		}
		e.mu.Lock()
		e.catchingUp = missed != e.missed.Load() && e.ctx.Err() == nil
		again := e.catchingUp
		e.mu.Unlock()
		if !again {
			return
		}
	}
}

// concerns reports whether a dispatch is about a session that is known here, its end, or about none.
func (e *elsewhere) concerns(text []byte) bool {
	var d struct {
		Session string
		Ended   *struct{}
	}
	if json.Unmarshal(text, &d) != nil {
		return false
	}
	if d.Session == "" || d.Ended != nil {
		return true
	}
	c := e.known(d.Session, nil)
	if c != nil {
		e.release(c)
	}
	return c != nil
}

// takeOfSession takes what is about a session.
func (e *elsewhere) takeOfSession(d *dispatch) {
	if d.Ended != nil {
		e.noteOver(d.Session, d.Ended)
	}
	c := e.known(d.Session, nil)
	if c == nil {
		return
	}
	defer e.release(c)
	switch {
	case d.Ended != nil:
		e.runFor(c, func() { e.endHere(c, d.Ended) })
	case d.Greeted:
		c.noteGreeted(e)
	case d.Change != nil:
		e.inOrder(c, order{func() {
			if e.apply(c, d.Change) && d.Wants != "" {
				e.tell(topicOfReplica(d.From), dispatch{Ack: d.Wants})
			}
		}, 0})
	case d.Notice != nil:
		e.runFor(c, func() { e.notice(c, d.Notice) })
	case d.Resumed != nil:
		if call := c.inFlight(d.Resumed.Call); call != nil && call.link.id == d.Resumed.Server {
			call.Cancel(nil)
		}
	}
}

// An order is something that is done for a client after what was to be done before.
type order struct {
	run   func()
	bytes int // that it holds
}

// How much of what others tell of a client can wait for what they have told before.
const maxOrders, maxOrdered = 1_000, 1 << 20

// inOrder runs an order, after what was to be run for the client before. It is left out if that is too much.
func (e *elsewhere) inOrder(c *client, o order) {
	c.mu.Lock()
	if len(c.orders) == maxOrders || c.ordered > maxOrdered {
		c.mu.Unlock()
		return
	}
	c.orders, c.ordered = append(c.orders, o), c.ordered+o.bytes
	first := len(c.orders) == 1
	c.mu.Unlock() // runFor locks the State, and who has done that may lock clients
	if first && !e.runFor(c, c.runOrders) {
		c.mu.Lock()
		c.orders, c.ordered = nil, 0 // the State has ended
		c.mu.Unlock()
	}
}

// runOrders runs what is to be run for the client in order.
func (c *client) runOrders() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.orders) > 0 {
		o := c.orders[0]
		c.mu.Unlock()
		o.run()
		c.mu.Lock()
		c.orders, c.ordered = c.orders[1:], c.ordered-o.bytes
	}
	c.orders = nil
}

// expectAck returns what another replica is to acknowledge, and a function that waits until one has, but not for
// long.
func (e *elsewhere) expectAck() (id string, wait func(context.Context), forget func()) {
	id = rand.Text()
	came := make(chan struct{})
	e.mu.Lock()
	e.acks[id] = came
	e.mu.Unlock()
	wait = func(ctx context.Context) {
		timer := time.NewTimer(joinPause)
		defer timer.Stop()
		select {
		case <-came:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return id, wait, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.acks, id)
	}
}

// acknowledged notes that another replica has done something.
func (e *elsewhere) acknowledged(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if came := e.acks[id]; came != nil {
		close(came)
		delete(e.acks, id)
	}
}

// follow has the stream hear what other replicas have for its client, from when it returns, or from when the
// store is available.
func (s *stream) follow() {
	e := s.visit.g.elsewhere
	if e == nil || s.tryFollow(e) {
		return
	}
	s.later(func() {
		for backoff.Sleep(s.ctx, followPause) && !s.tryFollow(e) {
		}
	})
}

// tryFollow reports whether the stream hears what other replicas have for its client.
func (s *stream) tryFollow(e *elsewhere) bool {
	stop, err := e.space.Subscribe(s.ctx, topicOfSession(s.visit.client.key), func(text []byte) { s.heard(e, text) })
	if err != nil {
		return false
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.unfollow = stop
	}
	s.mu.Unlock()
	if closed {
		stop()
	}
	return true
}

// A serverMessage is one of a server to a client that does not listen where it came in.
type serverMessage struct {
	Server  string          // its ID
	Message json.RawMessage // as the server has sent it
	Shown   json.RawMessage // as the client gets it
}

// forward has the client get a message of a server by its stream at another replica, and reports whether it has
// one.
func (u unsolicited) forward(m *jsonrpc.Message) (delivered bool) {
	e, c := u.g.elsewhere, u.link.client
	if e == nil || c.era != mcp.Legacy || c.key == "" || len(c.listening()) > 0 {
		return false
	}
	return e.tell(topicOfSession(c.key), dispatch{Session: c.key, Said: &serverMessage{
		u.link.id, m.Raw, u.link.translator(u.g).message(m),
	}})
}

// heard takes what another replica has for the client of the stream. If it has several streams, the latest does.
func (s *stream) heard(e *elsewhere, text []byte) {
	var d dispatch
	c := s.visit.client
	if json.Unmarshal(text, &d) != nil || d.From == e.space.Replica || d.Said == nil {
		return
	}
	if all := c.listening(); len(all) == 0 || all[0] != s {
		return
	}
	var m jsonrpc.Message
	if m.Read(d.Said.Message) != nil {
		return
	}
	e.inOrder(c, order{func() {
		g := s.g.Load()
		server := g.byID(d.Said.Server)
		if server == nil || isListChange(&m) && !s.listensTo(server.ID) || !s.admits(g, c.link(server), &m) {
			return
		}
		s.visit.out.Event(&streamable.Event{Data: d.Said.Shown})
	}, len(text)})
}

// A sentRequest is what another replica needs of a request.
type sentRequest struct {
	Method, URL, URI, Proto, Host, Remote string

	Header http.Header
}

// sentRequestOf returns what is sent of a request. It leaves out the session id, which goes with it.
func sentRequestOf(r *http.Request) sentRequest {
	header := r.Header.Clone()
	header.Del(mcp.SessionHeader)
	return sentRequest{r.Method, r.URL.String(), r.RequestURI, r.Proto, r.Host, r.RemoteAddr, header}
}

// in returns the request in a context.
func (s *sentRequest) in(ctx context.Context) (*http.Request, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	k := keptRequest{method: s.Method, uri: s.URI, proto: s.Proto, host: s.Host, remote: s.Remote, url: u}
	for name, values := range s.Header {
		k.header = append(k.header, headerField{name, values})
	}
	return k.in(ctx), nil
}

// A clientMessage is a message of a client, which wants no answer, for another replica: that of the call
// that it is about.
type clientMessage struct {
	Identity, Address, User string // of the client

	Request sentRequest
	Message json.RawMessage
	Settled bool // the server has got it; the call is to know
}

// forward has another replica deal with the message, or all if it is not known which.
func (n clientNotice) forward(replica string, settled bool) error {
	e := n.g.elsewhere
	if e == nil || n.forwarded || n.Message.IsNotification() && len(n.Message.Raw) > longestNotice {
		return nil
	}
	topic := everywhere
	if replica != "" {
		topic = topicOfReplica(replica)
	}
	_, err := e.publish(e.ctx, topic, dispatch{Session: n.client.key, Notice: &clientMessage{
		n.Caller.Identity, n.Caller.Address, n.Caller.User, sentRequestOf(n.HTTP), n.Message.Raw, settled,
	}})
	return err
}

// How long an answer waits for the store, and how often it is tried meanwhile: the call would wait for it in vain.
const answerTime, answerPause = 10 * time.Second, 250 * time.Millisecond

// forwardAnswer has another replica take the client's answer, even if the store is unavailable for a while.
func (n clientNotice) forwardAnswer(replica string) *jsonrpc.Failure {
	ctx, cancel := context.WithTimeout(n.ctx, answerTime)
	defer cancel()
	for n.forward(replica, false) != nil {
		if !backoff.Sleep(ctx, answerPause) {
			return jsonrpc.StoreUnavailable("the answer cannot be passed on")
		}
	}
	return nil
}

// notice deals with a message of a client that has come to another replica, as if it had come here. It is about
// something that the client does here, or it is nothing.
func (e *elsewhere) notice(c *client, said *clientMessage) {
	g, values := e.serving(), c.doing()
	if g == nil || values == nil || c.identity != said.Identity || e.hasEnded(c) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(values), g.config.JoinTimeout)
	defer cancel()
	r, err := said.Request.in(ctx)
	if err != nil {
		return
	}
	q := g.gate.NewRequest(nil, r, inbound.Endpoint{}, inbound.Peer{})
	q.Caller = g.callerOf(c)
	q.Caller.Address, q.Caller.User = said.Address, said.User
	if q.Message.Read(said.Message) != nil {
		return
	}
	n := clientNotice{&visit{Request: q, g: g, ctx: ctx, era: mcp.Legacy, client: c, forwarded: true}}
	switch {
	case said.Settled:
		c.takeReply(q.Message.Literal(jsonrpc.ID), &q.Message)
	case q.Message.IsNotification():
		n.pass()
	default:
		n.reply()
	}
	n.asides.Wait()
}

// doing returns the context of something that the client does here: a call, or a stream. It returns nil if it
// does nothing.
func (c *client) doing() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		return call.Context
	}
	if len(c.streams) > 0 {
		return c.streams[0].ctx
	}
	return nil
}

// A resumedStream is the stream of a call that a client reads on elsewhere.
type resumedStream struct {
	Call   []byte // the client's id of it
	Server string // its ID
}

// resumed says that a client reads on the stream of a call, which may still be read where it was made.
func (e *elsewhere) resumed(c *client, call []byte, server string) {
	if e != nil {
		e.tell(everywhere, dispatch{Session: c.key, Resumed: &resumedStream{call, server}})
	}
}
