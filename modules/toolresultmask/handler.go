// Package toolresultmask keeps old tool results out of the conversations that
// agents send to models: the HTTP handler http.handlers.tool_result_mask.
package toolresultmask

import (
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

// Handler masks old tool results in the requests an agent sends to a model: the
// results of all turns but the last ones become short placeholders. A turn is a
// message of the model that calls tools. Calls, ids, the number and order of
// messages and every other byte of the request stay as they are.
//
// It knows the formats of OpenAI's chat completions and responses, of Anthropic's
// messages, of Gemini, Ollama and Bedrock's Converse, and tells them by the body of
// the request. Whatever else is posted passes as it is: no JSON, another shape, too
// large, an encoding it does not know, signed with AWS's Signature Version 4. It
// never answers with an error of its own.
//
// Providers bill what they have in their cache at a tenth, and remember prompts by
// their beginning. A window that moves with every turn changes the beginning with
// every turn, and may cost more than it saves. With step_turns or clear_at_least
// it moves seldom, and in between everything that was sent before is sent again to
// the byte.
//
// Answers are passed on untouched and at once. What they say of the tokens used is
// read in passing, and counted in the metric caddy_mcp_usage_tokens_total by route
// and type. caddy_mcp_prompt_cost_total compares what prompts have cost with what
// they would have cost unmasked. caddy_mcp_tool_results_masked_total,
// caddy_mcp_tool_result_chars_saved_total and caddy_mcp_prompt_prefix_breaks_total
// count what was done to requests, caddy_mcp_conversations_passed_total by reason
// those it could do nothing about, caddy_mcp_tool_results_unread_total by reason old
// results that cannot be masked. The access log has the same for each request.
// caddy_mcp_tool_results_recovered_total counts the results that were read back.
type Handler struct {
	// Whether the handler does anything. Default: true
	Enabled *bool `json:"enabled,omitempty"`

	// How many of the last turns keep their results. 0 or less masks nothing.
	// Default: 8
	WindowTurns *int `json:"window_turns,omitempty"`

	// Leave old results alone that look like errors. true: they mention a
	// traceback, an exception, a timeout, connect_error or a refused connection,
	// have a line that begins with "error", are JSON with a key "error" or the
	// status "error", or say is_error. Sources and logs that mention these stay,
	// too. "precise": their first and last lines report a failure, such as an exit
	// code, a stack trace or failed tests, or they are JSON that does, or they say
	// is_error. Default: true
	KeepErrors *Errors `json:"keep_errors,omitempty"`

	// How many of the last results of each tool are kept, however old. 0 or less:
	// none. Default: 0
	KeepLastKPerTool int `json:"keep_last_k_per_tool,omitempty"`

	// What stands in the place of a result, with the variables {tool_call_id},
	// {tool_name}, {original_chars} and, with recover, {id}. Default: "[Observation
	// masquée: résultat d’outil ancien (tool_call_id={tool_call_id},
	// outil={tool_name}, chars={original_chars})]", with recover ", id={id})]" at its
	// end
	PlaceholderTemplate string `json:"placeholder_template,omitempty"`

	// Move the boundary between old and new only by multiples of so many turns.
	// Default: 1
	StepTurns int `json:"step_turns,omitempty"`

	// Move it only if that masks at least so many tokens, estimated as four
	// characters each, or "auto" to mask what pays at the cache_prices within the
	// turns that may be expected. Default: 0
	ClearAtLeast Tokens `json:"clear_at_least,omitempty"`

	// What a token of a prompt costs. Default: 0.1 from the cache, 1.25 to it
	CachePrices *CachePrices `json:"cache_prices,omitempty"`

	// By how much "auto" may raise the bill of a conversation that ends right after
	// results were masked, as a share of it. Default: 0.05
	MaxLoss *float64 `json:"max_loss,omitempty"`

	// How long the provider caches a prompt after its last use. A request that comes
	// later finds nothing there, and "auto" masks at no cost. Default: 5m for requests
	// that mark what to cache, as those of Anthropic do, if they do not ask for an hour;
	// else 1h
	CacheTTL caddy.Duration `json:"cache_ttl,omitempty"`

	// Results of fewer characters are never masked. Default: 0
	MinMaskChars int `json:"min_mask_chars,omitempty"`

	// Results of these tools are never masked: names, in which * stands for any
	// characters. Default: none
	ExcludeTools []string `json:"exclude_tools,omitempty"`

	// Requests of more bytes pass as they are; so much of each request is held in
	// memory. Default: 32 MiB
	BufferLimit int64 `json:"buffer_limit,omitempty"`

	// Requests pass as they are while others hold so many bytes in memory, until
	// they are answered. Those of one address may hold half of it. Default: 512 MiB
	MaxBuffered int64 `json:"max_buffered,omitempty"`

	// How long a client that goes on sending may take for each 16 KiB of a request.
	// One that sends nothing is given up by Caddy's read_idle_timeout. Default: 30s
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty"`

	// The name of this route to a model in the metrics of usage and cost. Default: none
	Route string `json:"route,omitempty"`

	// Keep the originals of masked results for a while, within these bounds, and name
	// in the placeholder the id by which the tool recover_observation of an
	// mcp_gateway in the same Caddy returns them: to the user of Caddy's
	// authentication that has sent them or, if there was none, to its address.
	// Default: not kept
	Recover *storepool.Bounds `json:"recover,omitempty"`

	policy    chat.Policy
	memory    *chat.Memory
	provider  *providerCache
	held      *quota.Meter     // requests in memory
	originals *storepool.Store // nil if they are not kept
	said      *said
	logger    *zap.Logger
}

// Errors is which results are kept as errors: true, false or "precise".
type Errors chat.Errors

// Tokens is a number of tokens, or "auto".
type Tokens int

// CachePrices are the prices of tokens. Only their relation matters to clear_at_least;
// costs are in the unit of a token that has nothing to do with the cache.
type CachePrices struct {
	// Of one that the provider has in its cache. Default: 0.1
	Read float64 `json:"read,omitempty"`

	// Of one that it has not. Default: 1.25
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
	h.said = new(said)
	if err := h.compile(); err != nil {
		return err
	}
	if *h.WindowTurns < 0 {
		h.logger.Warn("negative window_turns turns the mask off; write enabled off", zap.Int("window_turns", *h.WindowTurns))
	}
	h.memory = chat.NewMemory(rememberedConversations)
	h.provider = new(providerCache)
	h.held = quota.NewMeter(heldConversations, quota.Limits{
		Bytes:      h.MaxBuffered,
		OwnerBytes: max(h.MaxBuffered/2, min(h.MaxBuffered, 2*h.BufferLimit)), // one request, as it came and decoded
	})
	if !h.policy.Template.NamesCall() {
		h.logger.Warn("placeholder_template does not name the call: the model cannot tell which result it stands for",
			zap.String("placeholder_template", h.policy.Template.String()))
	}
	err := telemetry.Register(ctx, maskedResults, savedChars, prefixBreaks, passedConversations, unreadResults,
		usageTokens, promptCost, toolresults.Recovered)
	if err == nil && h.Recover != nil && *h.Enabled {
		h.originals, err = toolresults.Open(ctx, h.Recover.Limits())
	}
	return err
}

// Cleanup releases the originals, and says that what is still held does not count any
// more.
func (h *Handler) Cleanup() error {
	if h.memory != nil {
		h.memory.Close()
	}
	h.held.Close()
	return h.originals.Release()
}

// compile makes the policy of the configuration.
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
		return errors.New("placeholder_template: {id} needs recover, without which nothing is kept under an id")
	case h.Recover != nil && !template.HasID():
		return errors.New("recover: placeholder_template has no {id}, without which no original can be asked for")
	case h.Recover != nil:
		return h.Recover.Validate() // before a store is made of it
	}
	return nil
}

