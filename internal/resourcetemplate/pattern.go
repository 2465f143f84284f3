package resourcetemplate

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern is a URI template of RFC 6570 with two kinds of expressions: {name} matches one segment
// of a path, {+name} one or more. A value is never empty and never contains ? or #.
//
// Matching takes time linear in the length of the URI. Escaped slashes stay escaped, so a segment
// stays one segment.
type pattern struct {
	variables []variable
	tail      string // literal after the last variable
	regexp    *regexp.Regexp
}

type variable struct {
	literal string // literal before the variable
	name    string
	slashes bool // {+name}
}

// A value is the value of a variable in a URI.
type value struct {
	raw     string // as in the URI
	decoded string
}

const maxVariables = 32

var expressions = regexp.MustCompile(`\{(\+?)([A-Za-z0-9_][A-Za-z0-9_.]*)\}`)

func parse(template string) (*pattern, error) {
	literals := expressions.ReplaceAllLiteralString(template, "")
	if i := strings.IndexFunc(literals, notInURIs); i >= 0 {
		return nil, fmt.Errorf("%q is not allowed in a URI; write variables as {name} or {+name}", literals[i])
	}
	var (
		p   pattern
		re  strings.Builder
		end int
	)
	for _, at := range expressions.FindAllStringSubmatchIndex(template, maxVariables+1) {
		v := variable{literal: template[end:at[0]], name: template[at[4]:at[5]], slashes: at[2] < at[3]}
		end = at[1]
		switch {
		case p.has(v.name):
			return nil, fmt.Errorf("duplicate variable {%s}", v.name)
		case len(p.variables) == maxVariables:
			return nil, fmt.Errorf("more than %d variables", maxVariables)
		case len(p.variables) > 0 && v.literal == "":
			return nil, fmt.Errorf("no literal before {%s} separates it from the previous variable", v.name)
		}
		p.variables = append(p.variables, v)
		re.WriteString(regexp.QuoteMeta(v.literal))
		if v.slashes {
			re.WriteString(`([^?#]+)`)
		} else {
			re.WriteString(`([^/?#]+)`)
		}
	}
	p.tail = template[end:]
	var err error
	p.regexp, err = regexp.Compile(`\A` + re.String() + regexp.QuoteMeta(p.tail) + `\z`)
	return &p, err
}

func notInURIs(c rune) bool {
	return c <= ' ' || c == 0x7f || strings.ContainsRune(`"<>\{}`, c)
}

// prefix returns the literal at the beginning of the pattern.
func (p *pattern) prefix() string {
	if len(p.variables) == 0 {
		return p.tail
	}
	return p.variables[0].literal
}

func (p *pattern) has(name string) bool {
	return slices.ContainsFunc(p.variables, func(v variable) bool { return v.name == name })
}

// match returns the values of the variables in a URI.
func (p *pattern) match(uri string) (map[string]value, bool) {
	if !strings.HasPrefix(uri, p.prefix()) {
		return nil, false
	}
	found := p.regexp.FindStringSubmatch(uri)
	if found == nil {
		return nil, false
	}
	values := map[string]value{}
	for i, v := range p.variables {
		decoded, ok := decode(found[i+1])
		if !ok {
			return nil, false
		}
		values[v.name] = value{found[i+1], decoded}
	}
	return values, true
}

// expand returns the URI for these values. The value of {name} stays one segment.
func (p *pattern) expand(values map[string]value) string {
	var uri strings.Builder
	for _, v := range p.variables {
		uri.WriteString(v.literal)
		if v.slashes {
			uri.WriteString(values[v.name].raw)
		} else {
			uri.WriteString(escape(values[v.name].decoded))
		}
	}
	return uri.String() + p.tail
}

// maxEscapes is how often a value may be escaped.
const maxEscapes = 3

// decode unescapes a value. It refuses values that are not plain text, and those with a "." or ".."
// segment, however often these are escaped.
func decode(raw string) (string, bool) {
	decoded, err := url.PathUnescape(raw)
	if err != nil || !utf8.ValidString(decoded) || strings.ContainsFunc(decoded, unicode.IsControl) {
		return "", false
	}
	text := decoded
	for range maxEscapes {
		if hasDotSegment(text) {
			return "", false
		}
		next, err := url.PathUnescape(text)
		if err != nil || next == text {
			return decoded, true
		}
		text = next
	}
	return "", false
}

// hasDotSegment reports whether a path has a "." or ".." segment.
func hasDotSegment(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		if segment == "." || segment == ".." {
			return true
		}
	}
	return false
}

// escape escapes all but unreserved characters.
func escape(text string) string {
	return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
}
