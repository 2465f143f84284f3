// Package toolsearch finds tools by their descriptions.
//
// A gateway with many servers can have more tools than fit in a model's context. It can
// then list only a few tools that search for the others. The search is BM25 over names,
// titles, descriptions and parameters, with a weight for each field. New precomputes the
// scores of all terms, so that Search only adds them up.
package toolsearch

import (
	"encoding/json"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/words"
)

// The usual parameters of BM25.
const (
	k1 = 1.2  // saturation of repeated terms
	b  = 0.75 // influence of the text length
)

const (
	defaultLimit  = 10
	maxLimit      = 50
	maxQuery      = 1000 // characters
	maxFieldTerms = 5000 // per field of a tool
	maxQueryWords = 16   // per query, if names are searched
)

// A field is a searched part of a tool.
type field int

const (
	nameField field = iota
	titleField
	descriptionField
	parameterNameField // names of parameters, at any depth
	parameterTextField // titles and descriptions of parameters
	fields
)

// weights are the weights of a term by field. Queries usually contain words of tool names.
// Descriptions of parameters are long and often about something else.
var weights = [fields]float64{
	nameField:          4,
	titleField:         3,
	descriptionField:   1.5,
	parameterNameField: 1,
	parameterTextField: 0.3,
}

// A Tool is a tool to index.
type Tool struct {
	Name string // alias, as clients call it
	Raw  []byte // JSON descriptor from tools/list
}

// A Hit is a search result.
type Hit struct {
	Name    string
	Summary string // first sentence of the description or title, at most 200 characters
	Score   float64
}

// An Index searches tools. It is immutable and safe for concurrent use.
type Index struct {
	tools    []entry
	postings map[string][]posting
}

type entry struct {
	name, summary string

	// For queries without a known term.
	words  []string // of the name
	joined string   // name without separators
}

// A posting is the score that a term adds to a tool.
type posting struct {
	tool  int32
	score float64
}

// New returns an index of tools. A tool with an invalid descriptor is found only by its
// name.
func New(tools []Tool) *Index {
	x := &Index{tools: make([]entry, len(tools)), postings: make(map[string][]posting)}
	counts := make(map[string][]count)
	lengths := make([][fields]int, len(tools))
	var total [fields]int
	for i, tool := range tools {
		var descriptor map[string]any
		_ = json.Unmarshal(tool.Raw, &descriptor)
		texts := readTool(tool.Name, descriptor)
		x.tools[i] = newEntry(tool.Name, texts)
		for f, text := range texts {
			lengths[i][f] = countTerms(counts, int32(i), field(f), text)
			total[f] += lengths[i][f]
		}
	}
	for term, tools := range counts {
		x.postings[term] = scoreTerm(tools, lengths, total)
	}
	return x
}

// fieldTexts are the texts of a tool by field.
type fieldTexts [fields][]string

func readTool(name string, descriptor map[string]any) (t fieldTexts) {
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
	t.addSchema(descriptor["inputSchema"])
	return t
}

// addSchema adds the parameters of a JSON schema. It descends by keyword, because a
// parameter can have the name of a keyword, such as properties.
func (t *fieldTexts) addSchema(v any) {
	for keyword, v := range sortedMembers(v) {
		switch keyword {
		case "properties":
			for name, property := range sortedMembers(v) {
				t[parameterNameField] = append(t[parameterNameField], name)
				t.addText(property)
				t.addSchema(property)
			}
		case "patternProperties", "$defs", "definitions", "dependentSchemas":
			for _, schema := range sortedMembers(v) {
				t.addSchema(schema)
			}
		case "allOf", "anyOf", "oneOf", "prefixItems", "items":
			if list, ok := v.([]any); ok {
				for _, schema := range list {
					t.addSchema(schema)
				}
				break
			}
			t.addSchema(v)
		case "additionalProperties", "unevaluatedProperties", "contains", "not", "if", "then", "else":
			t.addSchema(v)
		}
	}
}

// sortedMembers yields the members of an object in the order of their names, so that
// indexes of the same tools are equal.
func sortedMembers(v any) iter.Seq2[string, any] {
	object, _ := v.(map[string]any)
	return func(yield func(string, any) bool) {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if !yield(name, object[name]) {
				return
			}
		}
	}
}

