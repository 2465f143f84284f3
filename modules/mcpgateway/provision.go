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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
)

// noSeparator is how a configuration says that names are left as they are.
const noSeparator = "none"

// processKey seals session ids unless there is another key. It outlives reloads, and
// so do sessions.
var processKey = seal.NewKey()

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
		h.InFlightLimit = max(inbound.DefaultInFlightLimit(), h.RequestLimit)
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
	key, resumable, err := h.sessionKey()
	if err != nil {
		return err
	}
	config := gateway.Config{
		Config: inbound.Config{
			Name:           cmp.Or(h.Name, "caddy-mcp-gateway"),
			Version:        version.Current(),
			Key:            key,
			JoinTimeout:    time.Duration(h.JoinTimeout),
			Logger:         h.logger,
			Exiting:        h.exiting,
			Reauthenticate: h.reauthenticate,
			RequestLimit:   h.RequestLimit,
			InFlightLimit:  h.InFlightLimit,
			ResponseLimit:  h.ResponseLimit,
			PinTools:       h.PinTools,
			Audit:          audits[h.Audit],
			Record:         h.Record,
		},
		Naming:        h.naming(),
		Resumable:     resumable,
		MaxClients:    h.MaxSessions,
		Discovery:     h.Discovery,
		Observer:      reporter{h, &requestEnds{known: map[requestEnd]*requestMetrics{}}},
		Generation:    h.generation,
		Detach:        detached,
		ReportMissing: *h.ReportMissing,
		Originals:     originals{handler: h},
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
	var space *replicas.Space
	allowWhenDown := false
	if h.store != nil {
		space = h.store.Space("gateway\x00" + h.sharedPlace())
		allowWhenDown = h.store.AllowWhenDown
	}
	retained, _, err := retainedPool.LoadOrNew(h.retainedKey(), func() (caddy.Destructor, error) {
		return gateway.NewRetained(space, allowWhenDown), nil
	})
	if err != nil {
		return err
	}
	h.retained = retained.(*gateway.Retained)
	sealedBy := sha256.Sum256(key) // clients are remembered by what they hold
	scope := h.sharedPlace() + "\x00" + string(sealedBy[:])
	h.stateKey = scope + h.storeID()
	state, _, err := states.LoadOrNew(h.stateKey, func() (caddy.Destructor, error) {
		if h.store == nil {
			return gateway.NewState(nil), nil
		}
		return gateway.NewState(h.store.Space("state\x00" + scope)), nil
	})
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
		_, released := retainedPool.Delete(h.retainedKey())
		err = errors.Join(err, released)
	}
	return err
}

// states are the clients of gateways. They outlive reloads. Gateways of the same name that
// are in use at the same time share one: what is kept for a client there is kept by server,
// and two servers with the same configuration are one.
var states = caddy.NewUsagePool()

// retainedKey returns the key of what else the gateway keeps. Another store has other things in it.
func (h *Handler) retainedKey() string { return h.place() + "\x00" + h.storeID() }

// storeID returns which store replicas share, "" if they share none.
func (h *Handler) storeID() string {
	if h.store == nil {
		return ""
	}
	return string(h.store.ID[:])
}

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

// sessionKey returns what seals session ids: the session_key of the gateway, of mcp_store, or one that only
// this process has.
func (h *Handler) sessionKey() (key []byte, given bool, err error) {
	if h.SessionKey != "" {
		key, err = setting.SessionKey(h.SessionKey)
		if err != nil {
			err = fmt.Errorf("session_key: %w", err)
		}
		return key, true, err
	}
	if h.store != nil {
		return h.store.Key("sessions"), true, nil
	}
	return processKey, false, nil
}
