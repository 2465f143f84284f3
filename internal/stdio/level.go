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

// A shared child has one log level, and each of its clients has one, too. The child is
// told the most verbose of them. Each client gets what its own lets through.

// usualLevel is that of clients which have set none, once another has.
const usualLevel = "info"

const setLevelMethod = "logging/setLevel"

// setLevel sets the log level of a client of a shared child.
func (rt *roundTrip) setLevel(c *child) (*http.Response, error) {
	id, level := rt.m.Literal(jsonrpc.ID), rt.m.Text(jsonrpc.Level)
	switch {
	case rt.session == nil:
		return respond(rt.req, http.StatusOK, jsonrpc.Refusal(id, jsonrpc.CodeInvalidRequest, "several clients share this server: a log level needs a session")), nil
	case !slices.Contains(mcp.LogLevels, level):
		return respond(rt.req, http.StatusOK, jsonrpc.Refusal(id, jsonrpc.CodeInvalidParams, "level: it is none of "+strings.Join(mcp.LogLevels, ", "))), nil
	}
	rt.session.setLevel(level)
	answer, err := c.tellLevel(rt.req.Context())
	if err != nil {
		return nil, err
	}
	if answer == nil { // it knows
		return respond(rt.req, http.StatusOK, jsonrpc.Answer(id, []byte("{}"))), nil
	}
	return respond(rt.req, http.StatusOK, replaced(answer, id, jsonrpc.ID)...), nil
}

// tellLevel tells a child the log level that its clients want together. It returns its
// answer, or nil if the child has been told that level before.
func (c *child) tellLevel(ctx context.Context) (answer *jsonrpc.Message, err error) {
	select {
	case c.levelling <- struct{}{}: // one after the other, so that the last is the right one
		defer func() { <-c.levelling }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	level := c.server.level()
	if level == "" || level == c.toldLevel() {
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

func (c *child) toldLevel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.level
}

// relevel tells a child a level that has changed because it was restarted, or because a
// client has left.
func (s *server) relevel(c *child) {
	if s.owner != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.pool.config.StartTimeout)
	defer cancel()
	if _, err := c.tellLevel(ctx); err != nil {
		s.log().Warn("log level not set", zap.Error(err))
	}
}

// level returns the most verbose log level that a client wants, or nothing if none has
// said.
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

// loud reports whether a client wants a notification. It does not want log messages
// that are less severe than its level.
func (c *child) loud(m *jsonrpc.Message, s *session) bool {
	if c.server.owner != nil || m.Text(jsonrpc.Method) != "notifications/message" || c.toldLevel() == "" {
		return true
	}
	wanted := usualLevel
	if s != nil {
		if level := s.logLevel(); level != "" {
			wanted = level
		}
	}
	severity := slices.Index(mcp.LogLevels, m.Text(jsonrpc.Level))
	return severity < 0 || severity >= slices.Index(mcp.LogLevels, wanted)
}
