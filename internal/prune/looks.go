package prune

import (
	"math"
	"strings"
)

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
