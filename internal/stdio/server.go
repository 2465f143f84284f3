package stdio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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

	mu            sync.Mutex
	child         *child        // nil unless one is ready
	starting      chan struct{} // closed at the end of the attempt to start a child; nil without one
	started       int           // number of successful starts
	wasReady      bool          // a child has been ready before
	err           error         // why there is no child
	lastFault     error         // why the last child failed
	lastFaultAt   time.Time
	waiting       int // callers that wait for the start
	backoff       backoff.Exponential
	failures      int             // failed restarts in a row
	due           time.Time       // earliest time of a restart
	skipPause     chan struct{}   // closed to start the child before it is due
	outgoing      *child          // child that is being replaced
	dedicated     map[*child]bool // children that finish the calls of one client
	outgoingEnded chan struct{}   // closed when the outgoing child has ended
	missedPings   int             // unanswered pings in a row
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
		if c.isDedicatedTo(client) {
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
	case <-starting:
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

// start starts a child when it is due, unless that is in progress. The channel is closed at the end
// of the attempt. The caller holds the lock.
func (s *server) start() <-chan struct{} {
	if s.starting == nil {
		s.starting = make(chan struct{})
		if s.isStopping() {
			close(s.starting)
			return s.starting
		}
		starting, skipPause := s.starting, make(chan struct{})
		s.skipPause = skipPause
		s.pool.running.Go(func() {
			s.stopOutgoing()
			c, restart := s.tryStart(skipPause)
			close(starting)
			switch {
			case c == nil:
			case s.isStopping(): // it may have been started after stop collected the children
				c.stop(s.pool.config.StopGrace)
			case restart:
				s.restoreClients(c)
			}
		})
	}
	return s.starting
}

// tryStart starts a child when it is due. It returns nil if that fails.
func (s *server) tryStart(skipPause <-chan struct{}) (_ *child, restart bool) {
	timer := time.NewTimer(time.Until(s.dueTime()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-skipPause:
	case <-s.stopped:
		return nil, false
	}
	began := time.Now()
	c, err := s.startInitialized()
	s.mu.Lock()
	s.starting, s.skipPause = nil, nil
	if err == nil && c.death() != nil { // childEnded has ignored it, because it was not s.child yet
		err = &childError{c.exitDuring("initialize"), jsonrpc.CauseExited, c.stderrTail.all()}
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
		}
		return nil, false
	}
	restart = s.started > 0
	s.started++
	s.child, s.err, s.wasReady, s.missedPings = c, nil, true, 0
	s.mu.Unlock()
	log := s.log()
	if g := s.address.group; g != nil {
		log = log.With(zap.String("capabilities", mcp.Shortened(g.capabilities)))
	}
	log.Info("MCP server is up", zap.Int("pid", c.cmd.Process.Pid), zap.Bool("restart", restart),
		zap.Duration("duration", time.Since(began)))
	s.pool.observe.Started(s.name, c.cmd.Process.Pid, restart)
	close(c.announced)
	return c, restart
}

func (s *server) dueTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.due
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
	if !s.hasChild(c) {
		return // it has never been ready
	}
	<-c.announced // report the start before the end
	s.pool.observe.Exited(s.name, c.cmd.Process.Pid, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dedicated[c] {
		s.log().Info("MCP server ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
		delete(s.dedicated, c)
		return
	}
	if s.outgoing == c {
		s.log().Info("MCP server ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
		s.outgoing = nil
		close(s.outgoingEnded)
		return
	}
	s.child = nil
	if s.isStopping() {
		return
	}
	s.log().Warn("MCP server ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
	s.noteFailure(err, time.Since(c.startedAt), c.hasServed())
}

// hasChild reports whether a child is, or was until it was replaced, the one that is ready.
func (s *server) hasChild(c *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child == c || s.outgoing == c || s.dedicated[c]
}

// dedicate leaves the child to one client, to finish its calls, and starts another child for all
// clients. It fails if other clients have calls there.
func (s *server) dedicate(c *child, to *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dedicated[c] {
		return c.isDedicatedTo(to)
	}
	if s.child != c || s.isStopping() || !c.dedicate(to) {
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
	if s.skipPause != nil {
		close(s.skipPause)
		s.skipPause = nil
	}
}

// stopOutgoing stops the child that is being replaced. New calls wait for the next one.
func (s *server) stopOutgoing() {
	s.mu.Lock()
	c, left := s.outgoing, s.outgoingEnded
	s.mu.Unlock()
	if c != nil {
		c.stop(s.pool.config.StopGrace)
		<-left
	}
}

// A handshake is the result of initialize or server/discover.
type handshake struct {
	answer *jsonrpc.Message
	// Protocol version, as a range of the result.
	version jsonspan.Value
	// Kinds of lists that the server has.
	lists []string
}

var (
	handshakePaths = jsonspan.CompilePaths(
		"protocolVersion", "capabilities.tools", "capabilities.prompts", "capabilities.resources")
	lists = [...]string{"", "tools", "prompts", "resources"}
)

func (h *handshake) read(answer *jsonrpc.Message) {
	h.answer = answer
	_ = handshakePaths.Find(answer.Literal(jsonrpc.Result), func(path int, v jsonspan.Value) {
		if path == 0 {
			h.version = v
		} else {
			h.lists = append(h.lists, lists[path])
		}
	})
}

// startInitialized starts a child and does the handshake.
func (s *server) startInitialized() (*child, error) {
	command := s.pool.config.Command
	// Arguments may be secrets.
	s.log().Info("starting MCP server", zap.String("command", command[0]), zap.Int("args", len(command)-1))
	c, err := startChild(s)
	if err != nil {
		return nil, err
	}
	defer s.logProgress(c.startedAt, c.cmd.Process.Pid)()
	if err := s.handshake(c); err != nil {
		return nil, err
	}
	return c, nil
}

// progressInterval is how often the log says that a child is still starting.
const progressInterval = 10 * time.Second

// logProgress logs every progressInterval that a child is still starting, until end is called.
func (s *server) logProgress(began time.Time, pid int) (end func()) {
	done := make(chan struct{})
	s.pool.running.Go(func() {
		ticks := time.NewTicker(progressInterval)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticks.C:
				s.log().Info("MCP server is still starting", zap.Int("pid", pid),
					zap.Duration("elapsed", time.Since(began).Round(time.Second)),
					zap.Duration("start_timeout", s.pool.config.StartTimeout))
			}
		}
	})
	return func() { close(done) }
}

// handshake does the handshake with a child. If it fails, the child has ended when it returns.
func (s *server) handshake(c *child) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, c.terminate)
	defer stop()
	go func() {
		select {
		case <-s.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	begin := c.initialize
	if s.address.era == mcp.Modern {
		begin = c.discoverEra
	}
	if err := begin(ctx); err != nil {
		// The reader of stdout may not have noticed yet that the process has ended.
		done, died := ctx.Err(), c.hasExited()
		c.kill()
		err = c.handshakeFailure(err, done, died)
		if s.address.era == mcp.Modern && died {
			err = s.noteEraFailure(err)
		}
		return err
	}
	if !stop() {
		<-c.exited
		return errStopped
	}
	return nil
}

// handshakeFailure returns why the handshake with a child failed. The child has ended since. died
// says that it ended by itself.
func (c *child) handshakeFailure(err, ctxErr error, died bool) error {
	if errors.Is(err, errLegacyOnly) {
		return err
	}
	if ctxErr == context.DeadlineExceeded {
		err = fmt.Errorf("not initialized within %s, its start_timeout", c.server.pool.config.StartTimeout)
		return c.explain(err, jsonrpc.CauseNotStarted)
	}
	if failed, ok := errors.AsType[*handshakeError](err); ok && died && ctxErr == nil {
		return c.explain(c.exitDuring(failed.method), jsonrpc.CauseExited)
	}
	return c.explain(err, jsonrpc.CauseNotStarted)
}

// noteEraFailure handles a child that ended when it got server/discover. Legacy servers may do so
// before they are initialized, but any server may fail once.
func (s *server) noteEraFailure(err error) error {
	s.eraFailures++
	if s.eraFailures > 1 {
		return errLegacyOnly
	}
	return fmt.Errorf("%w (%w)", err, errAskLegacy)
}

// initialize initializes a legacy child. A child of a single session gets the params of its client,
// a shared one the capabilities of its group. Roots are among these only if they are configured, or
// if there is a single client.
func (c *child) initialize(ctx context.Context) error {
	params := c.initializeParams(c.server.address.group)
	if owner := c.server.owner; owner != nil {
		params = owner.initializeParams
	}
	answer, err := c.request(ctx, "initialize", params)
	return c.handleInitialized(ctx, answer, err)
}

// initializeParams returns the params of initialize for a child of a group, or nil without a group.
func (c *child) initializeParams(g *group) []byte {
	if g == nil {
		return nil
	}
	return fmt.Appendf(nil, `{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}`,
		mcp.Latest, c.server.capabilitiesFor(g), clientInfo)
}

// handleInitialized handles the response to initialize.
func (c *child) handleInitialized(ctx context.Context, answer *jsonrpc.Message, err error) error {
	if err != nil {
		return &handshakeError{"initialize", err}
	}
	c.handshake.answer = answer
	if answer.Has(jsonrpc.ErrorCode) {
		// A server that supports only the modern era has no handshake and needs none. If the
		// params came from a client, the error is for that client.
		if answer.ErrorNumber() == jsonrpc.CodeMethodNotFound || answer.IsUnsupportedVersion() || c.server.owner != nil {
			return nil
		}
		return &refusedError{answer}
	}
	c.handshake.read(answer)
	if c.handshake.version.Kind != jsonspan.String {
		return errors.New("initialize: the result has no protocolVersion")
	}
	if err := c.send(ctx, jsonrpc.Notification("notifications/initialized", nil)); err != nil {
		return &handshakeError{"initialize", err}
	}
	return nil
}

// A handshakeError says why a request of the handshake has no response.
type handshakeError struct {
	method string
	err    error
}

func (e *handshakeError) Error() string { return e.method + ": " + e.err.Error() }
func (e *handshakeError) Unwrap() error { return e.err }

// A refusedError is an error response to initialize.
type refusedError struct{ answer *jsonrpc.Message }

func (e *refusedError) Error() string {
	return "initialize: " + string(e.answer.Literal(jsonrpc.Error))
}

// restoreClients restores the state of clients after a restart: the child gets their subscriptions
// and log level, and they get notifications that its lists may have changed.
func (s *server) restoreClients(c *child) {
	uris := map[string]bool{}
	s.eachSession(func(session *session) {
		for _, uri := range session.uris() {
			uris[uri] = true
		}
	})
	for uri := range uris {
		ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
		_, err := c.request(ctx, "resources/subscribe", mcp.URIParams(uri))
		cancel()
		if err != nil {
			s.log().Warn("resubscribing after a restart failed", zap.Error(err))
			break
		}
	}
	s.updateLevel(c)
	for _, list := range c.handshake.lists {
		var m jsonrpc.Message
		if m.Read(jsonrpc.Notification("notifications/"+list+"/list_changed", nil)) == nil {
			s.listChanged(&m)
		}
	}
}

// isSubscribed reports whether a session has subscribed to a resource.
func (s *server) isSubscribed(uri string) (wanted bool) {
	s.eachSession(func(session *session) { wanted = wanted || session.isSubscribed(uri) })
	return wanted
}

// eachSession calls f for the sessions that use this server.
func (s *server) eachSession(f func(*session)) {
	if s.owner != nil {
		f(s.owner)
		return
	}
	s.mu.Lock()
	at := s.address // becomeLegacy may change it
	s.mu.Unlock()
	if at.era == mcp.Modern {
		return
	}
	s.pool.sessions.each(func(session *session) {
		if session.group == at.group {
			f(session)
		}
	})
}

// broadcast sends a notification to the streams of the sessions that it concerns.
func (s *server) broadcast(m *jsonrpc.Message, concerns func(*session) bool) {
	s.eachSession(func(session *session) {
		if concerns(session) && !session.streamInbox.Put(letter{message: frame{m.Raw}}) {
			s.pool.observe.Dropped(s.name)
		}
	})
}

// listChanged broadcasts a notification that a list has changed, and tells the watchers which
// sessions have no open stream to receive it.
func (s *server) listChanged(m *jsonrpc.Message) {
	s.mu.Lock()
	host := s.address.host
	s.mu.Unlock()
	if watchers := s.pool.watchers.at(host); len(watchers) > 0 {
		var unread []string
		s.eachSession(func(session *session) {
			if !session.hasStream() {
				unread = append(unread, session.id)
			}
		})
		for _, watch := range watchers {
			(*watch)(m.Text(jsonrpc.Method), unread)
		}
	}
	s.broadcast(m, allSessions)
}

// soleSession returns the session that gets notifications outside of calls: the only one, if the
// child has had no calls of other clients. If there is a single client, all sessions are that
// client's, and it is the latest.
func (s *server) soleSession(c *child) *session {
	if s.owner != nil {
		return s.owner
	}
	var sessions []*session
	s.eachSession(func(session *session) { sessions = append(sessions, session) })
	if s.pool.config.SoleClient && len(sessions) > 0 {
		return slices.MaxFunc(sessions, func(a, b *session) int { return a.created.Compare(b.created) })
	}
	if len(sessions) != 1 || !c.workedOnlyFor(sessions[0]) {
		return nil
	}
	return sessions[0]
}

// soleOwner returns the only session that a child serves, or nil if it may be shared.
func (s *server) soleOwner(c *child) *session {
	if s.owner == nil && s.pool.config.SoleClient {
		return s.soleSession(c)
	}
	return s.owner
}

// forwardWithdrawal notifies a client that the server cancels its request.
func (s *server) forwardWithdrawal(c *child, m *jsonrpc.Message) {
	s.eachSession(func(session *session) {
		number, to := session.serverRequests.withdraw(c, m.Literal(jsonrpc.RequestID))
		if to != nil {
			to.Put(letter{message: replaceFields(m, fmt.Append(nil, number), jsonrpc.RequestID)})
		}
	})
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
		s.countMissedPing(0)
		return err
	}
	// Many servers handle one request at a time, and this may be a call.
	spare := s.countMissedPing(1) == 1 && c.busy()
	s.log().Warn("no response to ping", zap.Int("pid", c.cmd.Process.Pid), zap.Bool("busy", spare))
	if !spare {
		s.countMissedPing(0)
		c.kill()
	}
	return err
}

// countMissedPing adds to the unanswered pings, or resets them if n is 0.
func (s *server) countMissedPing(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missedPings += n
	if n == 0 {
		s.missedPings = 0
	}
	return s.missedPings
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