func (h *Handler) setDefaults() {
	if h.Enabled == nil {
		h.Enabled = new(true)
	}
	if h.WindowTurns == nil {
		h.WindowTurns = new(chat.DefaultWindowTurns)
	}
	if h.KeepErrors == nil {
		h.KeepErrors = new(Errors(chat.ErrorsOn))
	}
	if h.PlaceholderTemplate == "" {
		h.PlaceholderTemplate = chat.DefaultTemplate.String()
		if h.Recover != nil {
			h.PlaceholderTemplate = chat.DefaultTemplateWithID.String()
		}
	}
	if h.Recover != nil {
		h.Recover.SetDefaults()
	}
	if h.StepTurns == 0 {
		h.StepTurns = 1
	}
	if h.CachePrices == nil {
		h.CachePrices = new(CachePrices)
	}
	if h.CachePrices.Read == 0 {
		h.CachePrices.Read = chat.DefaultReadPrice
	}
	if h.CachePrices.Write == 0 {
		h.CachePrices.Write = chat.DefaultWritePrice
	}
	if h.MaxLoss == nil {
		h.MaxLoss = new(chat.DefaultMaxLoss)
	}
	if h.BufferLimit == 0 {
		h.BufferLimit = 32 << 20
	}
	if h.MaxBuffered == 0 {
		h.MaxBuffered = 512 << 20
	}
	if h.BodyTimeout == 0 {
		h.BodyTimeout = caddy.Duration(30 * time.Second)
	}
}

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	switch p := h.policy; {
	case h.StepTurns < 0:
		return fmt.Errorf("step_turns: %d is negative", h.StepTurns)
	case h.MinMaskChars < 0:
		return fmt.Errorf("min_mask_chars: %d is negative", h.MinMaskChars)
	case !(*h.MaxLoss >= 0 && *h.MaxLoss <= 1):
		return fmt.Errorf("max_loss: %g is not a share from 0 to 1", *h.MaxLoss)
	case h.CacheTTL < 0:
		return fmt.Errorf("cache_ttl: %s is negative", time.Duration(h.CacheTTL))
	case h.BufferLimit < 0:
		return fmt.Errorf("buffer_limit: %d is negative", h.BufferLimit)
	case h.BufferLimit > chat.MaxBody:
		return fmt.Errorf("buffer_limit: %d is more than %d, the largest request that can be masked", h.BufferLimit, chat.MaxBody)
	case h.MaxBuffered < 0:
		return fmt.Errorf("max_buffered: %d is negative", h.MaxBuffered)
	case h.BodyTimeout < 0:
		return fmt.Errorf("body_timeout: %s is negative", time.Duration(h.BodyTimeout))
	case p.ReadPrice < 0 || p.WritePrice < 0:
		return fmt.Errorf("cache_prices: %g and %g, but prices are positive", p.ReadPrice, p.WritePrice)
	case p.ReadPrice >= p.WritePrice:
		return fmt.Errorf("cache_prices: reading at %g is no cheaper than writing at %g, so there is nothing to gain", p.ReadPrice, p.WritePrice)
	}
	for _, name := range h.ExcludeTools {
		if name == "" {
			return fmt.Errorf("exclude_tools: a name is empty")
		}
	}
	return nil
}

