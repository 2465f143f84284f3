package prune

import "strings"

// readCode finds definitions, imports and comments by what they look like in the
// languages people mostly write. Which one it is nobody has told; what looks like a
// definition in another is seldom anything else.
func (o *outline) readCode(l lines) {
	n := l.len()
	var open comments
	unended := 0 // before this line no import ends
	for i := 0; i < n; i++ {
		if o.is(i, blank) {
			continue
		}
		text := strings.TrimSpace(l.line(i))
		if open.read(text, l.text[l.starts[i+1]:]) {
			o.kinds[i] |= comment
			continue
		}
		switch {
		case isImport(text):
			o.kinds[i] |= imported
			if ends := closerOf(text); ends != 0 && i >= unended {
				i, unended = o.readImport(l, i, ends)
			}
		case definesAt(l, i, withoutDecorator(text)):
			o.kinds[i] |= definition
		case isDecorator(text):
			o.kinds[i] |= decorator
		}
	}
	o.readHeader(l)
	o.nest(l)
}

// maxHeader is how many lines the header of a file has. Licences are longer, but it
// is their beginning that tells them.
const maxHeader = 5

// readHeader finds what the file begins with: a comment, a package clause.
func (o *outline) readHeader(l lines) {
	for i := 0; i < min(l.len(), maxHeader); i++ {
		text := strings.TrimSpace(l.line(i))
		if !o.is(i, comment) && !strings.HasPrefix(text, "#!") && !strings.HasPrefix(text, "package ") && !strings.HasPrefix(text, "<?") && text != "'use strict'" && text != `"use strict";` {
			return
		}
		o.kinds[i] |= header
	}
}

// maxImport is how many lines one import may have, should it never end.
const maxImport = 200

// closerOf returns what an import ends with whose first line this is, or 0 if it ends
// there.
func closerOf(text string) byte {
	switch {
	case parentheses(text) > 0:
		return ')'
	case strings.Count(text, "{") > strings.Count(text, "}"):
		return '}'
	}
	return 0
}

// readImport marks the rest of the import that begins at line i. It returns its last
// line, or that it has found no end up to a line.
func (o *outline) readImport(l lines, i int, ends byte) (last, unended int) {
	limit := min(l.len(), i+maxImport)
	for j := i + 1; j < limit; j++ {
		if strings.IndexByte(l.line(j), ends) < 0 {
			continue
		}
		for k := i + 1; k <= j; k++ {
			if o.kinds[k] |= joined; !o.is(k, blank) {
				o.kinds[k] |= imported
			}
		}
		return j, 0
	}
	return i, limit
}

// comments follows comments that go over several lines, and texts in triple quotes,
// which Python has for them and others for texts.
type comments struct {
	end     string          // of what is open, or nothing
	endless map[string]bool // these ends do not come any more
}

// read reports whether a line is part of a comment, or begins inside of a text, given
// all that follows.
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

// readTexts looks for a text that begins in a line and does not end there.
func (c *comments) readTexts(line, rest string) {
	for {
		at, quote := -1, ""
		for _, q := range tripleQuotes {
			if i := strings.Index(line, q); i >= 0 && (at < 0 || i < at) {
				at, quote = i, q
			}
		}
		if at < 0 {
			return
		}
		// Inside of another text they are only characters.
		inside := at > 0 && strings.IndexByte("\"'`\\", line[at-1]) >= 0
		line = line[at+len(quote):]
		if inside || line != "" && line[0] == quote[0] {
			line = strings.TrimLeft(line, quote[:1])
			continue
		}
		end := strings.Index(line, quote)
		if end < 0 {
			c.begin(quote, rest)
			return
		}
		line = line[end+len(quote):]
	}
}

// begin opens a comment or text, if its end comes.
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

