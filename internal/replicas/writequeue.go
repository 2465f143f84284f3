package replicas

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

var writeQuota = quota.NewKind("store_writes")

// A writeQueue carries out writes after the response that caused them, the oldest first. When the
// queue is full, the owner with the most bytes in it loses its oldest write.
type writeQueue struct {
	store *Store

	mu         sync.Mutex
	writes     *quota.Cache[writeKey, queuedWrite]
	workers    int // goroutines
	inProgress int // writes
	closing    bool
	unwritten  int // writes that failed after closing began
	running    sync.WaitGroup
	ctx        context.Context // for all writes
	cancel     context.CancelFunc
}

// A writeKey identifies a value. A later write of the same value replaces an earlier one.
type writeKey struct{ space, owner, name string }

type queuedWrite struct {
	write  func(context.Context) error
	onLost func() // called if the value was not written; may be nil
}

const (
	maxWriteWorkers = 4
	maxWrites       = 10_000          // in the queue
	maxAttempts     = 3               // for each write, so that others get their turn
	closeTime       = 5 * time.Second // to write the queue on close
)

func newWriteQueue(s *Store) *writeQueue {
	b := &writeQueue{store: s}
	limits := quota.Limits{Entries: maxWrites, Bytes: s.config.QueueBytes}
	b.writes = quota.NewCache(writeQuota, limits, 0, func(_ writeKey, w queuedWrite) { w.reportLost() })
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

func (w queuedWrite) reportLost() {
	if w.onLost != nil {
		w.onLost()
	}
}

// add queues a write of a number of bytes.
func (b *writeQueue) add(key writeKey, bytes int64, w queuedWrite) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		b.unwritten++
		w.reportLost()
		return
	}
	if !b.writes.Put(key.space+"\x00"+key.owner, key, w, bytes) {
		w.reportLost()
	} else if b.workers < maxWriteWorkers {
		b.workers++
		b.running.Go(b.run)
	}
}

// run carries out writes until the queue is empty.
func (b *writeQueue) run() {
	for {
		b.mu.Lock()
		key, w, ok := b.writes.Oldest()
		if !ok || b.ctx.Err() != nil {
			b.workers--
			b.mu.Unlock()
			return
		}
		b.writes.Remove(key)
		b.inProgress++
		b.mu.Unlock()
		if err := b.attempt(w); err != nil {
			b.noteLost(w)
		}
		b.mu.Lock()
		b.inProgress--
		b.mu.Unlock()
	}
}

// pending returns how many writes are queued or in progress.
func (b *writeQueue) pending() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writes.Len() + b.inProgress
}

// noteLost handles a write that failed.
func (b *writeQueue) noteLost(w queuedWrite) {
	w.reportLost()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		b.unwritten++
	}
}

// attempt carries out a write when the engine is available.
func (b *writeQueue) attempt(w queuedWrite) (err error) {
	for range maxAttempts {
		for !b.store.Up() {
			select {
			case <-b.ctx.Done():
				return b.ctx.Err()
			case <-time.After(b.store.config.Retry):
			}
		}
		err = w.write(b.ctx)
		if !errors.Is(err, ErrUnavailable) {
			return err
		}
	}
	return err
}

// close waits up to closeTime for queued writes. If there are any, it tries an unavailable engine
// once more.
func (b *writeQueue) close() {
	b.mu.Lock()
	b.closing = true
	writing := b.workers > 0
	b.mu.Unlock()
	if writing && !b.store.Up() && !usable(b.store.Ping(context.Background())) {
		b.cancel()
	}
	defer time.AfterFunc(closeTime, b.cancel).Stop()
	b.running.Wait()
	b.cancel()
	if unwritten := b.unwritten + b.writes.Len(); unwritten > 0 {
		b.store.config.Logger.Warn("some values were not written to the shared store before shutdown",
			zap.Int("values", unwritten))
	}
	b.writes.Close()
}
