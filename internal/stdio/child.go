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

// A child is a running server process and the calls it has to answer.
type child struct {
	*process
	server *server
	noise  rate.Sometimes // limits how often lines that are not messages are logged
	long   rate.Sometimes // and those that are too long
	queue  chan frame     // to its stdin
	large  chan struct{}  // holds a value for each large message on its way there
	asides chan frame     // to its stdin, from senders that cannot wait for room in the queue
	born   time.Time

	lastLines  tail          // that it wrote to stderr
	errorsRead chan struct{} // closed when stderr has been read to its end

	levelling chan struct{} // holds a value while its log level is being set

	hello     hello                            // its first answer; set before the child is used
	announced chan struct{}                    // closed when it has been reported as started
	params    atomic.Pointer[mcp.ParamHeaders] // arguments of its tools that headers repeat, if known

	mu        sync.Mutex
	lastID    uint64
	lastKnown uint64 // latest call that the child can have seen when it wrote the bytes read last
	calls     map[uint64]*call
	doubts    []doubt
	ping      uint64   // the id of the one that is to clear doubts and was not answered yet, if there is one
	heedless  bool     // it asks in calls that were canceled
	client    *session // that it has worked for
	several   bool     // it has worked for other clients as well, or for one without a session
	lent      *session // whose calls it finishes; it takes no others
	level     string   // of log messages, as it was set for all clients
	served    bool     // it has answered a client
	dead      error    // why it takes no more calls

	unheard     int       // calls that have timed out since its last output
	lastUnheard time.Time // when the last of them did
	asked       bool      // a ping is under way because of that
}

const (
	maxCalls  = 10_000   // waiting for one child
	maxQueue  = 1_000    // messages that a child has not read yet
	maxLarge  = 4        // large ones among them
	large     = 64 << 10 // bytes
	maxUnread = 16 << 20 // bytes of messages before an answer that a client has not read yet
)

var (
	errBusy   = errors.New("too many calls are waiting")
	errLent   = errors.New("the child belongs to one client now")
	errUnread = errors.New("the client has not read other answers")
)

// startChild starts the process of a server. It has not been initialized yet.
func startChild(s *server) (*child, error) {
	config := s.pool.config
	p, err := startProcess(config.Command, config.Env, config.Dir)
	if err != nil {
		return nil, &childError{err: err, cause: jsonrpc.CauseNotStarted}
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

		errorsRead: make(chan struct{}),
	}
	s.pool.running.Go(c.write)
	s.pool.running.Go(c.readErrors)
	s.pool.running.Go(c.run)
	return c, nil
}

func (c *child) log() *zap.Logger { return c.server.log().With(zap.Int("pid", c.cmd.Process.Pid)) }

// run reads the output of the child until it dies.
func (c *child) run() {
	c.read()
	c.kill() // without stdout it cannot answer
	c.stdout.Close()
	calls := c.end(c.cause())
	err := c.explain(c.cause(), jsonrpc.CauseEnded)
	c.server.ended(c, err) // first: a client that hears of the end may call again at once
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

// workedOnlyFor reports whether the child has worked for no other client.
func (c *child) workedOnlyFor(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.several && (c.client == nil || c.client == s)
}

// lend leaves the child to one client, to finish that client's calls. It fails if other
// clients have calls there.
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

// lentTo reports whether the child is left to a client.
func (c *child) lentTo(s *session) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lent != nil && c.lent == s
}

// stopIfLent ends a child that was lent and has no calls left.
func (c *child) stopIfLent() {
	c.mu.Lock()
	over := c.lent != nil && len(c.calls) == 0
	c.mu.Unlock()
	if over {
		go c.stop(c.server.pool.config.StopGrace) // run waits for its end
	}
}