func isComment(text string) bool {
	switch text[0] {
	case '/':
		return len(text) > 1 && (text[1] == '/' || text[1] == '*')
	case '*':
		return len(text) == 1 || text[1] == ' ' || text[1] == '/' || text[1] == '\t'
	case '#':
		if len(text) == 1 || text[1] == '!' || text[1] == '#' {
			return true
		}
		if strings.HasPrefix(text, "# ") { // GNU's C has blanks there, but no sentence begins so
			return !isDirective(text) || !strings.ContainsAny(text, "<\"_()")
		}
		return text[1] != '[' && !preprocessor[firstWord(text[1:])]
	case '-':
		return strings.HasPrefix(text, "-- ")
	case '<':
		return strings.HasPrefix(text, "<!--")
	}
	return false
}

var preprocessor = setOf("include define undef if ifdef ifndef elif else endif pragma error import region endregion line using nullable")

func isDecorator(text string) bool {
	return text[0] == '@' && len(text) > 1 && isLetter(text[1]) || strings.HasPrefix(text, "#[") ||
		text[0] == '[' && text[len(text)-1] == ']' && len(text) > 2 && 'A' <= text[1] && text[1] <= 'Z'
}

// withoutDecorator returns what follows annotations on the same line, as Java has them.
func withoutDecorator(text string) string {
	for strings.HasPrefix(text, "@") {
		name := firstWord(text[1:])
		rest := text[1+len(name):]
		if name == "" || strings.HasPrefix(rest, ".") {
			return text
		}
		if strings.HasPrefix(rest, "(") {
			end := strings.IndexByte(rest, ')')
			if end < 0 {
				return text
			}
			rest = rest[end+1:]
		}
		if rest = strings.TrimLeft(rest, " \t"); rest == "" {
			return text
		}
		text = rest
	}
	return text
}

// isImport reports whether an import begins with this line.
func isImport(text string) bool {
	first := firstWord(text)
	rest := strings.TrimLeft(text[len(first):], " \t")
	switch first {
	case "import":
		return rest != "" && rest[0] != '.' && rest[0] != '=' && rest[0] != ':'
	case "from":
		return strings.Contains(rest, " import") || strings.HasSuffix(rest, "\"") || strings.HasSuffix(rest, "';") || strings.HasSuffix(rest, "\";")
	case "package":
		return rest != "" && !strings.ContainsAny(rest, "(=:")
	case "use", "using":
		return strings.HasSuffix(rest, ";") && !strings.Contains(rest, "(") || strings.HasSuffix(rest, "{") && strings.Contains(rest, "::") ||
			first == "use" && strings.Contains(rest, "::")
	case "pub":
		return strings.HasPrefix(rest, "use ")
	case "extern":
		return strings.HasPrefix(rest, "crate ")
	case "require_once", "include_once", "require_relative":
		return rest != ""
	case "load":
		return rest != "" && strings.ContainsAny(rest[:1], `"'`)
	case "require", "include":
		return rest != "" && strings.ContainsAny(rest[:1], `"'(`) && !strings.ContainsAny(text, "={") && !strings.HasSuffix(text, ",") ||
			strings.HasPrefix(rest, "__DIR__")
	case "source":
		return rest != "" && !strings.ContainsAny(rest, "=(")
	case "const", "let", "var", "local":
		return strings.Contains(rest, "= require(") || strings.Contains(rest, "= await import(")
	case "export":
		return (rest != "" && (rest[0] == '*' || rest[0] == '{')) && strings.Contains(rest, " from ")
	}
	return strings.HasPrefix(text, "#include") || strings.HasPrefix(text, "#import") || strings.HasPrefix(text, ". ") && len(text) > 2 // of a shell
}

// Words that may stand before the one that says what is defined, and those that do.
var (
	modifiers = setOf(`export default async pub public private protected internal static final abstract override virtual unsafe extern inline
		sealed partial open suspend data readonly declare const constexpr friend explicit synchronized native default crate local mutating
		fileprivate case indirect required convenience lazy inner expect actual external noinline operator infix tailrec value`)
	definers = setOf(`def class func function fn fun struct enum interface trait impl type module namespace object record union mod protocol
		extension macro_rules typedef actor defmodule defp defmacro sub contract library`)
	// Words that begin a statement with parentheses or braces that is no definition.
	statements = setOf(`if for while switch catch return else do using lock fixed foreach elif with try unless until when match select defer go
		case throw new await delete assert yield not and or in is typeof sizeof loop begin elseif elsif finally goto raise print echo rescue
		ensure guard var let`)
)

