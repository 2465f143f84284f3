package mcp

import "strings"

// An expansion describes what clients may insert for an expression of RFC 6570: nothing, or a first
// character followed by any but some characters.
type expansion struct {
	first byte   // 0 for any
	never string // characters that cannot follow
}

// expansions are the expansions by operator. Slashes, queries and fragments come only from
// operators that allow them.
var expansions = map[byte]expansion{
	'+': {0, ""},
	'#': {'#', ""},
	'.': {'.', "/?#"},
	'/': {'/', "?#"},
	';': {';', "/?#"},
	'?': {'?', "#"},
	'&': {'&', "#"},
}

// Limits for matching: expressions of a template, and bytes of a URI.
const maxExpressions, longestMatched = 32, 2 << 10

// MatchTemplate reports whether a URI can be expanded from a URI template of RFC 6570. The template
// must begin with the scheme: one that matches all URIs is useless. It takes time linear in the
// length of the URI.
func MatchTemplate(template, uri string) bool {
	beginning, rest, open := strings.Cut(template, "{")
	if !open || len(template) > maxTemplate || len(uri) > longestMatched ||
		!strings.Contains(beginning, ":") || !strings.HasPrefix(uri, beginning) {
		return false
	}
	uri = uri[len(beginning):]
	ends := make([]bool, len(uri)+1) // positions in the URI where the template read so far may end
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

// extend adds the positions that the expression can reach.
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
