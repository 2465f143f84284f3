package prune

import (
	"context"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// A Source is the type of a text.
type Source string

// Types of texts.
const (
	Code Source = "code"
	Logs Source = "logs"
	Docs Source = "docs"
)

// ParseSource returns the source of this name.
func ParseSource(name string) (source Source, ok bool) {
	source = Source(name)
	return source, source == Code || source == Logs || source == Docs
}

// A Request is a text to prune, with its goal. Text and Goal are untrusted: nothing in them is an
// instruction.
type Request struct {
	Text    string
	Goal    string
	Source  Source
	Options Options

	// Handles creates the ID.
	Handles store.Handles

	// Scores are the scores of the text's Lines, NaN where unknown. Nil to use the built-in estimate.
	Scores []float64
}

// Options are hard limits on the result, and its form.
type Options struct {
	MaxPruneRatio  float64       // largest share of lines to remove, 0 to 1
	MinKeepLines   int           // number of lines to keep at least
	Timeout        time.Duration // limit of the time to prune; requests to a reranker do not count
	AnnotateLines  bool          // kept lines are prefixed with their numbers
	IncludeMarkers bool          // markers replace removed blocks
}

// Removable returns how many of n lines may be removed.
func (o *Options) Removable(n int) int {
	return max(0, min(int(float64(n)*o.MaxPruneRatio+1e-9), n-o.MinKeepLines))
}

// Warnings of results that are the unchanged text.
const (
	InputTooLarge       = "input_too_large"
	Timeout             = "timeout"
	ConstraintsUnmet    = "constraints_unmet"
	RecoveryUnavailable = "recovery_unavailable"
	InternalError       = "internal_error"
)

// A Result is a pruned text and what was removed from it.
type Result struct {
	PruneID     string       `json:"prune_id"`
	PrunedText  string       `json:"pruned_text"`
	Annotations []Annotation `json:"annotations"`
	Stats       Stats        `json:"stats"`
	Warnings    []string     `json:"warnings"`
}

// An Annotation describes a removed block of lines.
type Annotation struct {
	Kind   string `json:"kind"` // pruned_block
	Start  int    `json:"original_start_line"`
	End    int    `json:"original_end_line"` // inclusive
	Count  int    `json:"pruned_line_count"`
	Reason string `json:"reason"`
	Marker string `json:"marker"`
}

// Stats say what pruning has saved.
type Stats struct {
	OriginalLines int     `json:"original_lines"`
	KeptLines     int     `json:"kept_lines"`
	PrunedLines   int     `json:"pruned_lines"`
	PrunedRatio   float64 `json:"pruned_ratio"`
	TokensBefore  int     `json:"tokens_est_before"`
	TokensAfter   int     `json:"tokens_est_after"`
	TokensSaved   int     `json:"tokens_saved_est"`
	CostUSD       float64 `json:"cost_estimated_usd"`
	ElapsedMS     int64   `json:"elapsed_ms"`
	UsedFallback  bool    `json:"used_fallback"`
}

// ID returns the handle of a request. It depends only on text, goal, source and options.
func (r *Request) ID() string {
	o := &r.Options
	var options []byte
	options = strconv.AppendUint(options, math.Float64bits(o.MaxPruneRatio), 16)
	options = append(options, ' ')
	options = strconv.AppendInt(options, int64(o.MinKeepLines), 10)
	options = append(options, ' ')
	options = strconv.AppendInt(options, int64(o.Timeout), 10)
	options = strconv.AppendBool(options, o.AnnotateLines)
	options = strconv.AppendBool(options, o.IncludeMarkers)
	return r.Handles.New("prn_", []byte(r.Text), []byte(r.Goal), []byte(r.Source), options)
}

// Prune removes the lines least relevant to the goal, within the limits. It always returns a usable
// result: if it fails or takes too long, the unchanged text and a warning.
func Prune(ctx context.Context, r *Request) *Result {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, r.Options.Timeout)
	defer cancel()
	result, err := r.prune(ctx)
	switch {
	case err == errTooLarge:
		result = Raw(r, InputTooLarge)
	case err == errUnmet:
		result = Raw(r, ConstraintsUnmet)
	case err != nil:
		result = Raw(r, Timeout)
	}
	result.Stats.ElapsedMS = time.Since(start).Milliseconds()
	return result
}

// MaxLines is the maximum number of lines of a text. Pruning so many takes some 200 MB of memory. A
// longer text is returned unchanged, with a warning.
const MaxLines = 250_000

var (
	errTooLarge = errors.New("too many lines")
	errUnmet    = errors.New("a limit would be broken")
)

func (r *Request) prune(ctx context.Context) (*Result, error) {
	l := split(r.Text)
	n := l.len()
	removable := r.Options.Removable(n)
	switch {
	case removable == 0 && !r.Options.AnnotateLines:
		return unchanged(r), ctx.Err()
	case removable == 0:
		return render(r, l, nil, l.tokens(), nil), ctx.Err()
	case n > MaxLines:
		return nil, errTooLarge
	}
	costs := l.tokens()
	o := outlineOf(l, r.Source, func() bool { return ctx.Err() != nil })
	if o == nil {
		return nil, ctx.Err()
	}
	var kept []bool
	var units []unit
	var err error
	if r.Scores != nil {
		units, kept, err = r.chooseScored(ctx, l, o, costs, removable)
	} else {
		units, kept, err = r.chooseEstimated(ctx, l, o, costs, removable)
	}
	if err != nil {
		return nil, err
	}
	blocks := removedBlocks(units, kept)
	if n >= shortText && !savesTokens(l, o, r.Source, costs, blocks) {
		blocks = nil
	}
	if countRemoved(blocks) > removable {
		return nil, errUnmet
	}
	return render(r, l, o, costs, blocks), nil
}

// Raw returns the unchanged text with a warning.
func Raw(r *Request, warning string) *Result {
	result := unchanged(r)
	result.Fallback(warning)
	return result
}

func unchanged(r *Request) *Result {
	n, count := split(r.Text).len(), tokens.Count(r.Text)
	return &Result{
		PruneID:     r.ID(),
		PrunedText:  r.Text,
		Annotations: []Annotation{},
		Stats:       Stats{OriginalLines: n, KeptLines: n, TokensBefore: count, TokensAfter: count},
		Warnings:    []string{},
	}
}

// Fallback records that the result is not as requested, and why.
func (r *Result) Fallback(warnings ...string) {
	r.Stats.UsedFallback = true
	r.Warnings = append(r.Warnings, warnings...)
}
