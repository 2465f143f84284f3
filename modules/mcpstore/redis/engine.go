package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

const (
	// dialTimeout is the timeout of connecting.
	dialTimeout = 2 * time.Second
	// responseTimeout is the timeout of a response, after which the connection is closed.
	responseTimeout = 2 * time.Second
	// retryInterval is the interval of connection attempts and of topology refreshes.
	retryInterval = time.Second
	// maxPending bounds the commands that wait for a response. It is less than the length of a
	// connection's queue, where waiting has no timeout.
	maxPending = 512
	bufferSize = 64 << 10 // per connection and direction
	// reconnectPause is the minimum time between two calls of reconnect that have an effect.
	reconnectPause = 3 * time.Second
)

// An engine is a Redis server or a group of them.
type engine struct {
	sharded bool // a cluster, where messages go to the node of their topic
	logger  *zap.Logger

	commands, messages rueidis.Client // set before connected is closed
	connected          chan struct{}
	connectError       atomic.Pointer[error] // of the last failed attempt to connect
	closed             context.Context
	close              context.CancelFunc
	connecting         sync.Mutex    // held while clients are set or closed
	pending            chan struct{} // semaphore of maxPending

	mu     sync.Mutex
	topics map[string]*topic

	connections connections // only of a single server
}

// open returns an engine that connects in the background.
func open(option rueidis.ClientOption, logger *zap.Logger) *engine {
	option.DisableCache = true     // nothing is read twice
	option.DisableRetry = true     // a failed command may have been executed
	option.AlwaysPipelining = true // detects a closed connection before it is used
	option.ClientSetInfo = rueidis.DisableClientSetInfo
	option.Dialer.Timeout = dialTimeout
	option.ConnWriteTimeout = responseTimeout
	option.ReadBufferEachConn, option.WriteBufferEachConn = bufferSize, bufferSize
	option.ClusterOption.MaxMovedRedirections = 8
	option.ClusterOption.ShardsRefreshInterval = retryInterval
	option.Sentinel.TopologyRefreshInterval = retryInterval
	e := &engine{
		sharded: !option.ForceSingleClient && option.Sentinel.MasterSet == "",
		logger:  logger, connected: make(chan struct{}),
		pending: make(chan struct{}, maxPending), topics: map[string]*topic{},
	}
	e.closed, e.close = context.WithCancel(context.Background())
	option.DialCtxFn = checked(option.DialCtxFn)
	if option.ForceSingleClient {
		option.DialCtxFn = e.connections.dialer(option.DialCtxFn)
	}
	go e.connect(option)
	return e
}

// connect creates the clients. Once created, they reconnect on their own.
func (e *engine) connect(option rueidis.ClientOption) {
	for !e.tryToConnect(option) {
		select {
		case <-e.closed.Done():
			return
		case <-time.After(retryInterval):
		}
	}
}

// tryToConnect creates the clients. It reports whether it succeeded or the engine is closed.
func (e *engine) tryToConnect(option rueidis.ClientOption) bool {
	commands, err := newClient(option)
	if err != nil {
		e.connectFailed(err)
		return false
	}
	option.PipelineMultiplex = -1 // one connection per node
	messages, err := newClient(option)
	if err != nil {
		commands.Close()
		e.connectFailed(err)
		return false
	}
	e.connecting.Lock()
	defer e.connecting.Unlock()
	if e.closed.Err() != nil {
		commands.Close()
		messages.Close()
		return true
	}
	e.commands, e.messages = commands, messages
	close(e.connected)
	return true
}

// newClient returns a connected client.
func newClient(option rueidis.ClientOption) (rueidis.Client, error) {
	client, err := rueidis.NewClient(option)
	if err != nil && client != nil {
		client.Close()
	}
	return client, err
}

// connectFailed stores why the engine is not connected, and logs the first error until it is closed.
func (e *engine) connectFailed(err error) {
	e.connecting.Lock()
	defer e.connecting.Unlock()
	if e.connectError.Swap(&err) == nil && e.closed.Err() == nil {
		e.logger.Warn("redis is unreachable, retrying", zap.Error(err))
	}
}

