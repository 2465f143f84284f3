package toolresultmask

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

// The stores, as the metrics of all stores name them.
var (
	heldConversations       = quota.NewKind("conversations") // requests in memory
	rememberedConversations = quota.NewKind("remembered_conversations")
)

var (
	maskedResults       = telemetry.NewCounter("tool_results_masked_total", "Old tool results sent to a model as placeholders.")
	savedChars          = telemetry.NewCounter("tool_result_chars_saved_total", "Characters by which requests to models became shorter; those that became longer count as none.")
	prefixBreaks        = telemetry.NewCounter("prompt_prefix_breaks_total", "Requests whose beginning differs from that of the turn before.")
	passedConversations = telemetry.NewCounter("conversations_passed_total", "Requests that could not be masked and passed as they were.", "reason")
	unreadResults       = telemetry.NewCounter("tool_results_unread_total", "Old tool results that cannot be masked: not text, of no known call, or of an unknown kind.", "reason")
	usageTokens         = telemetry.NewCounter("usage_tokens_total", "Tokens that models have told to have used: input, of these cached and cache_write, and output.", "route", "type")
	promptCost          = telemetry.NewCounter("prompt_cost_total", "Cost of prompts, in tokens of input that no cache is used for: of those sent, and of the same unmasked.", "route", "of")
)
