package stdio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A server keeps one child running: it starts it when it is first needed, and restarts it when
// it has died.
type server struct {
	pool    *Pool
	address address
	name    string
	owner   *session // the only session that uses it; nil if clients share it
	created time.Time

	missedPings atomic.Int32 // unanswered pings in a row

	mu            sync.Mutex
	child         *child        // nil unless one is ready
	starting      *startAttempt // nil if no child is being started
	attempts      int           // number of starts, including those that have failed
	wasReady      bool          // a child has been ready before
	err           error         // why there is no child
	lastFault     error         // why the last child failed
	lastFaultAt   time.Time
	waiting       int // callers that wait for the start
	backoff       backoff.Exponential
	failures      int             // failed restarts in a row
	due           time.Time       // earliest time of a restart
	outgoing      *child          // child that is being replaced
	outgoingEnded chan struct{}   // closed when it has ended
	dedicated     map[*child]bool // children that finish the calls of one client
	eraFailures   int             // children that ended before it was known whether they support the modern era
	requester     *requester      // client for which the era is discovered; nil in the legacy era
	stopped       chan struct{}   // closed when no more children are started
}

func newServer(p *Pool, addr address, owner *session) *server {
	return &server{
		pool:    p,
		address: addr,
		name:    nameAt(addr.host),
		owner:   owner,
		created: time.Now(),
		backoff: backoff.Exponential{First: time.Second, Max: 30 * time.Second},
		stopped: make(chan struct{}),
	}
}

// log returns the logger. It is requested each time, because children outlive the configuration
// that they were started under.
func (s *server) log() *zap.Logger {
	return s.pool.config.Logger().With(zap.String("mcp_server", s.name))
}

// noteDropped notes that a message could not be delivered.
func (s *server) noteDropped() { s.pool.observe.Dropped(s.name) }

const (
	stableTime     = time.Minute     // lifetime after which a death does not count as a failed restart
	maxRestartWait = 2 * time.Second // how long a call waits for a restart to be due
)

var (
	errStopped    = errors.New("the server is being stopped")
	errLegacyOnly = errors.New("the server does not support the modern era")
	errAskLegacy  = errors.New("the server may not support the modern era")
)

// childrenFor returns the children that may have calls of a client.
func (s *server) childrenFor(client *session) (children []*child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child != nil {
		children = append(children, s.child)
	}
	for c := range s.dedicated {
		if c.calls.isDedicatedTo(client) {
			children = append(children, c)
		}
	}
	return children
}

// current returns the child, or nil if none is ready.
func (s *server) current() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// ready returns the child, and starts one if there is none.
func (s *server) ready(ctx context.Context) (*child, error) {
	s.mu.Lock()
	if s.child != nil {
		defer s.mu.Unlock()
		return s.child, nil
	}
	if errors.Is(s.err, errLegacyOnly) {
		defer s.mu.Unlock()
		return nil, errLegacyOnly
	}
	if pause := time.Until(s.due); pause > maxRestartWait {
		defer s.mu.Unlock()
		return nil, fmt.Errorf("next restart in %s: %w", pause.Round(time.Second), s.err)
	}
	starting := s.start()
	s.waiting++
	s.mu.Unlock()
	var err error
	select {
	case <-starting.done:
	case <-s.stopped:
		err = errStopped
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
	switch {
	case err != nil:
		return nil, err
	case s.child != nil:
		return s.child, nil
	case s.err != nil:
		return nil, s.err
	}
	return nil, errStopped
}

// start starts a child when it is due, unless that is in progress. The caller holds the lock.
func (s *server) start() *startAttempt {
	if s.starting == nil {
		skipPause := make(chan struct{})
		hurry := sync.OnceFunc(func() { close(skipPause) })
		s.starting = &startAttempt{server: s, done: make(chan struct{}), skipPause: skipPause, hurry: hurry}
		if s.isStopping() {
			close(s.starting.done)
		} else {
			s.pool.running.Go(s.starting.run)
		}
	}
	return s.starting
}

// A startAttempt is an attempt to start a child.
type startAttempt struct {
	server    *server
	done      chan struct{} // closed at the end
	skipPause chan struct{} // closed by hurry
	hurry     func()        // starts the child before it is due
}

func (a *startAttempt) run() {
	a.stopOutgoing()
	c, restart := a.try()
	close(a.done)
	switch {
	case c == nil:
	case a.server.isStopping(): // it may have been started after stop collected the children
		c.stop(a.server.pool.config.StopGrace)
	case restart:
		a.server.clients().restore(c)
	}
}

// stopOutgoing stops the child that is being replaced. New calls wait for the next one.
func (a *startAttempt) stopOutgoing() {
	s := a.server
	s.mu.Lock()
	c, left := s.outgoing, s.outgoingEnded
	s.mu.Unlock()
	if c != nil {
		c.stop(s.pool.config.StopGrace)
		<-left
	}
}

// pause waits until the child is due. It reports false if the server is being stopped.
func (a *startAttempt) pause() bool {
	a.server.mu.Lock()
	due := a.server.due
	a.server.mu.Unlock()
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.skipPause:
	case <-a.server.stopped:
		return false
	}
	return true
}

