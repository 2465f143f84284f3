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
	narrow := func() {}
	frames.long = sync.OnceFunc(func() { narrow = widen(c.stdout) })
	defer func() { narrow() }()
	var m jsonrpc.Message
	for {
		frame, block, err := frames.next()
		tooLong, isTooLong := errors.AsType[*tooLongError](err)
		switch {
		case err == nil && m.Read(frame) == nil:
			if c.server.pool.config.Framing == Newline && (m.Has(jsonrpc.Version) || m.Has(jsonrpc.Result)) {
				frames.settle()
			}
			c.receive(&m, block)
		case isTooLong:
			c.long.Do(func() {
				c.log().Warn("message too long", zap.ByteString("id", tooLong.id), zap.Int("max_line", frames.max))
			})
			c.lose(&tooLong.lost, jsonrpc.ResponseTooLarge(c.server.name), err)
		case err == nil || errors.Is(err, errNoise):
			c.server.pool.observe.Noise(c.server.name)
			c.noise.Do(func() {
				c.log().Warn("stdout is not a message", zap.String("line", string(frame[:min(len(frame), 512)])))
			})
			if err == nil { // it looks like a message
				l := new(lost)
				_, _ = l.watch().Write(frame)
				c.lose(l, jsonrpc.InvalidResponse(c.server.name), errNoise)
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

// noteRead records the latest call that the child can have known of when it wrote the
// bytes just read. A call that begins before they are handled cannot be their cause.
func (c *child) noteRead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastKnown = c.lastID
	c.unheard = 0
}

// lose fails the call that waits for a message that is skipped, or answers the child if it
// is a request.
func (c *child) lose(l *lost, failure *jsonrpc.Failure, cause error) {
	if l.request {
		if l.id != nil {
			c.tell(jsonrpc.Refusal(l.id, jsonrpc.CodeInvalidRequest, "the request cannot be passed on"))
		}
	} else if call := c.take(l.id); call != nil {
		call.fail(failure, cause)
	}
}

// write writes the queue to stdin, small messages together.
func (c *child) write() {
	var batch []byte
	for {
		batch = batch[:0]
		var f frame
		select {
		case <-c.exited:
			return
		case f = <-c.queue:
		case f = <-c.asides:
		}
		for f != nil && f.len() <= large && len(batch) < large {
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
			if !errors.Is(err, os.ErrClosed) { // else we have closed it to stop the child
				c.terminate() // without stdin it gets no messages
			}
			return
		}
		if f.len() > large {
			<-c.large
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

// readErrors logs the lines that the child writes to stderr, up to a limit.
func (c *child) readErrors() {
	defer close(c.errorsRead)
	defer c.stderr.Close()
	const longestLine = 8 << 10
	lines := bufio.NewReaderSize(c.stderr, longestLine)
	var passed throttle
	logLeft := func(left int) {
		if left > 0 {
			c.log().Warn("lines on stderr left out", zap.Int("lines", left))
		}
	}
	cut := false // the line began in the piece before
	offline := false
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 && !cut {
			c.lastLines.add(text)
			offline = offline || saysOffline(text)
			pass, left := passed.line(len(text), time.Now())
			logLeft(left)
			switch {
			case pass:
				c.log().Info("stderr", zap.String("line", string(text)))
			case passed.left == 1:
				c.log().Warn("too much on stderr, lines are left out", zap.Int("lines", throttleLines), zap.Int("bytes", throttleBytes), zap.Duration("in", throttleTime))
			}
		}
		cut = err == bufio.ErrBufferFull
		if err != nil && !cut {
			logLeft(passed.left)
			if offline {
				c.logWithheld()
			}
			return
		}
	}
}

// Limits of what is logged of a child's stderr in a time.
const (
	throttleTime  = 10 * time.Second
	throttleLines = 1_000
	throttleBytes = 256 << 10
)

// A throttle lets a number of lines and bytes pass in a time.
type throttle struct {
	since        time.Time
	lines, bytes int // that have passed since then
	left         int // lines that have not
}

// line reports whether a line of this length may pass. If it is the first of a new period,
// line returns how many were left out in the one before.
func (t *throttle) line(bytes int, now time.Time) (pass bool, left int) {
	if now.Sub(t.since) >= throttleTime {
		left = t.left
		*t = throttle{since: now}
	}
	if t.left > 0 || t.lines == throttleLines || t.bytes+bytes > throttleBytes {
		t.left++
		return false, left
	}
	t.lines++
	t.bytes += bytes
	return true, left
}

// send queues a message for the child. Its bytes must not change anymore.
func (c *child) send(ctx context.Context, message []byte) error {
	return c.sendEdited(ctx, message, nil)
}

// sendEdited queues a message with edits made.
func (c *child) sendEdited(ctx context.Context, message []byte, edits []jsonspan.Edit) error {
	f := spliced(message, edits, c.server.pool.config.Framing)
	isLarge := f.len() > large
	if isLarge {
		select {
		case c.large <- struct{}{}:
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
			<-c.large
		}
		return ctx.Err()
	}
}

// tell queues a message of our own. It never waits: the reader of the child's output calls
// it, and the child may not read until its output is read. It has room of its own beside
// the calls in the queue, because the child may be waiting for this answer. It reports
// whether the child reads the message after all that was queued before.
func (c *child) tell(message []byte) (inOrder bool) {
	f := newFrame(message, c.server.pool.config.Framing)
	isLarge := f.len() > large
	if isLarge {
		select {
		case c.large <- struct{}{}:
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
	case c.asides <- f:
	default:
		if isLarge {
			<-c.large
		}
		c.server.pool.observe.Dropped(c.server.name)
	}
	return false
}
