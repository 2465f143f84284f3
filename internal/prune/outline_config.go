package prune

import "strings"

// YAML and makefiles have no keywords for definitions: they are recognized only by their position.
// So the whole text must look like YAML or a makefile.

// isYAML reports whether a text looks like YAML: keys and items, and few other lines.
func isYAML(l lines) bool {
	entries, others, outer := 0, 0, -1
	for y := (yamlReader{lines: l}); y.read(); {
		if outer < 0 {
			outer = y.indent
		}
		switch {
		case l.text[l.starts[y.at]] == '\t':
			return false
		case y.key != "" || y.item:
			entries++
		case y.text == "---" || y.text == "..." || strings.HasPrefix(y.text, "{{") || strings.HasPrefix(y.text, "%YAML"):
		case y.indent <= outer:
			return false
		case strings.IndexByte("\"'[]{}", y.text[0]) >= 0 || y.text[len(y.text)-1] == ',': // in a bracketed list
		default:
			others++
		}
	}
	return entries > 1 && 3*others < entries
}

// A yamlReader reads lines of YAML. It skips blank lines, comments and the lines of block scalars.
type yamlReader struct {
	lines
	next, at, indent int
	column           int // column of the key, or of the content of an item

	text       string
	key, value string // of the line, if any
	item       bool   // it begins with a dash
	literal    bool   // lines that are indented more are a block scalar
}

// read advances to the next line, if there is one.
func (y *yamlReader) read() bool {
	within := -1
	if y.literal {
		within = y.column
	}
	for ; y.next < y.len(); y.next++ {
		line := y.line(y.next)
		y.text = strings.TrimSpace(line)
		y.indent = len(line) - len(strings.TrimLeft(line, " "))
		if y.text == "" || y.text[0] == '#' || within >= 0 && y.indent > within {
			continue
		}
		y.at = y.next
		y.next++
		y.readEntry()
		return true
	}
	return false
}

func (y *yamlReader) readEntry() {
	rest := y.text
	for rest == "-" || strings.HasPrefix(rest, "- ") {
		rest = strings.TrimLeft(rest[1:], " ")
	}
	y.item = rest != y.text
	y.column = y.indent
	y.key, y.value = yamlEntry(rest)
	sign := y.value
	if y.key == "" {
		sign = rest
	}
	if y.key != "" {
		y.column += len(y.text) - len(rest)
	}
	y.literal = sign != "" && (sign[0] == '|' || sign[0] == '>')
}

// yamlEntry returns the key and value of an entry.
func yamlEntry(text string) (key, value string) {
	if at := strings.Index(text, " #"); at > 0 {
		text = strings.TrimRight(text[:at], " ")
	}
	if at := strings.Index(text, ": "); at > 0 {
		key, value = text[:at], strings.TrimLeft(text[at+1:], " ")
	} else if key = strings.TrimSuffix(text, ":"); key == text {
		return "", ""
	}
	if len(key) > 1 && (key[0] == '"' || key[0] == '\'') && key[len(key)-1] == key[0] {
		return key, value
	}
	if strings.ContainsAny(key, " \t()[]=;,\"'`") || value != "" && strings.IndexByte(",;({", value[len(value)-1]) >= 0 {
		return "", ""
	}
	return key, value
}

// maxYAMLLevel is how many levels of keys count as definitions. List items one level deeper do, too.
const maxYAMLLevel = 3

// readYAML finds definitions: keys of the first levels that have keys below them, and items with
// several keys in their lists.
func (o *outline) readYAML(l lines) {
	for i := range o.kinds {
		if strings.HasPrefix(strings.TrimSpace(l.line(i)), "#") {
			o.kinds[i] |= comment
		}
	}
	var levels []int // columns of the enclosing entries
	y := yamlReader{lines: l}
	for more := y.read(); more; {
		e := y
		if e.item {
			o.indent[e.at]++ // a list may be at the column of its key
		}
		column := o.indent[e.at]
		for len(levels) > 0 && levels[len(levels)-1] >= column {
			levels = levels[:len(levels)-1]
		}
		level := len(levels)
		if e.key != "" || e.item {
			levels = append(levels, column)
		}
		more = y.read()
		under := more && (y.indent > e.indent || y.indent == e.indent && y.item && !e.item)
		switch {
		case e.key == "":
		case e.item && level <= maxYAMLLevel && (under || e.literal),
			!e.item && level < maxYAMLLevel && under && (e.value == "" || e.value[0] == '&' || e.value[0] == '!'):
			o.kinds[e.at] |= definition
		}
	}
	o.readHeader(l)
	o.nest(l, nil, func(string) bool { return false })
}

