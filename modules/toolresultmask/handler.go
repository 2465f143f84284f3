// Package toolresultmask implements http.handlers.tool_result_mask, which keeps old tool results
// out of the conversations that agents send to models.
package toolresultmask

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/toolresults"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler masks old tool results in the requests an agent sends to a model: short placeholders
// replace the results of all turns but the last ones. A turn is a message of the model that
// calls tools. Calls, ids, the number and order of messages and every other byte of the request
// stay unchanged.
//
// It supports the formats of OpenAI's chat completions and responses, Anthropic's messages,
// Gemini, Ollama and Bedrock's Converse, and detects them from the body. All other requests pass
// unchanged: bodies that are not JSON, have another shape, are too large or have an unknown
// encoding, and requests signed with AWS Signature Version 4. The handler never responds with
// an error of its own.
//
// Providers cache prompts by their beginning, and bill cached tokens at about a tenth. If the
// boundary between old and new turns moves with every turn, the beginning changes with every turn,
// and masking may cost more than it saves. With step_turns or clear_at_least the boundary moves
// seldom, and between moves the beginning of the request stays the same to the byte.
//
// Responses pass unchanged and without delay. The handler reads the token usage in them and
// counts it in caddy_mcp_usage_tokens_total by route and type. caddy_mcp_prompt_cost_total
// compares the cost of prompts with their cost unmasked. These metrics count changes to
// requests: caddy_mcp_tool_results_masked_total, caddy_mcp_tool_result_chars_saved_total and
// caddy_mcp_prompt_prefix_breaks_total. caddy_mcp_conversations_passed_total counts requests that
// could not be masked, and caddy_mcp_tool_results_unread_total old results that cannot be masked,
// both by reason. caddy_mcp_tool_results_recovered_total counts recovered results. The access log
// has the same values for each request.
type Handler struct {
	// Mask requests. If false, all requests and responses pass unchanged. Default: true
	Enabled *bool `json:"enabled,omitempty"`

	// How many of the last turns keep their results. With 0 or less, nothing is masked. Default: 8
	WindowTurns *int `json:"window_turns,omitempty"`

	// Which old results to keep as errors. true keeps results that mention a traceback, an
	// exception, a timeout, connect_error or a refused connection, have a line that begins with
	// "error", are JSON with a key "error" or the status "error", or are marked is_error. This
	// also keeps source code and logs that mention these. "precise" keeps results whose first or
	// last lines report a failure, such as an exit code, a stack trace or failed tests, JSON that
	// reports one, and results marked is_error. Default: true
	KeepErrors *Errors `json:"keep_errors,omitempty"`

	// How many of the last results of each tool to keep, even in old turns. Default: 0
	KeepLastKPerTool int `json:"keep_last_k_per_tool,omitempty"`

	// The text that replaces a result, with the variables {tool_call_id}, {tool_name},
	// {original_chars} and, with recover, {id}. Default: "[Observation masquée: résultat d’outil
	// ancien (tool_call_id={tool_call_id}, outil={tool_name}, chars={original_chars})]"; with
	// recover it ends with ", id={id})]"
	PlaceholderTemplate string `json:"placeholder_template,omitempty"`

	// Move the boundary between old and new turns only in multiples of this many turns. Default: 1
	StepTurns int `json:"step_turns,omitempty"`

	// Move the boundary only if that masks at least this many tokens, estimated at four characters
	// each. "auto" moves it when masking is expected to save money at the cache_prices. Default: 0
	ClearAtLeast Tokens `json:"clear_at_least,omitempty"`

	// Prices of prompt tokens. Default: 0.1 to read from the cache, 1.25 to write to it
	CachePrices *CachePrices `json:"cache_prices,omitempty"`

	// How much "auto" may raise the bill of a conversation if it ends right after results were masked,
	// as a share of the bill from 0 to 1. Default: 0.05
	MaxLoss *float64 `json:"max_loss,omitempty"`

	// How long the provider caches a prompt after its last use. A later request finds nothing in the
	// cache, so "auto" can mask at no cost. Default: 5m for requests that mark what to cache, as
	// Anthropic's do, unless they ask for an hour; 1h for others, or 24h if they ask for a day
	CacheTTL caddy.Duration `json:"cache_ttl,omitempty"`

	// Results with fewer characters are never masked. Default: 0
	MinMaskChars int `json:"min_mask_chars,omitempty"`

	// Tools whose results are never masked: names, in which * matches any characters. Default: none
	ExcludeTools []string `json:"exclude_tools,omitempty"`

	// Maximum size of a request in bytes. Larger requests pass unchanged. Each request is held in
	// memory up to this size. Default: 32 MiB
	BufferLimit int64 `json:"buffer_limit,omitempty"`

	// Maximum total size in bytes of the requests held in memory, each until its response is complete.
	// Beyond it, requests pass unchanged. Requests from one address may use half of it. Default: 512
	// MiB
	MaxBuffered int64 `json:"max_buffered,omitempty"`

	// How long a client that keeps sending may take for each 16 KiB of a request. Caddy's
	// read_idle_timeout covers clients that send nothing. Default: 30s
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty"`

	// The name of this route to a model, for the label route of the usage and cost metrics, and for
	// the console. Default: none
	Route string `json:"route,omitempty"`

	// Keep the originals of masked results, within these bounds. The placeholder has an id, with which
	// the tool recover_observation of an mcp_gateway in the same Caddy returns the original. Only the
	// client that sent a result can recover it: the user of Caddy's authentication or, without one,
	// the address. Default: originals are not kept
	Recover *storepool.Bounds `json:"recover,omitempty"`

	policy    chat.Policy
	memory    *chat.Memory
	provider  *providerCache
	held      *quota.Meter     // requests in memory
	originals *storepool.Store // nil if not kept
	warned    *onceLog         // warnings already logged
	logger    *zap.Logger
}

