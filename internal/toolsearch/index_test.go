package toolsearch

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func tool(name, descriptor string) Tool { return Tool{name, []byte(descriptor)} }

func names(hits []Hit) string {
	var all []string
	for _, h := range hits {
		all = append(all, h.Name)
	}
	return strings.Join(all, " ")
}

var examples = []Tool{
	tool("fs::read_text_file", `{"name":"read_text_file","title":"Read Text File","description":"Read the complete `+
		`contents of a file as text.\nHandles encodings.","inputSchema":{"type":"object",`+
		`"properties":{"path":{"type":"string"},"head":{"type":"number","description":"only the first N lines"}}}}`),
	tool("fs::write_file", `{"name":"write_file","description":"Create a new file or overwrite an existing file.",`+
		`"inputSchema":{"properties":{"path":{},"content":{}}}}`),
	tool("fs::list_directory", `{"name":"list_directory","description":"Get a listing of all files and directories in `+
		`a path.","inputSchema":{"properties":{"path":{}}}}`),
	tool("github__createIssue", `{"name":"createIssue","description":"Create an issue in a repository.",`+
		`"inputSchema":{"properties":{"repository":{},"labels":{"type":"array","items":{"anyOf":[{"type":"object",`+
		`"properties":{"color":{"description":"hexadecimal"}}}]}}}}}`),
	tool("github__search_repositories", `{"name":"search_repositories","annotations":{"title":"Find projects"},`+
		`"description":"Search for GitHub repositories, e.g. by topic. Paged."}`),
	tool("db-query", `{"description":"Run SQL against Postgres",`+
		`"inputSchema":{"properties":{"properties":{"description":"a parameter with the name of a keyword"},`+
		`"filter":{"$ref":"#/$defs/f"}},"$defs":{"f":{"properties":{"tenantId":{}},`+
		`"additionalProperties":{"properties":{"region":{}}}}}}}`),
	tool("weather", `not JSON`),
	tool("forecast2", `{"title":"Wetter","inputSchema":["properties"],"description":7}`),
}

func TestSearch(t *testing.T) {
	x := New(examples)
	for _, test := range []struct {
		name, query string
		limit       int
		want        string
	}{
		{"by name", "list_directory", 1, "fs::list_directory"},
		{"names before descriptions", "directory path", 1, "fs::list_directory"},
		{"a name as the upstream writes it", "createIssue", 1, "github__createIssue"},
		{"by a form of a word", "listed directories", 1, "fs::list_directory"},
		{"by description", "how to overwrite files", 1, "fs::write_file"},
		{"by a word divided by its capitals", "GITHUB projects", 1, "github__search_repositories"},
		{"by a title", "wetter", 5, "forecast2"},
		{"by the title of annotations", "projects", 5, "github__search_repositories"},
		{"by a parameter", "labels", 5, "github__createIssue"},
		{"by a parameter at depth", "color", 5, "github__createIssue"},
		{"by a parameter in a definition", "tenant", 5, "db-query"},
		{"by a parameter in a schema in a definition", "region", 5, "db-query"},
		{"by a parameter with the name of a keyword", "properties", 5, "db-query"},
		{"by the description of a parameter", "hexadecimal", 5, "github__createIssue"},
		{"by the description of a parameter with the name of a keyword", "keyword", 5, "db-query"},
		{"not by keywords of a schema", "object", 5, ""},
		{"a tool with an invalid descriptor", "weather", 5, "weather"},
		{"all terms count", "create issue", 2, "github__createIssue fs::write_file"},
		{"parameter names before parameter descriptions", "path", 3,
			"fs::list_directory fs::read_text_file fs::write_file"},
		{"an unknown word next to a known one", "zzz weather", 5, "weather"},
		{"by the beginning of a name", "direc", 5, "fs::list_directory"},
		{"by the beginning of a word as written", "WEATH", 5, "weather"},
		{"by the inside of a name", "eathe", 5, "weather"},
		{"by a name without its separators", "writefi", 5, "fs::write_file"},
		{"beginnings before insides", "ead iss", 5, "github__createIssue fs::read_text_file"},
		{"a query without matches", "xylophone", 5, ""},
		{"a query of punctuation", "?!", 5, ""},
		{"a query of one letter", "z", 5, ""},
		{"an empty query", "", 2, "fs::read_text_file fs::write_file"},
		{"white space", " \t\n", 1, "fs::read_text_file"},
		{"bytes that are not UTF-8", "weather\xff", 1, "weather"},
		{"a term beyond the query limit", strings.Repeat("zzz ", 250) + "weather", 5, ""},
		{"the last term within the query limit", strings.Repeat("zzz ", 248) + "weather", 5, "weather"},
	} {
		t.Run(test.name, func(t *testing.T) {
			hits := x.Search(test.query, test.limit)
			if got := names(hits); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			for i, h := range hits {
				if strings.TrimSpace(test.query) != "" && h.Score <= 0 || i > 0 && hits[i-1].Score < h.Score {
					t.Errorf("scores %v", hits)
				}
			}
		})
	}
}

func TestHitsHaveSummaries(t *testing.T) {
	x := New(examples)
	for query, want := range map[string]string{
		"read_text_file":      "Read the complete contents of a file as text.",
		"search_repositories": "Search for GitHub repositories, e.g. by topic.",
		"forecast2":           "Wetter",
		"weather":             "",
	} {
		if hits := x.Search(query, 1); len(hits) != 1 || hits[0].Summary != want {
			t.Errorf("%s: %+v, want %q", query, hits, want)
		}
	}
}

