package prune

import "strings"

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