// Errors selects the results that are kept as errors: true, false or "precise".
type Errors chat.Errors

// Tokens is a number of tokens, or "auto".
type Tokens int

// CachePrices are the prices of prompt tokens relative to each other. An uncached token costs 1.
type CachePrices struct {
	// Price of a token read from the cache. Default: 0.1
	Read float64 `json:"read,omitempty"`

	// Price of a token written to the cache. Default: 1.25
	Write float64 `json:"write,omitempty"`
}

const (
	auto    = "auto"
	precise = "precise"
)

// MarshalJSON writes true, false or "precise".
func (e Errors) MarshalJSON() ([]byte, error) {
	if chat.Errors(e) == chat.ErrorsPrecise {
		return json.Marshal(precise)
	}
	return json.Marshal(chat.Errors(e) == chat.ErrorsOn)
}

// UnmarshalJSON reads true, false or "precise".
func (e *Errors) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "true":
		*e = Errors(chat.ErrorsOn)
	case "false":
		*e = Errors(chat.ErrorsOff)
	case `"` + precise + `"`:
		*e = Errors(chat.ErrorsPrecise)
	default:
		return fmt.Errorf("keep_errors: %s is neither true nor false nor %q", data, precise)
	}
	return nil
}

// MarshalJSON writes a number or "auto".
func (t Tokens) MarshalJSON() ([]byte, error) {
	if t == chat.ClearAuto {
		return json.Marshal(auto)
	}
	return json.Marshal(int(t))
}

