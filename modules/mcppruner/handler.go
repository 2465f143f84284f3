// Package mcppruner shortens texts line by line for a goal, and gives back what it
// left out: the HTTP handler http.handlers.mcp_pruner, an MCP server.
package mcppruner

import (
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler is an MCP server that prunes: of a text (code, logs or docs) it leaves out
// the lines that bear least on a goal, says where, and gives back any of them. Lines
// that it keeps, it keeps to the byte. It works on this machine, unless a backend is
// configured that does not.
//
// Tool | What it does
// -----|-------------
// `prune_text` | Prunes a text. A marker stands in the place of each block of lines that was left out
// `recover_text` | Returns lines of the original by the prune_id in the marker. `recover_range` is another name for it
// `health` | Says that the server is up
//
// It goes by the end of the path, so that it can be mounted below any path and inside
// a server block of mcp_gateway. Every other request goes to the next handler.
//
// Path | What is served there
// -----|---------------------
// `…/rpc` | One JSON-RPC message by POST, one JSON answer, without a handshake. Errors have status 200, except what is not JSON (400) or much too large (413), and what web pages may not send (403)
// `…/mcp` | The same over Streamable HTTP without sessions, for clients of every revision of the protocol
// `…/health` | The same as the tool health, by GET
//
// If it cannot do its work it returns the text as it was, and says why in the
// warnings of the answer: `input_too_large`, `timeout`, `constraints_unmet`,
// `recovery_unavailable` (what could not be given back is not left out) or
// `internal_error`. A backend that fails is done without: `<backend>_error` and
// `<backend>_http_error`, `_parse_error` or `_config_error` are its warnings.
//
// Errors have a symbol in error.data.code:
//
// Symbol | Code | What has happened
// -------|------|------------------
// `prune_id_not_found` | -32004 | The original is not there: never, no more, or for another client
// `store_unavailable` | -32002 | The original is not here, and what replicas share cannot be used now
// `invalid_range` | -32005 | The original has no such lines
// `invalid_params` | -32602 | There is no such tool, or an argument is wrong; the message names it
// `method_not_found` | -32601 | There is no such method
// `invalid_request`, `parse_error` | -32600, -32700 | The request is no JSON-RPC request, or not JSON
// `payload_too_large` | -32600 | The request is much larger than a text of max_input_chars can make it
// `forbidden_origin`, `forbidden_host` | -32600 | The request may come from a web page; see origins and hosts
// `header_mismatch`, `unsupported_version` | -32020, -32022 | The headers of a request of 2026-07-28 do not say what its body says, or it is of another revision
//
// Variables of the environment win over the configuration; a value that is not a
// whole number is ignored.
//
// Variable | In the place of
// ---------|----------------
// `MCP_PRUNER_MAX_INPUT_CHARS` | max_input_chars
// `MCP_PRUNER_PRUNE_ID_TTL_S` | prune_id_ttl, in seconds
// `MCP_PRUNER_CACHE_TTL_S` | cache_ttl, in seconds
// `MCP_PRUNER_CACHE_MAX_ITEMS`, or `MCP_PRUNER_CACHE_MAX_ENTRIES` | cache_max_entries
// `KIMI_PRUNING_BACKEND` | backend: deepinfra or cloud, anything else is heuristic
//
// The metrics caddy_mcp_pruned_lines_total, caddy_mcp_prune_tokens_saved_total,
// caddy_mcp_prune_fallbacks_total (by reason) and caddy_mcp_prune_duration_seconds
// count by backend. In the access log, mcp_tool says what was called, and
// mcp_prune_backend, mcp_pruned_lines, mcp_prune_tokens_saved and mcp_prune_fallback
// what came of it. Texts, goals and ids are never logged.
type Handler struct {
	// Texts of more characters (Unicode code points) are returned as they are, and so
	// are those of more than 250000 lines. At most 100000000. Default: 2000000
	MaxInputChars int `json:"max_input_chars,omitempty"`

	// How long an original can be recovered after it was last pruned, between 1s and
	// 7d. Default: 10m
	PruneIDTTL caddy.Duration `json:"prune_id_ttl,omitempty"`

	// How many originals are kept. The store is shared by all handlers with the same
	// bounds and outlives configuration reloads. When it is full, the oldest go.
	StoreLimit StoreLimit `json:"store_limit,omitzero"`

	// What says how much a line bears on a goal. Default: heuristic
	BackendRaw json.RawMessage `json:"backend,omitempty" caddy:"namespace=http.handlers.mcp_pruner.backends inline_key=backend"`

	// How long the scores of a backend that is a reranker are used again for the same
	// request of the same client, between 1s and 1h. Default: 30s
	CacheTTL caddy.Duration `json:"cache_ttl,omitempty"`

	// For how many requests they are kept. At most 100000. Default: 256
	CacheMaxEntries int `json:"cache_max_entries,omitempty"`

	// Web pages of these origins may use the pruner, besides local ones: such as
	// https://app.example.com, or * for all. Inside of an mcp_gateway it is that one
	// which decides. Default: none
	Origins []string `json:"origins,omitempty"`

	// The pruner may be called by these names, besides localhost and loopback
	// addresses, or * for any. If it is given, the Host of every request is checked.
	// Inside of an mcp_gateway it is that one which decides. Default: any name,
	// except at a loopback address
	Hosts []string `json:"hosts,omitempty"`

	requestLimit int64
	backend      Backend
	reranker     string // the configuration of the backend: another has other scores
	origins      clientrequest.Policy
	originals    *storepool.Store
	scores       *storepool.Store
	logger       *zap.Logger
}

// StoreLimit bounds the store of originals.
type StoreLimit struct {
	// Default: 1000
	Entries int `json:"entries,omitempty"`

	// What they may take together. A text of more is not pruned. Default: 64 MiB
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
	if err := h.Validate(); err != nil { // before stores are made of it
		return err
	}
	if h.StoreLimit.Entries == 0 {
		h.StoreLimit.Entries = 1000
	}
	if h.StoreLimit.Bytes == 0 {
		h.StoreLimit.Bytes = 64 << 20
	}
	h.origins = h.originPolicy()
	h.MaxInputChars = h.number("max_input_chars", h.MaxInputChars, 2_000_000, 100_000_000, "MCP_PRUNER_MAX_INPUT_CHARS")
	h.requestLimit = requestLimit(h.MaxInputChars)
	if err := h.loadBackend(ctx); err != nil {
		return err
	}
	if err := telemetry.Register(ctx, prunedLines, savedTokens, fallbacks, durations); err != nil {
		return err
	}
	h.PruneIDTTL = h.seconds("prune_id_ttl", h.PruneIDTTL, 600, 7*24*3600, "MCP_PRUNER_PRUNE_ID_TTL_S")
	h.CacheTTL = h.seconds("cache_ttl", h.CacheTTL, 30, 3600, "MCP_PRUNER_CACHE_TTL_S")
	h.CacheMaxEntries = h.number("cache_max_entries", h.CacheMaxEntries, 256, 100_000, "MCP_PRUNER_CACHE_MAX_ITEMS", "MCP_PRUNER_CACHE_MAX_ENTRIES")
	var err error
	h.originals, err = storepool.OpenCommon(ctx, pruned, store.Limits{
		Entries: h.StoreLimit.Entries,
		Bytes:   h.StoreLimit.Bytes,
		TTL:     time.Duration(h.PruneIDTTL),
	})
	if err != nil {
		return err
	}
	h.scores, err = storepool.Open(scores, store.Limits{
		Entries: h.CacheMaxEntries,
		Bytes:   maxScoreBytes,
		TTL:     time.Duration(h.CacheTTL),
	})
	return err
}

// requestLimit is how many bytes a request may have: a character takes 12 of them at
// most, as an escaped surrogate pair, and texts that are too long by not too much are
// to be returned, not refused.
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
		return fmt.Errorf("store_limit: %d entries are negative", h.StoreLimit.Entries)
	case h.StoreLimit.Bytes < 0:
		return fmt.Errorf("store_limit: %d bytes are negative", h.StoreLimit.Bytes)
	case h.CacheTTL < 0:
		return fmt.Errorf("cache_ttl: %s is negative", time.Duration(h.CacheTTL))
	case h.CacheMaxEntries < 0:
		return fmt.Errorf("cache_max_entries: %d is negative", h.CacheMaxEntries)
	}
	return h.originPolicy().Validate()
}

// ServeHTTP answers as an MCP server.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var answer reply
	switch r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] {
	case "rpc":
		answer = h.serve(rpcEndpoint, r)
	case "mcp":
		answer = h.serve(mcpEndpoint, r)
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

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
