package toolresultmask

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

// Kinds of stored data, as the store metrics name them.
var (
	heldConversations       = quota.NewKind("conversations") // requests in memory
	rememberedConversations = quota.NewKind("remembered_conversations")
)

var (
	maskedResults = telemetry.NewCounter("tool_results_masked_total",
		"Old tool results replaced by placeholders in requests to models.")
	savedChars = telemetry.NewCounter("tool_result_chars_saved_total",
		"Characters saved in requests to models; requests that became longer count as 0.")
	prefixBreaks = telemetry.NewCounter("prompt_prefix_breaks_total",
		"Requests whose beginning differs from the previous turn's.")
	passedConversations = telemetry.NewCounter("conversations_passed_total",
		"Requests that could not be masked and passed unchanged, by reason.", "reason")
	unreadResults = telemetry.NewCounter("tool_results_unread_total",
		"Old tool results that cannot be masked: not text, of an unknown call, or of an unknown kind.", "reason")
	usageTokens = telemetry.NewCounter("usage_tokens_total",
		"Tokens that models report: input, cached and cache_write (both part of input), and output.", "route", "type")
	promptCost = telemetry.NewCounter("prompt_cost_total",
		"Cost of prompts in uncached input tokens, as sent and unmasked.", "route", "of")
)