// isDefinition reports whether a line begins the definition of a function, a type or
// a module.
func isDefinition(text string) bool {
	rest := text
	first := firstWord(rest)
	for range 6 {
		word := firstWord(rest)
		if !modifiers[word] {
			break
		}
		rest = strings.TrimLeft(rest[len(word):], " \t")
		if strings.HasPrefix(rest, "(") { // pub(crate)
			end := strings.IndexByte(rest, ')')
			if word != "pub" || end < 0 {
				break
			}
			rest = strings.TrimLeft(rest[end+1:], " \t")
		}
	}
	word := firstWord(rest)
	after := rest[len(word):]
	if definers[word] && defines(word, after) && (!aggregates[word] || isAggregate(word, after)) {
		return true
	}
	if statements[first] && first != "var" && first != "let" {
		return false
	}
	if statements[word] || word == "" && !strings.HasPrefix(rest, "~") && !strings.HasPrefix(rest, "<") {
		return assignsFunction(text)
	}
	if arrow := strings.Index(text, ") =>"); arrow > 0 && len(rest) < len(text) { // of C#, behind public or the like
		return isSignature(text[:arrow+1]) || assignsFunction(text)
	}
	switch {
	case text[len(text)-1] == '{' && isSignature(text):
		return true
	case text[len(text)-1] == '}': // with its body
		head, body, _ := strings.Cut(text, "{")
		named := strings.IndexByte(head, '(') // a call may have a block, but not a type
		return isSignature(head) && (body == "}" || len(strings.Fields(head[:max(named, 0)])) > 1) || assignsFunction(text)
	}
	return assignsFunction(text)
}

// definesAt reports whether a definition begins with line i, of which this is the text.
func definesAt(l lines, i int, text string) bool {
	if text = withoutTemplate(withoutRemark(text)); text == "" || isDefinition(text) {
		return text != ""
	}
	if isStatementOfSQL(text) || l.whole(i)[0] > ' ' && isSection(text) {
		return true
	}
	if statements[firstWord(text)] || !strings.Contains(text, "(") {
		return false
	}
	text, next := withParameters(l, i, text)
	for range 3 { // what a constructor is based on
		if next < l.len() && strings.HasPrefix(strings.TrimSpace(l.line(next)), ":") {
			next++
		}
	}
	return text != "" && (isDefinition(text) || next < l.len() && opensBody(l.line(next)) && isSignature(text))
}

// isSection reports whether a line that is not indented opens a section of a
// configuration, as those of Terraform and nginx have them: words and a brace.
func isSection(text string) bool {
	head, ok := strings.CutSuffix(text, " {")
	word := firstWord(head)
	return ok && word != "" && !statements[word] && !strings.ContainsAny(head, "()=;,|&<>")
}

// isStatementOfSQL reports whether a line creates or alters something in a database.
func isStatementOfSQL(text string) bool {
	verb := firstWord(text)
	if !strings.EqualFold(verb, "create") && !strings.EqualFold(verb, "alter") {
		return false
	}
	return objectsOfSQL[strings.ToLower(firstWord(strings.TrimLeft(text[len(verb):], " ")))]
}

var objectsOfSQL = setOf("table view index function procedure trigger type schema database sequence or unique temp temporary materialized extension policy role")

// withoutRemark returns a line without the comment behind its brace.
func withoutRemark(text string) string {
	for _, remark := range [...]string{"{ //", "{ #", "{ /*"} {
		if at := strings.Index(text, remark); at > 0 {
			return text[:at+1]
		}
	}
	return text
}