// try starts a child when it is due. It returns nil if that fails.
func (a *startAttempt) try() (_ *child, restart bool) {
	if !a.pause() {
		return nil, false
	}
	s, began := a.server, time.Now()
	s.mu.Lock()
	s.attempts++
	again := s.attempts > 1
	s.mu.Unlock()
	c, err := a.startInitialized()
	s.mu.Lock()
	s.starting = nil
	if err == nil && c.calls.death() != nil { // childEnded has ignored it, because it was not s.child yet
		err = &childError{c.exitDuring("initialize"), jsonrpc.CauseExited, c.stderrLog.tail.all()}
	}
	if err != nil {
		level := zapcore.ErrorLevel
		if s.waiting > 0 {
			level = zapcore.DebugLevel // each caller gets and reports the error
		}
		s.noteFailure(err, 0, false)
		s.mu.Unlock()
		if !errors.Is(err, errLegacyOnly) && !s.isStopping() {
			s.log().Log(level, "MCP server not started", zap.Error(err))
			s.pool.observe.NotStarted(s.name, again)
		}
		return nil, false
	}
	restart = s.wasReady
	s.child, s.err, s.wasReady = c, nil, true
	s.missedPings.Store(0)
	s.mu.Unlock()
	log := s.log()
	if g := s.address.group; g != nil {
		log = log.With(zap.String("capabilities", mcp.Shortened(g.capabilities)))
	}
	log.Info("MCP server is up", zap.Int("pid", c.cmd.Process.Pid), zap.Bool("restart", again),
		zap.Duration("duration", time.Since(began)))
	s.pool.observe.Started(s.name, c.cmd.Process.Pid, again)
	close(c.announced)
	return c, restart
}

// startInitialized starts a child and does the handshake.
func (a *startAttempt) startInitialized() (*child, error) {
	s := a.server
	command := s.pool.config.Command
	// Arguments may be secrets.
	s.log().Info("starting MCP server", zap.String("command", command[0]), zap.Int("args", len(command)-1))
	c, err := startChild(s)
	if err != nil {
		return nil, err
	}
	defer a.logProgress(c.startedAt, c.cmd.Process.Pid)()
	if err := (&handshaker{server: s, child: c}).run(); err != nil {
		return nil, err
	}
	return c, nil
}

// progressInterval is how often the log says that a child is still starting.
const progressInterval = 10 * time.Second

// logProgress logs every progressInterval that a child is still starting, until end is called.
func (a *startAttempt) logProgress(began time.Time, pid int) (end func()) {
	done := make(chan struct{})
	a.server.pool.running.Go(func() {
		ticks := time.NewTicker(progressInterval)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticks.C:
				a.server.log().Info("MCP server is still starting", zap.Int("pid", pid),
					zap.Duration("elapsed", time.Since(began).Round(time.Second)),
					zap.Duration("start_timeout", a.server.pool.config.StartTimeout))
			}
		}
	})
	return func() { close(done) }
}

