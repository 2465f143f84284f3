package prune

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestVocabulary(t *testing.T) { // P77
	v := readVocabulary(split("parse_config reads configs\nparseConfig\n\nread read\n"), func() bool { return false })
	terms := func(i int) []string {
		var all []string
		for _, term := range v.line(i) {
			all = append(all, v.terms[term])
		}
		slices.Sort(all)
		return all
	}
	first := terms(0)
	for i, want := range []struct {
		has, hasNot string
	}{{"config", "configs"}, {"config", "read"}, {"", "config"}, {"read", "config"}} {
		got := terms(i)
		if want.has != "" && !slices.Contains(got, want.has) || slices.Contains(got, want.hasNot) ||
			len(slices.Compact(got)) != len(v.line(i)) {
			t.Errorf("line %d has %q, of %q in the first", i+1, got, first)
		}
	}
	if in := v.lines[slices.Index(v.terms, "read")]; in != 2 {
		t.Errorf("a term is in %d lines, want 2", in)
	}
	if v.rarity(slices.Index(v.terms, "read")) != v.rarity(slices.Index(v.terms, "config")) {
		t.Error("terms that occur in equally many lines differ in rarity")
	}
}

func TestLongLinesAreReadInPart(t *testing.T) {
	var b strings.Builder
	for i := range 2 * maxTerms {
		fmt.Fprintf(&b, "w%s ", strings.Repeat("x", i%90)+string(rune('a'+i/90)))
	}
	v := readVocabulary(split(b.String()+"\nlast\n"), func() bool { return false })
	if n := len(v.line(0)); n == 0 || n > maxTerms {
		t.Errorf("%d terms", n)
	}
	if len(v.line(1)) != 1 {
		t.Errorf("the next line has %d terms", len(v.line(1)))
	}
}

func TestGoals(t *testing.T) { // P39, P77
	for _, test := range []struct {
		name, goal  string
		terms       []string
		identifiers []string
		about       topic
	}{
		{"words by their stems, each once", "the caches of a cache", []string{"cach"}, nil, 0},
		{"names as they are written", "parse_config in HttpServer", nil, []string{"parse_config", "httpserver"}, 0},
		{"names in quotes", "why does `store` fail", nil, []string{"store"}, aboutErrors},
		{"topics", "fix a typo in the tests", nil, nil, aboutComments | aboutTests},
		{"an empty goal", "", []string{}, nil, 0},
		{"metacharacters", ".* [ ( \\", []string{}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			q := parseGoal(test.goal)
			var terms []string
			for _, term := range q.terms {
				terms = append(terms, term.stem)
			}
			if test.terms != nil && !slices.Equal(terms, test.terms) || !slices.Equal(q.identifiers, test.identifiers) ||
				q.about != test.about {
				t.Errorf("got %q, %q, %b", terms, q.identifiers, q.about)
			}
		})
	}
	if q := parseGoal(numbered(1000) + strings.Repeat("wordsLike this_one", 1000)); len(q.terms) > maxQueryTerms ||
		len(q.identifiers) > maxQueryTerms {
		t.Errorf("%d terms and %d names of a long goal", len(q.terms), len(q.identifiers))
	}
}

func TestSimilarity(t *testing.T) { // P77
	for _, test := range []struct {
		a, b string
		want float64
	}{
		{"cache", "cache", 1},
		{"config", "configur", 0.6},
		{"configur", "config", 0.6},
		{"connecti", "connecto", 0.4},
		{"con", "config", 0},
		{"store", "cache", 0},
		{"é", "ê", 0},
		{"", "a", 0},
	} {
		if got := similarity(test.a, test.b); got != test.want {
			t.Errorf("%s and %s: got %v, want %v", test.a, test.b, got, test.want)
		}
	}
}