// withoutTemplate returns what a line of C++ makes a template of.
func withoutTemplate(text string) string {
	rest, ok := strings.CutPrefix(text, "template")
	if !ok || strings.TrimLeft(rest, " ") == "" || strings.TrimLeft(rest, " ")[0] != '<' {
		return text
	}
	depth := 0
	for i := 0; i < len(rest); i++ {
		switch rest[i] {
		case '<':
			depth++
		case '>':
			if depth--; depth == 0 {
				return strings.TrimSpace(rest[i+1:])
			}
		}
	}
	return ""
}

// maxParameters is how many lines the parameters of a function may take.
const maxParameters = 16

// withParameters returns a line and those that follow until its parentheses are closed,
// as one, and which line is the next. If they are not, it is none.
func withParameters(l lines, i int, text string) (joined string, next int) {
	depth := parentheses(text)
	for next = i + 1; depth > 0; next++ {
		if next == l.len() || next > i+maxParameters {
			return "", next
		}
		line := strings.TrimSpace(l.line(next))
		depth += parentheses(line)
		text += " " + line
	}
	return text, next
}

// parentheses returns how many parentheses are opened and not closed in text.
func parentheses(text string) (depth int) {
	return strings.Count(text, "(") - strings.Count(text, ")")
}

// defines reports whether a word that can define something does, by what follows it.
func defines(word, after string) bool {
	if after == "" {
		return false
	}
	if word == "macro_rules" {
		return true
	}
	if c := after[0]; c == '<' && word == "impl" || c == '*' && word == "function" {
		return true
	}
	name := strings.TrimLeft(after, " \t")
	if len(name) == len(after) || name == "" {
		return word == "function" && strings.HasPrefix(after, "(")
	}
	c := name[0]
	if !isLetter(c) && c != '_' && c != '(' && c != '$' && c != '<' && c != '&' && c != '"' && c != '[' && (c != '{' || word != "class") {
		return false
	}
	if c == '"' {
		return word == "module"
	}
	if word == "type" || word == "object" || word == "value" || word == "record" || word == "module" {
		return (c != '(' || name == "(") && (word != "type" || !strings.HasPrefix(name, "="))
	}
	return true
}

// aggregates are words that define a type, and others that are of it.
var aggregates = setOf("struct union enum object record")

// isAggregate reports whether what follows such a word is the definition of a type and
// not of a variable.
func isAggregate(word, after string) bool {
	after = strings.TrimSpace(after)
	if head, _, body := strings.Cut(after, "{"); body {
		head, _, _ = strings.Cut(head, "<")
		return !strings.Contains(head, "=")
	}
	name := firstWord(after)
	rest := strings.TrimSpace(after[len(name):])
	switch word {
	case "struct", "enum", "record": // of Rust and C#, and those with their brace in the next line
		return rest == "" || rest == ";" || strings.IndexByte("(<:", rest[0]) >= 0
	}
	return rest == "" && !strings.HasSuffix(after, ";")
}

// isSignature reports whether a line looks like that of a function in the languages
// that have no word for it: a name and parentheses that are closed again.
func isSignature(text string) bool {
	open := strings.IndexByte(text, '(')
	if open <= 0 || statements[firstWord(text)] {
		return false
	}
	before := text[:open]
	if strings.ContainsAny(before, "=\"'`;@{|!") && !strings.Contains(before, "operator") || strings.Contains(before, "->") || before[0] == ':' {
		return false
	}
	// Types may have all sorts of things in them, but a name that stands alone is one
	// of something that is called.
	words := strings.Fields(before)
	if len(words) == 1 && strings.ContainsAny(before, ".?") || strings.Contains(before, ",") && !strings.Contains(before, "<") { // Map<K, V> get(
		return false
	}
	if strings.HasSuffix(strings.ToLower(before), "foreach") { // a loop by a macro
		return false
	}
	if c := text[open-1]; !isLetter(c) && !isDigit(c) && c != '_' && c != '>' && c != '$' && c != ' ' && c != '=' {
		return false
	}
	depth := 0
	for i := open; i < len(text); i++ {
		switch text[i] {
		case '(':
			depth++
		case ')':
			depth--
		}
	}
	last := text[len(text)-1]
	return depth == 0 && last != ';' && last != ',' && !strings.HasSuffix(text, "=> {")
}

