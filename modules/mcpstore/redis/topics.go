package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// A topic is a subscription at the server, which all subscribers of the topic share.
type topic struct {
	name        string
	ctx         context.Context
	end         context.CancelFunc
	ended       chan struct{} // closed when the subscription has ended completely
	confirmed   chan struct{} // closed when the server has confirmed it for the first time
	subscribers []*subscriber // guarded by the engine's lock
	err         error         // of the last attempt; guarded by the engine's lock
}

type subscriber struct{ f func([]byte) }

// Subscribe implements replicas.Engine.
func (e *engine) Subscribe(ctx context.Context, name string, f func([]byte)) (stop func(), err error) {
	if err := e.ready(ctx); err != nil {
		return nil, err
	}
	s := &subscriber{f}
	t := e.join(name, s)
	stop = sync.OnceFunc(func() { e.leave(t, s) })
	select {
	case <-t.confirmed:
		return stop, nil
	case <-ctx.Done():
		stop()
		e.mu.Lock()
		defer e.mu.Unlock()
		if t.err != nil {
			return nil, t.err
		}
		return nil, fmt.Errorf("%w: %w", errNotSubscribed, ctx.Err())
	}
}

// join adds a subscriber to a topic, and starts the topic if it is the first.
func (e *engine) join(name string, s *subscriber) *topic {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.topics[name]
	if before != nil && before.ctx.Err() == nil {
		before.subscribers = append(before.subscribers, s)
		return before
	}
	t := &topic{
		name: name, ended: make(chan struct{}), confirmed: make(chan struct{}),
		subscribers: []*subscriber{s},
	}
	t.ctx, t.end = context.WithCancel(e.closed)
	e.topics[name] = t
	go e.run(t, before)
	return t
}

// leave removes a subscriber from a topic, and ends the topic if it was the last.
func (e *engine) leave(t *topic, s *subscriber) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Clone, because messages are delivered without the lock.
	t.subscribers = slices.DeleteFunc(slices.Clone(t.subscribers), func(other *subscriber) bool { return other == s })
	if len(t.subscribers) == 0 {
		t.end()
	}
}

// run keeps a topic subscribed until it ends. It first waits for an earlier topic of the same name,
// whose unsubscribe would end the new one.
func (e *engine) run(t, before *topic) {
	defer close(t.ended)
	if before != nil {
		<-before.ended
	}
	for delay := 50 * time.Millisecond; t.ctx.Err() == nil; delay = min(2*delay, retryInterval/2) {
		began := time.Now()
		err := e.receive(t)
		if time.Since(began) > retryInterval {
			delay = 50 * time.Millisecond
		}
		e.mu.Lock()
		t.err = err
		e.mu.Unlock()
		select {
		case <-t.ctx.Done():
		case <-time.After(delay):
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.topics[t.name] == t {
		delete(e.topics, t.name)
	}
}

// receive delivers the messages of a topic until the topic or the connection ends.
func (e *engine) receive(t *topic) error {
	ctx := rueidis.WithOnSubscriptionHook(t.ctx, func(s rueidis.PubSubSubscription) {
		if !strings.HasSuffix(s.Kind, "unsubscribe") {
			e.subscribed(t)
		}
	})
	ctx = rueidis.WithOnReceiveReturnHook(ctx, func(err error, connection rueidis.CommandClient) error {
		if t.ctx.Err() != nil {
			connection.Do(context.Background(), e.unsubscribe(connection.B(), t.name))
		}
		return err
	})
	return e.messages.Receive(ctx, e.subscribe(e.messages.B(), t.name), func(m rueidis.PubSubMessage) {
		e.deliver(t, []byte(m.Message))
	})
}

// subscribed records that the server has confirmed the topic. After a reconnect it delivers nil,
// because messages may be lost.
func (e *engine) subscribed(t *topic) {
	select {
	case <-t.confirmed:
		e.deliver(t, nil)
	default:
		close(t.confirmed)
	}
}

// deliver delivers a message to all subscribers of a topic.
func (e *engine) deliver(t *topic, message []byte) {
	e.mu.Lock()
	all := t.subscribers
	e.mu.Unlock()
	for _, s := range all {
		s.f(message)
	}
}

func (e *engine) subscribe(b rueidis.Builder, name string) rueidis.Completed {
	if e.sharded {
		return b.Ssubscribe().Channel(name).Build()
	}
	return b.Subscribe().Channel(name).Build()
}

func (e *engine) unsubscribe(b rueidis.Builder, name string) rueidis.Completed {
	if e.sharded {
		return b.Sunsubscribe().Channel(name).Build()
	}
	return b.Unsubscribe().Channel(name).Build()
}
