package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
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

// logWithheld names the variables that a child may need to reach the network, if it ended
// before it was ready.
func (c *child) logWithheld() {
	withheld := c.server.pool.config.Withheld
	if len(withheld) == 0 {
		return
	}
	select {
	case <-c.announced:
	default:
		c.log().Warn("MCP server cannot reach the network; it may need environment variables of Caddy: "+
			"pass them with env inherit", zap.Strings("inherit", withheld))
	}
}

// A shared child has one log level, and so has each of its clients. The child gets the most
// verbose of them. Each client gets the messages that its own level lets through.

// defaultLevel is the level of clients that have set none, once another client has.
const defaultLevel = "info"

const setLevelMethod = "logging/setLevel"

// setLevel sets the log level of a client of a shared child.
func (rt *roundTrip) setLevel(c *child) (*http.Response, error) {
	id, level := rt.m.Literal(jsonrpc.ID), rt.m.Text(jsonrpc.Level)
	switch {
	case rt.session == nil:
		return respond(rt.req, http.StatusOK, jsonrpc.ErrorResponse(id, jsonrpc.CodeInvalidRequest,
			"several clients share this server: a log level needs a session")), nil
	case !slices.Contains(mcp.LogLevels, level):
		return respond(rt.req, http.StatusOK, jsonrpc.ErrorResponse(id, jsonrpc.CodeInvalidParams,
			"level: must be one of "+strings.Join(mcp.LogLevels, ", "))), nil
	}
	rt.session.setLevel(level)
	answer, err := c.syncLevel(rt.req.Context())
	if err != nil {
		return nil, err
	}
	if answer == nil { // the child already has that level
		return respond(rt.req, http.StatusOK, jsonrpc.ResultResponse(id, []byte("{}"))), nil
	}
	return respond(rt.req, http.StatusOK, replaceFields(answer, id, jsonrpc.ID)...), nil
}

// syncLevel sets the log level of a child to the most verbose one of its clients. It returns
// the response, or nil if the child already has that level.
func (c *child) syncLevel(ctx context.Context) (answer *jsonrpc.Message, err error) {
	select {
	case c.levelLock <- struct{}{}: // one after the other, so that the last one wins
		defer func() { <-c.levelLock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	level := c.server.level()
	if level == "" || level == c.currentLevel() {
		return nil, nil
	}
	answer, err = c.request(ctx, setLevelMethod, []byte(`{"level":"`+level+`"}`))
	if err == nil && answer.Has(jsonrpc.Result) {
		c.mu.Lock()
		c.level = level
		c.mu.Unlock()
	}
	return answer, err
}

// currentLevel returns the log level that was set for all clients.
func (c *child) currentLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// updateLevel sets the log level again after a restart, or after a client has left.
func (s *server) updateLevel(c *child) {
	if s.owner != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
	defer cancel()
	if _, err := c.syncLevel(ctx); err != nil {
		s.log().Warn("log level not set", zap.Error(err))
	}
}

// level returns the most verbose log level that a client has set, or "" if none has.
func (s *server) level() string {
	lowest := len(mcp.LogLevels)
	s.eachSession(func(session *session) {
		if i := slices.Index(mcp.LogLevels, session.logLevel()); i >= 0 {
			lowest = min(lowest, i)
		}
	})
	if lowest == len(mcp.LogLevels) {
		return ""
	}
	return mcp.LogLevels[lowest]
}

// passesLevel reports whether a client gets a notification. It does not get log messages that
// are less severe than its level.
func (c *child) passesLevel(m *jsonrpc.Message, s *session) bool {
	if c.server.owner != nil || m.Text(jsonrpc.Method) != "notifications/message" || c.currentLevel() == "" {
		return true
	}
	wanted := defaultLevel
	if s != nil {
		if level := s.logLevel(); level != "" {
			wanted = level
		}
	}
	severity := slices.Index(mcp.LogLevels, m.Text(jsonrpc.Level))
	return severity < 0 || severity >= slices.Index(mcp.LogLevels, wanted)
}
