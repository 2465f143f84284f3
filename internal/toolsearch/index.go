// Package toolsearch finds tools by what they are said to do.
//
// A gateway that joins many servers has more tools than fit in a model's context.
// It can list a few that lead to the others instead, and this is the search they
// need: BM25 over names, titles, descriptions and parameters, each field by its
// weight. All that can be computed before a query is known is computed when the
// index is made; a search adds up the postings of its terms and nothing else.
package toolsearch

import (
	"encoding/json"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// The usual parameters of BM25: how soon more of the same term stops to count,
// and how much the length of a text does.
const (
	k1 = 1.2
	b  = 0.75
)

const (
	defaultLimit = 10
	maxLimit     = 50
	maxQuery     = 1000 // characters
	maxTerms     = 5000 // of one field of one tool
	maxWords     = 16   // of a query that are looked for in names
)

// A field is a part of a tool that is searched.
type field int

const (
	nameField field = iota
	titleField
	descriptionField
	parameterField // the names of parameters, at any depth
	adviceField    // what is said of parameters
	fields
)

// weights says how much a term counts in each field. People look for tools by
// their names; what is said of parameters is long and often about something else.
var weights = [fields]float64{
	nameField:        4,
	titleField:       3,
	descriptionField: 1.5,
	parameterField:   1,
	adviceField:      0.3,
}

// A Tool is one to be found.
type Tool struct {
	Name string // as the client calls it
	Raw  []byte // its descriptor, as tools/list has it
}

// A Hit is a tool that was found.
type Hit struct {
	Name    string
	Summary string // the first sentence of its description, of at most 200 characters
	Score   float64
}

// An Index finds tools. It does not change and is safe for concurrent use.
type Index struct {
	tools    []entry
	postings map[string][]posting
}

type entry struct {
	name, summary string

	// For what no term finds: the words of the name, and the name without what
	// stands between them.
	words  []string
	joined string
}

// A posting says what a term adds to the score of a tool.
type posting struct {
	tool  int32
	score float64
}

// New returns an index of tools. A descriptor that cannot be read counts as empty:
// the tool is found by its name.
func New(tools []Tool) *Index {
	x := &Index{tools: make([]entry, len(tools)), postings: make(map[string][]posting)}
	counts := make(map[string][]count)
	lengths := make([][fields]int, len(tools))
	var total [fields]int
	for i, tool := range tools {
		var descriptor map[string]any
		_ = json.Unmarshal(tool.Raw, &descriptor)
		texts := read(tool.Name, descriptor)
		x.tools[i] = newEntry(tool.Name, texts)
		for f, text := range texts {
			lengths[i][f] = countTerms(counts, int32(i), field(f), text)
			total[f] += lengths[i][f]
		}
	}
	for term, of := range counts {
		x.postings[term] = score(of, lengths, total)
	}
	return x
}

// texts are the fields of a tool.
type texts [fields][]string

func read(name string, descriptor map[string]any) (t texts) {
	t[nameField] = []string{name}
	if own, _ := descriptor["name"].(string); !strings.Contains(name, own) {
		t[nameField] = append(t[nameField], own)
	}
	annotations, _ := descriptor["annotations"].(map[string]any)
	for _, title := range []any{descriptor["title"], annotations["title"]} {
		if title, _ := title.(string); title != "" {
			t[titleField] = []string{title}
			break
		}
	}
	if description, _ := descriptor["description"].(string); description != "" {
		t[descriptionField] = []string{description}
	}
	t.schema(descriptor["inputSchema"])
	return t
}

// schema reads the parameters that a schema names. Which of its members are schemas
// is for their keywords to say: a parameter may be called properties as well.
func (t *texts) schema(v any) {
	for keyword, v := range sorted(v) {
		switch keyword {
		case "properties":
			for name, property := range sorted(v) {
				t[parameterField] = append(t[parameterField], name)
				t.advice(property)
				t.schema(property)
			}
		case "patternProperties", "$defs", "definitions", "dependentSchemas":
			for _, schema := range sorted(v) {
				t.schema(schema)
			}
		case "allOf", "anyOf", "oneOf", "prefixItems", "items":
			if list, ok := v.([]any); ok {
				for _, schema := range list {
					t.schema(schema)
				}
				break
			}
			t.schema(v)
		case "additionalProperties", "unevaluatedProperties", "contains", "not", "if", "then", "else":
			t.schema(v)
		}
	}
}

// sorted yields the members of an object by their names, so that an index of the same
// tools is the same index.
func sorted(v any) iter.Seq2[string, any] {
	object, _ := v.(map[string]any)
	return func(yield func(string, any) bool) {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if !yield(name, object[name]) {
				return
			}
		}
	}
}

