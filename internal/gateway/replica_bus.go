package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
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
	msg.From = b.space.Replica
	text := jsonrpc.Encode(msg)
	if len(text) > maxReplicaMessage {
		b.state.gateways().logger().Warn("message to other replicas dropped: too long", zap.Int("bytes", len(text)))
		return false, nil
	}
	return b.space.Publish(ctx, topic, text)
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
	timer := time.NewTimer(joinWait)
	defer timer.Stop()
	select {
	case <-acked:
	case <-timer.C:
	case <-ctx.Done():
	}
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