// isMakefile reports whether a text looks like a makefile: rules with recipes, variables and
// directives.
func isMakefile(l lines) bool {
	recipes := false
	for m := (makeReader{lines: l}); m.read(); {
		switch {
		case m.indented && recipes:
			if m.text == "}" || strings.HasSuffix(m.text, " {") { // below a label of C or Go
				return false
			}
		case m.kind == makeOther || m.indented && m.kind == makeRule:
			return false
		default:
			recipes = recipes || m.kind == makeRule && m.hasRecipe()
		}
	}
	return recipes
}

// A makeReader reads lines of a makefile. It skips blank lines, comments, continuations and the lines
// of a define.
type makeReader struct {
	lines
	next, at int
	text     string
	kind     makeKind
	indented bool
}

type makeKind byte

const (
	makeOther makeKind = iota
	makeRule
	makeVariable
	makeDefine
	makeInclude
	makeConditional
	makeDirective
)

var makeWords = map[string]makeKind{
	"ifeq": makeConditional, "ifneq": makeConditional, "ifdef": makeConditional, "ifndef": makeConditional,
	"else": makeConditional, "endif": makeConditional, "include": makeInclude, "sinclude": makeInclude,
	"define": makeDefine,
	"export": makeDirective, "unexport": makeDirective, "vpath": makeDirective, "undefine": makeDirective,
}

// read advances to the next line, if there is one.
func (m *makeReader) read() bool {
	for m.next < m.len() {
		m.at = m.next
		m.next = afterContinued(m.lines, m.at)
		line := m.line(m.at)
		m.text = strings.TrimSpace(line)
		if m.text == "" || m.text[0] == '#' {
			continue
		}
		m.indented = line[0] == '\t' || line[0] == ' '
		m.kind = makeKindOf(m.text)
		if m.kind == makeDefine {
			for m.next < m.len() && firstWord(strings.TrimSpace(m.line(m.next-1))) != "endef" {
				m.next++
			}
		}
		return true
	}
	return false
}

// hasRecipe reports whether a recipe follows the rule.
func (m *makeReader) hasRecipe() bool {
	for i := m.next; i < m.len(); i++ {
		if line := m.line(i); line != "" && line[0] != '#' {
			return line[0] == '\t'
		}
	}
	return false
}

func makeKindOf(text string) makeKind {
	text = strings.TrimPrefix(text, "override ")
	word := firstWord(strings.TrimPrefix(text, "-"))
	rest := strings.TrimPrefix(text, "-")[len(word):]
	if rest == "" || strings.IndexByte(" \t(", rest[0]) >= 0 { // a whole word
		if kind := makeWords[word]; kind != makeOther {
			return kind
		}
		if statements[word] || definers[word] {
			return makeOther
		}
	}
	if text == "else:" || text == "try:" || text == "finally:" { // Python
		return makeOther
	}
	depth := 0 // nesting of variables
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '$' && i+1 < len(text) && (text[i+1] == '(' || text[i+1] == '{'):
			i++
			depth++
		case depth > 0 && (c == '(' || c == '{'):
			depth++
		case depth > 0 && (c == ')' || c == '}'):
			depth--
		case depth > 0:
		case c == '=' || c == ':' && strings.HasPrefix(strings.TrimLeft(text[i:], ":"), "="):
			if strings.Contains(strings.TrimRight(text[:i], " \t?+!"), " ") {
				return makeOther
			}
			return makeVariable
		case c == ':' && i > 0:
			return makeRule
		case strings.IndexByte("(){}[]\"'`;,<>|&", c) >= 0:
			return makeOther
		}
	}
	if strings.HasPrefix(text, "$") { // a function call
		return makeDirective
	}
	return makeOther
}

// readMakefile finds rules with recipes, and define directives.
func (o *outline) readMakefile(l lines) {
	for i := range o.kinds {
		if strings.HasPrefix(strings.TrimSpace(l.line(i)), "#") {
			o.kinds[i] |= comment
		}
	}
	ends := map[int]int{}
	for m := (makeReader{lines: l}); m.read(); {
		switch {
		case m.kind == makeDefine:
			o.kinds[m.at] |= definition
			ends[m.at] = m.next
		case m.indented:
		case m.kind == makeInclude:
			o.kinds[m.at] |= imported
		case m.kind == makeRule && m.hasRecipe():
			o.kinds[m.at] |= definition
		}
	}
	o.readHeader(l)
	o.nest(l, ends, func(text string) bool { return makeKindOf(text) == makeConditional })
}
