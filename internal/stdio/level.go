package stdio

import (
	"context"
	"net/http"
	"slices"
	"strings"

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