// ServeHTTP masks the request and passes the answer on.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if !*h.Enabled || r.Method != http.MethodPost || !postsJSON(r) {
		return next.ServeHTTP(w, r)
	}
	x := &exchange{
		ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w},
		handler:               h,
	}
	defer x.release()
	x.mask(r)
	if outer, ok := caddyhttp.GetVar(r.Context(), exchangeVar).(*exchange); ok {
		// Another tool_result_mask is in front: it watches the answer and joins the log.
		outer.masked.add(x.masked)
		return x.send(next, w, r)
	}
	caddyhttp.SetVar(r.Context(), exchangeVar, x)
	telemetry.JoinAccessLog(r, x)
	defer func() { // also when reverse_proxy panics because one side has died in mid-body
		caddyhttp.SetVar(r.Context(), exchangeVar, nil)
		x.finish()
	}()
	return x.send(next, x, r)
}

// keep keeps originals for an owner. If not all of them fit, the last ones stay: an
// agent asks for what it has just lost, and results that take each other's place would
// be copied anew with every request. What is not kept has its id all the same: the next
// request would have another prompt otherwise.
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

// exchangeVar is the variable of a request that has its exchange.
const exchangeVar = "tool_result_mask.exchange"

// postsJSON reports whether the body of r may be JSON. One without a type may.
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