func TestLimits(t *testing.T) {
	var tools []Tool
	for i := range 100 {
		tools = append(tools, tool(fmt.Sprint("same_", 100+i), `{"description":"same"}`))
	}
	x := New(tools)
	for limit, want := range map[int]int{-1: 10, 0: 10, 1: 1, 7: 7, 50: 50, 51: 50, 1000: 50} {
		for _, query := range []string{"", "same", "sa"} {
			hits := x.Search(query, limit)
			if len(hits) != want {
				t.Errorf("%q, limit %d: %d hits, want %d", query, limit, len(hits), want)
			}
			for i, h := range hits {
				if h.Name != tools[i].Name {
					t.Errorf("%q, limit %d: hit %d is %s", query, limit, i, h.Name)
				}
			}
		}
	}
	if hits := New(nil).Search("x", 5); len(hits) != 0 {
		t.Errorf("empty index: %v", hits)
	}
	if hits := New(nil).Search("", 5); len(hits) != 0 {
		t.Errorf("empty index, empty query: %v", hits)
	}
	huge := tool("huge", `{"description":"`+strings.Repeat("word ", 2*maxFieldTerms)+`last"}`)
	if hits := New([]Tool{huge}).Search("last", 5); len(hits) != 0 {
		t.Error("indexed more terms than maxFieldTerms")
	}
	if got := New([]Tool{huge}).Search("huge", 1)[0].Summary; utf8.RuneCountInString(got) != maxSummary {
		t.Errorf("summary of %d characters", utf8.RuneCountInString(got))
	}
}

// A ranking equals the beginning of a full sort.
func TestRanking(t *testing.T) {
	scores := []float64{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9}
	want := []int{5, 12, 14, 11, 13, 7, 4, 8, 10, 2, 0, 9, 6, 1, 3}
	for limit := 1; limit <= len(scores); limit++ {
		top := ranking{limit: limit}
		for i, score := range scores {
			top.add(ranked{i, score})
		}
		var got []int
		for _, r := range top.best {
			got = append(got, r.tool)
		}
		if !reflect.DeepEqual(got, want[:limit]) {
			t.Errorf("limit %d: %v, want %v", limit, got, want[:limit])
		}
	}
}

// Results do not depend on the random order of maps.
func TestSearchIsDeterministic(t *testing.T) {
	tools := many(300)
	x := New(tools)
	queries := []string{"read the repository of a customer", "delete invoices", "tok", "parameter"}
	var want [][]Hit
	for _, query := range queries {
		want = append(want, x.Search(query, 50))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			again := New(tools)
			for range 20 {
				for i, query := range queries {
					if got := x.Search(query, 50); !reflect.DeepEqual(got, want[i]) {
						t.Errorf("%s: %v, then %v", query, want[i], got)
					}
					if got := again.Search(query, 50); !reflect.DeepEqual(got, want[i]) {
						t.Errorf("%s: %v, with another index %v", query, want[i], got)
					}
				}
			}
		})
	}
	wg.Wait()
}

// many returns n realistic tools.
func many(n int) []Tool {
	verbs := []string{"read", "list", "create", "delete", "update", "search", "export", "merge", "validate", "archive"}
	things := []string{"file", "issue", "repository", "customer", "invoice", "branch", "webhook", "token",
		"calendar_event", "message", "database", "dashboard"}
	tools := make([]Tool, n)
	for i := range tools {
		verb, thing := verbs[i%len(verbs)], things[i/len(verbs)%len(things)]
		tools[i] = tool(fmt.Sprintf("server%d::%s_%s", i/(len(verbs)*len(things)), verb, thing), fmt.Sprintf(
			`{"name":"%[1]s_%[2]s","description":"Use this tool to %[1]s a %[2]s of the account. Returns the %[2]s as JSON, `+
				`with its id and when it was changed last.","inputSchema":{"type":"object",`+
				`"properties":{"%[2]sId":{"type":"string","description":"The identifier of the %[2]s"},`+
				`"options":{"type":"object","properties":{"dryRun":{"type":"boolean","description":"Only say what would be `+
				`done"},"parameter%[3]d":{"type":"string"}}}},"required":["%[2]sId"]}}`,
			verb, thing, i%97))
	}
	return tools
}

func BenchmarkNew(b *testing.B) {
	tools := many(10_000)
	b.ReportAllocs()
	for b.Loop() {
		New(tools)
	}
}

func BenchmarkSearch(b *testing.B) {
	x := New(many(10_000))
	for _, bench := range []struct{ name, query string }{
		{"a tool", "merge branch"},
		{"a sentence", "which tool can I use to export all invoices of a customer as JSON"},
		{"every tool", "tool account"},
		{"part of a name", "dashb"},
		{"the longest query", strings.Repeat("export invoices ", 63)},
		{"the longest query without known terms", strings.Repeat("zz yy xx ww vv uu tt ss rr qq pp oo nn mm ll kk ", 21)},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x.Search(bench.query, 10)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	long := strings.Repeat("é", 300)
	for _, test := range []struct {
		name, text, want string
	}{
		{"a blank text", " \n ", ""},
		{"a sentence", "Reads a file. Then more.", "Reads a file."},
		{"a line", "\n  Reads a file\r\nand more", "Reads a file"},
		{"no end of a sentence", "Reads a file", "Reads a file"},
		{"a question", "What? This.", "What?"},
		{"an abbreviation", "Reads files, e.g. logs. Fast.", "Reads files, e.g. logs."},
		{"a version and a file", "Reads v1.2 of a.txt. Fast.", "Reads v1.2 of a.txt."},
		{"an ideographic full stop", "读取文件。更多", "读取文件。"},
		{"200 characters", long[:400], long[:400]},
		{"more characters", long, long[:398] + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := summary(test.text); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
