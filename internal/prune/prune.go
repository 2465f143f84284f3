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

// A Source is what a text is.
type Source string

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

// A Request is a text to prune, and what for. Text and Goal come from anywhere;
// nothing in them is ever an instruction.
type Request struct {
	Text    string
	Goal    string
	Source  Source
	Options Options

	// Handles makes the ID.
	Handles store.Handles

	// Scores says of each of the Lines of the text how much it bears on the goal,
	// NaN where nobody knows. Nil for our own estimate.
	Scores []float64
}

// Options are limits on the result, not preferences, and its form.
type Options struct {
	MaxPruneRatio  float64       // of the lines, 0 to 1
	MinKeepLines   int           // not negative
	Timeout        time.Duration // of local work
	AnnotateLines  bool          // kept lines have their number in front
	IncludeMarkers bool          // a marker stands where a block was
}

// Removable returns how many of n lines may be removed.
func (o *Options) Removable(n int) int {
	return max(0, min(int(float64(n)*o.MaxPruneRatio+1e-9), n-o.MinKeepLines))
}

// Warnings of results which are the text as it was.
const (
	InputTooLarge       = "input_too_large"
	Timeout             = "timeout"
	ConstraintsUnmet    = "constraints_unmet"
	RecoveryUnavailable = "recovery_unavailable"
	InternalError       = "internal_error"
)

// A Result is a pruned text and an account of what was done to it.
type Result struct {
	PruneID     string       `json:"prune_id"`
	PrunedText  string       `json:"pruned_text"`
	Annotations []Annotation `json:"annotations"`
	Stats       Stats        `json:"stats"`
	Warnings    []string     `json:"warnings"`
}

// An Annotation describes a block of lines that was removed.
type Annotation struct {
	Kind   string `json:"kind"` // pruned_block
	Start  int    `json:"original_start_line"`
	End    int    `json:"original_end_line"` // inclusive
	Count  int    `json:"pruned_line_count"`
	Reason string `json:"reason"`
	Marker string `json:"marker"`
}

// Stats say what a pruning has saved.
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

// ID returns the handle of a request: the same whenever text, goal, source and
// options are.
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

// Prune leaves out of a text what bears least on its goal, as far as the limits
// allow. It always returns something that can be used: if it can not do its work, or
// not in time, the text as it was and a warning.
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

// MaxLines is how many lines a text may have: so many take some 200 MB for a moment.
// One of more is returned as it was, and said to be too large.
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
		units, kept, err = r.chooseOwn(ctx, l, o, costs, removable)
	}
	if err != nil {
		return nil, err
	}
	blocks := removed(units, kept)
	if n >= short && !pays(l, o, r.Source, costs, blocks) {
		blocks = nil
	}
	if count(blocks) > removable {
		return nil, errUnmet
	}
	return render(r, l, o, costs, blocks), nil
}

// Raw returns the text as it was, with a warning why.
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

// Fallback notes that the result is not what was asked for, and why.
func (r *Result) Fallback(warnings ...string) {
	r.Stats.UsedFallback = true
	r.Warnings = append(r.Warnings, warnings...)
}
