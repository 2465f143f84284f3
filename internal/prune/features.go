package prune

import (
	"context"
	"math"
	"slices"
	"strings"
)

// A feature is something that tells of a line whether it bears on the goal.
type feature int

// Coverage is how much of the goal is found: the share of its terms that are there,
// by their rarity. Relative is by the most that any line of the text has.
const (
	always feature = iota
	inDocs         // the text is documentation
	inLogs         // it is a log

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
	pairInLine       // two terms of the goal that follow each other in it
	pairInWindow4    //
	namedInLine      // a name that the goal has, as it is written
	namedInWindow4   //
	namedInHead      //
	relatedInLine    // terms that are common where those of the goal are
	relatedInWindow4 //

	isBlank
	isBracket
	isCommentLine
	isHeader
	isImportLine
	isDecoratorLine
	isDefinitionLine
	isHeading
	isFenced
	isFailure
	isSevere
	isTrace

	length   // in tokens, logarithmic
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
	s.readNames(l, o, q, w)
	if stopped() {
		return nil, ctx.Err()
	}
	s.readRelated(m, v)
	s.readLooks(l, o, v, q, source)
	return s, ctx.Err()
}

// A matching is where the terms of a goal are.
type matching struct {
	weights []float64   // of each term, adding up to 1
	hits    [][]float64 // of each term, by line: how much of it is there
	line    []float64   // coverage by line
}

func match(v *vocabulary, q *query) *matching {
	n := len(v.ends)
	m := &matching{line: make([]float64, n)}
	similar := make([][]float64, len(q.terms)) // by term of the goal, then of the text
	for t, term := range q.terms {
		best := 0.0
		similar[t] = make([]float64, len(v.terms))
		for i, other := range v.terms {
			if sim := similarity(term.stem, other); sim > 0 {
				similar[t][i] = sim
				best = max(best, sim*v.rarity(i))
			}
		}
		m.weights = append(m.weights, term.weight*best)
		m.hits = append(m.hits, make([]float64, n))
	}
	total := 0.0
	for _, w := range m.weights {
		total += w
	}
	for t := range m.weights {
		if total > 0 {
			m.weights[t] /= total
		}
		if m.weights[t] == 0 {
			continue
		}
		for i := range n {
			for _, term := range v.line(i) {
				m.hits[t][i] = max(m.hits[t][i], similar[t][term])
			}
			m.line[i] += m.weights[t] * m.hits[t][i]
		}
	}
	return m
}

// window returns the coverage by each line and as many as radius on both sides.
func (m *matching) window(radius int) []float64 {
	n := len(m.line)
	all := make([]float64, n)
	sums := make([]float64, n+1)
	for t, hits := range m.hits {
		if m.weights[t] == 0 {
			continue
		}
		for i, hit := range hits {
			sums[i+1] = sums[i] + hit
		}
		for i := range n {
			found := sums[min(n, i+radius+1)] - sums[max(0, i-radius)]
			all[i] += m.weights[t] * (found / (found + 0.5)) * 1.5
		}
	}
	return all
}

// gather returns the coverage by groups of lines, and how dense it is there.
func (m *matching) gather(group []int, groups int) (coverage, density []float64) {
	coverage, density = make([]float64, groups), make([]float64, groups)
	sizes := make([]float64, groups)
	for i, g := range group {
		sizes[g]++
		density[g] += m.line[i]
	}
	sums := make([]float64, groups)
	for t, hits := range m.hits {
		if m.weights[t] == 0 {
			continue
		}
		clear(sums)
		for i, g := range group {
			sums[g] += hits[i]
		}
		for g, found := range sums {
			coverage[g] += m.weights[t] * (found / (found + 1)) * 1.5
		}
	}
	for g := range density {
		density[g] /= sizes[g] + 4
	}
	return coverage, density
}

// pairs returns, by line, how many terms follow each other there as in the goal.
func (m *matching) pairs() []float64 {
	all := make([]float64, len(m.line))
	for t := 1; t < len(m.hits); t++ {
		weight := m.weights[t-1] + m.weights[t]
		for i := range all {
			if m.hits[t-1][i] > 0.5 && m.hits[t][i] > 0.5 {
				all[i] += weight
			}
		}
	}
	return all
}

