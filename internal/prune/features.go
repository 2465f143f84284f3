package prune

import (
	"context"
	"math"
	"slices"
)

// A feature is something that tells of a line whether it bears on the goal.
type feature int

// Coverage is how much of the goal is found: the share of its terms that are there,
// by their rarity. Relative is by the most that any line of the text has.
const (
	always feature = iota
	inDocs         // the text is documentation

	inLine            // coverage by the line
	inLineRelative    //
	inLineDensity     // the same in a short line says more
	inWindow1         // coverage by the line and its neighbours
	inWindow4         //
	inWindow4Relative //
	inWindow16
	inWindow16Relative
	near3  // coverage by a line near by, less the farther it is
	near10 //
	near40 //
	nearRank
	after10          // the same, of lines before this one only
	before10         // and of lines after it
	wordInLine       // a word of the goal as it is
	wordInWindow4    //
	wordRare         // that stands in few lines
	inBlock          // coverage by the definition, section or record
	inBlockRelative  //
	inBlockDensity   //
	inBlockRank      //
	inHead           // coverage by the line that names the block
	inOuterHead      // and by the one that names what that is in
	inParagraph      //
	inParagraphRel   //
	rankedWindow4    // BM25 of the line and its neighbours, relative
	rankedWindow16   //
	rankedBlock      //
	rankedParagraph  //
	pairInLine       // two terms of the goal that follow each other in it
	pairInWindow4    //
	namedInLine      // a name that the goal has, as it is written
	namedInWindow4   //
	namedInHead      //
	relatedInLine    // terms that are common where those of the goal are
	relatedInWindow4 //
	usedWhereFound   // a line that matches mentions what the block defines
	usesFound        // the line mentions what is defined by a block that matches

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
	isDeep   // indented far
	position // 0 is the beginning of the text, 1 the end
	positionSquared
	isFirst      // among the first twentieth
	isLast       //
	fromName     // distance from the line that names the block, logarithmic
	blockLength  // logarithmic
	blockShare   // of the text
	meanRarity   // of the line's terms
	mostRarity   //
	isRepeated   // there are other lines like it, logarithmic
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

	unmatched           // the goal is hardly found anywhere in the text, and
	unmatchedDefinition // so looks must do
	unmatchedComment
	unmatchedLength
	unmatchedBlank
	unmatchedPosition

	features
)

// A sheet has the features of every line of a text.
type sheet struct {
	rows  []float32 // one line after the other
	found float64   // the most that any line and its neighbours have of the goal

	matches []float64 // how well each line and its neighbours match the goal, relative
}

func (s *sheet) row(i int) []float32 { return s.rows[i*int(features) : (i+1)*int(features)] }

// set writes one feature of all lines.
func (s *sheet) set(f feature, values []float64) {
	for i, v := range values {
		s.rows[i*int(features)+int(f)] = float32(v)
	}
}

// read reads the features of all lines.
func read(ctx context.Context, l lines, o *outline, source Source, goal string, w *wording) (*sheet, error) {
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

// near returns of each line the most that a line near by has, less by half and more
// at the distance given.
func near(values []float64, distance float64) []float64 {
	return before(after(values, distance), distance)
}

// after is near for lines that stand after.
func after(values []float64, distance float64) []float64 {
	fade := math.Exp(-1 / distance)
	all := slices.Clone(values)
	for i := 1; i < len(all); i++ {
		all[i] = max(all[i], all[i-1]*fade)
	}
	return all
}

// before is near for lines that stand before.
func before(values []float64, distance float64) []float64 {
	fade := math.Exp(-1 / distance)
	all := slices.Clone(values)
	for i := len(all) - 2; i >= 0; i-- {
		all[i] = max(all[i], all[i+1]*fade)
	}
	return all
}

// spread returns of each line the value of its group.
func spread(values []float64, group []int) []float64 {
	all := make([]float64, len(group))
	for i, g := range group {
		all[i] = values[g]
	}
	return all
}

// relative returns values by the greatest of them.
func relative(values []float64) []float64 {
	all := make([]float64, len(values))
	if top := most(values); top > 0 {
		for i, v := range values {
			all[i] = v / top
		}
	}
	return all
}

func most(values []float64) float64 {
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	return top
}

// ranks returns of each value which share of all is less.
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