// assignsFunction reports whether a line gives a function a name, as JavaScript does.
func assignsFunction(text string) bool {
	at := strings.Index(text, "function")
	if at < 0 {
		eq, arrow := strings.IndexByte(text, '='), strings.Index(text, "=>")
		if arrow < 0 || eq >= arrow || !isName(strings.TrimSpace(text[:eq])) {
			return false
		}
		parameters := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(text[eq+1:arrow]), "async "))
		return firstWord(parameters) == parameters || strings.HasPrefix(parameters, "(")
	}
	if rest := text[at+len("function"):]; rest != "" && strings.IndexByte(" (*", rest[0]) < 0 {
		return false
	}
	before := strings.TrimSpace(text[:at])
	before = strings.TrimSpace(strings.TrimSuffix(before, "async"))
	if !strings.HasSuffix(before, "=") && !strings.HasSuffix(before, ":") {
		return false
	}
	return isName(strings.TrimRight(before, "=: "))
}

// isName reports whether text may be the name of what is assigned: some words and
// dots, perhaps with a type.
func isName(text string) bool {
	return text != "" && !strings.ContainsAny(text, "()?!&|+*/\"'`;{")
}

// opensBody reports whether a line is the brace with which the body of a function
// begins that stands in the line before.
func opensBody(line string) bool { return strings.TrimSpace(line) == "{" }

// firstWord returns the letters, digits and underscores that text begins with.
func firstWord(text string) string {
	i := 0
	for i < len(text) && (isLetter(text[i]) || isDigit(text[i]) || text[i] == '_') {
		i++
	}
	return text[:i]
}

// nest finds out by indentation what is defined in what. Comments and decorators
// right above a definition are part of it.
func (o *outline) nest(l lines) {
	type scope struct{ line, indent, block int }
	var scopes []scope
	loose := -1 // the block of lines that are in no definition, up to the next blank
	for i := range o.kinds {
		if o.is(i, blank) {
			if i > 0 {
				o.block[i], o.parent[i] = o.block[i-1], o.parent[i-1]
			}
			if len(scopes) == 0 {
				loose = -1
			}
			continue
		}
		if !o.is(i, comment) {
			text := strings.TrimSpace(l.line(i))
			for len(scopes) > 0 {
				top := scopes[len(scopes)-1]
				if o.indent[i] > top.indent || o.indent[i] == top.indent && goesOn(text) || isDirective(text) {
					break
				}
				scopes = scopes[:len(scopes)-1]
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
		if o.is(i, definition) {
			block := o.blocks
			o.blocks++
			o.block[i] = block
			for j := i - 1; j >= 0 && o.is(j, comment|decorator) && !o.is(j, header) && o.indent[j] == o.indent[i]; j-- {
				o.block[j], o.parent[j] = block, o.parent[i]
			}
			scopes = append(scopes, scope{i, o.indent[i], block})
			loose = -1
		}
	}
	o.blocks++ // for blanks before anything
}

// goesOn reports whether a line at the column of a definition is still part of it: it
// closes what was opened there.
func goesOn(text string) bool {
	word := firstWord(text)
	return strings.IndexByte(")]}{", text[0]) >= 0 || word == "where" || word == "end"
}

// isDirective reports whether a line stands at a column that says nothing of where it
// belongs: of the preprocessor, a label, who may see what follows.
func isDirective(text string) bool {
	if text[0] == '#' {
		return preprocessor[firstWord(strings.TrimLeft(text[1:], " \t"))]
	}
	word := firstWord(text)
	return word != "" && text[len(word):] == ":" && !statements[word]
}

func setOf(words string) map[string]bool {
	set := map[string]bool{}
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}
