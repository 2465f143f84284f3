package upstream

import (
	"context"
	"sync/atomic"
)

// A ActiveCall is a call of a client that is in progress.
type ActiveCall struct {
	Context context.Context // of the call
	Cancel  context.CancelCauseFunc

	Canceled atomic.Bool // the client has canceled, and the server knows
	paused   atomic.Bool // the server ended the stream, and the gateway waits to resume it
}

// NoteCanceled records that the client has canceled the call. Its stream is not resumed.
func (f *ActiveCall) NoteCanceled() {
	f.Canceled.Store(true)
	if f.paused.Load() {
		f.Cancel(nil)
	}
}

// pause records that the gateway waits to resume the stream. f may be nil.
func (f *ActiveCall) pause() (end func()) {
	if f == nil {
		return func() {}
	}
	f.paused.Store(true)
	if f.Canceled.Load() {
		f.Cancel(nil)
	}
	return func() { f.paused.Store(false) }
}
