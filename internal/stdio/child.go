package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A child is a running server process and the calls that wait for it.
type child struct {
	*process
	server     *server
	noiseLog   rate.Sometimes // limits log lines about output that is not a message
	tooLongLog rate.Sometimes // limits log lines about messages that are too long
	queue      chan frame     // to stdin
	largeSlots chan struct{}  // holds a value for each large message in the queue
	overflow   chan frame     // to stdin, for senders that cannot wait for room in the queue
	startedAt  time.Time

	stderrTail tail          // last lines of stderr
	stderrRead chan struct{} // closed at the end of stderr

	levelLock chan struct{} // holds a value while the log level is being set

	handshake handshake                        // set before the child is used
	announced chan struct{}                    // closed when the start has been reported
	params    atomic.Pointer[mcp.ParamHeaders] // tool arguments that headers repeat; nil if unknown

	mu                  sync.Mutex
	lastID              uint64
	lastKnown           uint64 // latest call that the child can have seen when it wrote the last bytes read
	calls               map[uint64]*call
	abandoned           []abandonedCall
	ping                uint64   // id of the open ping for abandoned calls; 0 for none
	ignoresCancellation bool     // it sends requests for canceled calls
	lastClient          *session // client of the latest call
	servedMany          bool     // it also had calls of other clients, or of one without a session
	dedicatedTo         *session // client whose calls it finishes; it takes no others
	level               string   // log level as set for all clients
	served              bool     // it has answered a call of a client
	dead                error    // why it takes no more calls; nil while it does

	timeouts    int       // calls that have timed out since the last output
	lastTimeout time.Time // time of the latest of them
	checking    bool      // a ping is in flight because of them
}

const (
	maxCalls     = 10_000   // calls that wait for one child
	maxQueue     = 1_000    // messages that a child has not read yet
	maxLarge     = 4        // large messages among them
	largeMessage = 64 << 10 // bytes from which a message is large
	maxUnread    = 16 << 20 // bytes of messages before a response that a client has not read yet
)

var (
	errBusy      = errors.New("too many calls are waiting")
	errDedicated = errors.New("the child is dedicated to one client")
	errUnread    = errors.New("the client has not read earlier responses")
)

// startChild starts the process of a server. It does not initialize it.
func startChild(s *server) (*child, error) {
	config := s.pool.config
	p, err := startProcess(config.Command, config.Env, config.Dir)
	if err != nil {
		return nil, &childError{err: err, cause: jsonrpc.CauseNotStarted}
	}
	c := &child{
		process:    p,
		server:     s,
		noiseLog:   rate.Sometimes{First: 10, Interval: time.Minute},
		tooLongLog: rate.Sometimes{First: 10, Interval: time.Minute},
		queue:      make(chan frame, maxQueue),
		largeSlots: make(chan struct{}, maxLarge),
		overflow:   make(chan frame, maxQueue),
		startedAt:  time.Now(),
		levelLock:  make(chan struct{}, 1),
		announced:  make(chan struct{}),
		calls:      map[uint64]*call{},

		stderrRead: make(chan struct{}),
	}
	s.pool.running.Go(c.write)
	s.pool.running.Go(c.readStderr)
	s.pool.running.Go(c.run)
	return c, nil
}

func (c *child) log() *zap.Logger { return c.server.log().With(zap.Int("pid", c.cmd.Process.Pid)) }

// run reads the output of the child until it dies.
func (c *child) run() {
	c.read()
	c.kill() // without stdout the child cannot respond
	c.stdout.Close()
	calls := c.end(c.cause())
	err := c.explain(c.cause(), jsonrpc.CauseEnded)
	c.server.childEnded(c, err) // first, because a client whose call fails may call again at once
	for _, call := range calls {
		call.fail(jsonrpc.ConnectError(c.server.name, jsonrpc.CauseEnded), err)
	}
}

// busy reports whether calls wait for the child.
func (c *child) busy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls) > 0
}

// end marks the child as dead and returns the calls it will not answer.
func (c *child) end(err error) map[uint64]*call {
	c.mu.Lock()
	defer c.mu.Unlock()
	calls := c.calls
	c.calls, c.dead = nil, err
	return calls
}

// death returns why the child is dead, or nil.
func (c *child) death() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

func (c *child) hasServed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served
}

// workedOnlyFor reports whether no other client had a call.
func (c *child) workedOnlyFor(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.servedMany && (c.lastClient == nil || c.lastClient == s)
}

// dedicate leaves the child to one client, to finish that client's calls. It fails if other
// clients have calls.
func (c *child) dedicate(to *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if !call.internal && call.session != to {
			return false
		}
	}
	c.dedicatedTo = to
	return true
}

