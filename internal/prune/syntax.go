package prune

import "strings"

// Lines of code are classified by their looks: the words at their beginning, and their end.

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
		if strings.HasPrefix(text, "# ") { // GNU C has blanks there, but prose does not look like a directive
			return !isDirective(text) || !strings.ContainsAny(text, "<\"_()\\")
		}
		return text[1] != '[' && !preprocessor[firstWord(text[1:])]
	case '-':
		return strings.HasPrefix(text, "-- ")
	case '<':
		return strings.HasPrefix(text, "<!--")
	}
	return false
}

var preprocessor = setOf(`include define undef if ifdef ifndef elif else endif pragma error import region endregion
	line using nullable`)

func isDecorator(text string) bool {
	return text[0] == '@' && len(text) > 1 && isLetter(text[1]) || strings.HasPrefix(text, "#[") ||
		text[0] == '[' && text[len(text)-1] == ']' && len(text) > 2 && 'A' <= text[1] && text[1] <= 'Z'
}

// withoutDecorator returns what follows annotations on the same line, as in Java.
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

// isImport reports whether a line begins an import.
func isImport(text string) bool {
	first := firstWord(text)
	rest := strings.TrimLeft(text[len(first):], " \t")
	switch first {
	case "import":
		return rest != "" && rest[0] != '.' && rest[0] != '=' && rest[0] != ':'
	case "from":
		return strings.Contains(rest, " import") || strings.HasSuffix(rest, "\"") || strings.HasSuffix(rest, "';") ||
			strings.HasSuffix(rest, "\";")
	case "package":
		return rest != "" && !strings.ContainsAny(rest, "(=:")
	case "use", "using":
		return strings.HasSuffix(rest, ";") && !strings.Contains(rest, "(") ||
			strings.HasSuffix(rest, "{") && strings.Contains(rest, "::") ||
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
		return rest != "" && strings.ContainsAny(rest[:1], `"'(`) &&
			!strings.ContainsAny(text, "={") && !strings.HasSuffix(text, ",") ||
			strings.HasPrefix(rest, "__DIR__")
	case "source":
		return rest != "" && !strings.ContainsAny(rest, "=(")
	case "const", "let", "var", "local":
		return strings.Contains(rest, "= require(") || strings.Contains(rest, "= await import(")
	case "export":
		return (rest != "" && (rest[0] == '*' || rest[0] == '{')) && strings.Contains(rest, " from ")
	}
	return strings.HasPrefix(text, "#include") || strings.HasPrefix(text, "#import") ||
		strings.HasPrefix(text, ". ") && len(text) > 2 // a shell
}

// Words that may precede a defining keyword, and defining keywords.
var (
	modifiers = setOf(`export default async pub public private protected internal static final abstract override
		virtual unsafe extern inline sealed partial open suspend data readonly declare const
		constexpr friend explicit synchronized native crate local mutating fileprivate case
		indirect required convenience lazy inner expect actual external noinline operator infix
		tailrec value`)
	definers = setOf(`def class func function fn fun struct enum interface trait impl type module namespace
		object record union mod protocol extension macro_rules typedef actor defmodule defp
		defmacro sub contract library`)
	// Words that begin a statement with parentheses or braces, not a definition.
	statements = setOf(`if for while switch catch return else do using lock fixed foreach elif with try unless
		until when match select defer go case throw new await delete assert yield not and or in is
		typeof sizeof loop begin elseif elsif finally goto raise print echo rescue ensure guard
		var let noexcept`)
)

// isDefinition reports whether a line begins the definition of a function, type or module.
func isDefinition(text string) bool {
	first := firstWord(text)
	rest := withoutModifiers(text)
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
	if arrow := strings.Index(text, ") =>"); arrow > 0 && len(rest) < len(text) { // C#, after public or similar
		return isSignature(text[:arrow+1]) || assignsFunction(text)
	}
	switch {
	case text[len(text)-1] == '{' && isSignature(text):
		return true
	case text[len(text)-1] == '}': // with its body
		head, body, _ := strings.Cut(text, "{")
		named := strings.IndexByte(head, '(') // a call may have a block, a type may not
		return isSignature(head) && (body == "}" || len(strings.Fields(head[:max(named, 0)])) > 1) || assignsFunction(text)
	}
	return assignsFunction(text)
}

