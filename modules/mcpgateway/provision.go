package mcpgateway

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/version"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// noSeparator is the value of separator that leaves names unchanged.
const noSeparator = "none"

// processKey seals session IDs if no session_key is set. Like sessions, it outlives reloads.
var processKey = seal.NewKey()

// setDefaults fills in defaults. It must run before the servers are provisioned, because their IDs
// depend on the defaults.
func (h *Handler) setDefaults() {
	h.ResponseTimeout = cmp.Or(h.ResponseTimeout, caddy.Duration(30*time.Second))
	h.RequestLimit = cmp.Or(h.RequestLimit, 10<<20)
	h.InFlightLimit = cmp.Or(h.InFlightLimit, max(inbound.DefaultInFlightLimit(), h.RequestLimit))
	h.MCPPath = cmp.Or(h.MCPPath, "/mcp")
	h.RPCPath = cmp.Or(h.RPCPath, "/api/mcp-gateway")
	h.HealthTimeout = cmp.Or(h.HealthTimeout, caddy.Duration(5*time.Second))
	h.Separator = cmp.Or(h.Separator, mcp.Separator)
	h.MaxNameLength = cmp.Or(h.MaxNameLength, 64)
	h.JoinTimeout = cmp.Or(h.JoinTimeout, caddy.Duration(15*time.Second))
	h.ReportMissing = cmp.Or(h.ReportMissing, new(true))
	h.Start = cmp.Or(h.Start, startLazy)
	h.Audit = cmp.Or(h.Audit, auditDenied)
	h.MaxSessions = cmp.Or(h.MaxSessions, 100_000)
}

// newGateway creates the gateway, and acquires the state that it keeps.
func (h *Handler) newGateway() error {
	key, resumable, err := sessionKey(h.SessionKey, h.store)
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
			Exiting:        h.lifetime.exiting,
			Reauthenticate: h.lifetime.reauthenticate,
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
		Observer:      reporter{h, &requestMetricsCache{known: map[requestLabels]*requestMetrics{}}},
		Generation:    h.generation,
		Detach:        detached,
		ReportMissing: *h.ReportMissing,
		Originals:     originals{handler: h},
	}
	if before := h.currentSibling(); before != nil {
		config.Replaces = before.gateway
	}
	if len(h.auth.providers) > 0 {
		config.Auth = &h.auth
	}
	for _, s := range h.Servers {
		config.Servers = append(config.Servers, s.config())
	}
	h.placeholders = newPlaceholderNames(caddyconfig.JSON(h.Servers, nil))
	compiler := accessCompiler{h.serverNames(), h.logger}
	if config.Clients, err = compiler.clients(h.Clients); err != nil {
		return err
	}
	warner{h}.warnOfClients()
	if config.Limits, err = compiler.limits("gateway", h.Rates, ""); err != nil {
		return err
	}
	for _, n := range h.NotificationRoutes {
		if n != nil { // Validate refuses nil
			config.NotificationRoutes = append(config.NotificationRoutes, n.config(h))
		}
	}
	h.kept.open(h, key)
	h.gateway = gateway.New(config, h.kept.clients, h.kept.retained)
	return nil
}

// closeGateway releases what newGateway acquired.
func (h *Handler) closeGateway() error {
	if h.gateway != nil {
		h.gateway.Close()
	}
	return h.kept.close()
}

// A keptState is the state of a gateway that outlives reloads.
type keptState struct {
	clients  *gateway.State    // the clients
	retained *gateway.Retained // everything else

	clientsKey, retainedKey string // in states and in retainedPool; empty unless open
}

// states holds the clients of gateways. Gateways with the same name and mcp_path share one state.
// Its entries are keyed by server, and two servers with the same configuration are one.
var states = caddy.NewUsagePool()

// retainedPool holds the state of gateways except clients.
var retainedPool = caddy.NewUsagePool()

// open acquires the state of a gateway that seals session IDs with a key. The keys in the pools
// include the shared store, whose state it mirrors.
func (k *keptState) open(h *Handler, key []byte) {
	k.retainedKey = h.reloadKey() + "\x00" + storeID(h.store)
	retained, _, _ := retainedPool.LoadOrNew(k.retainedKey, func() (caddy.Destructor, error) {
		if h.store == nil {
			return gateway.NewRetained(nil, false), nil
		}
		return gateway.NewRetained(h.store.Space("gateway\x00"+h.sharedKey()), h.store.AllowWhenDown), nil
	})
	k.retained = retained.(*gateway.Retained)
	sealedBy := sha256.Sum256(key) // clients are found by their sealed session IDs
	scope := h.sharedKey() + "\x00" + string(sealedBy[:])
	k.clientsKey = scope + storeID(h.store)
	clients, _, _ := states.LoadOrNew(k.clientsKey, func() (caddy.Destructor, error) {
		if h.store == nil {
			return gateway.NewState(nil), nil
		}
		return gateway.NewState(h.store.Space("state\x00" + scope)), nil
	})
	k.clients = clients.(*gateway.State)
}

// close releases the state.
func (k *keptState) close() (err error) {
	if k.clientsKey != "" {
		_, err = states.Delete(k.clientsKey)
	}
	if k.retainedKey != "" {
		_, released := retainedPool.Delete(k.retainedKey)
		err = errors.Join(err, released)
	}
	k.clientsKey, k.retainedKey = "", ""
	return err
}

// storeID returns the ID of the store that replicas share, or "" if it is nil.
func storeID(store *mcpstore.Store) string {
	if store == nil {
		return ""
	}
	return string(store.ID[:])
}

func (h *Handler) naming() mcp.Naming {
	if h.Separator == noSeparator {
		return mcp.Naming{}
	}
	return mcp.Naming{Separator: h.Separator, Longest: h.MaxNameLength}
}