func (s *sheet) readMatches(m *matching, o *outline, v *vocabulary) {
	n := len(m.line)
	s.set(inLine, m.line)
	s.set(inLineRelative, relative(m.line))
	mean := float64(len(v.of))/float64(max(n, 1)) + 1
	density := make([]float64, n)
	for i := range n {
		density[i] = m.line[i] / (0.3 + 0.7*float64(len(v.line(i)))/mean)
	}
	s.set(inLineDensity, relative(density))

	window4, window16 := m.window(4), m.window(16)
	s.set(inWindow1, m.window(1))
	s.set(inWindow4, window4)
	s.set(inWindow4Relative, relative(window4))
	s.set(inWindow16, window16)
	s.set(inWindow16Relative, relative(window16))
	s.found = most(window4)

	s.set(near3, relative(near(m.line, 3)))
	around := near(m.line, 10)
	s.set(near10, relative(around))
	s.set(near40, relative(near(m.line, 40)))
	s.set(nearRank, ranks(around))
	s.set(after10, relative(after(m.line, 10)))
	s.set(before10, relative(before(m.line, 10)))

	coverage, dense := m.gather(o.block, o.blocks)
	s.set(inBlock, spread(coverage, o.block))
	s.set(inBlockRelative, spread(relative(coverage), o.block))
	s.set(inBlockDensity, spread(relative(dense), o.block))
	s.set(inBlockRank, ranks(spread(dense, o.block)))
	coverage, _ = m.gather(o.paragraph, o.paragraphs)
	s.set(inParagraph, spread(coverage, o.paragraph))
	s.set(inParagraphRel, spread(relative(coverage), o.paragraph))

	name, outer := make([]float64, n), make([]float64, n)
	for i := range n {
		own := i
		if !o.is(i, definition|heading) {
			own = o.parent[i]
		}
		if own >= 0 {
			name[i] = m.line[own]
			if up := o.parent[own]; up >= 0 {
				outer[i] = m.line[up]
			}
		}
	}
	s.set(inHead, name)
	s.set(inOuterHead, outer)

	pairs := m.pairs()
	s.set(pairInLine, pairs)
	s.set(pairInWindow4, near(pairs, 4))
}

// readNames looks for the names that the goal has, and for its words as they are.
func (s *sheet) readNames(l lines, o *outline, q *query, w *wording) {
	n := l.len()
	literal := relative(w.weights)
	s.set(wordInLine, literal)
	s.set(wordInWindow4, near(literal, 4))
	s.set(wordRare, w.rarest)
	if len(q.identifiers) == 0 {
		return
	}
	found, inHead := make([]float64, n), make([]float64, n)
	for i := range n {
		line := strings.ToLower(l.line(i))
		for _, name := range q.identifiers {
			if strings.Contains(line, name) {
				found[i] = 1
			}
		}
	}
	for i := range n {
		own := i
		if !o.is(i, definition|heading) {
			own = o.parent[i]
		}
		if own >= 0 {
			inHead[i] = found[own]
		}
	}
	s.set(namedInLine, found)
	s.set(namedInWindow4, near(found, 4))
	s.set(namedInHead, inHead)
}

// relatedTerms is how many terms are taken to be related to the goal.
const relatedTerms = 24

// readRelated looks for terms that stand where those of the goal do.
func (s *sheet) readRelated(m *matching, v *vocabulary) {
	n := len(m.line)
	weight := relative(near(m.line, 4))
	scores := make([]float64, len(v.terms))
	for i := range n {
		w := weight[i] * weight[i] * weight[i]
		if w < 0.05 {
			continue
		}
		for _, term := range v.line(i) {
			scores[term] += w
		}
	}
	for term, score := range scores {
		if score > 0 {
			// Terms of the goal itself stand there in any case.
			scores[term] = score / (score + 2) * v.rarity(term) * (score / float64(v.lines[term]))
		}
	}
	order := make([]int, 0, len(scores))
	for term, score := range scores {
		if score > 0 {
			order = append(order, term)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return a - b
	})
	related := make([]float64, len(scores))
	for _, term := range order[:min(len(order), relatedTerms)] {
		related[term] = scores[term]
	}
	in := make([]float64, n)
	for i := range n {
		for _, term := range v.line(i) {
			in[i] += related[term]
		}
	}
	s.set(relatedInLine, relative(in))
	s.set(relatedInWindow4, relative(near(in, 4)))
}