// noteFailure notes that there is no child, and when to try again. The pauses grow for a child that
// keeps failing before it has answered a call. One that has answered a call restarts soon. The
// caller holds the lock.
func (s *server) noteFailure(err error, life time.Duration, served bool) {
	if life >= stableTime || served {
		s.failures = 0
	}
	s.err = err
	if !errors.Is(err, errLegacyOnly) {
		s.lastFault, s.lastFaultAt = err, time.Now()
	}
	s.due = time.Now().Add(s.backoff.Pause(s.failures))
	s.failures++
	if s.wasReady && s.owner == nil { // clients may wait for notifications
		s.start()
	}
}

// isStopping reports whether the server is being stopped.
func (s *server) isStopping() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// childEnded handles the end of a child.
func (s *server) childEnded(c *child, err error) {
	s.pool.sessions.each(func(session *session) {
		session.serverRequests.refuseMatching(func(q *serverRequest) bool { return q.child == c })
	})
	s.mu.Lock()
	wasReady := s.child == c || s.outgoing == c || s.dedicated[c]
	s.mu.Unlock()
	if !wasReady {
		return
	}
	<-c.announced // report the start before the end
	s.pool.observe.Exited(s.name, c.cmd.Process.Pid, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dedicated[c] || s.outgoing == c {
		s.log().Info("MCP server ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
		delete(s.dedicated, c)
		if s.outgoing == c {
			s.outgoing = nil
			close(s.outgoingEnded)
		}
		return
	}
	s.child = nil
	if s.isStopping() {
		return
	}
	s.log().Warn("MCP server ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
	s.noteFailure(err, time.Since(c.startedAt), c.calls.hasServed())
}

// dedicate leaves the child to one client, to finish its calls, and starts another child for all
// clients. It fails if other clients have calls there.
func (s *server) dedicate(c *child, to *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dedicated[c] {
		return c.calls.isDedicatedTo(to)
	}
	if s.child != c || s.isStopping() || !c.calls.dedicate(to) {
		return false
	}
	if s.dedicated == nil {
		s.dedicated = map[*child]bool{}
	}
	s.dedicated[c] = true
	s.child, s.due = nil, time.Time{}
	s.start()
	return true
}

// restart replaces the child at once, and waits until the new one is ready. If a child is already
// starting, it does not start another.
func (s *server) restart(ctx context.Context) error {
	s.mu.Lock()
	s.startNow()
	if s.child != nil && !s.isStopping() {
		s.outgoing, s.child, s.outgoingEnded = s.child, nil, make(chan struct{})
		s.start()
	}
	s.mu.Unlock()
	_, err := s.ready(ctx)
	return err
}

// startNow starts a child at once that is due later. The caller holds the lock.
func (s *server) startNow() {
	s.due = time.Time{}
	if s.starting != nil {
		s.starting.hurry()
	}
}

// check pings the child, and restarts it if it does not respond. Any response will do.
func (s *server) check(ctx context.Context) error {
	c := s.current()
	if c == nil {
		_, err := s.ready(ctx)
		return err // a child that has just started needs no ping
	}
	_, err := c.request(ctx, "ping", nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		s.missedPings.Store(0)
		return err
	}
	// Many servers handle one request at a time, and this may be a call.
	spare := s.missedPings.Add(1) == 1 && c.calls.busy()
	s.log().Warn("no response to ping", zap.Int("pid", c.cmd.Process.Pid), zap.Bool("busy", spare))
	if !spare {
		s.missedPings.Store(0)
		c.kill()
	}
	return err
}

// stop stops the child for good. It returns when the process has ended.
func (s *server) stop() {
	s.mu.Lock()
	children := slices.Collect(maps.Keys(s.dedicated))
	if s.child != nil {
		children = append(children, s.child)
	}
	if !s.isStopping() {
		close(s.stopped)
	}
	s.mu.Unlock()
	var stopping sync.WaitGroup
	for _, c := range children {
		stopping.Go(func() { c.stop(s.pool.config.StopGrace) })
	}
	stopping.Wait()
}
