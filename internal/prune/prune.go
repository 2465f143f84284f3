// Package prune removes the lines of a text that are least relevant to a goal.
//
// It reads a text twice: for how its lines belong together (outline.go and
// outline_code.go, with syntax.go), and for features that tell how relevant they are (features.go
// and matching.go), which network.go turns into one number per line. Some lines must be kept
// (select.go). Of the others, the runs worth their tokens are kept (choose.go). Annotations and
// markers describe what was removed, with a handle by which the original can be recovered.
//
// Focus shortens a text to a number of characters instead, and needs only the goal: the source is
// detected (detect.go).
//
// The package never summarizes: kept lines are kept to the byte. The limits of a request are
// exact, to the line or character, whatever the scores are.
package prune

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
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
	content := l.withoutMark()
	o := outlineOf(content, r.Source, func() bool { return ctx.Err() != nil })
	if o == nil {
		return nil, ctx.Err()
	}
	var kept []bool
	var units []unit
	var err error
	if r.Scores != nil {
		units, kept, err = r.chooseScored(ctx, content, o, costs, removable)
	} else {
		units, kept, err = r.chooseEstimated(ctx, content, o, costs, removable)
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

// A block is a removed run of lines, [start, end) counted from 0.
type block struct{ start, end int }

// Reasons in markers. They are short, because they cost tokens.
const (
	offGoal    = "hors focus"
	onComments = "commentaires"
	onImports  = "imports"
	onBlanks   = "lignes vides"
	onRoutine  = "routine"
)

// reasonOf returns the reason for removing a block, which depends on the kind of most of its lines.
func (o *outline) reasonOf(b block, source Source) string {
	if source == Logs {
		return onRoutine
	}
	var blanks, comments, imports int
	for i := b.start; i < b.end; i++ {
		switch {
		case o.is(i, blank):
			blanks++
		case o.is(i, comment):
			comments++
		case o.is(i, imported):
			imports++
		}
	}
	switch written := b.end - b.start - blanks; {
	case written == 0:
		return onBlanks
	case 3*comments > 2*written:
		return onComments
	case 3*imports > 2*written:
		return onImports
	}
	return offGoal
}

// render returns the result of removing blocks.
func render(r *Request, l lines, o *outline, costs []int, blocks []block) *Result {
	if len(blocks) == 0 && !r.Options.AnnotateLines {
		return unchanged(r)
	}
	result := &Result{PruneID: r.ID(), Annotations: make([]Annotation, len(blocks)), Warnings: []string{}}
	var b strings.Builder
	from, removed := 0, 0
	keep := func(end int) {
		if !r.Options.AnnotateLines {
			b.WriteString(l.text[l.starts[from]:l.starts[end]])
			return
		}
		for i := from; i < end; i++ {
			writeNumber(&b, i)
			b.WriteString(l.whole(i))
		}
	}
	for i, block := range blocks {
		keep(block.start)
		a := annotate(result.PruneID, block, o.reasonOf(block, r.Source))
		result.Annotations[i] = a
		if r.Options.IncludeMarkers {
			b.WriteString(a.Marker)
			// The last line of the text may have no newline.
			if last := block.end - 1; len(l.whole(last)) > len(l.line(last)) {
				b.WriteByte('\n')
			}
		}
		removed += a.Count
		from = block.end
	}
	keep(l.len())
	result.PrunedText = b.String()
	result.account(costs, removed)
	return result
}

func annotate(id string, b block, reason string) Annotation {
	start, end, count := b.start+1, b.end, b.end-b.start
	return Annotation{
		Kind: "pruned_block", Start: start, End: end, Count: count, Reason: reason,
		Marker: fmt.Sprintf("⟦PRUNÉ: prune_id=%s lignes %d-%d (%d) raison=%s⟧", id, start, end, count, reason),
	}
}

// usdPerToken is the assumed value of a saved token.
const usdPerToken = 0.01 / 1e6

// account sets the statistics of a result whose text is set. costs are the tokens of each original
// line.
func (r *Result) account(costs []int, removed int) {
	s := &r.Stats
	s.OriginalLines, s.PrunedLines, s.KeptLines = len(costs), removed, len(costs)-removed
	if removed > 0 {
		s.PrunedRatio = math.Round(float64(removed)/float64(len(costs))*1e6) / 1e6
	}
	for _, cost := range costs {
		s.TokensBefore += cost
	}
	s.TokensAfter = tokens.Count(r.PrunedText)
	s.TokensSaved = max(0, s.TokensBefore-s.TokensAfter)
	s.CostUSD = math.Round(float64(s.TokensSaved)*usdPerToken*1e8) / 1e8
}
