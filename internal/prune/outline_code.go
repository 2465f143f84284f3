package prune

import "strings"

// readCode finds definitions, imports and comments by how they look in the most common languages.
// It does not know the language, but a line that looks like a definition in one language is rarely
// anything else in another.
func (o *outline) readCode(l lines) {
	switch {
	case isYAML(l):
		o.readYAML(l)
		return
	case isMakefile(l):
		o.readMakefile(l)
		return
	}
	n := l.len()
	var open comments
	var ends map[int]int // line after a definition that has an end marker, by its first line
	unended := 0         // no end of an import was found up to this line
	head := 0            // end of the head of a definition, or of a macro: the line after it
	for i := 0; i < n; i++ {
		if o.is(i, blank) {
			continue
		}
		text := strings.TrimSpace(l.line(i))
		if open.read(text, l.text[l.starts[i+1]:]) {
			o.kinds[i] |= comment
			continue
		}
		if isTemplate(text) {
			if i, text = o.readTemplate(l, i, text); text == "" {
				continue
			}
		}
		if i < head {
			continue
		}
		switch {
		case isMacro(text):
			o.kinds[i] |= definition
			head = afterContinued(l, i)
			if ends == nil {
				ends = map[int]int{}
			}
			ends[i] = head
		case isImport(text):
			o.kinds[i] |= imported
			if ends := importCloser(text); ends != 0 && i >= unended {
				i, unended = o.readImport(l, i, ends)
			}
		default:
			if next := definesAt(l, i, withoutDecorator(text)); next > 0 {
				o.kinds[i] |= definition
				head = next
			} else if isDecorator(text) {
				o.kinds[i] |= decorator
			}
		}
	}
	o.readHeader(l)
	o.nest(l, ends, isDirective)
}

// readTemplate marks the head of a C++ template that begins at line i as a decorator. It returns
// the last line of the head, and the text after the head in that line.
func (o *outline) readTemplate(l lines, i int, text string) (last int, rest string) {
	var head templateHead
	for last = i; last < min(l.len(), i+maxParameters); last++ {
		rest, closed := head.read(strings.TrimSpace(l.line(last)))
		if !closed {
			continue
		}
		for k := i; k < last || k == last && rest == ""; k++ {
			o.kinds[k] |= decorator
		}
		return last, rest
	}
	return i, text
}

// maxHeader is the number of lines of a file that can be its header. Licenses are longer, but their
// beginning is enough.
const maxHeader = 5

// readHeader finds the header of a file: a comment and package clause.
func (o *outline) readHeader(l lines) {
	for i := 0; i < min(l.len(), maxHeader); i++ {
		text := strings.TrimSpace(l.line(i))
		isHeader := o.is(i, comment) || hasAnyPrefix(text, "#!", "package ", "<?") ||
			text == "'use strict'" || text == `"use strict";`
		if !isHeader {
			return
		}
		o.kinds[i] |= header
	}
}

// maxImport bounds the lines of an import whose end is missing.
const maxImport = 200

// importCloser returns the character that closes an import that begins with this line, or 0 if the
// import ends there.
func importCloser(text string) byte {
	switch {
	case parentheses(text) > 0:
		return ')'
	case strings.Count(text, "{") > strings.Count(text, "}"):
		return '}'
	}
	return 0
}

// readImport marks the rest of the import that begins at line i. It returns the last line of the
// import. If it finds no end, it returns i and the line at which it stopped.
func (o *outline) readImport(l lines, i int, ends byte) (last, unended int) {
	limit := min(l.len(), i+maxImport)
	for j := i + 1; j < limit; j++ {
		if strings.IndexByte(l.line(j), ends) < 0 {
			continue
		}
		for k := i + 1; k <= j; k++ {
			o.kinds[k] |= joined
			if !o.is(k, blank) {
				o.kinds[k] |= imported
			}
		}
		return j, 0
	}
	return i, limit
}

// comments tracks multi-line comments and texts in triple quotes.
type comments struct {
	end     string          // end of the open comment or text, or empty
	endless map[string]bool // ends that do not occur in the rest of the text
}

// read reports whether a line is part of a comment, or begins inside a text. rest is the text that
// follows.
func (c *comments) read(line, rest string) bool {
	if c.end == "" {
		if isComment(line) {
			if strings.HasPrefix(line, "/*") && !strings.Contains(line, "*/") {
				c.begin("*/", rest)
			}
			return true
		}
		quoted := strings.TrimLeft(line, "rRuUbBfF")
		c.readTexts(line, rest)
		return strings.HasPrefix(quoted, tripleQuotes[0]) || strings.HasPrefix(quoted, tripleQuotes[1])
	}
	if _, after, closed := strings.Cut(line, c.end); closed {
		c.end = ""
		c.readTexts(after, rest)
	}
	return true
}

var tripleQuotes = [...]string{`"""`, `'''`}

