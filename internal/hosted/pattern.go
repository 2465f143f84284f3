package hosted

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A pattern is a URI template of RFC 6570 with two kinds of variables: {name} stands for
// a part of a path, {+name} for some of them with the slashes between. Neither is ever
// empty, nor reaches into a query or fragment that is not there.
type pattern struct {
	parts   []part
	matches *regexp.Regexp
}

// A part is a literal or a variable.
type part struct {
	literal string
	name    string // empty for a literal
	slashes bool   // it is of the form {+name}
}

// A value is what a variable stands for.
type value struct {
	raw     string // as it is in the URI
	decoded string
}

const maxVariables = 32

func parse(template string) (*pattern, error) {
	var (
		p          pattern
		expression strings.Builder
	)
	expression.WriteString(`\A`)
	for rest := template; rest != ""; {
		next, err := parsePart(&rest)
		if err != nil {
			return nil, err
		}
		switch {
		case next.name == "":
			expression.WriteString(regexp.QuoteMeta(next.literal))
		case p.has(next.name):
			return nil, fmt.Errorf("{%s} is there twice", next.name)
		case len(p.parts) > 0 && p.parts[len(p.parts)-1].name != "":
			return nil, fmt.Errorf("nothing tells {%s} from the variable before it", next.name)
		case next.slashes:
			expression.WriteString(`([^?#]+)`)
		default:
			expression.WriteString(`([^/?#]+)`)
		}
		if p.parts = append(p.parts, next); len(p.names()) > maxVariables {
			return nil, fmt.Errorf("it has more than %d variables", maxVariables)
		}
	}
	expression.WriteString(`\z`)
	var err error
	p.matches, err = regexp.Compile(expression.String())
	return &p, err
}

// parsePart takes a literal or a variable off the beginning of a template.
func parsePart(rest *string) (part, error) {
	i := strings.IndexAny(*rest, "{}")
	switch {
	case i < 0:
		i = len(*rest)
		fallthrough
	case i > 0:
		literal := (*rest)[:i]
		*rest = (*rest)[i:]
		if strings.ContainsFunc(literal, notInURIs) {
			return part{}, fmt.Errorf("%q has characters that no URI has", literal)
		}
		return part{literal: literal}, nil
	case (*rest)[0] == '}':
		return part{}, fmt.Errorf("a } has no {")
	}
	inside, after, ok := strings.Cut((*rest)[1:], "}")
	if !ok {
		return part{}, fmt.Errorf("a { has no }")
	}
	*rest = after
	name, slashes := strings.CutPrefix(inside, "+")
	switch {
	case name == "":
		return part{}, fmt.Errorf("{%s} has no name", inside)
	case strings.ContainsRune("#./;?&=,!@|", rune(name[0])):
		return part{}, fmt.Errorf("{%s} has the operator %c, which is not supported; {name} and {+name} are", inside, name[0])
	case strings.ContainsAny(name, ":*,"):
		return part{}, fmt.Errorf("{%s} has a modifier or several names, which is not supported", inside)
	case strings.ContainsFunc(name, notInNames):
		return part{}, fmt.Errorf("{%s} is not the name of a variable", inside)
	}
	return part{name: name, slashes: slashes}, nil
}

func notInURIs(c rune) bool {
	return c <= ' ' || c == 0x7f || c == '"' || c == '<' || c == '>' || c == '\\'
}

func notInNames(c rune) bool {
	return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.')
}

// prefix returns the literal that the pattern begins with.
func (p *pattern) prefix() string {
	if len(p.parts) == 0 {
		return ""
	}
	return p.parts[0].literal
}

func (p *pattern) names() (names []string) {
	for _, part := range p.parts {
		if part.name != "" {
			names = append(names, part.name)
		}
	}
	return names
}

func (p *pattern) has(name string) bool { return slices.Contains(p.names(), name) }

// match returns the values that make the pattern this URI.
func (p *pattern) match(uri string) (map[string]value, bool) {
	if !strings.HasPrefix(uri, p.prefix()) {
		return nil, false
	}
	found := p.matches.FindStringSubmatch(uri)
	if found == nil {
		return nil, false
	}
	values := map[string]value{}
	for i, name := range p.names() {
		decoded, ok := decode(found[i+1])
		if !ok {
			return nil, false
		}
		values[name] = value{found[i+1], decoded}
	}
	return values, true
}

// decode returns what a part of a URI says. It refuses what is no text, and what would
// lead out of the place where it stands: parts of a path that are only dots, also for
// those who decode twice. What is escaped more often than that is refused.
func decode(raw string) (string, bool) {
	decoded, err := url.PathUnescape(raw)
	if err != nil || !utf8.ValidString(decoded) || strings.ContainsFunc(decoded, unicode.IsControl) {
		return "", false
	}
	text := decoded
	for range maxEscapes {
		if leadsOut(text) {
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

// maxEscapes is how often a value may be escaped.
const maxEscapes = 3

func leadsOut(path string) bool {
	for step := range strings.FieldsFuncSeq(path, func(c rune) bool { return c == '/' || c == '\\' }) {
		if step == "." || step == ".." {
			return true
		}
	}
	return false
}

// expand returns the URI that values make of the pattern. What stands for one part of a
// path stays one.
func (p *pattern) expand(values map[string]value) string {
	var uri strings.Builder
	for _, part := range p.parts {
		v := values[part.name]
		switch {
		case part.name == "":
			uri.WriteString(part.literal)
		case part.slashes:
			uri.WriteString(v.raw)
		default:
			uri.WriteString(escape(v.decoded))
		}
	}
	return uri.String()
}

// escape encodes everything but the characters that mean nothing in a URI.
func escape(text string) string {
	return strings.ReplaceAll(url.QueryEscape(text), "+", "%20")
}
