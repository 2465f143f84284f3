package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A child is a running server process and the calls it has to answer.
type child struct {
	*process
	server *server
	noise  rate.Sometimes // how often it is logged that a line is no message
	long   rate.Sometimes // and that one is too long
	queue  chan frame     // to its stdin
	large  chan struct{}  // has a value for each message on its way there that is large
	asides chan frame     // to its stdin as well, for who cannot wait for room in the queue
	born   time.Time

	levelling chan struct{} // has a value while it is told a log level

	hello     hello                            // what it said at first; set before it is used
	announced chan struct{}                    // closed when it has been reported as started
	params    atomic.Pointer[mcp.ParamHeaders] // what its tools want in headers, if known

	mu        sync.Mutex
	lastID    uint64
	lastKnown uint64 // the latest call that the child can have known of when it wrote the bytes last read
	calls     map[uint64]*call
	doubts    []doubt
	client    *session // for whom it has worked
	several   bool     // it has worked for others as well, or for one without a session
	lent      *session // whose calls it finishes; it takes no others
	level     string   // of log messages, that it was told for all clients
	served    bool     // it has answered a client
	dead      error    // why it takes no calls any more

	unheard     int       // calls that have timed out since it has said something
	lastUnheard time.Time // when the last of them did
	asked       bool      // it is being asked whether it is alive because of that
}

// A call is a request that waits for its answer.
type call struct {
	id      uint64
	request jsonrpc.Message // as the client sent it
	session *session        // of the client, if it has one
	own     bool            // no client has sent it
	inbox   *inbox
	err     error // in the place of its answer; good when the inbox has ended

	// Guarded by the lock of the child.
	sent         bool // it is on its way to the child
	begun        time.Time
	cancellation []byte // what tells the child that it was given up
}

// fail ends a call that will not be answered. What its client is told is the failure,
// never the cause.
func (call *call) fail(f *jsonrpc.Failure, cause error) {
	call.err = fmt.Errorf("%w: %w", f, cause)
	call.inbox.end(letter{message: frame{f.Append(nil, call.request.Literal(jsonrpc.ID))}})
}

const (
	maxCalls  = 10_000   // that wait for one child
	maxQueue  = 1_000    // messages that a child has not read yet
	maxLarge  = 4        // of them that are large
	large     = 64 << 10 // bytes
	maxUnread = 16 << 20 // bytes that a client has not read yet of what comes before its answer
)

var (
	errBusy = errors.New("too many calls are waiting")
	errLent = errors.New("the child belongs to one client now")
)

// startChild starts the process of a server. It has not been initialized yet.
func startChild(s *server) (*child, error) {
	config := s.pool.config
	p, err := startProcess(config.Command, config.Env, config.Dir)
	if err != nil {
		return nil, err
	}
	c := &child{
		process:   p,
		server:    s,
		noise:     rate.Sometimes{First: 10, Interval: time.Minute},
		long:      rate.Sometimes{First: 10, Interval: time.Minute},
		queue:     make(chan frame, maxQueue),
		large:     make(chan struct{}, maxLarge),
		asides:    make(chan frame, maxQueue),
		born:      time.Now(),
		levelling: make(chan struct{}, 1),
		announced: make(chan struct{}),
		calls:     map[uint64]*call{},
	}
	s.pool.running.Go(c.write)
	s.pool.running.Go(c.readErrors)
	s.pool.running.Go(c.run)
	return c, nil
}

func (c *child) log() *zap.Logger { return c.server.log().With(zap.Int("pid", c.cmd.Process.Pid)) }