// isDedicatedTo reports whether the child is left to a client.
func (c *child) isDedicatedTo(client *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dedicatedTo != nil && c.dedicatedTo == client
}

// stopIfDedicated stops a dedicated child that has no calls left.
func (c *child) stopIfDedicated() {
	c.mu.Lock()
	over := c.dedicatedTo != nil && len(c.calls) == 0
	c.mu.Unlock()
	if over {
		go c.stop(c.server.pool.config.StopGrace) // run waits for the end of the process
	}
}

func (c *child) read() {
	frames := newFrameReader(output{c}, c.server.pool.config.MaxMessage)
	releasePipe := func() {}
	frames.onLong = sync.OnceFunc(func() { releasePipe = widen(c.stdout) })
	defer func() { releasePipe() }()
	var m jsonrpc.Message
	for {
		frame, block, err := frames.next()
		tooLong, isTooLong := errors.AsType[*tooLongError](err)
		switch {
		case err == nil && m.Read(frame) == nil:
			if c.server.pool.config.Framing == Newline && (m.Has(jsonrpc.Version) || m.Has(jsonrpc.Result)) {
				frames.noteValid()
			}
			c.receive(&m, block)
		case isTooLong:
			c.tooLongLog.Do(func() {
				c.log().Warn("message on stdout is too long, skipped", zap.ByteString("id", tooLong.id),
					zap.Int("max_line", frames.max))
			})
			c.failSkipped(&tooLong.skippedMessage, jsonrpc.ResponseTooLarge(c.server.name), err)
		case err == nil || errors.Is(err, errNoise):
			c.server.pool.observe.Noise(c.server.name)
			c.noiseLog.Do(func() {
				c.log().Warn("line on stdout is not a message", zap.String("line", string(frame[:min(len(frame), 512)])))
			})
			if err == nil { // it looks like a message
				l := new(skippedMessage)
				_, _ = l.idWatcher().Write(frame)
				c.failSkipped(l, jsonrpc.InvalidResponse(c.server.name), errNoise)
			}
		default:
			return
		}
	}
}

// An output is the stdout of a child.
type output struct{ *child }

func (o output) Read(p []byte) (int, error) {
	n, err := o.stdout.Read(p)
	if n > 0 {
		o.noteRead()
	}
	return n, err
}

// noteRead records the latest call that the child can have seen when it wrote the bytes
// just read. Later calls cannot be their cause.
func (c *child) noteRead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastKnown = c.lastID
	c.timeouts = 0
}

// failSkipped fails the call that waits for a skipped response, or refuses a skipped
// request.
func (c *child) failSkipped(l *skippedMessage, failure *jsonrpc.Failure, cause error) {
	if l.isRequest {
		if l.id != nil {
			c.trySend(jsonrpc.ErrorResponse(l.id, jsonrpc.CodeInvalidRequest, "the request cannot be forwarded"))
		}
	} else if call := c.takeCall(l.id); call != nil {
		call.fail(failure, cause)
	}
}

// write writes the queue to stdin. Small messages are batched.
func (c *child) write() {
	var batch []byte
	for {
		batch = batch[:0]
		var f frame
		select {
		case <-c.exited:
			return
		case f = <-c.queue:
		case f = <-c.overflow:
		}
		for f != nil && f.len() <= largeMessage && len(batch) < largeMessage {
			for _, piece := range f {
				batch = append(batch, piece...)
			}
			select {
			case f = <-c.queue:
			default:
				f = nil
			}
		}
		if err := c.writeAll(batch, f); err != nil {
			if !errors.Is(err, os.ErrClosed) { // stop closes stdin itself
				c.terminate() // without stdin the child gets no messages
			}
			return
		}
		if f.len() > largeMessage {
			<-c.largeSlots
		}
	}
}

