package mcpgateway

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/toolresults"
)

// noSeparator is how a configuration says that names are left as they are.
const noSeparator = "none"

// processKey seals session ids unless there is another key. It outlives reloads, and
// so do sessions.
var processKey = seal.NewKey()

// shortestKey is how long a session_key has to be. It is no password that people
// remember.
const shortestKey = 32

// setDefaults fills in what the configuration leaves out. It comes before all else: the
// identity of a server depends on it.
func (h *Handler) setDefaults() {
	if h.ResponseTimeout == 0 {
		h.ResponseTimeout = caddy.Duration(30 * time.Second)
	}
	if h.RequestLimit == 0 {
		h.RequestLimit = 10 << 20
	}
	if h.InFlightLimit == 0 {
		h.InFlightLimit = max(gateway.DefaultInFlightLimit(), h.RequestLimit)
	}
	if h.MCPPath == "" {
		h.MCPPath = "/mcp"
	}
	if h.RPCPath == "" {
		h.RPCPath = "/api/mcp-gateway"
	}
	if h.HealthTimeout == 0 {
		h.HealthTimeout = caddy.Duration(5 * time.Second)
	}
	if h.Separator == "" {
		h.Separator = mcp.Separator
	}
	if h.MaxNameLength == 0 {
		h.MaxNameLength = 64
	}
	if h.JoinTimeout == 0 {
		h.JoinTimeout = caddy.Duration(15 * time.Second)
	}
	if h.ReportMissing == nil {
		on := true
		h.ReportMissing = &on
	}
	if h.Start == "" {
		h.Start = startLazy
	}
	if h.Audit == "" {
		h.Audit = auditDenied
	}
	if h.MaxSessions == 0 {
		h.MaxSessions = 100_000
	}
}

// newGateway sets up the gateway.
func (h *Handler) newGateway() error {
	key, err := sessionKey(h.SessionKey)
	if err != nil {
		return fmt.Errorf("session_key: %w", err)
	}
	config := gateway.Config{
		Name:           cmp.Or(h.Name, "caddy-mcp-gateway"),
		Version:        version.Current(),
		Naming:         h.naming(),
		Key:            key,
		Resumable:      h.SessionKey != "",
		JoinTimeout:    time.Duration(h.JoinTimeout),
		MaxClients:     h.MaxSessions,
		Discovery:      h.Discovery,
		Logger:         h.logger,
		Observer:       reporter{h, &requestEnds{known: map[requestEnd]*requestMetrics{}}},
		Generation:     h.generation,
		Exiting:        h.exiting,
		Reauthenticate: h.reauthenticate,
		Detach:         detached,
		RequestLimit:   h.RequestLimit,
		InFlightLimit:  h.InFlightLimit,
		ResponseLimit:  h.ResponseLimit,
		PinTools:       h.PinTools,
		Audit:          audits[h.Audit],
		Record:         h.Record,
		ReportMissing:  *h.ReportMissing,
		Originals:      toolresults.Originals{},
	}
	if before := h.incumbent(); before != nil {
		config.Replaces = before.gateway
	}
	if len(h.auth.providers) > 0 {
		config.Auth = &h.auth
	}
	for _, s := range h.Servers {
		config.Servers = append(config.Servers, s.config())
	}
	h.placeholders = newPlaceholderNames(caddyconfig.JSON(h.Servers, nil))
	if config.Clients, err = h.clients(); err != nil {
		return err
	}
	if config.Limits, err = h.limits("gateway", h.Rates, ""); err != nil {
		return err
	}
	for _, n := range h.NotificationRoutes {
		if n != nil { // which Validate refuses
			config.NotificationRoutes = append(config.NotificationRoutes, n.config(h))
		}
	}
	retained, _, err := retainedPool.LoadOrNew(h.place(), func() (caddy.Destructor, error) { return gateway.NewRetained(), nil })
	if err != nil {
		return err
	}
	h.retained = retained.(*gateway.Retained)
	sealedBy := sha256.Sum256(key) // clients are remembered by what they hold
	h.stateKey = h.Name + "\x00" + h.MCPPath + "\x00" + string(sealedBy[:])
	state, _, err := states.LoadOrNew(h.stateKey, func() (caddy.Destructor, error) { return gateway.NewState(), nil })
	if err != nil {
		return err
	}
	h.gateway = gateway.New(config, state.(*gateway.State), h.retained)
	return nil
}

// closeGateway gives back what newGateway has taken.
func (h *Handler) closeGateway() error {
	var err error
	if h.gateway != nil {
		h.gateway.Close()
		_, err = states.Delete(h.stateKey)
	}
	if h.retained != nil {
		_, released := retainedPool.Delete(h.place())
		err = errors.Join(err, released)
	}
	return err
}

// states are the clients of gateways. They outlive reloads. Gateways of the same name that
// are in use at the same time share one: what is kept for a client there is kept by server,
// and two servers with the same configuration are one.
var states = caddy.NewUsagePool()

// retainedPool has what else gateways keep across reloads.
var retainedPool = caddy.NewUsagePool()

func (h *Handler) naming() mcp.Naming {
	if h.Separator == noSeparator {
		return mcp.Naming{}
	}
	return mcp.Naming{Separator: h.Separator, Longest: h.MaxNameLength}
}

// refusedByModels reports whether model APIs refuse names with this character.
func refusedByModels(c rune) bool {
	return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-')
}

// sessionKey returns what seals session ids.
func sessionKey(config string) ([]byte, error) {
	if config == "" {
		return processKey, nil
	}
	key, err := caddy.NewReplacer().ReplaceOrErr(config, true, true)
	if err != nil {
		return nil, err
	}
	if len(key) < shortestKey {
		return nil, fmt.Errorf("it has %d characters, and needs %d", len(key), shortestKey)
	}
	return []byte(key), nil
}