func (t *texts) advice(property any) {
	p, _ := property.(map[string]any)
	for _, key := range [...]string{"title", "description"} {
		if text, _ := p[key].(string); text != "" {
			t[adviceField] = append(t[adviceField], text)
		}
	}
}

func newEntry(name string, t texts) entry {
	e := entry{name: name}
	for _, text := range slices.Concat(t[descriptionField], t[titleField]) {
		if e.summary = summary(text); e.summary != "" {
			break
		}
	}
	for word := range words.In(name) {
		e.words = append(e.words, word)
	}
	e.joined = words.Joined(name)
	return e
}

// A count is how often a tool has a term, in each field.
type count struct {
	tool   int32
	fields [fields]int32
}

// countTerms counts the terms of one field of a tool and returns how many they are.
func countTerms(counts map[string][]count, tool int32, f field, texts []string) (n int) {
	for _, text := range texts {
		for term := range words.Terms(text) {
			if n == maxTerms {
				return n
			}
			n++
			of := counts[term]
			if len(of) == 0 || of[len(of)-1].tool != tool {
				of = append(of, count{tool: tool})
			}
			of[len(of)-1].fields[f]++
			counts[term] = of
		}
	}
	return n
}

// score gives what a term that these tools have adds to the score of each, which is
// BM25 with its weighted variant for fields: each is measured against the usual
// length of its kind.
func score(of []count, lengths [][fields]int, total [fields]int) []posting {
	n, have := float64(len(lengths)), float64(len(of))
	rarity := math.Log(1 + (n-have+0.5)/(have+0.5))
	postings := make([]posting, len(of))
	for i, c := range of {
		frequency := 0.0
		for f, times := range c.fields {
			if times > 0 {
				length := float64(lengths[c.tool][f]) * n / float64(total[f])
				frequency += weights[f] * float64(times) / (1 - b + b*length)
			}
		}
		postings[i] = posting{c.tool, rarity * frequency * (k1 + 1) / (frequency + k1)}
	}
	return postings
}

// Search returns the tools that fit a query best, the best first, and of two that
// fit alike the one that was listed first. The limit is from 1 to 50, and 10 unless
// given. If no term of the query is known, tools are found by parts of their names.
// An empty query finds the first tools.
func (x *Index) Search(query string, limit int) []Hit {
	if limit <= 0 {
		limit = defaultLimit
	}
	top := ranking{limit: min(limit, maxLimit)}
	query = strings.TrimSpace(cut(query, maxQuery))
	if query == "" {
		for i := range x.tools[:min(top.limit, len(x.tools))] {
			top.add(ranked{tool: i})
		}
		return x.hits(top)
	}
	scores := make([]float64, len(x.tools))
	known := false
	seen := make(map[string]bool)
	for term := range words.Terms(query) {
		if seen[term] {
			continue
		}
		seen[term] = true
		for _, p := range x.postings[term] {
			scores[p.tool] += p.score
			known = true
		}
	}
	if !known {
		x.scoreNames(scores, query)
	}
	for i, score := range scores {
		if score > 0 {
			top.add(ranked{i, score})
		}
	}
	return x.hits(top)
}

// scoreNames scores tools by the words of a query that their names begin a word
// with, and half as much by those that stand anywhere in them.
func (x *Index) scoreNames(scores []float64, query string) {
	var asked []string
	for word := range words.In(query) {
		if utf8.RuneCountInString(word) > 1 && !slices.Contains(asked, word) {
			asked = append(asked, word)
		}
		if len(asked) == maxWords {
			break
		}
	}
	for i, tool := range x.tools {
		for _, word := range asked {
			switch {
			case slices.ContainsFunc(tool.words, func(w string) bool { return strings.HasPrefix(w, word) }):
				scores[i]++
			case strings.Contains(tool.joined, word):
				scores[i] += 0.5
			}
		}
	}
}

func (x *Index) hits(top ranking) []Hit {
	hits := make([]Hit, len(top.best))
	for i, r := range top.best {
		hits[i] = Hit{x.tools[r.tool].name, x.tools[r.tool].summary, r.score}
	}
	return hits
}

// A ranking keeps the best of what is added to it, which is in the order of tools.
type ranking struct {
	limit int
	best  []ranked
}

type ranked struct {
	tool  int
	score float64
}

func (top *ranking) add(r ranked) {
	if len(top.best) == top.limit {
		if r.score <= top.best[top.limit-1].score {
			return
		}
		top.best = top.best[:top.limit-1]
	}
	// Behind all that are as good.
	at, _ := slices.BinarySearchFunc(top.best, r.score, func(have ranked, score float64) int {
		if have.score >= score {
			return -1
		}
		return 1
	})
	top.best = slices.Insert(top.best, at, r)
}
