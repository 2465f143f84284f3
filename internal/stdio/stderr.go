package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A childError is why a child could not be started, or has ended. It is for operators, because
// stderr may have secrets. Clients are told its cause.
type childError struct {
	err    error
	cause  jsonrpc.Cause
	stderr []string // the last lines of it
}

func (e *childError) Error() string {
	if line := telling(e.stderr); line != "" {
		return e.err.Error() + ": " + line
	}
	return e.err.Error()
}

func (e *childError) Unwrap() error { return e.err }

// Cause returns what clients may be told.
func (e *childError) Cause() jsonrpc.Cause { return e.cause }

// Stderr returns the last lines that the child wrote there.
func (e *childError) Stderr() []string { return e.stderr }

// stderrTime is how long the rest of stderr is waited for after the end of a child. A process that
// has left its group may keep it open.
const stderrTime = 100 * time.Millisecond

// explain adds to an error what a child that has ended wrote to stderr last.
func (c *child) explain(err error, cause jsonrpc.Cause) error {
	if errors.Is(err, errStopped) {
		return err
	}
	select {
	case <-c.errorsRead:
	case <-time.After(stderrTime):
	}
	return &childError{err, cause, c.lastLines.all()}
}

// endDuring says how a child has ended in a request of its handshake.
func (c *child) endDuring(method string) error { return fmt.Errorf("%w during %s", c.cause(), method) }

// How many lines and bytes are kept of the end of stderr, and how many bytes of each line.
const maxTailLines, maxTailBytes, maxTailLine = 5, 2 << 10, 512

// A tail has the last lines of stderr, without the frames of stack traces.
type tail struct {
	mu    sync.Mutex
	lines []string
	bytes int
}

// frames are lines of stack traces, and others that say nothing of the cause.
var frames = regexp.MustCompile(`^[^\pL\d]*$|^\s+at |^Node\.js v\d|A complete log of this run can be found|` +
	`^npm notice|^npm (error|ERR!)( \d+)?\s*$|Note that you can also install from a$|tarball, folder, http url, or git url`)

// add adds a line.
func (t *tail) add(line []byte) {
	line = line[:min(len(line), maxTailLine)]
	if len(bytes.TrimSpace(line)) == 0 || frames.Match(line) {
		return
	}
	text := mcp.OneLine(string(line))
	text = text[:min(len(text), maxTailBytes)] // escaped, it may be longer
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, text)
	t.bytes += len(text)
	for len(t.lines) > maxTailLines || t.bytes > maxTailBytes {
		t.bytes -= len(t.lines[0])
		t.lines = t.lines[1:]
	}
}

// all returns the lines.
func (t *tail) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

var (
	// prefixes are what programs begin all of their error lines with.
	prefixes = regexp.MustCompile(`^npm (error|ERR!)( \d+)?`)
	// causes are words of lines that name a cause.
	causes = regexp.MustCompile(`(?i)error|exception|fatal|panic|required|missing|not found|no such|is not|could not|` +
		`cannot|can't|denied|refused|failed|invalid|unknown|unable|must|usage`)
)

// telling returns the last of the lines that names a cause, or else the last one.
func telling(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if causes.MatchString(prefixes.ReplaceAllString(lines[i], "")) {
			return strings.TrimSpace(lines[i])
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.TrimSpace(lines[len(lines)-1])
}
