package mcp

import "strings"

// An expansion is what clients may put in the place of an expression of RFC 6570: nothing, or a
// character it begins with, and then any but some.
type expansion struct {
	first byte // 0 if it may begin with any
	never string
}

// expansions are those of the operators. Slashes and what follows them come only from operators
// that allow them.
var expansions = map[byte]expansion{
	'+': {0, ""},
	'#': {'#', ""},
	'.': {'.', "/?#"},
	'/': {'/', "?#"},
	';': {';', "/?#"},
	'?': {'?', "#"},
	'&': {'&', "#"},
}

// How many expressions a template may have, and how long a URI may be, to be matched.
const maxExpressions, longestMatched = 32, 2 << 10

// MatchTemplate reports whether a URI can be made of a URI template of RFC 6570. The template has
// to begin with the scheme: one that fits all URIs says nothing of any. The time it takes is linear
// in the length of the URI.
func MatchTemplate(template, uri string) bool {
	beginning, rest, open := strings.Cut(template, "{")
	if !open || len(template) > maxTemplate || len(uri) > longestMatched ||
		!strings.Contains(beginning, ":") || !strings.HasPrefix(uri, beginning) {
		return false
	}
	uri = uri[len(beginning):]
	ends := make([]bool, len(uri)+1) // where what was read of the template may end in the URI
	ends[0] = true
	for range maxExpressions {
		expression, after, closed := strings.Cut(rest, "}")
		if !closed || expression == "" {
			return false
		}
		e, ok := expansions[expression[0]]
		if !ok {
			e = expansion{0, "/?#"}
		}
		e.extend(ends, uri)
		var literal string
		literal, rest, open = strings.Cut(after, "{")
		for i := len(uri); i >= 0; i-- {
			start := i - len(literal)
			ends[i] = start >= 0 && ends[start] && uri[start:i] == literal
		}
		if !open {
			return ends[len(uri)]
		}
	}
	return false
}

// extend moves ends by what the expression can stand for.
func (e expansion) extend(ends []bool, uri string) {
	inside := false
	for i, begins := range ends {
		inside = inside || begins && e.first == 0
		ends[i] = begins || inside
		if i == len(uri) {
			break
		}
		inside = inside && strings.IndexByte(e.never, uri[i]) < 0 || begins && e.first != 0 && uri[i] == e.first
	}
}