// run reads what the child writes until it dies.
func (c *child) run() {
	c.read()
	c.kill() // who closes stdout answers no more
	c.stdout.Close()
	err := c.cause()
	for _, call := range c.end(err) {
		call.fail(jsonrpc.ConnectError(c.server.name), err)
	}
	c.server.ended(c, err)
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

func (c *child) read() {
	frames := newFrameReader(output{c}, c.server.pool.config.MaxMessage)
	var m jsonrpc.Message
	for {
		frame, err := frames.next()
		var tooLong *tooLongError
		switch {
		case err == nil && m.Read(frame) == nil:
			if c.server.pool.config.Framing == Newline && (m.Has(jsonrpc.Version) || m.Has(jsonrpc.Result)) {
				frames.settle()
			}
			c.receive(&m)
		case errors.As(err, &tooLong):
			c.long.Do(func() {
				c.log().Warn("message too long", zap.ByteString("id", tooLong.id), zap.Int("max_line", frames.max))
			})
			c.lose(&tooLong.lost, jsonrpc.ResponseTooLarge(c.server.name), err)
		case err == nil || errors.Is(err, errNoise):
			c.server.pool.observe.Noise(c.server.name)
			c.noise.Do(func() {
				c.log().Warn("stdout is not a message", zap.String("line", string(frame[:min(len(frame), 512)])))
			})
			if err == nil { // it looks like one
				l := new(lost)
				_, _ = l.watch().Write(frame)
				c.lose(l, jsonrpc.InvalidResponse(c.server.name), errNoise)
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

// noteRead records the latest call that the child can have known of when it wrote the
// bytes just read. A call that begins before they are handled cannot be their cause.
func (c *child) noteRead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastKnown = c.lastID
	c.unheard = 0
}

// lose fails whoever waits for a message that is passed over.
func (c *child) lose(l *lost, failure *jsonrpc.Failure, cause error) {
	if l.request {
		if l.id != nil {
			c.tell(jsonrpc.Refusal(l.id, jsonrpc.CodeInvalidRequest, "the request cannot be passed on"))
		}
	} else if call := c.take(l.id); call != nil {
		call.fail(failure, cause)
	}
}

// write writes to stdin what is in the queue. What is small and waits there goes together.
func (c *child) write() {
	var batch []byte
	for {
		batch = batch[:0]
		var f frame
		select {
		case <-c.exited:
			return
		case f = <-c.queue:
		case f = <-c.asides:
		}
		for f != nil && f.len() <= large && len(batch) < large {
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
			if !errors.Is(err, os.ErrClosed) { // it is not we who stop it
				c.terminate() // who closes stdin hears no more
			}
			return
		}
		if f.len() > large {
			<-c.large
		}
	}
}

// writeAll writes what goes together, and then a frame.
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

// readErrors logs what the child writes to stderr, line by line, as far as the log can
// take it.
func (c *child) readErrors() {
	defer c.stderr.Close()
	const longestLine = 8 << 10
	lines := bufio.NewReaderSize(c.stderr, longestLine)
	var passed throttle
	logLeft := func(left int) {
		if left > 0 {
			c.log().Warn("lines on stderr left out", zap.Int("lines", left))
		}
	}
	cut := false // the line began in the piece before
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 && !cut {
			pass, left := passed.line(len(text), time.Now())
			logLeft(left)
			switch {
			case pass:
				c.log().Info("stderr", zap.String("line", string(text)))
			case passed.left == 1:
				c.log().Warn("too much on stderr, lines are left out", zap.Int("lines", throttleLines), zap.Int("bytes", throttleBytes), zap.Duration("in", throttleTime))
			}
		}
		cut = err == bufio.ErrBufferFull
		if err != nil && !cut {
			logLeft(passed.left)
			return
		}
	}
}

// So much of what a child writes to stderr is logged in that time.
const (
	throttleTime  = 10 * time.Second
	throttleLines = 1_000
	throttleBytes = 256 << 10
)

// A throttle lets so many lines and bytes pass in a time.
type throttle struct {
	since        time.Time
	lines, bytes int // that have passed since
	left         int // lines that have not
}

// line reports whether a line of so many bytes may pass. If it is the first of a new
// time, it returns how many have not passed before.
func (t *throttle) line(bytes int, now time.Time) (pass bool, left int) {
	if now.Sub(t.since) >= throttleTime {
		left = t.left
		*t = throttle{since: now}
	}
	if t.left > 0 || t.lines == throttleLines || t.bytes+bytes > throttleBytes {
		t.left++
		return false, left
	}
	t.lines++
	t.bytes += bytes
	return true, left
}

// send queues a message for the child. Its bytes must not change anymore.
func (c *child) send(ctx context.Context, message []byte) error {
	return c.sendEdited(ctx, message, nil)
}

// sendEdited queues a message with edits made.
func (c *child) sendEdited(ctx context.Context, message []byte, edits []jsonspan.Edit) error {
	f := spliced(message, edits, c.server.pool.config.Framing)
	isLarge := f.len() > large
	if isLarge {
		select {
		case c.large <- struct{}{}:
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
			<-c.large
		}
		return ctx.Err()
	}
}

// tell queues a message of our own. It never waits, for it may be the reader of what
// the child writes that calls it, and the child waits for that one. Calls that fill
// the queue leave it room nevertheless: the child may be waiting for an answer.
func (c *child) tell(message []byte) {
	f := newFrame(message, c.server.pool.config.Framing)
	isLarge := f.len() > large
	if isLarge {
		select {
		case c.large <- struct{}{}:
		default:
			c.server.pool.observe.Dropped(c.server.name)
			return
		}
	}
	select {
	case c.queue <- f:
		return
	default:
	}
	select {
	case c.asides <- f:
	default:
		if isLarge {
			<-c.large
		}
		c.server.pool.observe.Dropped(c.server.name)
	}
}

// begin sends a request. It gets an id of ours, and so does its progress token: a
// number from 1 on, because there are servers that take a 0 for nothing.
func (c *child) begin(ctx context.Context, call *call) error {
	call.inbox = newInbox(maxUnread)
	if err := c.register(call); err != nil {
		return err
	}
	number := strconv.AppendUint(nil, call.id, 10)
	edits := replacements(&call.request, number, jsonrpc.ID, jsonrpc.ProgressToken)
	if err := c.sendEdited(ctx, call.request.Raw, edits); err != nil {
		c.forget(call)
		c.abandon(call)
		return err
	}
	if cancellation := c.markSent(call); cancellation != nil {
		c.tell(cancellation)
	}
	return nil
}

// markSent notes that a call is on its way to the child. It returns what the child is
// to be told after it, if the call has been cancelled meanwhile.
func (c *child) markSent(call *call) (cancellation []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.sent, call.begun = true, time.Now()
	return call.cancellation
}

func (c *child) register(call *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead != nil:
		return c.dead
	case c.lent != nil:
		return errLent
	case len(c.calls) >= maxCalls:
		return errBusy
	}
	c.lastID++
	call.id = c.lastID
	c.calls[call.id] = call
	if !call.own && !call.lists() {
		c.several = c.several || call.session == nil || c.client != nil && c.client != call.session
		c.client = call.session
	}
	return nil
}

// lists reports whether the call is one for a list, which says nothing of its client.
func (call *call) lists() bool {
	return strings.HasSuffix(call.request.Text(jsonrpc.Method), "/list")
}

// workedOnlyFor reports whether the child knows nothing of other clients than this.
func (c *child) workedOnlyFor(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.several && (c.client == nil || c.client == s)
}

// lend has the child be for the calls that one client has there, and for no others. It
// fails if others have some.
func (c *child) lend(to *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if !call.own && call.session != to {
			return false
		}
	}
	c.lent = to
	return true
}

// lentTo reports whether the child is for the calls of a client alone.
func (c *child) lentTo(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lent != nil && c.lent == s
}

// stopIfLent ends a child that was lent once it has nothing to do.
func (c *child) stopIfLent() {
	c.mu.Lock()
	over := c.lent != nil && len(c.calls) == 0
	c.mu.Unlock()
	if over {
		go c.stop(c.server.pool.config.StopGrace) // it is waited for by who reads its output
	}
}

// forget reports whether a call was still waiting. It does not any more.
func (c *child) forget(call *call) bool {
	defer c.stopIfLent()
	c.mu.Lock()
	defer c.mu.Unlock()
	_, waiting := c.calls[call.id]
	delete(c.calls, call.id)
	if waiting && !call.own && !call.listens() {
		c.doubt(call)
	}
	return waiting
}

// abandon refuses what was asked on the stream of a call and nobody will read, and
// lets nothing more be asked there.
func (c *child) abandon(call *call) {
	for _, q := range call.inbox.discard() {
		q.session.refuse(q, "the client has left")
	}
	if call.session != nil {
		call.session.drop(func(q *question) bool { return q.call == call })
	}
}

// giveUp cancels a call whose request has ended, and says why it has.
func (c *child) giveUp(call *call, cause error) {
	c.noteUnheard(call, cause)
	c.cancel(call, "the client has left")
}

// cancel gives a call up, and tells the child that nobody waits for it, nor answers
// what it has asked. A call that still waits for room in the queue is cancelled after
// it: before, the child would not know what is meant.
func (c *child) cancel(call *call, reason string) {
	if c.forget(call) {
		params := fmt.Appendf(nil, `{"requestId":%d`, call.id)
		if reason != "" {
			params = fmt.Appendf(params, `,"reason":%s`, jsonrpc.Quote(reason))
		}
		cancellation := jsonrpc.Notification("notifications/cancelled", append(params, '}'))
		if c.noteCancellation(call, cancellation) {
			c.tell(cancellation)
		}
	}
	c.abandon(call)
}

// noteCancellation reports whether the call that is cancelled is on its way to the
// child. If it is not, begin tells the child later.
func (c *child) noteCancellation(call *call, cancellation []byte) (sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call.cancellation = cancellation
	return call.sent
}

// request makes a request of our own and waits for the answer.
func (c *child) request(ctx context.Context, method string, params []byte) (*jsonrpc.Message, error) {
	call := &call{own: true}
	if failure := call.request.Read(jsonrpc.Request(0, method, params)); failure != nil {
		return nil, failure
	}
	if err := c.begin(ctx, call); err != nil {
		return nil, err
	}
	for {
		select {
		case <-call.inbox.more:
		case <-ctx.Done():
			c.forget(call)
			return nil, ctx.Err()
		}
		l, _, last := call.inbox.take()
		if !last {
			continue // progress, if a client's initialize has asked for it
		}
		if err := c.death(); err != nil {
			return nil, err
		}
		if call.err != nil {
			return nil, call.err
		}
		answer := new(jsonrpc.Message)
		if failure := answer.Read(bytes.Join(l.message, nil)); failure != nil {
			return nil, failure
		}
		return answer, nil
	}
}

// take returns the call that waits for an answer with this id, and ends the
// waiting.
func (c *child) take(id []byte) *call {
	number, err := strconv.ParseUint(string(id), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	call := c.calls[number]
	delete(c.calls, number)
	c.served = c.served || call != nil && !call.own
	c.doubts = slices.DeleteFunc(c.doubts, func(d doubt) bool { return d.id == number })
	c.mu.Unlock()
	if call != nil && call.session != nil {
		call.session.outlive(call)
	}
	c.stopIfLent()
	return call
}

// caller returns the call that a message of the server belongs to. The message
// does not say, so it is the latest call of the only client that has any. If
// several clients have, nobody can know; nor if another has just given one up, of
// which the child may not have heard. Calls that the child did not know of when it wrote the message do not count.
func (c *child) caller() (found *call, doubtful bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		switch {
		case call.own, call.listens(), call.id > c.lastKnown:
		case found == nil:
			found = call
		case !call.sameClient(found):
			return nil, true
		case call.id > found.id:
			found = call
		}
	}
	now := time.Now()
	for _, d := range c.doubts {
		if d.id <= c.lastKnown && now.Before(d.until) && (found == nil || d.session == nil || d.session != found.session) {
			return nil, true
		}
	}
	return found, false
}

// listens reports whether the call gets only what says that it belongs to it.
func (call *call) listens() bool { return call.request.Is(jsonrpc.Method, mcp.MethodListen) }

// sameClient reports whether two calls are known to be of one client.
func (call *call) sameClient(other *call) bool {
	return call.session != nil && call.session == other.session
}

// A doubt is a call that was given up. Until a while later, or until it is answered
// nevertheless, what the child says may belong to it.
type doubt struct {
	id      uint64
	session *session
	until   time.Time
}

const (
	doubtTime = 10 * time.Second // servers that listen to cancellations do so at once
	maxDoubts = 1_000
)

// doubt adds a call to the doubts. The caller holds the lock.
func (c *child) doubt(call *call) {
	now := time.Now()
	c.doubts = slices.DeleteFunc(c.doubts, func(d doubt) bool { return d.until.Before(now) })
	if len(c.doubts) == maxDoubts {
		c.doubts = slices.Delete(c.doubts, 0, 1)
	}
	c.doubts = append(c.doubts, doubt{call.id, call.session, now.Add(doubtTime)})
}

// numbered returns the call that we have given this number.
func (c *child) numbered(literal []byte) *call {
	number, err := strconv.ParseUint(string(literal), 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[number]
}

// called returns the call to which a client has given this id.
func (c *child) called(s *session, id []byte) *call {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if call.session == s && bytes.Equal(call.request.Literal(jsonrpc.ID), id) {
			return call
		}
	}
	return nil
}

// receive passes on a message of the child, whose bytes never change.
func (c *child) receive(m *jsonrpc.Message) {
	switch {
	case m.IsRequest():
		c.ask(m)
	case m.IsNotification():
		c.notify(m)
	default:
		c.answer(m)
	}
}

// answer gives an answer to the call that waits for it, with the id that its
// client gave it.
func (c *child) answer(m *jsonrpc.Message) {
	says := m.Has(jsonrpc.Result) || m.Has(jsonrpc.Error) // both is how some say "error":null
	if !says && !m.Has(jsonrpc.Version) {                 // a log line in JSON, most likely
		c.server.pool.observe.Noise(c.server.name)
		return
	}
	call := c.take(m.Literal(jsonrpc.ID))
	if call == nil { // late, repeated or nobody's
		c.server.pool.observe.Dropped(c.server.name)
		return
	}
	id := call.request.Literal(jsonrpc.ID)
	if !says {
		call.fail(jsonrpc.InvalidResponse(c.server.name), errNoise)
		return
	}
	call.inbox.end(letter{message: replaced(m, id, jsonrpc.ID, jsonrpc.ListenID), code: m.ErrorNumber()})
}

// notify passes on a notification to whom it concerns.
func (c *child) notify(m *jsonrpc.Message) {
	method := m.Text(jsonrpc.Method)
	if method == "notifications/tools/list_changed" {
		c.params.Store(nil)
	}
	switch {
	case method == "notifications/progress":
		call := c.numbered(m.Literal(jsonrpc.Progress))
		if call != nil && !call.request.Has(jsonrpc.ProgressToken) {
			call = nil // it was not asked for
		}
		c.deliver(call, m, jsonrpc.Progress, jsonrpc.ProgressToken)
	case m.Has(jsonrpc.SubscriptionID):
		call := c.numbered(m.Literal(jsonrpc.SubscriptionID))
		c.deliver(call, m, jsonrpc.SubscriptionID, jsonrpc.ID)
	case method == "notifications/cancelled":
		c.server.withdraw(c, m)
	case method == mcp.MethodUpdated:
		uri := m.Text(jsonrpc.URI)
		c.server.broadcast(m, func(s *session) bool { return s.subscribed(uri) })
	case strings.HasSuffix(method, "/list_changed"):
		c.server.broadcast(m, everybody)
	default:
		call, doubtful := c.caller()
		switch {
		case call != nil && !c.loud(m, call.session):
		case call != nil || doubtful:
			c.deliver(call, m)
		default:
			sole := c.server.sole(c)
			if sole == nil {
				c.server.pool.observe.Dropped(c.server.name)
			}
			c.server.broadcast(m, func(s *session) bool { return s == sole && c.loud(m, s) })
		}
	}
}

func everybody(*session) bool { return true }

// deliver puts a notification into the inbox of a call. The first of two fields,
// if they are given, gets the value that the second has in the client's request.
func (c *child) deliver(call *call, m *jsonrpc.Message, fields ...jsonrpc.Field) {
	if call != nil {
		message := frame{m.Raw}
		if len(fields) == 2 {
			message = replaced(m, call.request.Literal(fields[1]), fields[0])
		}
		if call.inbox.put(letter{message: message}) {
			return
		}
	}
	c.server.pool.observe.Dropped(c.server.name)
}

// replaced returns a message with a literal in place of those of the fields that it has.
// It shares the bytes of the message and of the literal.
func replaced(m *jsonrpc.Message, literal []byte, fields ...jsonrpc.Field) frame {
	return edited(m.Raw, replacements(m, literal, fields...))
}

// replacements returns the edits that put a literal in the place of those of the fields
// that a message has.
func replacements(m *jsonrpc.Message, literal []byte, fields ...jsonrpc.Field) (edits []jsonspan.Edit) {
	for _, f := range fields {
		if m.Has(f) {
			edits = append(edits, m.Replace(f, literal))
		}
	}
	slices.SortFunc(edits, func(a, b jsonspan.Edit) int { return a.Start - b.Start })
	return edits
}