// ready waits until the engine is connected.
func (e *engine) ready(ctx context.Context) error {
	select {
	case <-e.connected:
		return nil
	case <-e.closed.Done():
		return rueidis.ErrClosing
	case <-ctx.Done():
		if refusal := e.connectError.Load(); refusal != nil {
			return *refusal
		}
		return ctx.Err()
	}
}

// A command is a Redis command or script.
type command func(context.Context, rueidis.Client) rueidis.RedisResult

// do runs a command and waits for the response. If the context ends first, the command stays
// pending until its response arrives or the connection is closed.
func (e *engine) do(ctx context.Context, command command) (rueidis.RedisMessage, error) {
	if err := cmp.Or(ctx.Err(), e.ready(ctx)); err != nil {
		return rueidis.RedisMessage{}, err
	}
	select {
	case e.pending <- struct{}{}:
	case <-ctx.Done():
		return rueidis.RedisMessage{}, fmt.Errorf("%d commands are pending: %w", maxPending, ctx.Err())
	}
	answered := make(chan rueidis.RedisResult, 1)
	go func() {
		defer func() { <-e.pending }()
		answered <- command(context.WithoutCancel(ctx), e.commands)
	}()
	select {
	case result := <-answered:
		message, err := result.ToMessage()
		return message, e.mapError(err)
	case <-ctx.Done():
		return rueidis.RedisMessage{}, ctx.Err()
	}
}

// mapError maps an error of Redis to one of package replicas.
func (e *engine) mapError(err error) error {
	redisError, ok := rueidis.IsRedisErr(err)
	if !ok {
		return err
	}
	switch text := redisError.Error(); {
	case strings.Contains(text, "OOM "):
		return replicas.ErrFull
	case strings.Contains(text, "READONLY "), strings.Contains(text, "MASTERDOWN "):
		e.connections.reconnect()
	}
	return err
}

// The connections of an engine. Behind the address of a single server may be a DNS name or a
// balancer that leads to the current master. A former master that has become a replica keeps its
// connections open, so the engine must close them to get to the new one.
type connections struct {
	mu     sync.Mutex
	latest context.Context // its end closes the connections; nil without any
	end    context.CancelFunc
	ended  time.Time
}

type dialer = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

// dialer returns a function that dials, and adds the connection.
func (c *connections) dialer(dial dialer) dialer {
	return func(ctx context.Context, address string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, address, d, config)
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.latest == nil {
			c.latest, c.end = context.WithCancel(context.Background())
		}
		return &connection{conn, context.AfterFunc(c.latest, func() { _ = conn.Close() })}, nil
	}
}

// reconnect closes all connections. The clients then open new ones.
func (c *connections) reconnect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.latest != nil && time.Since(c.ended) > reconnectPause {
		c.end()
		c.latest, c.ended = nil, time.Now()
	}
}

type connection struct {
	net.Conn
	remove func() bool
}

func (c *connection) Close() error {
	c.remove()
	return c.Conn.Close()
}

// Get implements replicas.Engine.
func (e *engine) Get(ctx context.Context, keys ...string) ([][]byte, error) {
	answer, err := e.do(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return c.Do(ctx, c.B().Mget().Key(keys...).Build())
	})
	if err != nil {
		return nil, err
	}
	all, err := answer.ToArray()
	if err != nil {
		return nil, err
	}
	if len(all) != len(keys) {
		return nil, fmt.Errorf("requested %d values, got %d", len(keys), len(all))
	}
	values := make([][]byte, len(all))
	for i := range all {
		if all[i].IsNil() {
			continue
		}
		if values[i], err = all[i].AsBytes(); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// Set implements replicas.Engine.
func (e *engine) Set(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	args := []string{rueidis.BinaryString(value), strconv.FormatInt(milliseconds(ttl), 10)}
	_, err := e.do(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return set.Exec(ctx, c, []string{key}, args)
	})
	return err
}

// milliseconds returns a TTL in milliseconds, at least 1 as Redis requires.
func milliseconds(ttl time.Duration) int64 { return max(1, ttl.Milliseconds()) }

// Delete implements replicas.Engine.
func (e *engine) Delete(ctx context.Context, key string) (deleted bool, err error) {
	return e.doPositive(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return c.Do(ctx, c.B().Del().Key(key).Build())
	})
}