// withoutModifiers returns a line from its first word that is not a modifier.
func withoutModifiers(text string) string {
	for range 6 {
		word := firstWord(text)
		if !modifiers[word] || strings.HasPrefix(text[len(word):], "::") { // a C++ name
			break
		}
		text = strings.TrimLeft(text[len(word):], " \t")
		if strings.HasPrefix(text, "(") { // pub(crate)
			end := strings.IndexByte(text, ')')
			if word != "pub" || end < 0 {
				break
			}
			text = strings.TrimLeft(text[end+1:], " \t")
		}
	}
	return text
}

// A typeBody is the body of a type, which may declare methods.
type typeBody struct {
	kind typeKind
	name string // of the type
	open bool   // its brace has been read
}

type typeKind byte

const (
	noType        typeKind = iota
	classType              // has methods, and fields that look like them
	interfaceType          // has only methods
)

// typeBodyOf returns the body that a definition opens, by its first line.
func typeBodyOf(text string) (b typeBody) {
	text = withoutTemplate(withoutDecorator(withoutTrailingComment(text)))
	if text == "" || strings.IndexByte(";:}", text[len(text)-1]) >= 0 {
		return b
	}
	b.open = text[len(text)-1] == '{'
	text = withoutModifiers(text)
	word := firstWord(text)
	switch {
	case word == "interface",
		word == "type" && (strings.HasSuffix(text, " interface {") || strings.HasSuffix(text, "= {")):
		b.kind = interfaceType
	case word == "class" || word == "struct":
		b.kind = classType
		head, _, _ := strings.Cut(text, "{")
		head, _, _ = strings.Cut(head, " :")
		head, _, _ = strings.Cut(head, "<")
		if words := strings.Fields(head); len(words) > 1 { // class EXPORTED Name
			b.name = words[len(words)-1]
		}
	}
	return b
}

// declares reports whether a member of a type is a method without a body.
func (b typeBody) declares(text string) bool {
	text, ended := strings.CutSuffix(text, ";")
	text = strings.Replace(text, "?(", "(", 1) // an optional method
	open := strings.IndexByte(text, '(')
	if open <= 0 || text[open-1] == ' ' { // the latter is a function pointer
		return false
	}
	before := text[:open]
	if !isSignature(text) || strings.Contains(before, ": ") ||
		strings.Count(before, "<") > strings.Count(before, ">") || strings.Count(before, "[") > strings.Count(before, "]") {
		return false
	}
	name := strings.TrimLeft(before[strings.LastIndexAny(before, " *&")+1:], "~")
	if strings.ToUpper(name) == name { // a macro
		return false
	}
	if b.kind == interfaceType {
		return true
	}
	typed := strings.Contains(text[open:], "):") // TypeScript
	return (ended || typed) && (name != strings.TrimLeft(before, "~") || name == b.name || name == "constructor" || typed)
}

// isMacro reports whether a line begins a C macro with parameters or several lines.
func isMacro(text string) bool {
	if text[0] != '#' {
		return false
	}
	rest, ok := strings.CutPrefix(strings.TrimLeft(text[1:], " \t"), "define")
	rest = strings.TrimLeft(rest, " \t")
	after := rest[len(firstWord(rest)):]
	return ok && (strings.HasPrefix(after, "(") || continues(rest))
}

// continues reports whether a line continues on the next one, as in C, shells and make.
func continues(text string) bool { return strings.HasSuffix(text, "\\") }

// afterContinued returns the line after the continued line that begins at line i.
func afterContinued(l lines, i int) int {
	for i < l.len() && continues(l.line(i)) {
		i++
	}
	return min(i+1, l.len())
}