// readTexts finds a text that begins in a line and does not end there.
func (c *comments) readTexts(line, rest string) {
	read := 0                // bytes of the line
	next := [...]int{-1, -1} // where each quote follows, or the end of the line
	for {
		at, quote := len(line), ""
		for k, q := range tripleQuotes {
			if next[k] < read {
				next[k] = len(line)
				if i := strings.Index(line[read:], q); i >= 0 {
					next[k] = read + i
				}
			}
			if next[k] < at {
				at, quote = next[k], q
			}
		}
		if quote == "" {
			return
		}
		// Inside another text they are ordinary characters.
		inside := at > read && strings.IndexByte("\"'`\\", line[at-1]) >= 0
		read = at + len(quote)
		if inside || read < len(line) && line[read] == quote[0] {
			read = len(line) - len(strings.TrimLeft(line[read:], quote[:1]))
			continue
		}
		end := strings.Index(line[read:], quote)
		if end < 0 {
			c.begin(quote, rest)
			return
		}
		read += end + len(quote)
	}
}

// begin opens a comment or text, unless its end is missing.
func (c *comments) begin(end, rest string) {
	if c.endless[end] {
		return
	}
	if !strings.Contains(rest, end) {
		if c.endless == nil {
			c.endless = map[string]bool{}
		}
		c.endless[end] = true
		return
	}
	c.end = end
}

// A scope is a definition that encloses lines.
type scope struct {
	line, indent, block int

	end     int // if not 0, it ends before this line, whatever the indentation
	body    typeBody
	members int // indentation of its members, or 0
}

// nest finds by indentation which definitions enclose others. It also finds methods without a body,
// which differ from calls only by being in a type. Comments and decorators right above a definition
// belong to it. ends has the line after each definition with an end marker. The indentation of lines
// for which floats returns true has no meaning.
func (o *outline) nest(l lines, ends map[int]int, floats func(text string) bool) {
	var scopes []scope
	loose := -1 // block of lines outside of definitions, up to the next blank line
	for i := range o.kinds {
		if top := len(scopes) - 1; top >= 0 && scopes[top].end != 0 && i >= scopes[top].end {
			scopes = scopes[:top]
		}
		if o.is(i, blank) {
			if i > 0 {
				o.block[i], o.parent[i] = o.block[i-1], o.parent[i-1]
			}
			if len(scopes) == 0 {
				loose = -1
			}
			continue
		}
		text := strings.TrimSpace(l.line(i))
		closed := false
		if !o.is(i, comment) {
			for stays := len(scopes) > 0 && floats(text); len(scopes) > 0; {
				top := &scopes[len(scopes)-1]
				if top.end != 0 || o.indent[i] > top.indent || stays {
					break
				}
				if o.indent[i] == top.indent && closesDefinition(text) {
					closed = text[0] == '}' && text[len(text)-1] != '{'
					break
				}
				scopes = scopes[:len(scopes)-1]
			}
			if top := len(scopes) - 1; top >= 0 && scopes[top].declares(o, l, i, text) {
				o.kinds[i] |= definition
			}
		}
		if top := len(scopes) - 1; top >= 0 && (o.indent[i] > scopes[top].indent || !o.is(i, comment)) {
			o.parent[i], o.block[i] = scopes[top].line, scopes[top].block
			loose = -1
		} else {
			if loose < 0 {
				loose = o.blocks
				o.blocks++
			}
			o.block[i] = loose
		}
		if closed {
			scopes = scopes[:len(scopes)-1]
		}
		if o.is(i, definition) {
			block := o.blocks
			o.blocks++
			o.block[i] = block
			goesWith := func(j int) bool {
				return o.is(j, comment|decorator) && !o.is(j, header) &&
					(o.indent[j] == o.indent[i] || o.indent[j] > o.indent[i] && o.is(j, decorator))
			}
			for j := i - 1; j >= 0 && goesWith(j); j-- {
				o.block[j], o.parent[j] = block, o.parent[i]
			}
			scopes = append(scopes, scope{
				line: i, indent: o.indent[i], block: block, end: ends[i], body: typeBodyOf(text),
			})
			loose = -1
		}
	}
	o.blocks++ // for blank lines before anything else
}

// declares reports whether line i, the next one in the scope of a type, is a method without a body.
func (s *scope) declares(o *outline, l lines, i int, text string) bool {
	switch {
	case s.body.kind == noType || isDirective(text):
		return false
	case !s.body.open: // the head of the type continues
		s.body.open = text[len(text)-1] == '{'
		return false
	case o.indent[i] <= s.indent:
		return false
	case s.members == 0:
		s.members = o.indent[i]
	}
	if o.indent[i] != s.members || o.is(i, definition|imported|decorator|bracket) || strings.IndexByte(text, '(') < 0 {
		return false
	}
	text, _ = withParameters(l, i, withoutDecorator(text))
	return text != "" && s.body.declares(text)
}

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
