package upstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/streamable"
)

// timeLimits are the time limits of an exchange. There is a timeout for the silence of the server,
// except for streams that a client opened to listen.
type timeLimits struct {
	cancel context.CancelCauseFunc // ends the exchange

	timeout      time.Duration
	reply        reply        // knows how long the server waited for the client
	isTotal      bool         // the timeout is for the whole response
	lastActivity atomic.Int64 // when the server's silence began, by streamable.Clock; pauses it asked for do not count

	mu    sync.Mutex  // held while timer is set
	timer *time.Timer // nil without a timeout

	stops []func() bool // of the contexts that end a stream
}

// start starts the timeout. If the exchange resumes a stream, earlier silence counts.
func (l *timeLimits) start(timeout time.Duration, reply reply) {
	l.timeout, l.reply = timeout, reply
	left := timeout
	if l.lastActivity.Load() == 0 {
		l.lastActivity.Store(int64(streamable.Clock()))
	} else {
		left = l.idleTimeLeft()
	}
	l.mu.Lock() // expire may run at once, and needs the timer
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(left, l.expire)
}

// expire ends the exchange if the server has been silent for too long.
func (l *timeLimits) expire() {
	left := l.idleTimeLeft()
	if left <= 0 {
		left = l.reply.timeLeft(l.timeout)
	}
	if left > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.timer.Reset(left)
		return
	}
	l.cancel(ErrTimeout)
}

// endWith ends a stream when ctx is done.
func (l *timeLimits) endWith(ctx context.Context) {
	l.stops = append(l.stops, context.AfterFunc(ctx, func() { l.cancel(errEnded) }))
}

// stop stops the limits.
func (l *timeLimits) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
	for _, stop := range l.stops {
		stop()
	}
}

// hasTimeout reports whether the silence of the server is limited.
func (l *timeLimits) hasTimeout() bool { return l.timer != nil }

// noteActivity records a sign of life of the server.
func (l *timeLimits) noteActivity() {
	if l.hasTimeout() && !l.isTotal {
		l.lastActivity.Store(int64(streamable.Clock()))
	}
}

// idleTimeLeft returns for how much longer the server may be silent.
func (l *timeLimits) idleTimeLeft() time.Duration {
	return l.timeout - streamable.Clock() + time.Duration(l.lastActivity.Load())
}

// limitIdle ends the exchange if the server is silent for left from now on.
func (l *timeLimits) limitIdle(left time.Duration) {
	l.lastActivity.Store(int64(streamable.Clock() - l.timeout + left))
	l.timer.Reset(left)
}

// addPause adds a pause that the server asked for, and returns the time left with it.
func (l *timeLimits) addPause(pause time.Duration) (left time.Duration) {
	l.lastActivity.Add(int64(pause))
	return max(l.idleTimeLeft(), l.reply.timeLeft(l.timeout)+pause)
}

var (
	// ErrTimeout cancels a request at its timeout. The client still waits for a response.
	ErrTimeout = timeoutError{}
	// errEnded cancels a stream that the client still reads.
	errEnded = errors.New("stream ended by the gateway")
)

// timeoutError is a net.Error, so reverse_proxy does not take it for a cancellation by the client.
type timeoutError struct{}

func (timeoutError) Error() string {
	return "no response within the timeout of the server or the response_timeout of the gateway"
}
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }
