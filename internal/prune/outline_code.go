package prune

import "strings"

// readCode finds definitions, imports and comments by what they look like in the
// languages people mostly write. Which one it is nobody has told; what looks like a
// definition in another is seldom anything else.
func (o *outline) readCode(l lines) {
	n := l.len()
	quoted := "" // the delimiter of a text over several lines that stands for a comment
	for i := 0; i < n; i++ {
		if o.is(i, blank) {
			continue
		}
		text := strings.TrimSpace(l.line(i))
		var inside bool
		if inside, quoted = docString(text, quoted); inside || isComment(text) {
			o.kinds[i] |= comment
			continue
		}
		switch {
		case isImport(text):
			i = o.readImport(l, i)
		case isDecorator(text):
			o.kinds[i] |= decorator
		case isDefinition(text) || o.indent[i] == 0 && i+1 < n && opensBody(l.line(i+1)) && isSignature(text):
			o.kinds[i] |= definition
		}
	}
	o.readHeader(l)
	o.nest()
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

// readImport marks the import that begins at line i and returns its last line.
func (o *outline) readImport(l lines, i int) int {
	text := strings.TrimSpace(l.line(i))
	o.kinds[i] |= imported
	var ends byte
	switch open := text[len(text)-1]; {
	case open == '(':
		ends = ')'
	case open == '{':
		ends = '}'
	default:
		return i
	}
	for j := i + 1; j < min(l.len(), i+maxImport); j++ {
		if strings.IndexByte(l.line(j), ends) >= 0 {
			for k := i; k <= j; k++ {
				if !o.is(k, blank) {
					o.kinds[k] |= imported
				}
			}
			return j
		}
	}
	return i
}

// docString follows texts in triple quotes, which Python has for comments. It reports
// whether a line is part of one, and what the one that is open afterwards ends with.
func docString(text, open string) (inside bool, stillOpen string) {
	if open != "" {
		if strings.Contains(text, open) {
			return true, ""
		}
		return true, open
	}
	for _, quote := range [...]string{`"""`, `'''`} {
		rest, ok := strings.CutPrefix(strings.TrimLeft(text, "rRuUbB"), quote)
		if !ok {
			continue
		}
		if strings.Contains(rest, quote) {
			return true, ""
		}
		return true, quote
	}
	return false, ""
}

func isComment(text string) bool {
	switch text[0] {
	case '/':
		return len(text) > 1 && (text[1] == '/' || text[1] == '*')
	case '*':
		return len(text) == 1 || text[1] == ' ' || text[1] == '/' || text[1] == '\t'
	case '#':
		if len(text) == 1 || text[1] == '!' || text[1] == ' ' || text[1] == '#' {
			return true
		}
		word := firstWord(text[1:])
		return text[1] != '[' && !preprocessor[word]
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
		return rest != "" && strings.ContainsAny(rest[:1], `"'(`) && !strings.ContainsAny(text, "={") || strings.HasPrefix(rest, "__DIR__")
	case "source":
		return rest != "" && !strings.ContainsAny(rest, "=(")
	case "const", "let", "var":
		return strings.Contains(rest, "= require(") || strings.Contains(rest, "= await import(")
	case "export":
		return (rest != "" && (rest[0] == '*' || rest[0] == '{')) && strings.Contains(rest, " from ")
	}
	return strings.HasPrefix(text, "#include") || strings.HasPrefix(text, "#import")
}

// Words that may stand before the one that says what is defined, and those that do.
var (
	modifiers = setOf(`export default async pub public private protected internal static final abstract override virtual unsafe extern inline
		sealed partial open suspend data readonly declare const constexpr friend explicit synchronized native default crate local mutating
		fileprivate required convenience lazy inner expect actual external noinline operator infix tailrec value`)
	definers = setOf(`def class func function fn fun struct enum interface trait impl type module namespace object record union mod protocol
		extension macro_rules typedef defmodule defp defmacro sub contract library`)
	// Words that begin a statement with parentheses or braces that is no definition.
	statements = setOf(`if for while switch catch return else do using lock fixed foreach elif with try unless until when match select defer go
		case throw new await delete assert yield not and or in is typeof sizeof loop begin elseif elsif finally goto raise print echo rescue
		ensure var let`)
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
	if definers[word] && defines(word, after) {
		return true
	}
	if statements[first] || statements[word] || word == "" && !strings.HasPrefix(rest, "~") && !strings.HasPrefix(rest, "<") {
		return assignsFunction(text)
	}
	return text[len(text)-1] == '{' && isSignature(text) || assignsFunction(text)
}

// defines reports whether a word that can define something does, by what follows it.
func defines(word, after string) bool {
	if after == "" || word == "macro_rules" {
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
	if word == "type" || word == "object" || word == "value" || word == "record" || word == "module" {
		return c != '(' && (word != "type" || !strings.HasPrefix(name, "="))
	}
	return true
}

// isSignature reports whether a line looks like that of a function in the languages
// that have no word for it: a name and parentheses that are closed again.
func isSignature(text string) bool {
	open := strings.IndexByte(text, '(')
	if open <= 0 || statements[firstWord(text)] {
		return false
	}
	before := text[:open]
	if strings.ContainsAny(before, "=.?\"'`;@{|!") && !strings.Contains(before, "operator") {
		return false
	}
	if strings.Contains(before, "->") || strings.Contains(before, ",") && !strings.Contains(before, "<") { // Map<K, V> get(
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
func (o *outline) nest() {
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
		closes := o.is(i, bracket) // belongs to what it closes
		for len(scopes) > 0 {
			top := scopes[len(scopes)-1]
			if o.indent[i] > top.indent || closes && o.indent[i] == top.indent {
				break
			}
			scopes = scopes[:len(scopes)-1]
		}
		if len(scopes) > 0 {
			top := scopes[len(scopes)-1]
			o.parent[i], o.block[i] = top.line, top.block
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
				o.block[j] = block
			}
			scopes = append(scopes, scope{i, o.indent[i], block})
			loose = -1
		}
	}
	o.blocks++ // for blanks before anything
}

func setOf(words string) map[string]bool {
	set := map[string]bool{}
	for word := range strings.FieldsSeq(words) {
		set[word] = true
	}
	return set
}
