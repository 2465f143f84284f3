package prune

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// A vocabulary holds the terms of a text, numbered, and the lines they occur in.
type vocabulary struct {
	terms     []string
	lines     []int // number of lines with each term
	lineTerms []int // terms of all lines, one line after the other, each once per line
	ends      []int // end of each line in lineTerms
}

// line returns the terms of line i.
func (v *vocabulary) line(i int) []int {
	start := 0
	if i > 0 {
		start = v.ends[i-1]
	}
	return v.lineTerms[start:v.ends[i]]
}

// rarity returns the weight of finding a term in a line.
func (v *vocabulary) rarity(term int) float64 { return rarity(v.lines[term], len(v.ends)) }

// rarity returns the weight of something that occurs in found of n parts: the more parts, the less.
func rarity(found, n int) float64 {
	return math.Log(1 + (float64(n-found)+0.5)/(float64(found)+0.5))
}

// maxTerms is how many terms of a line are read. A line with more terms is data, not text.
const maxTerms = 400

func readVocabulary(l lines, stopped func() bool) *vocabulary {
	v := &vocabulary{ends: make([]int, 0, l.len())}
	known := map[string][]int{} // terms by name; names repeat, so each is split only once
	numbers := map[string]int{} // terms by stem
	var last []int              // the last line with each term, counted from 1
	read := func(name string) (terms []int) {
		for word := range words.Split(name) {
			stem := words.Stem(word)
			term, ok := numbers[stem]
			if !ok {
				term = len(v.terms)
				numbers[stem] = term
				v.terms = append(v.terms, stem)
				v.lines = append(v.lines, 0)
				last = append(last, 0)
			}
			terms = append(terms, term)
		}
		known[name] = terms
		return terms
	}
	for i := range l.len() {
		if i%256 == 0 && stopped() {
			return nil
		}
		begin := len(v.lineTerms)
		for rest := l.line(i); rest != "" && len(v.lineTerms)-begin < maxTerms; {
			var name string
			name, rest = cutName(rest)
			if name == "" {
				break
			}
			terms, ok := known[name]
			if !ok {
				terms = read(name)
			}
			for _, term := range terms {
				if last[term] != i+1 {
					last[term] = i + 1
					v.lines[term]++
					v.lineTerms = append(v.lineTerms, term)
				}
			}
		}
		v.ends = append(v.ends, len(v.lineTerms))
	}
	return v
}

// cutName returns the first name in text and the rest. A name consists of letters, digits and
// non-ASCII characters.
func cutName(text string) (name, rest string) {
	start := 0
	for start < len(text) && !isNameByte(text[start]) {
		start++
	}
	end := start
	for end < len(text) && (isNameByte(text[end]) || text[end] == '\'') {
		end++
	}
	return text[start:end], text[end:]
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isNameByte(c byte) bool { return isLetter(c) || isDigit(c) || c >= utf8.RuneSelf }

// A query is a parsed goal.
type query struct {
	terms       []queryTerm
	identifiers []string // identifiers, in lower case
	about       topic
}

type queryTerm struct {
	stem   string
	weight float64
}

// maxQueryTerms bounds the work for a long goal. The first terms are the most important ones.
const maxQueryTerms = 24

func parseGoal(goal string) *query {
	q := &query{about: topicsOf(goal)}
	seen := map[string]bool{}
	for term := range words.Terms(goal) {
		if len(q.terms) == maxQueryTerms {
			break
		}
		if seen[term] || len(term) < 2 {
			continue
		}
		seen[term] = true
		weight := 1.0
		if generic[term] {
			weight = 0.3
		}
		q.terms = append(q.terms, queryTerm{term, weight})
	}
	for field := range strings.FieldsSeq(goal) {
		quoted := strings.ContainsAny(field, "`\"'")
		field = strings.TrimFunc(field, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
		if len(field) >= 3 && len(q.identifiers) < maxQueryTerms && (quoted || isIdentifier(field)) {
			q.identifiers = append(q.identifiers, strings.ToLower(field))
		}
	}
	return q
}

// generic are terms that many goals share, such as verbs. They say little about the lines to find.
var generic = func() map[string]bool {
	set := map[string]bool{}
	for term := range words.Terms(`fix add remove update use make support allow improve change handle ensure avoid
		prevent refactor feat chore docs doc bug issue clean cleanup simplify rename move introduce implement correct
		instead when not no only some new more also should does don't without after before all missing wrong
		better`) {
		set[term] = true
	}
	return set
}()

// isIdentifier reports whether a word is spelled like an identifier.
func isIdentifier(word string) bool {
	upper := false // after the first letter
	for i, r := range word {
		switch {
		case r == '_' || r == '.' || r == ':' || r == '(':
			return true
		case i > 0 && unicode.IsUpper(r):
			upper = true
		}
	}
	return upper
}

// A topic is a subject of a goal that makes some kinds of lines relevant, whatever terms they have.
type topic uint8

const (
	aboutComments topic = 1 << iota
	aboutImports
	aboutTests
	aboutErrors
	aboutTypes
	aboutVersions
	aboutMessages
)

var topics = func() map[string]topic {
	byTerm := map[string]topic{}
	for about, text := range map[topic]string{
		aboutComments: "comment doc docs documentation typo spelling grammar docstring javadoc readme wording link license",
		aboutImports:  "import unused dependency package module include lint header require",
		aboutTests:    "test tests assertion coverage spec flaky mock fixture",
		aboutErrors:   "error exception panic crash fail failure throw raise warning leak null nil undefined",
		aboutTypes:    "type typing signature parameter argument generic interface return annotation param struct class",
		aboutVersions: "version bump upgrade release minimum year",
		aboutMessages: "log logging message print output text string help format usage",
	} {
		for term := range words.Terms(text) {
			byTerm[term] |= about
		}
	}
	return byTerm
}()

func topicsOf(goal string) (about topic) {
	for term := range words.Terms(goal) {
		about |= topics[term]
	}
	return about
}

// similarity returns how similar two terms are: 1 if they are equal, less if they share a prefix, as
// config and configuration do, and 0 otherwise.
func similarity(a, b string) float64 {
	if a == b {
		return 1
	}
	if len(a) > len(b) {
		a, b = b, a
	}
	switch {
	case len(a) >= 4 && strings.HasPrefix(b, a):
		return 0.6
	case len(a) >= 6 && a[:5] == b[:5] && commonPrefix(a, b) >= len(a)-2:
		return 0.4
	}
	return 0
}

func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
