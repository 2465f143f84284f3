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

// A server keeps one child running: it starts it when it is first needed, and
// again when it has died.
type server struct {
	pool  *Pool
	at    address
	name  string
	owner *session // whose own it is; nil if clients share it
	began time.Time

	mu       sync.Mutex
	child    *child        // nil unless one is ready
	starting chan struct{} // closed when the attempt to start one has ended
	started  int           // how often one has been
	worked   bool          // one has been ready before
	err      error         // why there is none
	fault    error         // why there was none the last time
	faultAt  time.Time     // when that was
	waiting  int           // callers that wait for the start
	backoff  backoff.Exponential
	failures int             // restarts in a row that were of no use
	due      time.Time       // before which there is no restart
	hurry    chan struct{}   // closed if the one that is being started is due at once
	leaving  *child          // the one whose place it takes
	lent     map[*child]bool // those that finish the calls of one client
	left     chan struct{}   // closed when that has ended
	missed   int             // pings in a row that were not answered
	unsaid   int             // how often one did not say whether it knows the modern era
	asker    *asker          // for whom the era is found out; nil in the legacy era
	stopped  chan struct{}   // closed when there will be none any more
}

func newServer(p *Pool, at address, owner *session) *server {
	return &server{
		pool:    p,
		at:      at,
		name:    at.name(),
		owner:   owner,
		began:   time.Now(),
		backoff: backoff.Exponential{First: time.Second, Max: 30 * time.Second},
		stopped: make(chan struct{}),
	}
}

// log returns the logger. It is asked for each time, because children outlive the
// configuration that they were started under.
func (s *server) log() *zap.Logger {
	return s.pool.config.Logger().With(zap.String("mcp_server", s.name))
}

const (
	goodLife = time.Minute     // after which a death is an accident
	patience = 2 * time.Second // how long a call waits for a restart to be due
)

var (
	errStopped    = errors.New("the server is being stopped")
	errLegacyOnly = errors.New("the server does not know the modern era")
	errAskLegacy  = errors.New("the server may not know the modern era")
)

// working returns the children that a client's calls may be with.
func (s *server) working(of *session) (children []*child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child != nil {
		children = append(children, s.child)
	}
	for c := range s.lent {
		if c.lentTo(of) {
			children = append(children, c)
		}
	}
	return children
}