// addText adds the title and description of a parameter.
func (t *fieldTexts) addText(property any) {
	p, _ := property.(map[string]any)
	for _, key := range [...]string{"title", "description"} {
		if text, _ := p[key].(string); text != "" {
			t[parameterTextField] = append(t[parameterTextField], text)
		}
	}
}

func newEntry(name string, t fieldTexts) entry {
	e := entry{name: name}
	for _, text := range slices.Concat(t[descriptionField], t[titleField]) {
		if e.summary = summary(text); e.summary != "" {
			break
		}
	}
	for word := range words.Split(name) {
		e.words = append(e.words, word)
	}
	e.joined = words.Joined(name)
	return e
}

// A count is how often a term occurs in each field of a tool.
type count struct {
	tool   int32
	fields [fields]int32
}

// countTerms adds the terms of one field of a tool to counts and returns their number.
func countTerms(counts map[string][]count, tool int32, f field, texts []string) (n int) {
	for _, text := range texts {
		for term := range words.Terms(text) {
			if n == maxFieldTerms {
				return n
			}
			n++
			tools := counts[term]
			if len(tools) == 0 || tools[len(tools)-1].tool != tool {
				tools = append(tools, count{tool: tool})
			}
			tools[len(tools)-1].fields[f]++
			counts[term] = tools
		}
	}
	return n
}

// scoreTerm returns the score that a term adds to each tool that contains it. The score
// is BM25 with weighted fields; each length is relative to the average length of the field.
func scoreTerm(counts []count, lengths [][fields]int, total [fields]int) []posting {
	n, have := float64(len(lengths)), float64(len(counts))
	rarity := math.Log(1 + (n-have+0.5)/(have+0.5))
	postings := make([]posting, len(counts))
	for i, c := range counts {
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

// Search returns the tools that match a query best, the best first. Tools with equal
// scores keep the order of the index. The limit is at most 50, and 10 if it is not
// positive. If the index contains no term of the query, Search looks for its words in the
// names. An empty query returns the first tools. Only the first 1,000 characters of a
// query count.
func (x *Index) Search(query string, limit int) []Hit {
	if limit <= 0 {
		limit = defaultLimit
	}
	top := ranking{limit: min(limit, maxLimit)}
	query = strings.TrimSpace(truncate(query, maxQuery))
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

// scoreNames adds 1 to a tool for each word of the query that is a prefix of a word of
// its name, and 0.5 for each that occurs elsewhere in the name.
func (x *Index) scoreNames(scores []float64, query string) {
	var queryWords []string
	for word := range words.Split(query) {
		if utf8.RuneCountInString(word) > 1 && !slices.Contains(queryWords, word) {
			queryWords = append(queryWords, word)
		}
		if len(queryWords) == maxQueryWords {
			break
		}
	}
	for i, tool := range x.tools {
		for _, word := range queryWords {
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

// A ranking keeps the tools with the highest scores. Tools are added in their order.
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
	// After all tools with the same score.
	at, _ := slices.BinarySearchFunc(top.best, r.score, func(have ranked, score float64) int {
		if have.score >= score {
			return -1
		}
		return 1
	})
	top.best = slices.Insert(top.best, at, r)
}

// maxSummary is the maximum length of a summary in characters.
const maxSummary = 200

// summary returns the first sentence of the first line of a text, up to maxSummary.
func summary(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = strings.TrimSpace(line)
	for i, r := range line {
		if end := i + utf8.RuneLen(r); r == '。' || strings.ContainsRune(".!?", r) && endsSentence(line[end:]) {
			line = line[:end]
			break
		}
	}
	short := truncate(line, maxSummary)
	if len(short) == len(line) {
		return line
	}
	return truncate(short, maxSummary-1) + "…"
}

// endsSentence reports whether a full stop before rest ends a sentence. Those in "e.g."
// do not.
func endsSentence(rest string) bool {
	next := strings.TrimSpace(rest)
	if next == "" || len(next) == len(rest) {
		return next == ""
	}
	r, _ := utf8.DecodeRuneInString(next)
	return !unicode.IsLower(r)
}

// truncate returns at most the first n characters of a text.
func truncate(text string, n int) string {
	for i := range text {
		if n == 0 {
			return text[:i]
		}
		n--
	}
	return text
}
