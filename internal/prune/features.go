package prune

import (
	"context"
	"math"
	"slices"
	"strings"
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

// readLooks sets the features that do not depend on matches.
func (s *sheet) readLooks(l lines, o *outline, v *vocabulary, q *query, w *wording, source Source) {
	n := l.len()
	sizes := make([]int, o.blocks)
	for _, b := range o.block {
		sizes[b]++
	}
	copies := countCopies(l, o, source)
	if q.about&aboutTests != 0 {
		s.flagWords(testAsked, w, "test", "assert", "expect")
	}
	if q.about&aboutErrors != 0 {
		s.flagWords(errorAsked, w, "err", "except", "throw", "panic", "fail", "raise")
	}
	missing := 1 - min(1, s.found) // share of the goal that even the best lines lack
	for i := range n {
		x := s.row(i)
		flag := func(f feature, set bool) {
			if set {
				x[f] = 1
			}
		}
		text := strings.TrimSpace(l.line(i))
		size := math.Log1p(float64(len(text)))
		at := float64(i) / float64(n)
		x[always] = 1
		flag(inDocs, source == Docs)
		flag(isBlank, o.is(i, blank))
		flag(isBracket, o.is(i, bracket))
		flag(isCommentLine, o.is(i, comment))
		flag(isHeader, o.is(i, header))
		flag(isImportLine, o.is(i, imported))
		flag(isDecoratorLine, o.is(i, decorator))
		flag(isDefinitionLine, o.is(i, definition))
		flag(isHeading, o.is(i, heading))
		flag(isFenced, o.is(i, fenced))
		x[length] = float32(size)
		flag(isShort, len(text) < 12)
		flag(isOuter, o.indent[i] == 0)
		flag(isDeep, o.indent[i] >= 12)
		x[position], x[positionSquared] = float32(at), float32(at*at)
		flag(isFirst, at < 0.05)
		flag(isLast, at > 0.95)
		if o.parent[i] >= 0 {
			x[fromName] = float32(math.Log1p(float64(i - o.parent[i])))
		}
		block := float64(sizes[o.block[i]])
		x[blockLength] = float32(math.Log1p(block))
		x[blockShare] = float32(block / float64(n))
		sum, highest := 0.0, 0.0
		for _, term := range v.line(i) {
			r := v.rarity(term)
			sum += r
			highest = max(highest, r)
		}
		x[meanRarity] = float32(sum / float64(len(v.line(i))+1))
		x[mostRarity] = float32(highest)
		if copies[i] > 1 {
			x[isRepeated] = float32(math.Log(float64(copies[i])))
		}
		flag(isAfterBlank, i > 0 && o.is(i-1, blank))

		looks := looksOf(text)
		flag(hasString, looks.text)
		flag(hasNumber, looks.number)
		flag(hasCall, looks.call)
		flag(hasAssignment, looks.assignment)
		flag(hasBranch, looks.branch)
		flag(hasReturn, looks.returns)

		flag(commentAsked, q.about&aboutComments != 0 && o.is(i, comment))
		flag(importAsked, q.about&aboutImports != 0 && o.is(i, imported))
		flag(typeAsked, q.about&aboutTypes != 0 && o.is(i, definition))
		flag(versionAsked, q.about&aboutVersions != 0 && looks.number)
		flag(messageAsked, q.about&aboutMessages != 0 && looks.text)

		x[unmatched] = float32(missing)
		x[unmatchedDefinition] = float32(missing) * x[isDefinitionLine]
		x[unmatchedComment] = float32(missing) * x[isCommentLine]
		x[unmatchedLength] = float32(missing * size)
		x[unmatchedBlank] = float32(missing) * x[isBlank]
		x[unmatchedPosition] = float32(missing * at)
	}
}

// flagWords sets a feature of the lines that contain one of the words.
func (s *sheet) flagWords(f feature, w *wording, words ...string) {
	for _, word := range words {
		for _, i := range w.lower.containing(word) {
			s.row(i)[f] = 1
		}
	}
}

// countCopies returns, for each line, the number of equal lines, itself included; 0 for blank lines
// and brackets. Lines of logs are compared without numbers and ids.
func countCopies(l lines, o *outline, source Source) []int {
	numbers := map[string]int{}
	var counts []int
	copies := make([]int, l.len())
	var buffer []byte
	for i := range copies {
		if o.is(i, blank|bracket) {
			copies[i] = -1
			continue
		}
		text := strings.TrimSpace(l.line(i))
		if source == Logs {
			buffer = template(text, buffer)
		} else {
			buffer = append(buffer[:0], text...)
		}
		number, known := numbers[string(buffer)]
		if !known {
			number = len(counts)
			numbers[string(buffer)] = number
			counts = append(counts, 0)
		}
		counts[number]++
		copies[i] = number
	}
	for i, number := range copies {
		if number < 0 {
			copies[i] = 0
			continue
		}
		copies[i] = counts[number]
	}
	return copies
}

type looks struct {
	text, number, call, assignment, branch, returns bool
}

// looksOf returns which constructs a line of code contains.
func looksOf(text string) (has looks) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c == '\'' || c == '`':
			has.text = true
		case isDigit(c):
			has.number = true
		case c == '(' && i > 0 && (isLetter(text[i-1]) || text[i-1] == '_'):
			has.call = true
		case c == '=' && i > 0 && !strings.ContainsRune("=!<>", rune(text[i-1])) &&
			(i+1 == len(text) || text[i+1] != '='):
			has.assignment = true
		}
	}
	switch firstWord(text) {
	case "if", "else", "elif", "elsif", "for", "while", "switch", "case", "match", "when", "unless", "try", "catch",
		"except", "select":
		has.branch = true
	case "return", "raise", "throw", "yield", "panic", "break", "continue":
		has.returns = true
	}
	return has
}