// readLooks reads what lines look like, whatever the goal.
func (s *sheet) readLooks(l lines, o *outline, v *vocabulary, q *query, source Source) {
	n := l.len()
	sizes := make([]int, o.blocks)
	for _, b := range o.block {
		sizes[b]++
	}
	copies := countCopies(l, o, source)
	lost := 1 - min(1, s.found)
	for i := range n {
		x := s.row(i)
		flag := func(f feature, is bool) {
			if is {
				x[f] = 1
			}
		}
		text := strings.TrimSpace(l.line(i))
		size := math.Log1p(tokenWeight(text))
		at := float64(i) / float64(n)
		x[always] = 1
		flag(inDocs, source == Docs)
		flag(inLogs, source == Logs)
		flag(isBlank, o.is(i, blank))
		flag(isBracket, o.is(i, bracket))
		flag(isCommentLine, o.is(i, comment))
		flag(isHeader, o.is(i, header))
		flag(isImportLine, o.is(i, imported))
		flag(isDecoratorLine, o.is(i, decorator))
		flag(isDefinitionLine, o.is(i, definition))
		flag(isHeading, o.is(i, heading))
		flag(isFenced, o.is(i, fenced))
		flag(isFailure, o.is(i, failure))
		flag(isSevere, o.is(i, severe))
		flag(isTrace, o.is(i, trace))
		x[length] = float32(size)
		flag(isShort, size < math.Log1p(4))
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
		flag(testAsked, q.about&aboutTests != 0 && looks.test)
		flag(errorAsked, q.about&aboutErrors != 0 && looks.failure)
		flag(typeAsked, q.about&aboutTypes != 0 && o.is(i, definition))
		flag(versionAsked, q.about&aboutVersions != 0 && looks.number)
		flag(messageAsked, q.about&aboutMessages != 0 && looks.text)

		x[unmatched] = float32(lost)
		x[unmatchedDefinition] = float32(lost) * x[isDefinitionLine]
		x[unmatchedComment] = float32(lost) * x[isCommentLine]
		x[unmatchedLength] = float32(lost * size)
		x[unmatchedBlank] = float32(lost) * x[isBlank]
		x[unmatchedPosition] = float32(lost * at)
	}
}

// countCopies returns of each line how many there are like it. In logs that goes by what
// remains without numbers and ids.
func countCopies(l lines, o *outline, source Source) []int {
	numbers := map[string]int{}
	var counts []int
	of := make([]int, l.len())
	var buffer []byte
	for i := range of {
		if o.is(i, blank|bracket) {
			of[i] = -1
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
		of[i] = number
	}
	for i, number := range of {
		if number < 0 {
			of[i] = 0
			continue
		}
		of[i] = counts[number]
	}
	return of
}

type looks struct {
	text, number, call, assignment, branch, returns, test, failure bool
}

// looksOf tells what is in a line of code.
func looksOf(text string) (has looks) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c == '\'' || c == '`':
			has.text = true
		case isDigit(c):
			has.number = true
		case c == '(' && i > 0 && (isLetter(text[i-1]) || text[i-1] == '_'):
			has.call = true
		case c == '=' && i > 0 && !strings.ContainsRune("=!<>", rune(text[i-1])) && (i+1 == len(text) || text[i+1] != '='):
			has.assignment = true
		}
	}
	switch firstWord(text) {
	case "if", "else", "elif", "elsif", "for", "while", "switch", "case", "match", "when", "unless", "try", "catch", "except", "select":
		has.branch = true
	case "return", "raise", "throw", "yield", "panic", "break", "continue":
		has.returns = true
	}
	lower := strings.ToLower(text)
	has.test = strings.Contains(lower, "test") || strings.Contains(lower, "assert") || strings.Contains(lower, "expect")
	has.failure = strings.Contains(lower, "err") || strings.Contains(lower, "except") || strings.Contains(lower, "throw") ||
		strings.Contains(lower, "panic") || strings.Contains(lower, "fail") || strings.Contains(lower, "raise")
	return has
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
