package stdio

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

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
	case <-c.stderrLog.read:
	case <-time.After(stderrTime):
	}
	return &childError{err, cause, c.stderrLog.tail.all()}
}

// exitDuring returns the error for a child that has ended during a request of the handshake.
func (c *child) exitDuring(method string) error { return fmt.Errorf("%w during %s", c.cause(), method) }

// A stderrLog logs the lines of a child's stderr, up to a limit, and keeps the last ones.
type stderrLog struct {
	child *child
	tail  tail
	read  chan struct{} // closed at the end of stderr
	limit throttle
}

// run reads stderr until its end.
func (l *stderrLog) run() {
	defer close(l.read)
	defer l.child.stderr.Close()
	const longestLine = 8 << 10
	lines := bufio.NewReaderSize(l.child.stderr, longestLine)
	cut := false // this is not the beginning of the line
	offline := false
	for {
		line, err := lines.ReadSlice('\n')
		if text := bytes.TrimRight(line, "\r\n"); len(text) > 0 && !cut {
			l.tail.add(text)
			offline = offline || looksOffline(text)
			l.log(text)
		}
		cut = err == bufio.ErrBufferFull
		if err != nil && !cut {
			l.logDropped(l.limit.dropped)
			if offline {
				l.logWithheld()
			}
			return
		}
	}
}

// log logs a line, unless there were too many.
func (l *stderrLog) log(line []byte) {
	pass, dropped := l.limit.allow(len(line), time.Now())
	l.logDropped(dropped)
	switch {
	case pass:
		l.child.log().Info("stderr", zap.String("line", string(line)))
	case l.limit.dropped == 1:
		l.child.log().Warn("too much output on stderr, some lines are not logged", zap.Int("lines", throttleLines),
			zap.Int("bytes", throttleBytes), zap.Duration("in", throttleTime))
	}
}

func (l *stderrLog) logDropped(lines int) {
	if lines > 0 {
		l.child.log().Warn("stderr lines not logged", zap.Int("lines", lines))
	}
}

// logWithheld names the variables that a child may need to reach the network, if it ended
// before it was ready.
func (l *stderrLog) logWithheld() {
	withheld := l.child.server.pool.config.Withheld
	if len(withheld) == 0 {
		return
	}
	select {
	case <-l.child.announced:
	default:
		l.child.log().Warn("MCP server cannot reach the network; it may need environment variables of Caddy: "+
			"pass them with env inherit", zap.Strings("inherit", withheld))
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

// offlinePhrases occur, in lower case, in the errors of npm, uv, pip and other programs that cannot
// reach a server or do not trust its certificate.
var offlinePhrases = [][]byte{
	[]byte("unable_to_get_issuer_cert"), []byte("unable_to_verify_leaf_signature"), []byte("self_signed_cert"),
	[]byte("self-signed certificate"), []byte("self signed certificate"), []byte("certificate_verify_failed"),
	[]byte("certificate verify failed"), []byte("unknownissuer"), []byte("unknown issuer"), []byte("unknown authority"),
	[]byte("enotfound"), []byte("eai_again"), []byte("econnrefused"), []byte("etimedout"), []byte("enetunreach"),
	[]byte("could not resolve host"), []byte("name resolution"), []byte("dns error"), []byte("network is unreachable"),
}

// looksOffline reports whether a line says that a program cannot reach the network.
func looksOffline(line []byte) bool {
	line = bytes.ToLower(line)
	return slices.ContainsFunc(offlinePhrases, func(words []byte) bool { return bytes.Contains(line, words) })
}