// definesAt returns the line after the head of a definition that begins at line i with this text,
// or 0 if none begins there. A head that its first line identifies ends with that line.
func definesAt(l lines, i int, text string) (next int) {
	if text = withoutTrailingComment(text); isDefinition(text) || isSQLDefinition(text) || l.whole(i)[0] > ' ' &&
		isSection(text) {
		return i + 1
	}
	if statements[firstWord(text)] || !strings.Contains(text, "(") {
		return 0
	}
	text, next = withParameters(l, i, text)
	if text == "" {
		return 0
	}
	if next > i+1 && isDefinition(text) {
		return next
	}
	if next = afterHead(l, next); next > 0 && isSignature(text) {
		return next
	}
	return 0
}

// isSection reports whether an unindented line opens a section of a configuration, as in Terraform
// and nginx: words and a brace.
func isSection(text string) bool {
	head, ok := strings.CutSuffix(text, " {")
	word := firstWord(head)
	return ok && word != "" && !statements[word] && !strings.ContainsAny(head, "()=;,|&<>")
}

// isSQLDefinition reports whether a line creates or alters something in a database.
func isSQLDefinition(text string) bool {
	if c := text[0] | 0x20; c != 'c' && c != 'a' {
		return false
	}
	verb := firstWord(text)
	if !strings.EqualFold(verb, "create") && !strings.EqualFold(verb, "alter") {
		return false
	}
	return sqlObjects[strings.ToLower(firstWord(strings.TrimLeft(text[len(verb):], " ")))]
}

var sqlObjects = setOf(`table view index function procedure trigger type schema database sequence or unique temp
	temporary materialized extension policy role`)

// withoutTrailingComment returns a line without the comment after its brace.
func withoutTrailingComment(text string) string {
	for i := strings.IndexByte(text, '{') + 1; i > 0 && i < len(text); i++ {
		if text[i-1] != '{' || text[i] != ' ' {
			continue
		}
		rest := strings.TrimLeft(text[i:], " ")
		if strings.HasPrefix(rest, "//") || strings.HasPrefix(rest, "#") || strings.HasPrefix(rest, "/*") {
			return text[:i]
		}
	}
	return text
}

// isTemplate reports whether a line begins a C++ template.
func isTemplate(text string) bool {
	rest, ok := strings.CutPrefix(text, "template")
	return ok && strings.HasPrefix(strings.TrimLeft(rest, " "), "<")
}

// A templateHead is the parser state of the head of a C++ template.
type templateHead struct{ angles, parentheses int }

// read reads a line of the head. It returns what follows the head, which may be on the next line,
// and whether the head ends in this line.
func (h *templateHead) read(text string) (rest string, closed bool) {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '(':
			h.parentheses++
		case c == ')':
			h.parentheses--
		case h.parentheses > 0: // may be comparisons
		case c == '<':
			h.angles++
		case c == '>' && (i == 0 || text[i-1] != '-'):
			if h.angles--; h.angles > 0 {
				continue
			}
			if rest = strings.TrimSpace(text[i+1:]); !isTemplate(rest) { // a member of a template
				return rest, true
			}
		}
	}
	return "", false
}

// withoutTemplate returns a line without the template head at its beginning.
func withoutTemplate(text string) string {
	if !isTemplate(text) {
		return text
	}
	rest, _ := new(templateHead).read(text)
	return rest
}

// maxParameters bounds the lines of a function's parameters.
const maxParameters = 16

// withParameters joins a line with the following ones until its parentheses are closed, and returns
// the next line. The result is empty if they are not closed.
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

// parentheses returns the number of unclosed parentheses.
func parentheses(text string) (depth int) {
	return strings.Count(text, "(") - strings.Count(text, ")")
}

// defines reports whether a defining keyword defines something, by what follows it.
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
	if !isLetter(c) && strings.IndexByte(`_($<&"[`, c) < 0 &&
		(c != '{' || word != "class") && (c != '`' || word != "fun") {
		return false
	}
	if c == '"' {
		return word == "module"
	}
	if word == "type" || word == "object" || word == "record" || word == "module" {
		return (c != '(' || name == "(") && (word != "type" || !strings.HasPrefix(name, "="))
	}
	return true
}

