// Package mcppruner implements http.handlers.mcp_pruner, an MCP server that shortens texts
// line by line for a goal and returns the removed lines on request.
package mcppruner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler is an MCP server that prunes texts. From code, logs or docs it removes the lines
// least relevant to a goal, marks each gap, and returns removed lines on request. The lines it
// keeps are unchanged to the byte. Texts stay on this machine unless the configured backend
// sends them to a reranker.
//
// Tool | What it does
// -----|-------------
// `prune_text` | Prunes a text. A marker replaces each block of removed lines
// `recover_text` | Returns lines of the original by the prune_id in a marker. Also called `recover_range`
// `health` | Reports that the server is up
//
// The handler looks only at the last segment of the path, so it can be mounted below any path and
// inside a server block of mcp_gateway. It passes every other request to the next handler.
//
// Path | What it serves
// -----|---------------------
// `…/rpc` | One JSON-RPC request by POST, one JSON response, no handshake. Errors have HTTP status 200
// `…/mcp` | Streamable HTTP without sessions, for clients of every protocol revision
// `…/health` | The result of the tool health, by GET
//
// At `…/rpc` only three errors have another status: 400 for a body that is not JSON, 413 for one
// that is much too large, and 403 for a request that a web page may not send.
//
// If pruning is impossible, the tool returns the text unchanged, with the reason in the warnings of
// the result: `input_too_large`, `timeout`, `constraints_unmet`, `recovery_unavailable` (the
// original cannot be kept, so nothing is removed) or `internal_error`. If the backend fails, the
// built-in heuristic prunes the text, and the warnings are `<backend>_error` and one of
// `<backend>_http_error`, `<backend>_parse_error` and `<backend>_config_error`.
//
// Errors carry a symbol in error.data.code:
//
// Symbol | Code | Meaning
// -------|------|------------------
// `prune_id_not_found` | -32004 | No such original: unknown, expired, or of another client
// `store_unavailable` | -32002 | This replica does not have the original, and the shared store is unreachable
// `invalid_range` | -32005 | The original has no such lines
// `invalid_params` | -32602 | Unknown tool or invalid argument; the message names it
// `method_not_found` | -32601 | Unknown method
// `invalid_request`, `parse_error` | -32600, -32700 | The body is not a JSON-RPC request, or not JSON
// `payload_too_large` | -32600 | The request is much larger than max_input_chars allows
// `forbidden_origin`, `forbidden_host` | -32600 | The request may come from a web page; see origins and hosts
// `header_mismatch`, `unsupported_version` | -32020, -32022 | Headers and body of a 2026-07-28 request disagree, or
// its revision is unsupported
//
// Environment variables override the configuration. A value that is not a whole number is ignored.
//
// Variable | Overrides
// ---------|----------------
// `MCP_PRUNER_MAX_INPUT_CHARS` | max_input_chars
// `MCP_PRUNER_PRUNE_ID_TTL_S` | prune_id_ttl, in seconds
// `MCP_PRUNER_CACHE_TTL_S` | cache_ttl, in seconds
// `MCP_PRUNER_CACHE_MAX_ITEMS`, or `MCP_PRUNER_CACHE_MAX_ENTRIES` | cache_max_entries
// `KIMI_PRUNING_BACKEND` | backend: deepinfra or cloud, anything else is heuristic
//
// The metrics caddy_mcp_pruned_lines_total, caddy_mcp_prune_tokens_saved_total,
// caddy_mcp_prune_fallbacks_total (by reason) and caddy_mcp_prune_duration_seconds
// count by backend. In the access log, mcp_tool is the tool that was called; mcp_prune_backend,
// mcp_pruned_lines, mcp_prune_tokens_saved and mcp_prune_fallback describe the result. Texts, goals
// and ids are never logged.
type Handler struct {
	// Texts with more characters (Unicode code points), or with more than 250000 lines, are returned
	// unchanged. At most 100000000. Default: 2000000
	MaxInputChars int `json:"max_input_chars,omitempty"`

	// How long an original can be recovered after it was last pruned. From 1s to 7d. Default: 10m
	PruneIDTTL caddy.Duration `json:"prune_id_ttl,omitempty"`

	// Limits of the store of originals. All handlers with the same limits share one store, which
	// survives configuration reloads. A full store drops its oldest originals. Default: 1000 originals
	// and 64 MiB
	StoreLimit StoreLimit `json:"store_limit,omitzero"`

	// The module that scores how relevant each line is to the goal. Default: heuristic
	BackendRaw json.RawMessage `json:"backend,omitempty" caddy:"namespace=http.handlers.mcp_pruner.backends inline_key=backend"`

	// How long the scores of a reranker are reused for the same request of the same client. From 1s to
	// 1h. Default: 30s
	CacheTTL caddy.Duration `json:"cache_ttl,omitempty"`

	// For how many requests scores are cached. At most 100000. Default: 256
	CacheMaxEntries int `json:"cache_max_entries,omitempty"`

	// Origins of web pages that may use the pruner, besides local ones, such as
	// https://app.example.com, or * for all. Ignored inside mcp_gateway, which checks origins itself.
	// Default: none
	Origins []string `json:"origins,omitempty"`

	// Host names under which clients may reach the pruner, besides localhost and loopback addresses, or
	// * for any. If set, the Host header of every request is checked. Ignored inside mcp_gateway, which
	// checks hosts itself. Default: any name, except on a loopback address
	Hosts []string `json:"hosts,omitempty"`

	requestLimit  int64
	backend       Backend
	backendConfig string // part of the cache key: another backend configuration gives other scores
	origins       clientrequest.Policy
	originals     *storepool.Store
	scores        *storepool.Store
	logger        *zap.Logger
}