// writeAll writes a batch, then a frame.
func (c *child) writeAll(batch []byte, f frame) error {
	if len(batch) > 0 {
		if _, err := c.stdin.Write(batch); err != nil {
			return err
		}
	}
	for _, piece := range f {
		if _, err := c.stdin.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// readStderr logs the lines of stderr, up to a limit.
func (c *child) readStderr() {
	defer close(c.stderrRead)
	defer c.stderr.Close()
	const longestLine = 8 << 10
	lines := bufio.NewReaderSize(c.stderr, longestLine)
	var limit throttle
	logDropped := func(dropped int) {
		if dropped > 0 {
			c.log().Warn("stderr lines not logged", zap.Int("lines", dropped))
		}
	}
	cut := false // this is not the beginning of the line
	offline := false
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 && !cut {
			c.stderrTail.add(text)
			offline = offline || looksOffline(text)
			pass, dropped := limit.allow(len(text), time.Now())
			logDropped(dropped)
			switch {
			case pass:
				c.log().Info("stderr", zap.String("line", string(text)))
			case limit.dropped == 1:
				c.log().Warn("too much output on stderr, some lines are not logged", zap.Int("lines", throttleLines),
					zap.Int("bytes", throttleBytes), zap.Duration("in", throttleTime))
			}
		}
		cut = err == bufio.ErrBufferFull
		if err != nil && !cut {
			logDropped(limit.dropped)
			if offline {
				c.logWithheld()
			}
			return
		}
	}
}

// Limits of what is logged from stderr in each period of throttleTime.
const (
	throttleTime  = 10 * time.Second
	throttleLines = 1_000
	throttleBytes = 256 << 10
)

// A throttle limits lines and bytes in a period.
type throttle struct {
	since        time.Time
	lines, bytes int // allowed since then
	dropped      int // other lines
}

// allow reports whether the limits allow a line of this length. At the beginning of a period it
// also returns how many lines were dropped in the last one.
func (t *throttle) allow(bytes int, now time.Time) (pass bool, dropped int) {
	if now.Sub(t.since) >= throttleTime {
		dropped = t.dropped
		*t = throttle{since: now}
	}
	if t.dropped > 0 || t.lines == throttleLines || t.bytes+bytes > throttleBytes {
		t.dropped++
		return false, dropped
	}
	t.lines++
	t.bytes += bytes
	return true, dropped
}

// send queues a message for the child. The caller must not change its bytes afterwards.
func (c *child) send(ctx context.Context, message []byte) error {
	return c.sendEdited(ctx, message, nil)
}

// sendEdited queues a message with edits applied.
func (c *child) sendEdited(ctx context.Context, message []byte, edits []jsonspan.Edit) error {
	f := editedFrame(message, edits, c.server.pool.config.Framing)
	isLarge := f.len() > largeMessage
	if isLarge {
		select {
		case c.largeSlots <- struct{}{}:
		case <-c.exited:
			return c.cause()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case c.queue <- f:
		return nil
	case <-c.exited:
		return c.cause()
	case <-ctx.Done():
		if isLarge {
			<-c.largeSlots
		}
		return ctx.Err()
	}
}

// trySend queues a message of the pool itself. It never waits: the reader of the child's
// output calls it, and the child may not read until its output is read. A separate overflow
// queue has room for it when the queue is full, because the child may wait for this message.
// It reports whether the child reads the message after everything queued before.
func (c *child) trySend(message []byte) (inOrder bool) {
	f := newFrame(message, c.server.pool.config.Framing)
	isLarge := f.len() > largeMessage
	if isLarge {
		select {
		case c.largeSlots <- struct{}{}:
		default:
			c.server.pool.observe.Dropped(c.server.name)
			return false
		}
	}
	select {
	case c.queue <- f:
		return true
	default:
	}
	select {
	case c.overflow <- f:
	default:
		if isLarge {
			<-c.largeSlots
		}
		c.server.pool.observe.Dropped(c.server.name)
	}
	return false
}

// Health checks find a child that does not respond. Without them, timeouts of calls do: after
// several in a row without any output, the child gets a ping, and aliveTime to respond, because
// work may be slow. A child that still works on a call, even an abandoned one, writes something by
// then. The ping precedes later calls, so the child cannot be working on those instead.

const (
	maxTimeouts = 3               // calls that time out before the ping
	aliveTime   = 5 * time.Minute // for any output after the ping
)

// silent reports whether the child seems to have stopped responding.
func (c *child) silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timeouts >= maxTimeouts
}

// noteTimeout counts a call that has timed out. Calls that waited at the same time count once. A
// client that leaves says nothing about the child.
func (c *child) noteTimeout(call *call, cause error) {
	var timeout net.Error
	if !errors.As(cause, &timeout) || !timeout.Timeout() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls[call.id] == nil || !call.queued || call.isListen() || call.sentAt.Before(c.lastTimeout) {
		return
	}
	c.lastTimeout = time.Now()
	c.timeouts++
	if c.timeouts < maxTimeouts || c.checking || c.dead != nil {
		return
	}
	c.checking = true
	c.server.pool.running.Go(c.checkSilent)
}

// checkSilent pings a silent child, and stops it if it writes nothing.
func (c *child) checkSilent() {
	pool := c.server.pool
	c.log().Warn("calls timed out, checking whether the server is alive", zap.Int("calls", maxTimeouts),
		zap.Duration("within", pool.aliveTime))
	ctx, cancel := context.WithTimeout(context.Background(), pool.aliveTime)
	defer cancel()
	if _, err := c.request(ctx, "ping", nil); errors.Is(err, context.DeadlineExceeded) && c.silent() {
		c.log().Warn("no response to ping")
		c.stop(pool.config.StopGrace)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checking = false
}
