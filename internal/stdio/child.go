package stdio

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
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
