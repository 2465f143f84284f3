package stdio

import (
	"context"
	"errors"
	"os"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

const (
	maxQueue     = 1_000    // messages that a child has not read yet
	maxLarge     = 4        // large messages among them
	largeMessage = 64 << 10 // bytes from which a message is large
)

// An inputQueue has the messages to write to the stdin of a child.
type inputQueue struct {
	child      *child
	messages   chan frame
	largeSlots chan struct{} // holds a value for each large message
	overflow   chan frame    // for senders that cannot wait for room
}

// write writes the messages to stdin. Small ones are batched.
func (q *inputQueue) write() {
	var batch []byte
	for {
		batch = batch[:0]
		var f frame
		select {
		case <-q.child.exited:
			return
		case f = <-q.messages:
		case f = <-q.overflow:
		}
		for f != nil && f.len() <= largeMessage && len(batch) < largeMessage {
			for _, piece := range f {
				batch = append(batch, piece...)
			}
			select {
			case f = <-q.messages:
			default:
				f = nil
			}
		}
		if err := writeAll(q.child.stdin, batch, f); err != nil {
			if !errors.Is(err, os.ErrClosed) { // stop closes stdin itself
				q.child.terminate() // without stdin the child gets no messages
			}
			return
		}
		if f.len() > largeMessage {
			<-q.largeSlots
		}
	}
}

// writeAll writes a batch, then a frame.
func writeAll(to *os.File, batch []byte, f frame) error {
	if len(batch) > 0 {
		if _, err := to.Write(batch); err != nil {
			return err
		}
	}
	for _, piece := range f {
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// send queues a message for the child. The caller must not change its bytes afterwards.
func (q *inputQueue) send(ctx context.Context, message []byte) error {
	return q.sendEdited(ctx, message, nil)
}

// sendEdited queues a message with edits applied.
func (q *inputQueue) sendEdited(ctx context.Context, message []byte, edits []jsonspan.Edit) error {
	f := editedFrame(message, edits, q.child.server.pool.config.Framing)
	isLarge := f.len() > largeMessage
	if isLarge {
		select {
		case q.largeSlots <- struct{}{}:
		case <-q.child.exited:
			return q.child.cause()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case q.messages <- f:
		return nil
	case <-q.child.exited:
		return q.child.cause()
	case <-ctx.Done():
		if isLarge {
			<-q.largeSlots
		}
		return ctx.Err()
	}
}

// trySend queues a message of the pool itself. It never waits: the reader of the child's
// output calls it, and the child may not read until its output is read. A separate overflow
// queue has room for it when the queue is full, because the child may wait for this message.
// It reports whether the child reads the message after everything queued before.
func (q *inputQueue) trySend(message []byte) (inOrder bool) {
	f := newFrame(message, q.child.server.pool.config.Framing)
	isLarge := f.len() > largeMessage
	if isLarge {
		select {
		case q.largeSlots <- struct{}{}:
		default:
			q.child.server.noteDropped()
			return false
		}
	}
	select {
	case q.messages <- f:
		return true
	default:
	}
	select {
	case q.overflow <- f:
	default:
		if isLarge {
			<-q.largeSlots
		}
		q.child.server.noteDropped()
	}
	return false
}