// StoreLimit bounds the store of originals.
type StoreLimit struct {
	// Maximum number of originals. Default: 1000
	Entries int `json:"entries,omitempty"`

	// Maximum total size of the originals in bytes. A larger text is not pruned. Default: 64 MiB
	Bytes int64 `json:"bytes,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_pruner",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	if err := h.Validate(); err != nil { // before the stores are opened with its values
		return err
	}
	h.StoreLimit.Entries = cmp.Or(h.StoreLimit.Entries, 1000)
	h.StoreLimit.Bytes = cmp.Or(h.StoreLimit.Bytes, 64<<20)
	h.origins = h.originPolicy()
	h.MaxInputChars = h.intSetting("max_input_chars", h.MaxInputChars, 2_000_000, 100_000_000,
		"MCP_PRUNER_MAX_INPUT_CHARS")
	h.requestLimit = requestLimit(h.MaxInputChars)
	if err := h.loadBackend(ctx); err != nil {
		return err
	}
	if err := telemetry.Register(ctx, prunedLines, savedTokens, fallbacks, durations); err != nil {
		return err
	}
	h.PruneIDTTL = h.secondsSetting("prune_id_ttl", h.PruneIDTTL, 600, 7*24*3600, "MCP_PRUNER_PRUNE_ID_TTL_S")
	h.CacheTTL = h.secondsSetting("cache_ttl", h.CacheTTL, 30, 3600, "MCP_PRUNER_CACHE_TTL_S")
	h.CacheMaxEntries = h.intSetting("cache_max_entries", h.CacheMaxEntries, 256, 100_000,
		"MCP_PRUNER_CACHE_MAX_ITEMS", "MCP_PRUNER_CACHE_MAX_ENTRIES")
	var err error
	h.originals, err = storepool.OpenShared(ctx, originalsKind, store.Limits{
		Entries: h.StoreLimit.Entries,
		Bytes:   h.StoreLimit.Bytes,
		TTL:     time.Duration(h.PruneIDTTL),
	})
	if err != nil {
		return err
	}
	h.scores, err = storepool.Open(scoresKind, store.Limits{
		Entries: h.CacheMaxEntries,
		Bytes:   maxScoreBytes,
		TTL:     time.Duration(h.CacheTTL),
	})
	return err
}

// requestLimit returns how many bytes a request may have. A character takes at most 12, as an
// escaped surrogate pair. The rest is headroom for texts slightly over maxInputChars, which are
// returned unchanged instead of rejected.
func requestLimit(maxInputChars int) int64 { return 12*int64(maxInputChars) + 8<<20 }

func (h *Handler) originPolicy() clientrequest.Policy {
	return clientrequest.Policy{Directive: "mcp_pruner", Origins: h.Origins, Hosts: h.Hosts}
}

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	switch {
	case h.MaxInputChars < 0:
		return fmt.Errorf("max_input_chars: %d is negative", h.MaxInputChars)
	case h.PruneIDTTL < 0:
		return fmt.Errorf("prune_id_ttl: %s is negative", time.Duration(h.PruneIDTTL))
	case h.StoreLimit.Entries < 0:
		return fmt.Errorf("store_limit: %d entries is negative", h.StoreLimit.Entries)
	case h.StoreLimit.Bytes < 0:
		return fmt.Errorf("store_limit: %d bytes is negative", h.StoreLimit.Bytes)
	case h.CacheTTL < 0:
		return fmt.Errorf("cache_ttl: %s is negative", time.Duration(h.CacheTTL))
	case h.CacheMaxEntries < 0:
		return fmt.Errorf("cache_max_entries: %d is negative", h.CacheMaxEntries)
	}
	return h.originPolicy().Validate()
}

// ServeHTTP serves the endpoints and passes other requests on.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var answer reply
	switch r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] {
	case "rpc":
		answer = h.serve(r, true)
	case "mcp":
		answer = h.serve(r, false)
	case "health":
		answer = h.serveHealth(r)
	default:
		return next.ServeHTTP(w, r)
	}
	answer.write(w)
	return nil
}

// serveHealth answers GET …/health.
func (h *Handler) serveHealth(r *http.Request) reply {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return refuse(jsonrpc.MethodNotAllowed(http.MethodGet, http.MethodHead))
	}
	return reply{status: http.StatusOK, body: jsonrpc.Encode(h.health())}
}

// Cleanup releases the stores.
func (h *Handler) Cleanup() error {
	return errors.Join(h.originals.Release(), h.scores.Release())
}

// intSetting returns the value of an integer setting, clamped to 1..most: that of the first of
// variables that is a whole number, else the configured value, else the fallback.
func (h *Handler) intSetting(field string, configured, fallback, most int, variables ...string) int {
	n, from := cmp.Or(configured, fallback), field
	for _, name := range variables {
		if value, ok := setting.EnvInt(name); ok {
			n, from = value, name
			break
		}
	}
	return setting.Bounded(h.logger, from, n, 1, most)
}

// secondsSetting is intSetting for a duration. The variable, the fallback and most are in seconds.
func (h *Handler) secondsSetting(field string, configured caddy.Duration, fallback, most int,
	variable string) caddy.Duration {
	if _, inEnv := setting.EnvInt(variable); inEnv || configured == 0 {
		return caddy.Duration(time.Duration(h.intSetting(field, 0, fallback, most, variable)) * time.Second)
	}
	return caddy.Duration(setting.Bounded(h.logger, field,
		time.Duration(configured), time.Second, time.Duration(most)*time.Second))
}

const backends = "http.handlers.mcp_pruner.backends"

// loadBackend loads the backend that the environment names, else the configured one.
func (h *Handler) loadBackend(ctx caddy.Context) error {
	wanted, inEnv := backendFromEnv()
	configured, err := h.backendName()
	if err != nil {
		return err
	}
	h.backendConfig = string(h.BackendRaw) // LoadModule clears BackendRaw
	var module any
	if h.BackendRaw != nil { // even if the environment overrides it, to report its errors
		if module, err = ctx.LoadModule(h, "BackendRaw"); err != nil {
			return fmt.Errorf("backend: %w", err)
		}
	}
	if module == nil || inEnv && wanted != configured {
		if _, err := caddy.GetModule(backends + "." + wanted); err != nil {
			return fmt.Errorf("backend: %s is not part of this build", wanted)
		}
		if module, err = ctx.LoadModuleByID(backends+"."+wanted, nil); err != nil {
			return fmt.Errorf("backend %s: %w", wanted, err)
		}
	}
	backend, ok := module.(Backend)
	if !ok {
		return fmt.Errorf("backend: %T is not a backend of mcp_pruner", module)
	}
	h.backend = backend
	if inEnv && configured != "" && wanted != configured {
		h.logger.Info("using the backend that the environment names",
			zap.String("backend", wanted), zap.String("configured", configured))
	}
	return nil
}

// backendName returns the name of the configured backend, or "".
func (h *Handler) backendName() (string, error) {
	if string(h.BackendRaw) == "null" {
		h.BackendRaw = nil
	}
	if h.BackendRaw == nil {
		return "", nil
	}
	var inline struct {
		Backend string `json:"backend"`
	}
	if err := json.Unmarshal(h.BackendRaw, &inline); err != nil {
		return "", fmt.Errorf("backend: %w", err)
	}
	return inline.Backend, nil
}

// backendFromEnv returns the backend that KIMI_PRUNING_BACKEND selects. inEnv reports whether that
// variable is set.
func backendFromEnv() (name string, inEnv bool) {
	switch value := strings.ToLower(setting.EnvText("KIMI_PRUNING_BACKEND")); value {
	case "deepinfra", "cloud":
		return "deepinfra", true
	default:
		return "heuristic", value != ""
	}
}

// A Backend scores how relevant the lines of a text are to a goal.
type Backend interface {
	// Name returns the backend's name in statistics, warnings and metrics.
	Name() string
	// Score scores lines. If both results are nil, the built-in heuristic scores the lines.
	Score(ctx context.Context, goal string, lines []string) (*Scored, *Fault)
}

// Scored is the result of a reranker.
type Scored struct {
	Scores []float64 // one per line, NaN for lines not scored
	Docs   int       // number of lines scored
	Status int       // HTTP status
}

// A Fault says why a backend failed to score.
type Fault struct {
	Kind   string // http, parse or config; the warning is <backend>_<kind>_error
	Status int    // HTTP status of a failed response, or 0
	Err    error  // for the log; contains no secrets
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