// refusedByModels reports whether model APIs refuse tool names with this character.
func refusedByModels(c rune) bool {
	return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-')
}

// sessionKey returns the key that seals session IDs: the configured session_key, the key of
// mcp_store, or processKey. given is false for the last.
func sessionKey(configured string, store *mcpstore.Store) (key []byte, given bool, err error) {
	if configured != "" {
		key, err = setting.SessionKey(configured)
		if err != nil {
			err = fmt.Errorf("session_key: %w", err)
		}
		return key, true, err
	}
	if store != nil {
		return store.Key("sessions"), true, nil
	}
	return processKey, false, nil
}

// reloadKey identifies this gateway over reloads: by its name, or else by the names of its servers
// or of the files in servers_from.
func (h *Handler) reloadKey() string {
	if h.Name != "" {
		return h.Name + "\x00" + h.MCPPath
	}
	var names []string
	if h.shell != nil {
		names = append(names, h.shell.ServersFrom...)
	} else {
		for _, s := range h.Servers {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return "\x00" + h.MCPPath + "\x00" + strings.Join(names, "\x00")
}

// sharedKey identifies this gateway among replicas. It does not depend on the names of servers,
// which may differ while replicas get a new configuration one by one.
func (h *Handler) sharedKey() string { return h.Name + "\x00" + h.MCPPath }

// claimSharedKey checks that no other unnamed gateway of the configuration has the same sharedKey.
// Gateways with the same name share state on purpose.
func (h *Handler) claimSharedKey() error {
	if h.store == nil || h.Name != "" {
		return nil
	}
	config := h.place.handler.rawConfig // that of h may change with files
	switch claimed, err := mcpstore.Claim(h.ctx, h.sharedKey(), string(config)); {
	case err != nil:
		return err
	case !claimed:
		return fmt.Errorf("name: required with mcp_store, because another gateway has the same mcp_path %s", h.MCPPath)
	}
	return nil
}

// serverID returns an ID that changes with every setting of a server that clients can notice. After
// a reload, sessions continue with a server of the same ID. The routes must not be provisioned yet,
// because provisioning clears their configuration.
func serverID(h *Handler, s *Server) string {
	return s.Name + "\x00" +
		digest([]any{s, h.Mask, h.Focus, h.Separator, h.MaxNameLength, h.MCPPath, h.ForwardAuthHeader})
}

// serverSource identifies a server by its name and by the routes and path that produce its
// responses.
func serverSource(s *Server) string {
	return s.Name + "\x00" + digest([]any{s.Routes, s.Path})
}

// digest returns a hash of a part of a configuration.
func digest(part any) string {
	sum := sha256.Sum256(caddyconfig.JSON(part, nil))
	return hex.EncodeToString(sum[:16])
}

// registry holds the gateways of this process, for the admin API.
var registry gateways

// gateways holds handlers in the order in which they were started. During a reload it holds those
// of both configurations.
type gateways struct {
	mu  sync.Mutex
	all []*Handler
}

// add adds a handler. From then on, no audit line goes to the log of an earlier one. A handler of a
// liveGateway takes the position of the previous one of the same liveGateway, so that it does not
// count as newer than the handlers of a later configuration.
func (g *gateways) add(h *Handler) {
	auditMu.Lock()
	defer auditMu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	index := -1
	if h.shell != nil {
		index = slices.IndexFunc(g.all, func(other *Handler) bool { return other.shell == h.shell })
	}
	if index < 0 {
		g.all = append(g.all, h)
		return
	}
	g.all[index] = h
}

func (g *gateways) remove(h *Handler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = slices.DeleteFunc(g.all, func(other *Handler) bool { return other == h })
}

// current returns the handlers of the configuration that was started last. Of handlers with the
// same servers, as in several sites, only one appears.
func (g *gateways) current() (current []*Handler) {
	seen := map[string]bool{}
	for _, h := range g.everywhere() {
		if !seen[fingerprint(h)] {
			seen[fingerprint(h)] = true
			current = append(current, h)
		}
	}
	return current
}

// everywhere returns all handlers of the configuration that was started last.
func (g *gateways) everywhere() (current []*Handler) {
	newest := g.newest()
	if newest == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.all {
		if h.generation == newest.generation {
			current = append(current, h)
		}
	}
	slices.SortStableFunc(current, func(a, b *Handler) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.MCPPath, b.MCPPath))
	})
	return current
}

// newest returns the handler that was started last, or nil.
func (g *gateways) newest() *Handler {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) == 0 {
		return nil
	}
	return g.all[len(g.all)-1]
}

// fingerprint returns a text that is equal for gateways with the same name, path and servers. They
// share the state of their clients, but may be in different sites and admit different clients.
func fingerprint(h *Handler) string {
	var b strings.Builder
	b.WriteString(h.reloadKey())
	for _, s := range h.Servers {
		b.WriteString("\x00" + s.id)
	}
	return b.String()
}

// These variables say which command this process runs. They are set before a configuration is
// loaded.
var (
	onStdio       bool                      // mcp-stdio, which serves one client
	stdioClient   = access.OperatorIdentity // identity of requests through pipenet
	forOneCommand bool                      // another command of the operator
)

// SetSoleClient makes this process serve one client, on standard input and output. Rules apply only
// if client is not empty. It must be called before a configuration is loaded.
func SetSoleClient(client string) {
	onStdio = true
	stdioClient = cmp.Or(client, access.OperatorIdentity)
	mcpstdio.SetSoleClient()
}

// SetOneCommand makes this process run gateways for one command of the operator: they start a
// server only when the command needs it. It must be called before a configuration is loaded.
func SetOneCommand() {
	forOneCommand = true
	mcpstdio.SetSoleClient()
}