// current returns the child if one is ready.
func (s *server) current() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// ready returns the child, after it has been started if there is none.
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
	if pause := time.Until(s.due); pause > patience {
		defer s.mu.Unlock()
		return nil, fmt.Errorf("restart in %s: %w", pause.Round(time.Second), s.err)
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

// start begins to start a child when it is due, unless that is under way, and
// returns what is closed when it has ended. The caller holds the lock.
func (s *server) start() <-chan struct{} {
	if s.starting == nil {
		s.starting = make(chan struct{})
		if s.ending() {
			close(s.starting)
			return s.starting
		}
		starting, hurry := s.starting, make(chan struct{})
		s.hurry = hurry
		s.pool.running.Go(func() {
			s.retire()
			c, restart := s.tryStart(hurry)
			close(starting)
			switch {
			case c == nil:
			case s.ending(): // since it was started, so maybe nobody else stops it
				c.stop(s.pool.config.StopGrace)
			case restart:
				s.resume(c)
			}
		})
	}
	return s.starting
}

// tryStart starts a child when it is due. It returns nil if there is none.
func (s *server) tryStart(hurry <-chan struct{}) (_ *child, restart bool) {
	timer := time.NewTimer(time.Until(s.dueTime()))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hurry:
	case <-s.stopped:
		return nil, false
	}
	began := time.Now()
	c, err := s.startInitialized()
	s.mu.Lock()
	s.starting, s.hurry = nil, nil
	if err == nil && c.death() != nil { // which it cannot have told: it was not ours yet
		err = &childError{c.endDuring("initialize"), jsonrpc.CauseExited, c.lastLines.all()}
	}
	if err != nil {
		level := zapcore.ErrorLevel
		if s.waiting > 0 {
			level = zapcore.DebugLevel // each caller gets the error, and reports it
		}
		s.failed(err, 0, false)
		s.mu.Unlock()
		if !errors.Is(err, errLegacyOnly) && !s.ending() {
			s.log().Log(level, "not started", zap.Error(err))
		}
		return nil, false
	}
	restart = s.started > 0
	s.started++
	s.child, s.err, s.worked, s.missed = c, nil, true, 0
	s.mu.Unlock()
	log := s.log()
	if g := s.at.group; g != nil {
		log = log.With(zap.String("capabilities", mcp.Shortened(g.can)))
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

// failed notes that there is no child, and when to try again. A child that keeps
// failing before it has answered a call is tried less and less often. One that answered
// comes back soon. The caller holds the lock.
func (s *server) failed(err error, life time.Duration, served bool) {
	if life >= goodLife || served {
		s.failures = 0
	}
	s.err = err
	if !errors.Is(err, errLegacyOnly) {
		s.fault, s.faultAt = err, time.Now()
	}
	s.due = time.Now().Add(s.backoff.Pause(s.failures))
	s.failures++
	if s.worked && s.owner == nil { // somebody may be waiting for news
		s.start()
	}
}

// ending reports whether the server is being stopped.
func (s *server) ending() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// ended is told by a child that it has died.
func (s *server) ended(c *child, err error) {
	s.pool.each(func(session *session) {
		session.drop(func(q *question) bool { return q.child == c })
	})
	if !s.has(c) {
		return // it has not even been initialized
	}
	<-c.announced // the end is not reported before the beginning
	s.pool.observe.Exited(s.name, c.cmd.Process.Pid, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent[c] {
		s.log().Info("ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
		delete(s.lent, c)
		return
	}
	if s.leaving == c {
		s.log().Info("ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
		s.leaving = nil
		close(s.left)
		return
	}
	s.child = nil
	if s.ending() {
		return
	}
	s.log().Warn("ended", zap.Int("pid", c.cmd.Process.Pid), zap.Error(err))
	s.failed(err, time.Since(c.born), c.hasServed())
}

// has reports whether a child is, or was until it had to go, the one that is ready.
func (s *server) has(c *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child == c || s.leaving == c || s.lent[c]
}

// lend has the child that is ready be for the calls that one client has there, and has
// another take its place for everybody. It fails if other clients have calls there.
func (s *server) lend(c *child, to *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent[c] {
		return c.lentTo(to)
	}
	if s.child != c || s.ending() || !c.lend(to) {
		return false
	}
	if s.lent == nil {
		s.lent = map[*child]bool{}
	}
	s.lent[c] = true
	s.child, s.due = nil, time.Time{}
	s.start()
	return true
}

// restart starts a child at once, in the place of the one that there is, and waits for
// it. One that is being started already is not started again.
func (s *server) restart(ctx context.Context) error {
	s.mu.Lock()
	s.beDue()
	if s.child != nil && !s.ending() {
		s.leaving, s.child, s.left = s.child, nil, make(chan struct{})
		s.start()
	}
	s.mu.Unlock()
	_, err := s.ready(ctx)
	return err
}

// beDue has a child that is to be started later be started at once. The caller holds the lock.
func (s *server) beDue() {
	s.due = time.Time{}
	if s.hurry != nil {
		close(s.hurry)
		s.hurry = nil
	}
}

// retire ends the child whose place another takes. Calls wait for that one from now on.
func (s *server) retire() {
	s.mu.Lock()
	c, left := s.leaving, s.left
	s.mu.Unlock()
	if c != nil {
		c.stop(s.pool.config.StopGrace)
		<-left
	}
}

// A hello is what a server says of itself at initialization.
type hello struct {
	answer *jsonrpc.Message
	// The version of the protocol, in the result's bytes.
	version jsonspan.Value
	// What it has lists of.
	lists []string
}

var (
	helloPaths = jsonspan.CompilePaths("protocolVersion", "capabilities.tools", "capabilities.prompts", "capabilities.resources")
	lists      = [...]string{"", "tools", "prompts", "resources"}
)

func (h *hello) read(answer *jsonrpc.Message) {
	h.answer = answer
	_ = helloPaths.Find(answer.Literal(jsonrpc.Result), func(path int, v jsonspan.Value) {
		if path == 0 {
			h.version = v
		} else {
			h.lists = append(h.lists, lists[path])
		}
	})
}

// startInitialized starts a child and shakes hands with it.
func (s *server) startInitialized() (*child, error) {
	command := s.pool.config.Command
	// Arguments may be secrets.
	s.log().Info("starting MCP server", zap.String("command", command[0]), zap.Int("args", len(command)-1))
	c, err := startChild(s)
	if err != nil {
		return nil, err
	}
	defer s.logProgress(c.born, c.cmd.Process.Pid)()
	if err := s.greet(c); err != nil {
		return nil, err
	}
	return c, nil
}

// stillStarting is how often it is logged that a child has not started yet.
const stillStarting = 10 * time.Second

// logProgress logs now and then that a child is still starting, until the function that it returns is called.
func (s *server) logProgress(began time.Time, pid int) (end func()) {
	done := make(chan struct{})
	s.pool.running.Go(func() {
		ticks := time.NewTicker(stillStarting)
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

// greet shakes hands with a child. If it fails, the child has ended when it returns.
func (s *server) greet(c *child) error {
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
	greet := c.initialize
	if s.at.era == mcp.Modern {
		greet = c.meet
	}
	if err := greet(ctx); err != nil {
		// The reader of stdout may not have noticed yet that the process has ended.
		done, died := ctx.Err(), c.hasExited()
		c.kill()
		err = c.ungreeted(err, done, died)
		if s.at.era == mcp.Modern && died {
			err = s.unsure(err)
		}
		return err
	}
	if !stop() {
		<-c.exited
		return errStopped
	}
	return nil
}

// ungreeted says why the handshake with a child failed that has ended since. done is why there was no more time for it,
// died whether the child has ended by itself.
func (c *child) ungreeted(err, done error, died bool) error {
	if errors.Is(err, errLegacyOnly) {
		return err
	}
	if done == context.DeadlineExceeded {
		err = fmt.Errorf("not initialized within %s, its start_timeout", c.server.pool.config.StartTimeout)
		return c.explain(err, jsonrpc.CauseNotStarted)
	}
	if asked, ok := errors.AsType[*greetingError](err); ok && died && done == nil {
		return c.explain(c.endDuring(asked.method), jsonrpc.CauseExited)
	}
	return c.explain(err, jsonrpc.CauseNotStarted)
}

// unsure says what it means that a child was asked for the modern era and ended.
// Servers of the legacy era may do so before they are initialized; but any server may
// fail once.
func (s *server) unsure(err error) error {
	if s.unsaid++; s.unsaid > 1 {
		return errLegacyOnly
	}
	return fmt.Errorf("%w (%w)", err, errAskLegacy)
}

// initialize shakes hands. A child of a session gets what its client has said, a
// shared one what its clients can do: whom to ask is found out when it asks. Only
// roots are not there unless they are configured, or there is but one client.
func (c *child) initialize(ctx context.Context) error {
	params := c.helloOf(c.server.at.group)
	if owner := c.server.owner; owner != nil {
		params = owner.hello
	}
	answer, err := c.request(ctx, "initialize", params)
	return c.initialized(ctx, answer, err)
}

// helloOf returns the params of initialize for a child that a group of clients shares; nil if there is none.
func (c *child) helloOf(g *group) []byte {
	if g == nil {
		return nil
	}
	return fmt.Appendf(nil, `{"protocolVersion":"%s","capabilities":%s,"clientInfo":%s}`,
		mcp.Latest, c.server.told(g), clientInfo)
}

// initialized takes the answer to initialize.
func (c *child) initialized(ctx context.Context, answer *jsonrpc.Message, err error) error {
	if err != nil {
		return &greetingError{"initialize", err}
	}
	c.hello.answer = answer
	if answer.Has(jsonrpc.ErrorCode) {
		// A server of the stateless era alone knows no handshake, and needs none. What
		// it says to a client's own words is for the client.
		if answer.ErrorNumber() == jsonrpc.CodeMethodNotFound || answer.IsUnsupportedVersion() || c.server.owner != nil {
			return nil
		}
		return &refusedError{answer}
	}
	if c.hello.read(answer); c.hello.version.Kind != jsonspan.String {
		return errors.New("initialize: the result has no protocolVersion")
	}
	if err := c.send(ctx, jsonrpc.Notification("notifications/initialized", nil)); err != nil {
		return &greetingError{"initialize", err}
	}
	return nil
}

// A greetingError is why a request of the handshake was not answered.
type greetingError struct {
	method string
	err    error
}

func (e *greetingError) Error() string { return e.method + ": " + e.err.Error() }
func (e *greetingError) Unwrap() error { return e.err }

// A refusedError is that a server does not want to be initialized like this.
type refusedError struct{ answer *jsonrpc.Message }

func (e *refusedError) Error() string {
	return "initialize: " + string(e.answer.Literal(jsonrpc.Error))
}

// resume gives clients what they had before a restart: the child gets their
// subscriptions and log level, and they are told that its lists may have changed.
func (s *server) resume(c *child) {
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
			s.log().Warn("not subscribed again", zap.Error(err))
			break
		}
	}
	s.relevel(c)
	for _, list := range c.hello.lists {
		var m jsonrpc.Message
		if m.Read(jsonrpc.Notification("notifications/"+list+"/list_changed", nil)) == nil {
			s.listChanged(&m)
		}
	}
}

// wanted reports whether a session has subscribed to a resource.
func (s *server) wanted(uri string) (wanted bool) {
	s.eachSession(func(session *session) { wanted = wanted || session.subscribed(uri) })
	return wanted
}

// eachSession calls f for the sessions that use this server.
func (s *server) eachSession(f func(*session)) {
	if s.owner != nil {
		f(s.owner)
		return
	}
	s.mu.Lock()
	at := s.at // which changes if the child is found not to know the modern era
	s.mu.Unlock()
	if at.era == mcp.Modern {
		return
	}
	s.pool.each(func(session *session) {
		if session.group == at.group {
			f(session)
		}
	})
}

// broadcast puts a notification on the streams of those whom it concerns.
func (s *server) broadcast(m *jsonrpc.Message, concerns func(*session) bool) {
	s.eachSession(func(session *session) {
		if concerns(session) && !session.mail.Put(letter{message: frame{m.Raw}}) {
			s.pool.observe.Dropped(s.name)
		}
	})
}

// listChanged puts a notification that a list has changed on the streams of all, and tells watchers in which
// sessions no stream is open to read it.
func (s *server) listChanged(m *jsonrpc.Message) {
	s.mu.Lock()
	host := s.at.host
	s.mu.Unlock()
	if watchers := s.pool.watchersOf(host); len(watchers) > 0 {
		var unread []string
		s.eachSession(func(session *session) {
			if !session.isListening() {
				unread = append(unread, session.id)
			}
		})
		for _, watch := range watchers {
			(*watch)(m.Text(jsonrpc.Method), unread)
		}
	}
	s.broadcast(m, everybody)
}

// sole returns the session that what a child says outside of calls is for: the only
// one, if the child has worked for nobody else since it was started. If there is but one
// client, all sessions are that client's, and it is the latest.
func (s *server) sole(c *child) *session {
	if s.owner != nil {
		return s.owner
	}
	var sessions []*session
	s.eachSession(func(session *session) { sessions = append(sessions, session) })
	if s.pool.config.SoleClient && len(sessions) > 0 {
		return slices.MaxFunc(sessions, func(a, b *session) int { return a.began.Compare(b.began) })
	}
	if len(sessions) != 1 || !c.workedOnlyFor(sessions[0]) {
		return nil
	}
	return sessions[0]
}

// ownerOf returns the session that a child is for alone, or nil if it may be shared.
func (s *server) ownerOf(c *child) *session {
	if s.owner == nil && s.pool.config.SoleClient {
		return s.sole(c)
	}
	return s.owner
}

// withdraw tells a client that the server takes a question back.
func (s *server) withdraw(c *child, m *jsonrpc.Message) {
	s.eachSession(func(session *session) {
		number, to := session.withdrawn(c, m.Literal(jsonrpc.RequestID))
		if to != nil {
			to.Put(letter{message: replaced(m, fmt.Append(nil, number), jsonrpc.RequestID)})
		}
	})
}

// check finds out whether the child is alive: any answer to a ping shows it. One
// that is not is started again.
func (s *server) check(ctx context.Context) error {
	c := s.current()
	if c == nil {
		_, err := s.ready(ctx)
		return err // none: it has just answered
	}
	_, err := c.request(ctx, "ping", nil)
	if !errors.Is(err, context.DeadlineExceeded) {
		s.miss(0)
		return err
	}
	// Many servers do one thing at a time, and this may be a call.
	spare := s.miss(1) == 1 && c.busy()
	s.log().Warn("no answer to ping", zap.Int("pid", c.cmd.Process.Pid), zap.Bool("busy", spare))
	if !spare {
		s.miss(0)
		c.kill()
	}
	return err
}

// miss counts a ping that was not answered, or forgets those before.
func (s *server) miss(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missed += n; n == 0 {
		s.missed = 0
	}
	return s.missed
}

// stop ends the child for good. It returns when the process has ended.
func (s *server) stop() {
	s.mu.Lock()
	children := slices.Collect(maps.Keys(s.lent))
	if s.child != nil {
		children = append(children, s.child)
	}
	if !s.ending() {
		close(s.stopped)
	}
	s.mu.Unlock()
	var stopping sync.WaitGroup
	for _, c := range children {
		stopping.Go(func() { c.stop(s.pool.config.StopGrace) })
	}
	stopping.Wait()
}
