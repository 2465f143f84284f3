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
	closeTimeout    = 5 * time.Second // to write the queue on close
)

func newWriteQueue(s *Store) *writeQueue {
	q := &writeQueue{store: s}
	limits := quota.Limits{Entries: maxWrites, Bytes: s.config.QueueBytes}
	q.writes = quota.NewCache(writeQuota, limits, 0, func(_ writeKey, w queuedWrite) { w.reportLost() })
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q
}

func (w queuedWrite) reportLost() {
	if w.onLost != nil {
		w.onLost()
	}
}

// add queues a write of a number of bytes.
func (q *writeQueue) add(key writeKey, bytes int64, w queuedWrite) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		q.unwritten++
		w.reportLost()
		return
	}
	if !q.writes.Put(key.space+"\x00"+key.owner, key, w, bytes) {
		w.reportLost()
	} else if q.workers < maxWriteWorkers {
		q.workers++
		q.running.Go(q.run)
	}
}

// run carries out writes until the queue is empty.
func (q *writeQueue) run() {
	for {
		q.mu.Lock()
		key, w, ok := q.writes.Oldest()
		if !ok || q.ctx.Err() != nil {
			q.workers--
			q.mu.Unlock()
			return
		}
		q.writes.Remove(key)
		q.inProgress++
		q.mu.Unlock()
		if err := q.attempt(w); err != nil {
			q.noteLost(w)
		}
		q.mu.Lock()
		q.inProgress--
		q.mu.Unlock()
	}
}

// pending returns how many writes are queued or in progress.
func (q *writeQueue) pending() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.writes.Len() + q.inProgress
}

// noteLost handles a write that failed.
func (q *writeQueue) noteLost(w queuedWrite) {
	w.reportLost()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		q.unwritten++
	}
}

// attempt carries out a write when the engine is available.
func (q *writeQueue) attempt(w queuedWrite) (err error) {
	for range maxAttempts {
		for !q.store.Up() {
			select {
			case <-q.ctx.Done():
				return q.ctx.Err()
			case <-time.After(q.store.config.Retry):
			}
		}
		err = w.write(q.ctx)
		if !errors.Is(err, ErrUnavailable) {
			return err
		}
	}
	return err
}

// close waits up to closeTimeout for queued writes. If there are any, it tries an unavailable engine
// once more.
func (q *writeQueue) close() {
	q.mu.Lock()
	q.closing = true
	writing := q.workers > 0
	q.mu.Unlock()
	if writing && !q.store.Up() && !usable(q.store.Ping(context.Background())) {
		q.cancel()
	}
	defer time.AfterFunc(closeTimeout, q.cancel).Stop()
	q.running.Wait()
	q.cancel()
	if unwritten := q.unwritten + q.writes.Len(); unwritten > 0 {
		q.store.config.Logger.Warn("some values were not written to the shared store before shutdown",
			zap.Int("values", unwritten))
	}
	q.writes.Close()
}
