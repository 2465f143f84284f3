package prune

import (
	"context"
	"math"
	"slices"
)

// A feature is a property of a line that helps to tell whether it is relevant.
type feature int

// Coverage is the share of the goal's terms that are found, weighted by rarity. Relative means
// divided by the maximum over the text.
const (
	always feature = iota
	inDocs         // the text is documentation

	inLine            // coverage of the line
	inLineRelative    //
	inLineDensity     // more for short lines
	inWindow1         // coverage of the line and its neighbors
	inWindow4         //
	inWindow4Relative //
	inWindow16
	inWindow16Relative
	near3  // highest coverage nearby, decreasing with distance
	near10 //
	near40 //
	nearRank
	after10          // the same, from lines before this one
	before10         // the same, from lines after this one
	wordInLine       // a word of the goal as written
	wordInWindow4    //
	wordRare         // a word that occurs in few lines
	inBlock          // coverage of the definition, section or record
	inBlockRelative  //
	inBlockDensity   //
	inBlockRank      //
	inHead           // coverage of the heading of the block
	inOuterHead      // coverage of the heading above that
	inParagraph      //
	inParagraphRel   //
	rankedWindow4    // BM25 of the line and its neighbors, relative
	rankedWindow16   //
	rankedBlock      //
	rankedParagraph  //
	pairInLine       // two consecutive terms of the goal
	pairInWindow4    //
	namedInLine      // an identifier of the goal, as written
	namedInWindow4   //
	namedInHead      //
	relatedInLine    // terms that are common near those of the goal
	relatedInWindow4 //
	usedWhereFound   // a matching line mentions what the block defines
	usesFound        // the line mentions what a matching block defines

	isBlank
	isBracket
	isCommentLine
	isHeader
	isImportLine
	isDecoratorLine
	isDefinitionLine
	isHeading
	isFenced

	length   // in bytes, logarithmic
	isShort  //
	isOuter  // not indented
	isDeep   // deeply indented
	position // 0 at the beginning of the text, 1 at the end
	positionSquared
	isFirst      // in the first twentieth
	isLast       //
	fromName     // distance from the heading of the block, logarithmic
	blockLength  // logarithmic
	blockShare   // share of the text
	meanRarity   // of the line's terms
	mostRarity   //
	isRepeated   // number of lines like it, logarithmic
	isAfterBlank //

	hasString
	hasNumber
	hasCall
	hasAssignment
	hasBranch
	hasReturn

	commentAsked // lines of a kind that the goal is about
	importAsked
	testAsked
	errorAsked
	typeAsked
	versionAsked
	messageAsked

	unmatched           // share of the goal that even the best lines lack: without matches,
	unmatchedDefinition // only the looks of a line tell how relevant it is
	unmatchedComment
	unmatchedLength
	unmatchedBlank
	unmatchedPosition

	features
)

// A sheet holds the features of all lines.
type sheet struct {
	rows  []float32 // row by row
	found float64   // highest coverage of a line and its neighbors

	matches []float64 // match of each line and its neighbors, relative
}

func (s *sheet) row(i int) []float32 { return s.rows[i*int(features) : (i+1)*int(features)] }

// set sets one feature of all lines.
func (s *sheet) set(f feature, values []float64) {
	for i, v := range values {
		s.rows[i*int(features)+int(f)] = float32(v)
	}
}

// readFeatures computes the features of all lines.
func readFeatures(ctx context.Context, l lines, o *outline, source Source, goal string, w *wording) (*sheet, error) {
	stopped := func() bool { return ctx.Err() != nil }
	v := readVocabulary(l, stopped)
	if v == nil {
		return nil, ctx.Err()
	}
	q := parseGoal(goal)
	s := &sheet{rows: make([]float32, l.len()*int(features))}
	m := match(v, q)
	s.readMatches(m, o, v)
	s.readNames(o, q, w)
	if stopped() {
		return nil, ctx.Err()
	}
	s.readRelated(m, v)
	if source == Code {
		s.readReferences(l, o)
	}
	s.readLooks(l, o, v, q, w, source)
	return s, ctx.Err()
}

// near returns, for each line, the highest value nearby. Values decay to 1/e at the given distance.
func near(values []float64, distance float64) []float64 {
	return before(after(values, distance), distance)
}

// after is near for values of earlier lines.
func after(values []float64, distance float64) []float64 {
	fade := math.Exp(-1 / distance)
	all := slices.Clone(values)
	for i := 1; i < len(all); i++ {
		all[i] = max(all[i], all[i-1]*fade)
	}
	return all
}

// before is near for values of later lines.
func before(values []float64, distance float64) []float64 {
	fade := math.Exp(-1 / distance)
	all := slices.Clone(values)
	for i := len(all) - 2; i >= 0; i-- {
		all[i] = max(all[i], all[i+1]*fade)
	}
	return all
}

// spread returns, for each line, the value of its group.
func spread(values []float64, group []int) []float64 {
	all := make([]float64, len(group))
	for i, g := range group {
		all[i] = values[g]
	}
	return all
}

// relative divides values by their maximum.
func relative(values []float64) []float64 {
	all := make([]float64, len(values))
	if top := highest(values); top > 0 {
		for i, v := range values {
			all[i] = v / top
		}
	}
	return all
}

func highest(values []float64) float64 {
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	return top
}

// ranks returns, for each value, the share of values that are less.
func ranks(values []float64) []float64 {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	all := make([]float64, len(values))
	for i, v := range values {
		below, _ := slices.BinarySearch(sorted, v)
		all[i] = float64(below) / float64(len(values))
	}
	return all
}