// UnmarshalJSON reads a number or "auto".
func (t *Tokens) UnmarshalJSON(data []byte) error {
	if string(data) == `"`+auto+`"` {
		*t = chat.ClearAuto
		return nil
	}
	var n int
	if err := json.Unmarshal(data, &n); err != nil || n < 0 {
		return fmt.Errorf("clear_at_least: %s is neither a number of tokens nor %q", data, auto)
	}
	*t = Tokens(n)
	return nil
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.tool_result_mask",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	h.warned = new(onceLog)
	if err := h.compile(); err != nil {
		return err
	}
	if *h.WindowTurns < 0 {
		h.logger.Warn("negative window_turns turns the mask off; write enabled off",
			zap.Int("window_turns", *h.WindowTurns))
	}
	h.memory = chat.NewMemory(rememberedConversations)
	h.provider = new(providerCache)
	h.held = quota.NewMeter(heldConversations, quota.Limits{
		Bytes: h.MaxBuffered,
		// Room for at least one request, as received and decoded.
		OwnerBytes: max(h.MaxBuffered/2, min(h.MaxBuffered, 2*h.BufferLimit)),
	})
	if !h.policy.Template.NamesCall() {
		h.logger.Warn("placeholder_template has no {tool_call_id}, so the model cannot tell which result a placeholder "+
			"replaces",
			zap.String("placeholder_template", h.policy.Template.String()))
	}
	err := telemetry.Register(ctx, maskedResults, savedChars, prefixBreaks, passedConversations, unreadResults,
		usageTokens, promptCost, toolresults.Recovered)
	if err != nil || h.Recover == nil || !*h.Enabled {
		return err
	}
	if h.originals, err = toolresults.Open(ctx, h.Recover.Limits()); err != nil {
		return err
	}
	return h.originals.WarnIfUnreadable(ctx)
}

// Cleanup releases the originals and the quota of requests in memory.
func (h *Handler) Cleanup() error {
	if h.memory != nil {
		h.memory.Close()
	}
	h.held.Close()
	return h.originals.Release()
}

// compile sets the defaults and creates the policy.
func (h *Handler) compile() error {
	h.setDefaults()
	h.policy = chat.Policy{
		WindowTurns:     *h.WindowTurns,
		KeepErrors:      chat.Errors(*h.KeepErrors),
		KeepLastPerTool: h.KeepLastKPerTool,
		MinChars:        h.MinMaskChars,
		ExcludeTools:    h.ExcludeTools,
		StepTurns:       h.StepTurns,
		ClearAtLeast:    int(h.ClearAtLeast),
		ReadPrice:       h.CachePrices.Read,
		WritePrice:      h.CachePrices.Write,
		MaxLoss:         *h.MaxLoss,
	}
	template, err := chat.ParseTemplate(h.PlaceholderTemplate)
	if err != nil {
		return fmt.Errorf("placeholder_template: %w", err)
	}
	h.policy.Template = template
	switch {
	case h.Recover == nil && template.HasID():
		return errors.New("placeholder_template: {id} needs recover")
	case h.Recover != nil && !template.HasID():
		return errors.New("recover: placeholder_template needs {id}, or originals cannot be recovered")
	case h.Recover != nil:
		return h.Recover.Validate() // before a store is opened with its values
	}
	return nil
}

