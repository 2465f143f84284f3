package prune

import (
	"cmp"
	"slices"
)

// A matching says where the terms of a goal occur.
type matching struct {
	weights     []float64   // by term, adding up to 1
	hits        [][]float64 // by term and line: how much of the term is there
	line        []float64   // coverage by line
	termWeights []float64   // weight of each term in the goal, regardless of its rarity
	lengths     []float64   // number of terms by line
}

func match(v *vocabulary, q *query) *matching {
	n := len(v.ends)
	m := &matching{line: make([]float64, n), lengths: make([]float64, n)}
	for i := range n {
		m.lengths[i] = float64(len(v.line(i)))
	}
	similar := make([]float64, len(v.terms)) // similarity of a term of the goal to each term of the text
	total := 0.0
	for _, term := range q.terms {
		best := 0.0
		for i, other := range v.terms {
			similar[i] = similarity(term.stem, other)
			best = max(best, similar[i]*v.rarity(i))
		}
		hits := make([]float64, n)
		for i := 0; best > 0 && i < n; i++ {
			for _, term := range v.line(i) {
				hits[i] = max(hits[i], similar[term])
			}
		}
		m.weights, m.hits = append(m.weights, term.weight*best), append(m.hits, hits)
		m.termWeights = append(m.termWeights, term.weight)
		total += term.weight * best
	}
	for t := range m.weights {
		if m.weights[t] == 0 {
			continue
		}
		m.weights[t] /= total
		for i, hit := range m.hits[t] {
			m.line[i] += m.weights[t] * hit
		}
	}
	return m
}

// window returns the coverage and the ranking of each line together with radius lines on both
// sides.
func (m *matching) window(radius int) (coverage []float64, ranked *ranking) {
	n := len(m.line)
	first := func(i int) int { return max(0, i-radius) }
	end := func(i int) int { return min(n, i+radius+1) }
	sums, found := make([]float64, n+1), make([]float64, n)
	around := func(values []float64) []float64 {
		for i, v := range values {
			sums[i+1] = sums[i] + v
		}
		for i := range found {
			found[i] = sums[end(i)] - sums[first(i)]
		}
		return found
	}
	coverage = make([]float64, n)
	ranked = newRanking(around(m.lengths))
	for t, hits := range m.hits {
		if m.weights[t] == 0 {
			continue
		}
		for i, found := range around(hits) {
			coverage[i] += m.weights[t] * (found / (found + 0.5)) * 1.5
		}
		ranked.add(m.termWeights[t], found)
	}
	return coverage, ranked
}

// gather returns the coverage, the density of matches and the ranking of groups of lines.
func (m *matching) gather(group []int, groups int) (coverage, density []float64, ranked *ranking) {
	sums := make([]float64, groups)
	within := func(values []float64) []float64 {
		clear(sums)
		for i, g := range group {
			sums[g] += values[i]
		}
		return sums
	}
	coverage = make([]float64, groups)
	ranked = newRanking(within(m.lengths))
	for t, hits := range m.hits {
		if m.weights[t] == 0 {
			continue
		}
		for g, found := range within(hits) {
			coverage[g] += m.weights[t] * (found / (found + 1)) * 1.5
		}
		ranked.add(m.termWeights[t], sums)
	}
	sizes := make([]float64, groups)
	for _, g := range group {
		sizes[g]++
	}
	density = slices.Clone(within(m.line))
	for g := range density {
		density[g] /= sizes[g] + 4
	}
	return coverage, density, ranked
}

// A ranking ranks the parts of a text by BM25.
type ranking struct {
	scores []float64
	norms  []float64 // normalization by length
}

// Parameters of BM25: saturation of repeated terms, and influence of length.
const (
	saturation      = 1.2
	lengthInfluence = 0.75
)

// newRanking returns a ranking of parts, given the number of terms in each.
func newRanking(lengths []float64) *ranking {
	r := &ranking{scores: make([]float64, len(lengths)), norms: make([]float64, len(lengths))}
	total := 0.0
	for _, length := range lengths {
		total += length
	}
	mean := total/float64(max(len(lengths), 1)) + 1
	for i, length := range lengths {
		r.norms[i] = saturation * (1 - lengthInfluence + lengthInfluence*length/mean)
	}
	return r
}

