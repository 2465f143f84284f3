package upstream

import (
	"context"
	"sync/atomic"
)

// An ActiveCall is a call of a client that is in progress.
type ActiveCall struct {
	Context context.Context // of the call
	Cancel  context.CancelCauseFunc

	Canceled atomic.Bool // the client has canceled, and the server knows
	paused   atomic.Bool // the server ended the stream, and the gateway waits to resume it
}

// NoteCanceled records that the client has canceled the call. Its stream is not resumed.
func (c *ActiveCall) NoteCanceled() {
	c.Canceled.Store(true)
	if c.paused.Load() {
		c.Cancel(nil)
	}
}

// pause records that the gateway waits to resume the stream. c may be nil.
func (c *ActiveCall) pause() (end func()) {
	if c == nil {
		return func() {}
	}
	c.paused.Store(true)
	if c.Canceled.Load() {
		c.Cancel(nil)
	}
	return func() { c.paused.Store(false) }
}
