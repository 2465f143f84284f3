package mcppruner

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	prunedLines = telemetry.NewCounter("pruned_lines_total", "Lines removed from texts.", "backend")
	savedTokens = telemetry.NewCounter("prune_tokens_saved_total",
		"Tokens (o200k_base) saved by pruning.", "backend")
	fallbacks = telemetry.NewCounter("prune_fallbacks_total",
		"Texts returned unchanged or pruned without the backend, by reason.", "backend", "reason")
	durations = telemetry.NewHistogram("prune_duration_seconds",
		"Time to prune a text, including the backend.", "backend")
)

// Kinds of stored data, as the store metrics name them.
var (
	originalsKind = quota.NewKind("pruned_texts")
	scoresKind    = quota.NewKind("prune_scores")
)
