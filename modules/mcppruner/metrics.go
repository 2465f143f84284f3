package mcppruner

import (
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
)

var (
	prunedLines = telemetry.NewCounter("pruned_lines_total", "Lines left out of texts.", "backend")
	savedTokens = telemetry.NewCounter("prune_tokens_saved_total", "Tokens of o200k_base by which texts became shorter.", "backend")
	fallbacks   = telemetry.NewCounter("prune_fallbacks_total", "Texts that were returned as they were, or pruned without the backend, by the reason.", "backend", "reason")
	durations   = telemetry.NewHistogram("prune_duration_seconds", "How long it took to prune a text, the backend included.", "backend")
)

// What is kept, as the metrics of all stores name it.
var (
	pruned = quota.NewKind("pruned_texts")
	scores = quota.NewKind("prune_scores")
)
