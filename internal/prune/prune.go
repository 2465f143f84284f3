package prune

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
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

	// Scores says of each line how much it bears on the goal, NaN where nobody
	// knows. Nil for our own estimate.
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
	return store.Handle("prn_", []byte(r.Text), []byte(r.Goal), []byte(r.Source), options)
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

// MaxLines is how many lines a text may have: so many take some 100 MB for a moment.
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
	case removable == 0:
		return render(r, l, nil, nil), ctx.Err()
	case n > MaxLines:
		return nil, errTooLarge
	}
	o := outlineOf(l, r.Source, func() bool { return ctx.Err() != nil })
	if o == nil {
		return nil, ctx.Err()
	}
	var kept []bool
	var units []unit
	var err error
	if r.Scores != nil {
		units, kept, err = r.chooseScored(ctx, l, o, removable)
	} else {
		units, kept, err = r.chooseOwn(ctx, l, o, removable)
	}
	if err != nil {
		return nil, err
	}
	blocks := removed(units, kept)
	if n >= short && !pays(l, blocks) {
		blocks = nil
	}
	if count(blocks) > removable {
		return nil, errUnmet
	}
	return render(r, l, o, blocks), nil
}

// pays reports whether what is removed is more than its markers, whatever their handle.
func pays(l lines, blocks []block) bool {
	gain := 0.0
	for _, b := range blocks {
		gain += tokenWeight(l.text[l.starts[b.start]:l.starts[b.end]]) - markerTokens(dearestHandle, l.len())
	}
	return gain > 0
}

// chooseOwn chooses by our own estimate of what bears on the goal.
func (r *Request) chooseOwn(ctx context.Context, l lines, o *outline, removable int) ([]unit, []bool, error) {
	goal := beginning(r.Goal)
	w := readWording(l, goal, func() bool { return ctx.Err() != nil })
	if w == nil {
		return nil, nil, ctx.Err()
	}
	sheet, err := read(ctx, l, o, r.Source, goal, w)
	if err != nil {
		return nil, nil, err
	}
	values := sheet.values()
	units := newUnits(l, o, values, protect(l, o, w, values, removable))
	b := budget{removable: removable, enough: (removable + 1) / 2, marker: markerTokens(usualHandle, l.len())}
	for i := range units {
		b.tokens += units[i].tokens
	}
	b.tokens *= 1 - saving(float64(removable)/float64(l.len()))
	kept, err := chooseNamed(ctx, units, b, o)
	return units, kept, err
}

// chooseNamed chooses, and keeps the definitions and headings that kept lines are
// under. They cost tokens too, so it chooses again when it is known which they are.
func chooseNamed(ctx context.Context, units []unit, b budget, o *outline) (kept []bool, err error) {
	const rounds = 3 // by then hardly any are new
	for range rounds {
		if kept, err = choose(ctx, units, b); err != nil {
			return nil, err
		}
		for _, name := range keepNames(units, kept, o) {
			units[name].must = true
		}
	}
	return kept, nil
}

// maxGoal is how many bytes of a goal are read. It is a sentence, or a short text.
const maxGoal = 16 << 10

func beginning(goal string) string {
	if len(goal) <= maxGoal {
		return goal
	}
	return strings.ToValidUTF8(goal[:maxGoal], "")
}

// chooseScored chooses by the scores of a reranker, which say nothing of tokens: every
// line costs the same. Of a short text just the best lines are kept.
func (r *Request) chooseScored(ctx context.Context, l lines, o *outline, removable int) ([]unit, []bool, error) {
	values := levelled(r.Scores)
	units := newUnits(l, o, values, protect(l, o, new(wording), values, removable))
	if l.len() < short {
		return units, best(units, removable), nil
	}
	b := budget{removable: removable, enough: removable, marker: markerTokens(usualHandle, l.len()), exact: true}
	for i := range units {
		b.tokens += units[i].tokens
	}
	for i := range units {
		units[i].tokens = b.tokens / float64(l.len()) * float64(units[i].lines())
	}
	kept, err := chooseNamed(ctx, units, b, o)
	return units, kept, err
}

// saving is the share of tokens that is to be saved where a share of the lines may be
// removed. It is less, for markers cost tokens and what matters has long lines.
func saving(ratio float64) float64 { return ratio * (0.845 + 0.06*ratio) }

// Handles to reckon with, not those of the request: those are others in each process,
// and what is kept must not be.
const (
	usualHandle   = "prn_3SEMd5UxCK1U4BvxWSkab2"
	dearestHandle = "prn_a0a0a0a0a0a0a0a0a0a0a0"
)