func (h *Handler) setDefaults() {
	h.Enabled = cmp.Or(h.Enabled, new(true))
	h.WindowTurns = cmp.Or(h.WindowTurns, new(chat.DefaultWindowTurns))
	h.KeepErrors = cmp.Or(h.KeepErrors, new(Errors(chat.ErrorsOn)))
	if h.PlaceholderTemplate == "" {
		h.PlaceholderTemplate = chat.DefaultTemplate.String()
		if h.Recover != nil {
			h.PlaceholderTemplate = chat.DefaultTemplateWithID.String()
		}
	}
	if h.Recover != nil {
		h.Recover.SetDefaults()
	}
	h.StepTurns = cmp.Or(h.StepTurns, 1)
	h.CachePrices = cmp.Or(h.CachePrices, new(CachePrices))
	h.CachePrices.Read = cmp.Or(h.CachePrices.Read, chat.DefaultReadPrice)
	h.CachePrices.Write = cmp.Or(h.CachePrices.Write, chat.DefaultWritePrice)
	h.MaxLoss = cmp.Or(h.MaxLoss, new(chat.DefaultMaxLoss))
	h.BufferLimit = cmp.Or(h.BufferLimit, 32<<20)
	h.MaxBuffered = cmp.Or(h.MaxBuffered, 512<<20)
	h.BodyTimeout = cmp.Or(h.BodyTimeout, caddy.Duration(30*time.Second))
}

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	switch p := h.policy; {
	case h.StepTurns < 0:
		return fmt.Errorf("step_turns: %d is negative", h.StepTurns)
	case h.MinMaskChars < 0:
		return fmt.Errorf("min_mask_chars: %d is negative", h.MinMaskChars)
	case !(*h.MaxLoss >= 0 && *h.MaxLoss <= 1):
		return fmt.Errorf("max_loss: %g must be from 0 to 1", *h.MaxLoss)
	case h.CacheTTL < 0:
		return fmt.Errorf("cache_ttl: %s is negative", time.Duration(h.CacheTTL))
	case h.BufferLimit < 0:
		return fmt.Errorf("buffer_limit: %d is negative", h.BufferLimit)
	case h.BufferLimit > chat.MaxBody:
		return fmt.Errorf("buffer_limit: %d exceeds %d, the largest request that can be masked",
			h.BufferLimit, chat.MaxBody)
	case h.MaxBuffered < 0:
		return fmt.Errorf("max_buffered: %d is negative", h.MaxBuffered)
	case h.BodyTimeout < 0:
		return fmt.Errorf("body_timeout: %s is negative", time.Duration(h.BodyTimeout))
	case p.ReadPrice < 0 || p.WritePrice < 0:
		return fmt.Errorf("cache_prices: %g and %g must be positive", p.ReadPrice, p.WritePrice)
	case p.ReadPrice >= p.WritePrice:
		return fmt.Errorf("cache_prices: the read price %g must be less than the write price %g",
			p.ReadPrice, p.WritePrice)
	}
	for _, name := range h.ExcludeTools {
		if name == "" {
			return errors.New("exclude_tools: empty name")
		}
	}
	return nil
}

// ServeHTTP masks the request and reads the usage in the response.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if !*h.Enabled || r.Method != http.MethodPost || !postsJSON(r) {
		return next.ServeHTTP(w, r)
	}
	x := &modelRequest{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		handler:               h,
	}
	defer x.release()
	x.mask(r)
	if outer, ok := caddyhttp.GetVar(r.Context(), modelRequestVar).(*modelRequest); ok {
		// A tool_result_mask in front of this one watches the response and writes the log.
		outer.masked.add(x.masked)
		return x.send(next, w, r)
	}
	caddyhttp.SetVar(r.Context(), modelRequestVar, x)
	telemetry.JoinAccessLog(r, x)
	defer func() { // even when reverse_proxy panics because either side closed in mid-body
		caddyhttp.SetVar(r.Context(), modelRequestVar, nil)
		x.finish()
	}()
	return x.send(next, x, r)
}

// keep stores originals for an owner. If not all of them fit, it stores the last ones, because
// agents ask for recent results. Storing all of them would evict some, which would then be stored
// again with every request. The placeholder of a result that is not stored keeps its id, so that
// the prompt stays the same.
func (h *Handler) keep(owner string, originals []chat.Original) {
	entries, bytes := h.Recover.MaxEntries, h.Recover.MaxBytes
	fits := make([]bool, len(originals))
	for i, o := range slices.Backward(originals) {
		if size := int64(len(o.Body)); entries > 0 && size <= bytes {
			fits[i] = true
			entries, bytes = entries-1, bytes-size
		}
	}
	for i, o := range originals {
		if fits[i] {
			h.originals.Put(owner, o.ID, o.Body)
		}
	}
}

// modelRequestVar is the name of the request variable that holds the modelRequest.
const modelRequestVar = "tool_result_mask.exchange"

// postsJSON reports whether the body of r may be JSON: it has a JSON type or none.
func postsJSON(r *http.Request) bool {
	contentType := r.Header.Get("Content-Type")
	return contentType == "" || httpbody.TypeOf(contentType) == httpbody.JSON
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