// readReferences follows the names of definitions one step: from matching lines to the definitions
// they use, and from matching definitions to the lines that use them.
func (s *sheet) readReferences(l lines, o *outline) {
	blocks := map[string]int{} // defining block by name, -1 if there are several
	matches := make([]float64, o.blocks)
	for i, match := range s.matches {
		b := o.block[i]
		matches[b] = max(matches[b], match)
		if !o.is(i, definition) {
			continue
		}
		if name := nameDefined(l.line(i)); len(name) >= minReference {
			if other, known := blocks[name]; known && other != b {
				b = -1
			}
			blocks[name] = b
		}
	}
	used, uses := make([]float64, o.blocks), make([]float64, l.len())
	for i := range uses {
		line := l.line(i)
		for start, end := nextIdentifier(line, 0); start < end; start, end = nextIdentifier(line, end) {
			if end-start < minReference {
				continue
			}
			if b, known := blocks[line[start:end]]; known && b >= 0 && b != o.block[i] {
				used[b] = max(used[b], s.matches[i])
				uses[i] = max(uses[i], matches[b])
			}
		}
	}
	s.set(usedWhereFound, spread(used, o.block))
	s.set(usesFound, uses)
}

// minReference is the shortest name that is followed. Shorter ones are ambiguous.
const minReference = 3

// nameDefined returns the name that a line defines: the name after the defining keyword or before
// the parameters, or else the first name in the line.
func nameDefined(line string) string {
	first := ""
	defined := -1 // end of the defining keyword
	for start, end := nextIdentifier(line, 0); start < end; start, end = nextIdentifier(line, end) {
		named := defined >= 0 && strings.TrimSpace(line[defined:start]) == ""
		defined = -1
		switch name := line[start:end]; {
		case modifiers[name]:
		case definers[name]:
			defined = end
		case named || end < len(line) && line[end] == '(':
			return name
		case first == "":
			first = name
		}
	}
	return first
}

// nextIdentifier returns the start and end of the next identifier. They are equal if there is none.
func nextIdentifier(line string, from int) (start, end int) {
	for start = from; start < len(line) && !isLetter(line[start]) && line[start] != '_'; start++ {
	}
	for end = start; end < len(line) && (isLetter(line[end]) || isDigit(line[end]) || line[end] == '_'); end++ {
	}
	return start, end
}

// Features returns the features of a request's lines, one row each, for the command train.
func Features(r *Request) [][]float32 {
	l := split(r.Text)
	never := func() bool { return false }
	wording := readWording(l, r.Goal, never)
	sheet, err := readFeatures(context.Background(), l, outlineOf(l, r.Source, never), r.Source, r.Goal, wording)
	if err != nil {
		return nil
	}
	rows := make([][]float32, l.len())
	for i := range rows {
		rows[i] = sheet.row(i)
	}
	return rows
}
