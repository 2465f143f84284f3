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

// A childError says why a child could not be started, or has ended. It is for operators, because
// stderr may contain secrets. Clients get only its cause.
type childError struct {
	err    error
	cause  jsonrpc.Cause
	stderr []string // last lines
}

func (e *childError) Error() string {
	if line := causeLine(e.stderr); line != "" {
		return e.err.Error() + ": " + line
	}
	return e.err.Error()
}

func (e *childError) Unwrap() error { return e.err }

// Cause returns the cause for clients.
func (e *childError) Cause() jsonrpc.Cause { return e.cause }

// Stderr returns the last lines of stderr.
func (e *childError) Stderr() []string { return e.stderr }

// stderrTime is how long to wait for the rest of stderr after the end of a child. A process that
// has left its group may keep it open.
const stderrTime = 100 * time.Millisecond

// explain adds the last lines of stderr to an error of a child that has ended.
func (c *child) explain(err error, cause jsonrpc.Cause) error {
	if errors.Is(err, errStopped) {
		return err
	}
	select {
	case <-c.stderrRead:
	case <-time.After(stderrTime):
	}
	return &childError{err, cause, c.stderrTail.all()}
}

// exitDuring returns the error for a child that has ended during a request of the handshake.
func (c *child) exitDuring(method string) error { return fmt.Errorf("%w during %s", c.cause(), method) }

// Limits of the lines kept from the end of stderr: lines, bytes, and bytes of each line.
const maxTailLines, maxTailBytes, maxTailLine = 5, 2 << 10, 512

// A tail holds the last lines of stderr, without stack traces.
type tail struct {
	mu    sync.Mutex
	lines []string
	bytes int
}

// uninformative matches lines of stack traces, and others that do not name a cause.
var uninformative = regexp.MustCompile(`^[^\pL\d]*$|^\s+at |^Node\.js v\d|A complete log of this run can be found|` +
	`^npm notice|^npm (error|ERR!)( \d+)?\s*$|Note that you can also install from a$|` +
	`tarball, folder, http url, or ` +
	`git url`)

// add adds a line.
func (t *tail) add(line []byte) {
	line = line[:min(len(line), maxTailLine)]
	if len(bytes.TrimSpace(line)) == 0 || uninformative.Match(line) {
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
	// prefixes match text that programs prepend to all their error lines.
	prefixes = regexp.MustCompile(`^npm (error|ERR!)( \d+)?`)
	// causes match words of lines that name a cause.
	causes = regexp.MustCompile(`(?i)error|exception|fatal|panic|required|missing|not found|no such|is not|could not|` +
		`cannot|can't|denied|refused|failed|invalid|unknown|unable|must|usage`)
)

// causeLine returns the last line that names a cause, or else the last line.
func causeLine(lines []string) string {
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
