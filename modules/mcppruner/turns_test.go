package mcppruner

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// Large texts wait for a free slot. Small texts do not.
func TestLargeTextsTakeTurns(t *testing.T) {
	for range cap(slots) {
		slots <- struct{}{}
	}
	defer func() {
		for range cap(slots) {
			<-slots
		}
	}()
	of := func(lines int, timeout time.Duration) *pruning {
		return &pruning{request: &prune.Request{
			Text: strings.Repeat("a line that says nothing\n", lines), Goal: "goal", Source: prune.Docs,
			Options: prune.Options{MaxPruneRatio: 0.5, Timeout: timeout, IncludeMarkers: true},
		}}
	}
	if got := of(maxUnqueuedLines, time.Minute).pruneQueued(t.Context()); got.Stats.PrunedLines == 0 ||
		len(got.Warnings) > 0 {
		t.Errorf("a small text: %+v, %v", got.Stats, got.Warnings)
	}
	if got := of(maxUnqueuedLines+1, time.Millisecond).pruneQueued(t.Context()); !slices.Equal(got.Warnings,
		[]string{prune.Timeout}) {
		t.Errorf("a large text after its timeout: %+v, %v", got.Stats, got.Warnings)
	}
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	if got := of(maxUnqueuedLines+1, time.Minute).pruneQueued(gone); got.Stats.PrunedLines != 0 {
		t.Errorf("a large text of a canceled request: %+v", got.Stats)
	}
	<-slots
	if got := of(maxUnqueuedLines+1, time.Minute).pruneQueued(t.Context()); got.Stats.PrunedLines == 0 {
		t.Errorf("a large text with a free slot: %+v, %v", got.Stats, got.Warnings)
	}
	slots <- struct{}{}
}
