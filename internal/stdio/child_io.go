package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

func (c *child) read() {
	frames := newFrameReader(output{c}, c.server.pool.config.MaxMessage)
	releasePipe := func() {}
	frames.onLong = sync.OnceFunc(func() { releasePipe = widen(c.stdout) })
	defer func() { releasePipe() }()
	var m jsonrpc.Message
	for {
		frame, block, err := frames.next()
		tooLong, isTooLong := errors.AsType[*tooLongError](err)
		switch {
		case err == nil && m.Read(frame) == nil:
			if c.server.pool.config.Framing == Newline && (m.Has(jsonrpc.Version) || m.Has(jsonrpc.Result)) {
				frames.noteValid()
			}
			c.receive(&m, block)
		case isTooLong:
			c.tooLongLog.Do(func() {
				c.log().Warn("message on stdout is too long, skipped", zap.ByteString("id", tooLong.id),
					zap.Int("max_line", frames.max))
			})
			c.failSkipped(&tooLong.skippedMessage, jsonrpc.ResponseTooLarge(c.server.name), err)
		case err == nil || errors.Is(err, errNoise):
			c.server.pool.observe.Noise(c.server.name)
			c.noiseLog.Do(func() {
				c.log().Warn("line on stdout is not a message", zap.String("line", string(frame[:min(len(frame), 512)])))
			})
			if err == nil { // it looks like a message
				l := new(skippedMessage)
				_, _ = l.idWatcher().Write(frame)
				c.failSkipped(l, jsonrpc.InvalidResponse(c.server.name), errNoise)
			}
		default:
			return
		}
	}
}

// An output is the stdout of a child.
type output struct{ *child }

func (o output) Read(p []byte) (int, error) {
	n, err := o.stdout.Read(p)
	if n > 0 {
		o.noteRead()
	}
	return n, err
}

// noteRead records the latest call that the child can have seen when it wrote the bytes
// just read. Later calls cannot be their cause.
func (c *child) noteRead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastKnown = c.lastID
	c.timeouts = 0
}

// failSkipped fails the call that waits for a skipped response, or refuses a skipped
// request.
func (c *child) failSkipped(l *skippedMessage, failure *jsonrpc.Failure, cause error) {
	if l.isRequest {
		if l.id != nil {
			c.trySend(jsonrpc.ErrorResponse(l.id, jsonrpc.CodeInvalidRequest, "the request cannot be forwarded"))
		}
	} else if call := c.takeCall(l.id); call != nil {
		call.fail(failure, cause)
	}
}

// write writes the queue to stdin. Small messages are batched.
func (c *child) write() {
	var batch []byte
	for {
		batch = batch[:0]
		var f frame
		select {
		case <-c.exited:
			return
		case f = <-c.queue:
		case f = <-c.overflow:
		}
		for f != nil && f.len() <= largeMessage && len(batch) < largeMessage {
			for _, piece := range f {
				batch = append(batch, piece...)
			}
			select {
			case f = <-c.queue:
			default:
				f = nil
			}
		}
		if err := c.writeAll(batch, f); err != nil {
			if !errors.Is(err, os.ErrClosed) { // stop closes stdin itself
				c.terminate() // without stdin the child gets no messages
			}
			return
		}
		if f.len() > largeMessage {
			<-c.largeSlots
		}
	}
}

// writeAll writes a batch, then a frame.
func (c *child) writeAll(batch []byte, f frame) error {
	if len(batch) > 0 {
		if _, err := c.stdin.Write(batch); err != nil {
			return err
		}
	}
	for _, piece := range f {
		if _, err := c.stdin.Write(piece); err != nil {
			return err
		}
	}
	return nil
}

// readStderr logs the lines of stderr, up to a limit.
func (c *child) readStderr() {
	defer close(c.stderrRead)
	defer c.stderr.Close()
	const longestLine = 8 << 10
	lines := bufio.NewReaderSize(c.stderr, longestLine)
	var limit throttle
	logDropped := func(dropped int) {
		if dropped > 0 {
			c.log().Warn("stderr lines not logged", zap.Int("lines", dropped))
		}
	}
	cut := false // this is not the beginning of the line
	offline := false
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 && !cut {
			c.stderrTail.add(text)
			offline = offline || looksOffline(text)
			pass, dropped := limit.allow(len(text), time.Now())
			logDropped(dropped)
			switch {
			case pass:
				c.log().Info("stderr", zap.String("line", string(text)))
			case limit.dropped == 1:
				c.log().Warn("too much output on stderr, some lines are not logged", zap.Int("lines", throttleLines),
					zap.Int("bytes", throttleBytes), zap.Duration("in", throttleTime))
			}
		}
		cut = err == bufio.ErrBufferFull
		if err != nil && !cut {
			logDropped(limit.dropped)
			if offline {
				c.logWithheld()
			}
			return
		}
	}
}

// Limits of what is logged from stderr in each period of throttleTime.
const (
	throttleTime  = 10 * time.Second
	throttleLines = 1_000
	throttleBytes = 256 << 10
)

// A throttle limits lines and bytes in a period.
type throttle struct {
	since        time.Time
	lines, bytes int // allowed since then
	dropped      int // other lines
}

// allow reports whether the limits allow a line of this length. At the beginning of a period it
// also returns how many lines were dropped in the last one.
func (t *throttle) allow(bytes int, now time.Time) (pass bool, dropped int) {
	if now.Sub(t.since) >= throttleTime {
		dropped = t.dropped
		*t = throttle{since: now}
	}
	if t.dropped > 0 || t.lines == throttleLines || t.bytes+bytes > throttleBytes {
		t.dropped++
		return false, dropped
	}
	t.lines++
	t.bytes += bytes
	return true, dropped
}

// send queues a message for the child. The caller must not change its bytes afterwards.
func (c *child) send(ctx context.Context, message []byte) error {
	return c.sendEdited(ctx, message, nil)
}

// sendEdited queues a message with edits applied.
func (c *child) sendEdited(ctx context.Context, message []byte, edits []jsonspan.Edit) error {
	f := editedFrame(message, edits, c.server.pool.config.Framing)
	isLarge := f.len() > largeMessage
	if isLarge {
		select {
		case c.largeSlots <- struct{}{}:
		case <-c.exited:
			return c.cause()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case c.queue <- f:
		return nil
	case <-c.exited:
		return c.cause()
	case <-ctx.Done():
		if isLarge {
			<-c.largeSlots
		}
		return ctx.Err()
	}
}

// trySend queues a message of the pool itself. It never waits: the reader of the child's
// output calls it, and the child may not read until its output is read. A separate overflow
// queue has room for it when the queue is full, because the child may wait for this message.
// It reports whether the child reads the message after everything queued before.
func (c *child) trySend(message []byte) (inOrder bool) {
	f := newFrame(message, c.server.pool.config.Framing)
	isLarge := f.len() > largeMessage
	if isLarge {
		select {
		case c.largeSlots <- struct{}{}:
		default:
			c.server.pool.observe.Dropped(c.server.name)
			return false
		}
	}
	select {
	case c.queue <- f:
		return true
	default:
	}
	select {
	case c.overflow <- f:
	default:
		if isLarge {
			<-c.largeSlots
		}
		c.server.pool.observe.Dropped(c.server.name)
	}
	return false
}
