package stdio

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

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
	answer, err := c.level.sync(rt.req.Context())
	if err != nil {
		return nil, err
	}
	if answer == nil { // the child already has that level
		return respond(rt.req, http.StatusOK, jsonrpc.ResultResponse(id, []byte("{}"))), nil
	}
	return respond(rt.req, http.StatusOK, replaceFields(answer, id, jsonrpc.ID)...), nil
}

// A sharedLevel is the log level of a child, as set for all its clients.
type sharedLevel struct {
	child   *child
	setting chan struct{} // holds a value while the level is being set

	mu    sync.Mutex
	level string // "" before it is set
}

// sync sets the log level of the child to the most verbose one of its clients. It returns
// the response, or nil if the child already has that level.
func (l *sharedLevel) sync(ctx context.Context) (answer *jsonrpc.Message, err error) {
	select {
	case l.setting <- struct{}{}: // one after the other, so that the last one wins
		defer func() { <-l.setting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	level := l.child.server.clients().level()
	if level == "" || level == l.current() {
		return nil, nil
	}
	answer, err = l.child.request(ctx, setLevelMethod, []byte(`{"level":"`+level+`"}`))
	if err == nil && answer.Has(jsonrpc.Result) {
		l.mu.Lock()
		l.level = level
		l.mu.Unlock()
	}
	return answer, err
}

// current returns the log level that was set for all clients.
func (l *sharedLevel) current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.level
}

// update sets the log level again after a restart, or after a client has left.
func (l *sharedLevel) update() {
	s := l.child.server
	if s.owner != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
	defer cancel()
	if _, err := l.sync(ctx); err != nil {
		s.log().Warn("log level not set", zap.Error(err))
	}
}

// passes reports whether a client gets a notification. It does not get log messages that
// are less severe than its level.
func (l *sharedLevel) passes(m *jsonrpc.Message, s *session) bool {
	if l.child.server.owner != nil || m.Text(jsonrpc.Method) != "notifications/message" || l.current() == "" {
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
