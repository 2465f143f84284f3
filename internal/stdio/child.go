package stdio

import (
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
)

// A child is a running server process and the calls that wait for it.
type child struct {
	*process
	server    *server
	startedAt time.Time
	announced chan struct{} // closed when the start has been reported
	handshake handshake     // set before the child is used

	input     inputQueue
	stderrLog stderrLog
	calls     callTable
	level     sharedLevel
	headers   paramHeaders
}

const (
	maxCalls  = 10_000   // calls that wait for one child
	maxUnread = 16 << 20 // bytes of messages before a response that a client has not read yet
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
	c := newChild(s, p)
	s.pool.running.Go(c.input.write)
	s.pool.running.Go(c.stderrLog.run)
	s.pool.running.Go(c.run)
	return c, nil
}

func newChild(s *server, p *process) *child {
	c := &child{
		process:   p,
		server:    s,
		startedAt: time.Now(),
		announced: make(chan struct{}),
	}
	c.input = inputQueue{
		child:      c,
		messages:   make(chan frame, maxQueue),
		largeSlots: make(chan struct{}, maxLarge),
		overflow:   make(chan frame, maxQueue),
	}
	c.calls.waiting = map[uint64]*call{}
	c.calls.abandoned = abandonedCalls{table: &c.calls, input: &c.input}
	c.stderrLog = stderrLog{child: c, read: make(chan struct{})}
	c.level = sharedLevel{child: c, setting: make(chan struct{}, 1)}
	c.headers.child = c
	return c
}

func (c *child) log() *zap.Logger { return c.server.log().With(zap.Int("pid", c.cmd.Process.Pid)) }

// run reads the output of the child until it dies.
func (c *child) run() {
	newReceiver(c).run()
	c.kill() // without stdout the child cannot respond
	c.stdout.Close()
	calls := c.calls.end(c.cause())
	err := c.explain(c.cause(), jsonrpc.CauseEnded)
	c.server.childEnded(c, err) // first, because a client whose call fails may call again at once
	for _, call := range calls {
		call.fail(jsonrpc.ConnectError(c.server.name, jsonrpc.CauseEnded), err)
	}
}

// stopIfDedicated stops a dedicated child that has no calls left.
func (c *child) stopIfDedicated() {
	if c.calls.isFinished() {
		go c.stop(c.server.pool.config.StopGrace) // run waits for the end of the process
	}
}

// answerLocally answers a server request without a client: roots/list with the configured roots,
// others with an error.
func (c *child) answerLocally(id []byte, method string, code int, why string) {
	if method == rootsList {
		c.input.trySend(jsonrpc.ResultResponse(id, c.server.pool.roots))
		return
	}
	c.input.trySend(jsonrpc.ErrorResponse(id, code, why))
}

// Health checks find a child that does not respond. Without them, timeouts of calls do: after
// several in a row without any output, the child gets a ping, and aliveTime to respond, because
// work may be slow. A child that still works on a call, even an abandoned one, writes something by
// then. The ping precedes later calls, so the child cannot be working on those instead.

const (
	maxTimeouts = 3               // calls that time out before the ping
	aliveTime   = 5 * time.Minute // for any output after the ping
)

// noteTimeout counts a call that has timed out. A client that leaves says nothing about the child.
func (c *child) noteTimeout(call *call, cause error) {
	var timeout net.Error
	if errors.As(cause, &timeout) && timeout.Timeout() {
		c.calls.countTimeout(call, func() { c.server.pool.running.Go(c.checkSilent) })
	}
}

// checkSilent pings a silent child, and stops it if it writes nothing.
func (c *child) checkSilent() {
	pool := c.server.pool
	c.log().Warn("calls timed out, checking whether the server is alive", zap.Int("calls", maxTimeouts),
		zap.Duration("within", pool.aliveTime))
	ctx, cancel := context.WithTimeout(context.Background(), pool.aliveTime)
	defer cancel()
	if _, err := c.request(ctx, "ping", nil); errors.Is(err, context.DeadlineExceeded) && c.calls.silent() {
		c.log().Warn("no response to ping")
		c.stop(pool.config.StopGrace)
	}
	c.calls.endCheck()
}
