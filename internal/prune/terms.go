package prune

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// A vocabulary has the terms of a text, numbered, and which of its lines they are in.
type vocabulary struct {
	terms []string
	lines []int // how many lines a term is in
	of    []int // the terms of all lines, one after the other, each once a line
	ends  []int // of each line in of
}

// line returns the terms of line i.
func (v *vocabulary) line(i int) []int {
	start := 0
	if i > 0 {
		start = v.ends[i-1]
	}
	return v.of[start:v.ends[i]]
}

// rarity is what finding a term in a line says.
func (v *vocabulary) rarity(term int) float64 { return rarity(v.lines[term], len(v.ends)) }

// rarity is what finding something says that is in so many of n parts: little if it is
// everywhere.
func rarity(in, n int) float64 { return math.Log(1 + (float64(n-in)+0.5)/(float64(in)+0.5)) }

// maxTerms is how many terms of one line are looked at. A line of more is data.
const maxTerms = 400

func readVocabulary(l lines, stopped func() bool) *vocabulary {
	v := &vocabulary{ends: make([]int, 0, l.len())}
	known := map[string][]int{} // the terms of a name; names come back, and so are divided once
	numbers := map[string]int{}
	var last []int // the line in which a term was seen last, counted from 1
	read := func(name string) (terms []int) {
		for word := range words.In(name) {
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
		begin := len(v.of)
		for rest := l.line(i); rest != "" && len(v.of)-begin < maxTerms; {
			var name string
			if name, rest = cutName(rest); name == "" {
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
					v.of = append(v.of, term)
				}
			}
		}
		v.ends = append(v.ends, len(v.of))
	}
	return v
}

// cutName returns the first name in text, which has no ASCII character in it that is
// not of a word, and what follows.
func cutName(text string) (name, rest string) {
	start := 0
	for start < len(text) && !inName(text[start]) {
		start++
	}
	end := start
	for end < len(text) && (inName(text[end]) || text[end] == '\'') {
		end++
	}
	return text[start:end], text[end:]
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func inName(c byte) bool { return isLetter(c) || isDigit(c) || c >= utf8.RuneSelf }

// A query is what a goal asks for.
type query struct {
	terms       []queryTerm
	identifiers []string // names of things, as they are written, in lower case
	about       topic
}

type queryTerm struct {
	stem   string
	weight float64
}

// maxQueryTerms bounds the work that a long goal makes. The first ones tell most.
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

// generic are the terms of what people want to do, not of what they do it to.
var generic = func() map[string]bool {
	set := map[string]bool{}
	for term := range words.Terms(`fix add remove update use make support allow improve change handle ensure avoid prevent refactor feat chore
		docs doc bug issue clean cleanup simplify rename move introduce implement correct instead when not no only some new more also
		should does don't without after before all missing wrong better`) {
		set[term] = true
	}
	return set
}()

// isIdentifier reports whether a word is a name by how it is written.
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

// A topic is what a goal is about besides its words: lines of some kinds bear on it.
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

// similarity is how much a term of the text is one of the goal: 1 if they are the
// same, some if one begins with the other, as config and configuration do.
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
