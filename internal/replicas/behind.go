package replicas

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

var queued = quota.NewKind("store_writes")

// A behind carries out writes behind the answers that they belong to, the oldest first. When too much
// waits, the owner of the most of it loses its oldest.
type behind struct {
	store *Store

	mu      sync.Mutex
	writes  *quota.Cache[writeKey, queuedWrite]
	writing int // goroutines
	begun   int // writes that are not over
	closing bool
	left    int // writes that were not carried out since
	done    sync.WaitGroup
	ctx     context.Context // of all writes
	cancel  context.CancelFunc
}

// A writeKey says what is written. Of two writes of the same, the later one is enough.
type writeKey struct{ space, owner, name string }

type queuedWrite struct {
	do   func(context.Context) error
	lost func() // called if it was not written; may be nil
}

const (
	maxWriting  = 4
	maxWrites   = 10_000          // that wait
	maxAttempts = 3               // of a write; others have their turn, too
	closeTime   = 5 * time.Second // in which what is queued is written
)

func newBehind(s *Store) *behind {
	b := &behind{store: s}
	limits := quota.Limits{Entries: maxWrites, Bytes: s.config.QueueBytes}
	b.writes = quota.NewCache(queued, limits, 0, func(_ writeKey, w queuedWrite) { w.isLost() })
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

func (w queuedWrite) isLost() {
	if w.lost != nil {
		w.lost()
	}
}

// add queues a write of so many bytes.
func (b *behind) add(key writeKey, bytes int64, w queuedWrite) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		b.left++
		w.isLost()
		return
	}
	if !b.writes.Put(key.space+"\x00"+key.owner, key, w, bytes) {
		w.isLost()
	} else if b.writing < maxWriting {
		b.writing++
		b.done.Go(b.run)
	}
}

// run carries out writes until there are none.
func (b *behind) run() {
	for {
		b.mu.Lock()
		key, w, ok := b.writes.Oldest()
		if !ok || b.ctx.Err() != nil {
			b.writing--
			b.mu.Unlock()
			return
		}
		b.writes.Remove(key)
		b.begun++
		b.mu.Unlock()
		if err := b.attempt(w); err != nil {
			b.lose(w)
		}
		b.mu.Lock()
		b.begun--
		b.mu.Unlock()
	}
}

// waiting returns how many writes are not over.
func (b *behind) waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.writes.Len() + b.begun
}

// lose notes that a write was not carried out.
func (b *behind) lose(w queuedWrite) {
	w.isLost()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		b.left++
	}
}

// attempt carries out a write when the engine can be used.
func (b *behind) attempt(w queuedWrite) (err error) {
	for range maxAttempts {
		for !b.store.Up() {
			select {
			case <-b.ctx.Done():
				return b.ctx.Err()
			case <-time.After(b.store.config.Retry):
			}
		}
		if err = w.do(b.ctx); !errors.Is(err, ErrUnavailable) {
			return err
		}
	}
	return err
}

// close waits a while for what is queued. If something is, an engine that could not be used is tried once more.
func (b *behind) close() {
	b.mu.Lock()
	b.closing = true
	writing := b.writing > 0
	b.mu.Unlock()
	if writing && !b.store.Up() && !usable(b.store.Ping(context.Background())) {
		b.cancel()
	}
	defer time.AfterFunc(closeTime, b.cancel).Stop()
	b.done.Wait()
	b.cancel()
	if left := b.left + b.writes.Len(); left > 0 {
		b.store.config.Logger.Warn("not all was written to the shared store before the end", zap.Int("values", left))
	}
	b.writes.Close()
}