// aggregates are keywords that define a type, or a variable of it.
var aggregates = setOf("struct union enum object record")

// isAggregate reports whether one of these keywords begins the definition of a type, not of a
// variable, by what follows it.
func isAggregate(word, after string) bool {
	after = strings.TrimSpace(after)
	if head, _, body := strings.Cut(after, "{"); body {
		head, _, _ = strings.Cut(head, "<")
		return !strings.Contains(head, "=")
	}
	name := firstWord(after)
	rest := strings.TrimSpace(after[len(name):])
	switch word {
	case "struct", "enum", "record": // Rust and C#, and types with their brace on the next line
		return rest == "" || rest == ";" || strings.IndexByte("(<:", rest[0]) >= 0
	}
	return rest == "" && !strings.HasSuffix(after, ";")
}

// isSignature reports whether a line looks like the signature of a function in languages without a
// keyword for functions: a name and closed parentheses.
func isSignature(text string) bool {
	open := strings.IndexByte(text, '(')
	if open <= 0 || statements[firstWord(text)] {
		return false
	}
	before := text[:open]
	last := text[len(text)-1]
	closed := parentheses(text[open:]) == 0 && last != ';' && last != ',' && !strings.HasSuffix(text, "=> {")
	if strings.Contains(before, "operator") {
		return closed
	}
	if strings.ContainsAny(before, "=\"'`;@{|!") || strings.Contains(before, "->") ||
		strings.IndexByte(":?", before[0]) >= 0 {
		return false
	}
	// A type before the name may contain almost anything. A single dotted name is being called.
	words := strings.Fields(before)
	if len(words) == 1 && strings.ContainsAny(before, ".?") ||
		strings.Contains(before, ",") && !strings.Contains(before, "<") { // Map<K, V> get(
		return false
	}
	if len(words) == 1 && strings.HasSuffix(strings.ToLower(before), "foreach") { // a loop macro
		return false
	}
	c := text[open-1]
	return closed && (isLetter(c) || isDigit(c) || c == '_' || c == '>' || c == '$' || c == ' ')
}

// assignsFunction reports whether a line assigns a function to a name, as in JavaScript.
func assignsFunction(text string) bool {
	eq := strings.IndexByte(text, '=')
	if eq < 0 && strings.IndexByte(text, ':') < 0 {
		return false
	}
	at := strings.Index(text, "function")
	if at < 0 {
		arrow := strings.Index(text, "=>")
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

// isName reports whether text may be the target of an assignment: words and dots, perhaps with a
// type.
func isName(text string) bool {
	return text != "" && !strings.ContainsAny(text, "()?!&|+*/\"'`;{")
}

// maxHead bounds the lines between the parameters of a function and its body.
const maxHead = 32

// afterHead returns the line after the opening brace of a function body, given the line after its
// parameters. Constructor initializers or a result type may come first. It returns 0 if there is no
// body.
func afterHead(l lines, i int) int {
	listed := false // the line belongs to the same list as the one before
	for limit := min(l.len(), i+maxHead); i < limit; i++ {
		text := strings.TrimSpace(l.line(i))
		if text == "{" {
			return i + 1
		}
		if text == "" || !listed && text[0] != ':' && text[0] != ',' && !strings.HasPrefix(text, "-> ") {
			return 0
		}
		switch text[len(text)-1] {
		case '{', '}':
			return i + 1
		case ';':
			return 0
		}
		listed = text[len(text)-1] == ','
	}
	return 0
}

// firstWord returns the letters, digits and underscores at the beginning of text.
func firstWord(text string) string {
	i := 0
	for i < len(text) && (isLetter(text[i]) || isDigit(text[i]) || text[i] == '_') {
		i++
	}
	return text[:i]
}

// closesDefinition reports whether a line with the indentation of a definition still belongs to it,
// because it closes it.
func closesDefinition(text string) bool {
	word := firstWord(text)
	return strings.IndexByte(")]}{>", text[0]) >= 0 || word == "where" || word == "end"
}

// isDirective reports whether a line is a preprocessor directive, a label or an access specifier,
// whose indentation has no meaning.
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