// markerTokens is what a marker costs in a text of n lines. What is kept does not
// depend on whether there are markers: it is the same, however it is shown.
func markerTokens(handle string, n int) float64 {
	return tokenWeight(annotate(handle, block{n - 1, n}, offGoal).Marker)
}

// newUnits returns what is kept or removed as a whole.
func newUnits(l lines, o *outline, values []float64, must []bool) []unit {
	units := make([]unit, 0, len(values))
	for i, value := range values {
		tokens := tokenWeight(l.line(i))
		if o.is(i, joined) {
			last := &units[len(units)-1]
			last.end++
			last.value += value
			last.tokens += tokens
			last.must = last.must || must[i]
			continue
		}
		units = append(units, unit{i, i + 1, value, tokens, must[i]})
	}
	return units
}

// levelled returns the scores of a reranker, whatever their scale, as values above 0
// and up to 1. Lines without a score have a little less than the nearest that has one.
func levelled(scores []float64) []float64 {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range scores {
		if !math.IsNaN(s) {
			low, high = min(low, s), max(high, s)
		}
	}
	values := make([]float64, len(scores))
	distance := make([]int, len(scores)) // from the line that has it
	for i, s := range scores {
		switch {
		case math.IsNaN(s) && i > 0:
			values[i], distance[i] = values[i-1], distance[i-1]+1
		case math.IsNaN(s):
			distance[i] = len(scores)
		case high > low:
			values[i] = (s/2 - low/2) / (high/2 - low/2) // halves do not overflow
		}
	}
	for i := len(scores) - 2; i >= 0; i-- {
		if distance[i+1]+1 < distance[i] {
			values[i], distance[i] = values[i+1], distance[i+1]+1
		}
	}
	for i := range values {
		if values[i] = 0.001 + 0.999*values[i]; distance[i] > 0 {
			values[i] *= 0.999
		}
	}
	return values
}

// best keeps the best units, the first of those that are equal, and no more than must
// be.
func best(units []unit, removable int) []bool {
	order := make([]int, len(units))
	kept := make([]bool, len(units))
	left := 0
	for i := range units {
		order[i], kept[i] = i, units[i].must
		if !kept[i] {
			left += units[i].lines()
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(units[b].value, units[a].value) })
	for _, i := range order {
		if left <= removable {
			break
		}
		if !kept[i] {
			kept[i] = true
			left -= units[i].lines()
		}
	}
	return kept
}

// keepNames keeps the definitions and headings that kept lines are under.
func keepNames(units []unit, kept []bool, o *outline) (names []int) {
	index := make([]int, len(o.kinds)) // the unit of each line
	for u := range units {
		for i := units[u].start; i < units[u].end; i++ {
			index[i] = u
		}
	}
	for u := len(units) - 1; u >= 0; u-- {
		if !kept[u] || units[u].lines() == 1 && o.is(units[u].start, blank|bracket) {
			continue
		}
		for p := o.parent[units[u].start]; p >= 0 && !kept[index[p]]; p = o.parent[p] {
			kept[index[p]] = true
			names = append(names, index[p])
		}
	}
	return names
}

// removed returns the runs of units that are not kept.
func removed(units []unit, kept []bool) (blocks []block) {
	for i := range units {
		if kept[i] {
			continue
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].end == units[i].start {
			blocks[last].end = units[i].end
			continue
		}
		blocks = append(blocks, block{units[i].start, units[i].end})
	}
	return blocks
}

// count returns how many lines blocks have together.
func count(blocks []block) (n int) {
	for _, b := range blocks {
		n += b.end - b.start
	}
	return n
}

// Raw returns the text as it was, with a warning why.
func Raw(r *Request, warning string) *Result {
	result := unchanged(r)
	result.Fallback(warning)
	return result
}

func unchanged(r *Request) *Result {
	n, tokens := split(r.Text).len(), EstimateTokens(r.Text)
	return &Result{
		PruneID:     r.ID(),
		PrunedText:  r.Text,
		Annotations: []Annotation{},
		Stats:       Stats{OriginalLines: n, KeptLines: n, TokensBefore: tokens, TokensAfter: tokens},
		Warnings:    []string{},
	}
}

// Fallback notes that the result is not what was asked for, and why.
func (r *Result) Fallback(warnings ...string) {
	r.Stats.UsedFallback = true
	r.Warnings = append(r.Warnings, warnings...)
}
