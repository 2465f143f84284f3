package upstream

import (
	"context"
	"sync/atomic"
)

// A Flight is a call of a client that is under way.
type Flight struct {
	Context context.Context // of the call
	Cancel  context.CancelCauseFunc

	Canceled atomic.Bool // by the client; the server knows
	paused   atomic.Bool // the server has ended the stream, and the rest is not asked for yet
}

// Drop notes that the client has canceled the call. The rest of its stream is not asked for.
func (f *Flight) Drop() {
	f.Canceled.Store(true)
	if f.paused.Load() {
		f.Cancel(nil)
	}
}

// pause notes that the rest of the stream is going to be asked for, if f is not nil.
func (f *Flight) pause() (end func()) {
	if f == nil {
		return func() {}
	}
	f.paused.Store(true)
	if f.Canceled.Load() {
		f.Cancel(nil)
	}
	return func() { f.paused.Store(false) }
}