// doPositive runs a command and reports whether the response is above 0.
func (e *engine) doPositive(ctx context.Context, command command) (bool, error) {
	answer, err := e.do(ctx, command)
	if err != nil {
		return false, err
	}
	n, err := answer.AsInt64()
	return n > 0, err
}

var (
	//go:embed set.lua
	setScript string
	//go:embed swap.lua
	swapScript string
	//go:embed keep.lua
	keepScript string
	//go:embed spend.lua
	spendScript string

	set   = rueidis.NewLuaScript(setScript)
	swap  = rueidis.NewLuaScript(swapScript)
	keep  = rueidis.NewLuaScript(keepScript)
	spend = rueidis.NewLuaScript(spendScript)
)

// Swap implements replicas.Engine.
func (e *engine) Swap(
	ctx context.Context, key string, before, after []byte, ttl time.Duration,
) (swapped bool, err error) {
	expires := "0"
	if ttl != 0 {
		expires = strconv.FormatInt(milliseconds(ttl), 10)
	}
	args := []string{present(before), rueidis.BinaryString(before), present(after), rueidis.BinaryString(after), expires}
	return e.doPositive(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return swap.Exec(ctx, c, []string{key}, args)
	})
}

// present returns "0" for no value and "1" for any other, even an empty one.
func present(value []byte) string {
	if value == nil {
		return "0"
	}
	return "1"
}

// Keep implements replicas.Engine.
func (e *engine) Keep(ctx context.Context, entry replicas.Entry) error {
	keys := []string{entry.Key, entry.Owner + ":ends", entry.Owner + ":sizes"}
	args := []string{
		rueidis.BinaryString(entry.Value), strconv.FormatInt(milliseconds(entry.TTL), 10),
		strconv.FormatInt(entry.OwnerBytes, 10),
	}
	_, err := e.do(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return keep.Exec(ctx, c, keys, args)
	})
	return err
}

// longestWait bounds the wait for a bucket, which may exceed a time.Duration.
const longestWait = 100 * 365 * 24 * time.Hour

// Spend implements replicas.Engine.
func (e *engine) Spend(
	ctx context.Context, buckets []replicas.Bucket,
) (taken []float64, wait time.Duration, err error) {
	var keys, args []string
	for _, b := range buckets {
		keys = append(keys, b.Key)
		for _, number := range []float64{b.Rate, b.Burst, b.Want} {
			args = append(args, strconv.FormatFloat(number, 'g', -1, 64))
		}
	}
	message, err := e.do(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		return spend.Exec(ctx, c, keys, args)
	})
	if err != nil {
		return nil, 0, err
	}
	answer, err := message.AsFloatSlice()
	switch {
	case err != nil:
		return nil, 0, err
	case len(answer) == 1:
		return nil, time.Duration(min(answer[0], longestWait.Seconds()) * float64(time.Second)), nil
	case len(answer) != len(buckets)+1:
		return nil, 0, fmt.Errorf("requested %d buckets, got %d", len(buckets), len(answer)-1)
	}
	return answer[1:], 0, nil
}

// Publish implements replicas.Engine.
func (e *engine) Publish(ctx context.Context, topic string, message []byte) (received bool, err error) {
	return e.doPositive(ctx, func(ctx context.Context, c rueidis.Client) rueidis.RedisResult {
		if e.sharded {
			return c.Do(ctx, c.B().Spublish().Channel(topic).Message(rueidis.BinaryString(message)).Build())
		}
		return c.Do(ctx, c.B().Publish().Channel(topic).Message(rueidis.BinaryString(message)).Build())
	})
}

// Close implements replicas.Engine.
func (e *engine) Close() {
	e.connecting.Lock()
	defer e.connecting.Unlock()
	if e.closed.Err() != nil {
		return
	}
	e.close()
	select {
	case <-e.connected:
		e.commands.Close()
		e.messages.Close()
	default:
	}
}

var errNotSubscribed = errors.New("redis did not confirm the subscription in time")

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

// Interface guard
var _ replicas.Engine = (*engine)(nil)
