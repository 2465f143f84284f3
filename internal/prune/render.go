package prune

import (
	"fmt"
	"math"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

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