// add adds a term with a weight, given how often it occurs in each part.
func (r *ranking) add(weight float64, found []float64) {
	parts := 0
	for _, f := range found {
		if f > 0 {
			parts++
		}
	}
	rarity := weight * rarity(parts, len(found))
	for i, f := range found {
		if f > 0 {
			r.scores[i] += rarity * f * (saturation + 1) / (f + r.norms[i])
		}
	}
}

// pairs returns, by line, the weight of terms that follow each other as in the goal.
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
	mean := float64(len(v.lineTerms))/float64(max(n, 1)) + 1
	density := make([]float64, n)
	for i := range n {
		density[i] = m.line[i] / (0.3 + 0.7*float64(len(v.line(i)))/mean)
	}
	s.set(inLineDensity, relative(density))

	window1, _ := m.window(1)
	window4, ranked4 := m.window(4)
	window16, ranked16 := m.window(16)
	s.matches = relative(ranked4.scores)
	s.set(rankedWindow4, s.matches)
	s.set(rankedWindow16, relative(ranked16.scores))
	s.set(inWindow1, window1)
	s.set(inWindow4, window4)
	s.set(inWindow4Relative, relative(window4))
	s.set(inWindow16, window16)
	s.set(inWindow16Relative, relative(window16))
	s.found = highest(window4)

	s.set(near3, relative(near(m.line, 3)))
	around := near(m.line, 10)
	s.set(near10, relative(around))
	s.set(near40, relative(near(m.line, 40)))
	s.set(nearRank, ranks(around))
	s.set(after10, relative(after(m.line, 10)))
	s.set(before10, relative(before(m.line, 10)))

	coverage, dense, ranked := m.gather(o.block, o.blocks)
	s.set(rankedBlock, spread(relative(ranked.scores), o.block))
	s.set(inBlock, spread(coverage, o.block))
	s.set(inBlockRelative, spread(relative(coverage), o.block))
	s.set(inBlockDensity, spread(relative(dense), o.block))
	s.set(inBlockRank, ranks(spread(dense, o.block)))
	coverage, _, ranked = m.gather(o.paragraph, o.paragraphs)
	s.set(rankedParagraph, spread(relative(ranked.scores), o.paragraph))
	s.set(inParagraph, spread(coverage, o.paragraph))
	s.set(inParagraphRel, spread(relative(coverage), o.paragraph))

	own, outer := make([]float64, n), make([]float64, n)
	for i := range n {
		head := o.head(i)
		if head < 0 {
			continue
		}
		own[i] = m.line[head]
		if head = o.parent[head]; head >= 0 {
			outer[i] = m.line[head]
		}
	}
	s.set(inHead, own)
	s.set(inOuterHead, outer)

	pairs := m.pairs()
	s.set(pairInLine, pairs)
	s.set(pairInWindow4, near(pairs, 4))
}

// readNames finds the identifiers and words of the goal as written.
func (s *sheet) readNames(o *outline, q *query, w *wording) {
	n := len(w.weights)
	literal := relative(w.weights)
	s.set(wordInLine, literal)
	s.set(wordInWindow4, near(literal, 4))
	s.set(wordRare, w.rarest)
	if len(q.identifiers) == 0 {
		return
	}
	found, above := make([]float64, n), make([]float64, n)
	for _, name := range q.identifiers {
		for _, i := range w.lower.containing(name) {
			found[i] = 1
		}
	}
	for i := range n {
		if head := o.head(i); head >= 0 {
			above[i] = found[head]
		}
	}
	s.set(namedInLine, found)
	s.set(namedInWindow4, near(found, 4))
	s.set(namedInHead, above)
}

// relatedTerms is the number of terms that count as related to the goal.
const relatedTerms = 24

// readRelated finds terms that occur near those of the goal.
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
	var order []int
	for term, score := range scores {
		if score > 0 { // more if it occurs nowhere else
			scores[term] = score / (score + 2) * v.rarity(term) * (score / float64(v.lines[term]))
			order = append(order, term)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
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
