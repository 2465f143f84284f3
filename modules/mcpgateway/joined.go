package mcpgateway

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/aggregate"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
)

// noSeparator is how a configuration says that names are left as they are.
const noSeparator = "none"

// processKey seals session ids unless there is another key. It outlives reloads, and
// so do sessions.
var processKey = aggregate.NewKey()

// shortestKey is how long a session_key has to be. It is no password that people
// remember.
const shortestKey = 32

// join makes one server of all.
func (h *Handler) join() error {
	if h.Separator == "" {
		h.Separator = mcp.Separator
	}
	if h.MaxNameLength == 0 {
		h.MaxNameLength = 64
	}
	if h.JoinTimeout == 0 {
		h.JoinTimeout = caddy.Duration(15 * time.Second)
	}
	if h.MaxSessions == 0 {
		h.MaxSessions = 100_000
	}
	key, err := h.key()
	if err != nil {
		return fmt.Errorf("session_key: %w", err)
	}
	h.sessionKey = key
	config := aggregate.Config{
		Name:        h.Name,
		Version:     version.Current(),
		Naming:      h.naming(),
		Key:         key,
		JoinTimeout: time.Duration(h.JoinTimeout),
		MaxClients:  h.MaxSessions,
		Discovery:   h.Discovery,
		Generation:  h.generation,
		Exiting:     h.exiting,
		Logger:      h.logger,
		Lead:        h.lead,
		View:        h.view,
		Standing:    h.standing,
	}
	if len(h.Clients) > 0 {
		config.Sees, config.Hears, config.Others = h.sees, h.hears, h.others
	}
	if len(h.NotificationRoutes) > 0 {
		config.Concerned = h.concerned
	}
	if config.Name == "" {
		config.Name = "caddy-mcp-gateway"
	}
	for _, s := range h.Servers {
		config.Servers = append(config.Servers, &aggregate.Server{
			Name: s.Name, ID: s.id, Aliases: s.Aliases, Expose: s.Expose, Upstream: upstream{h, s},
		})
	}
	h.offerRecovery(&config)
	h.offerTemplates(&config)
	sealedBy := sha256.Sum256(key) // what is remembered is found by what was sealed
	h.stateKey = h.Name + "\x00" + h.MCPPath + "\x00" + string(sealedBy[:])
	state, _, err := states.LoadOrNew(h.stateKey, func() (caddy.Destructor, error) { return aggregate.NewState(), nil })
	if err != nil {
		return err
	}
	h.joined = aggregate.New(config, state.(*aggregate.State))
	return nil
}

// states has what is remembered of clients, by gateway. It outlives reloads. Gateways
// of the same name that are in use at the same time have the same: what is kept for a
// client there is kept by server, and two servers with the same configuration are one.
var states = caddy.NewUsagePool()

func (h *Handler) naming() mcp.Naming {
	if h.Separator == noSeparator {
		return mcp.Naming{}
	}
	return mcp.Naming{Separator: h.Separator, Longest: h.MaxNameLength}
}

// validateJoined checks that one server can be made of all, and that what clients see of
// it can be told apart.
func (h *Handler) validateJoined() error {
	naming := h.naming()
	switch {
	case h.Separator == noSeparator && len(h.Servers) > 1:
		return fmt.Errorf("separator: none is for a single server, and there are %d", len(h.Servers))
	case h.MaxNameLength < 0:
		return fmt.Errorf("max_name_length: %d is negative", h.MaxNameLength)
	case h.MaxSessions < 0:
		return fmt.Errorf("max_sessions: %d is negative", h.MaxSessions)
	case h.JoinTimeout < 0:
		return fmt.Errorf("join_timeout: %s is negative", time.Duration(h.JoinTimeout))
	}
	if err := naming.CheckSeparator(); err != nil {
		return err
	}
	if h.Separator == noSeparator {
		return nil
	}
	for _, s := range h.Servers {
		for _, name := range append([]string{s.Name}, s.Aliases...) {
			if err := naming.Check(name); err != nil {
				return fmt.Errorf("server %q: %w", s.Name, err)
			}
		}
		if strings.ContainsFunc(s.Name, refusedByModels) {
			h.logger.Warn("tool names with other characters than letters, digits, _ and - are refused by model APIs", zap.String("mcp_server", s.Name))
		}
	}
	if h.Separator == mcp.Separator {
		h.logger.Warn("tool names with :: are refused by model APIs; set separator __ unless your clients rename them")
	}
	return nil
}

// refusedByModels reports whether model APIs refuse names with this character.
func refusedByModels(c rune) bool {
	return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-')
}

// key returns what seals session ids.
func (h *Handler) key() ([]byte, error) {
	if h.SessionKey == "" {
		return processKey, nil
	}
	key, err := caddy.NewReplacer().ReplaceOrErr(h.SessionKey, true, true)
	if err != nil {
		return nil, err
	}
	if len(key) < shortestKey {
		return nil, fmt.Errorf("it has %d characters, and needs %d", len(key), shortestKey)
	}
	return []byte(key), nil
}

// serveJoined answers a request to all servers.
func (x *exchange) serveJoined(r *http.Request) *jsonrpc.Failure {
	if r.Method == http.MethodGet || x.message.Is(jsonrpc.Method, mcp.MethodListen) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(x.handler.exiting, cancel)()
		r = r.WithContext(ctx)
	}
	posted := r
	defer func() { posted.Body, posted.GetBody = http.NoBody, nil }() // what is remembered of it need not have that
	r = r.WithContext(context.WithValue(stdio.WithOwner(r.Context(), x.budget()), outerKey{}, x.outer(r)))
	if len(x.handler.providers) > 0 && !x.handler.forwardsAuth {
		// They have told who the client is, and would tell it apart from itself: some are
		// others in each request.
		x.handler.stripCredentials(r.Header)
	}
	who := aggregate.Visitor{Identity: x.caller.identity, Address: x.address, Admit: x.admit}
	result := x.handler.joined.Serve(x.w, r, &x.message, who)
	if x.server = x.handler.byName[result.Server]; x.server != nil {
		x.passedOn, x.tool = result.Sent, mcp.Shortened(result.Name)
	}
	switch x.errorCode = result.Code; {
	case result.Torn:
		panic(http.ErrAbortHandler) // so that the client can tell
	case result.Failure != nil:
		return result.Failure
	case r.Context().Err() != nil && x.handler.exiting.Err() == nil:
		x.outcome = outcomeCanceled
	case result.Symbol != "":
		x.outcome = result.Symbol
	case result.Code != 0:
		x.outcome = outcomeError
	default:
		x.outcome = outcomeOK
	}
	return nil
}
