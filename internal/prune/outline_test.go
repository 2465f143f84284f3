package prune

import (
	"slices"
	"testing"
)

func TestParagraphs(t *testing.T) { // P77
	for _, test := range []struct {
		name   string
		source Source
		text   string
		want   string
	}{
		{"up to a blank line", Docs, "a\nb\n\n \nc\n", "aabbc"},
		{"up to a definition", Code, "x = 1\ndef f():\n    a\ndef g():\n    b\n", "abbcc"},
		{"a comment goes with its definition", Code, "x = 1\n# of f\ndef f():\n    a\n", "aaaa"},
		{"up to a heading", Docs, "a\n# B\nb\n", "abb"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := outlineOf(split(test.text), test.source, never)
			if got := lettered(o.paragraph); got != test.want || o.paragraphs != int(slices.Max([]byte(test.want))-'a')+1 {
				t.Errorf("got %s, %d of them, want %s", got, o.paragraphs, test.want)
			}
		})
	}
}

func TestLooksOfALine(t *testing.T) {
	for _, test := range []struct {
		line   string
		indent int
		kind   kind
	}{
		{"a", 0, 0},
		{"  a", 2, 0},
		{"\ta", 4, 0},
		{" \t a", 6, 0},
		{"", 0, blank},
		{" \u00a0\t", 1, blank},
		{"});", 0, bracket},
		{"  ---", 2, bracket},
		{"_", 0, 0},
		{"é", 0, 0},
		{"0", 0, 0},
	} {
		o := outlineOf(split("first\n"+test.line+"\n"), Logs, never)
		if o.kinds[1] != test.kind || o.indent[1] != test.indent {
			t.Errorf("%q: %b, indented by %d, want %b and %d", test.line, o.kinds[1], o.indent[1], test.kind, test.indent)
		}
	}
}

func never() bool { return false }

func TestOutlineOfDocs(t *testing.T) { // P37
	for _, test := range []struct{ name, snippet string }{
		{"Markdown", `
H|# Title
 |
 |Text with # no heading.
H|## Part
H|###### Small
 |####### too deep
 |#hashtag
 |#
H|   ### Indented
`},
		{"underlined titles", `
H|Title
H|=====
 |
H|Part
H|---- 	
 |text
 |
 |a paragraph
 |of two lines
 |---
 |
 |---
 |
 || a | b |
 ||---|---|
`},
		{"reStructuredText", `
H|Title
H|*****
 |
H|Part
H|~~~~
 |text
`},
		{"AsciiDoc", `
H|= Title
 |
H|== Part
 |== 
 |a == b
`},
		{"HTML", `
H|<h1>Title</h1>
H|<H2 id="x">Part</H2>
 |<hr>
 |<header>
 |<h7>
`},
		{"a fence with headings in it", "O|```sh\nF|# a comment\nF|Title\nF|=====\nF|```\nH|# Title\n"},
		{"a fence of tildes", "O|~~~\nF|```\nF|# a\nF|~~~\n |text\n"},
		{"a fence of tildes under a line of text", " |Example:\nO|~~~\nF|a\nF|~~~\n |text\n"},
		{"a fence in a fence", "O|````\nF|```\nF|a\nF|```\nF|````\n |text\n"},
		{"a fence that ends with a longer one", "O|```\nF|a\nF|`````\n |text\n"},
		{"a fence that does not end with a shorter one", "O|````\nF|a\nF|```\nF|b\n"},
		{"a fence that does not end with one that has more text", "O|```\nF|```go\nF|```\n |text\n"},
		{"a fence that never ends", " |text\nO|```\nF|# a\nF|\nF|b\n"},
		{"two consecutive fences", "O|```\nF|a\nF|```\nO|```\nF|b\nF|```\n"},
		{"a fence in a list", " |- item\n |\nO|  ```\nF|  a\nF|  ```\n |- item\n"},
		{"a fence on the line of a bullet", "O|- ```go\nF|  a\nF|  ```\n |- item\n"},
		{"a fence on the line of a number", "O|1. ```\nF|   a\nF|   ```\n |2. item\n"},
		{"a fence in a quotation", "O|> ```\nF|> a\nF|> ```\n |> text\n"},
		{"a bullet in a fence", "O|```md\nF|- ```\nF|  a\nF|```\n"},
		{"inline code is not a fence", " |``` a ``` b\n |text\n |``\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, want := readSnippet(test.snippet)
			l := split(text)
			o := outlineOf(l, Docs, never)
			for i := range want {
				got := ""
				switch {
				case o.is(i, heading):
					got = "H"
				case o.is(i, fenced) && !o.is(i, joined):
					got = "O"
				case o.is(i, fenced):
					got = "F"
				}
				if got != want[i] {
					t.Errorf("line %d, %q: got %q, want %q", i+1, l.line(i), got, want[i])
				}
			}
		})
	}
}

func TestSectionsOfDocs(t *testing.T) { // P77
	l := split("# A\na\n## B\nb\n### C\nc\n## D\nd\n# E\ne\n\nF\n---\nf\n")
	o := outlineOf(l, Docs, never)
	for i, want := range []int{-1, 0, 0, 2, 2, 4, 0, 6, -1, 8, 8, 8, 11, 11} {
		if o.parent[i] != want {
			t.Errorf("line %d, %q, is under line %d, want %d", i+1, l.line(i), o.parent[i]+1, want+1)
		}
	}
}

func TestOutlineOfLogs(t *testing.T) { // P36
	for _, test := range []struct{ name, snippet string }{
		{"words for failures, in any case", `
x|2026-02-26 ERROR lost
x|error: x
x|0 errors
x|java.io.IOException
x|an Exception
x|TraceBack
x|NoSuchElementexception
 |WARN slow
x|the word in others: terror, unexceptional
 |INFO served
`},
		{"Python", `
 |INFO request 1
xt|Traceback (most recent call last):
t|  File "/app/x.py", line 3, in f
t|    g()
t|    ^^^
t|  File "/app/x.py", line 9, in g
xt|    raise ValueError("bad")
xt|ValueError: bad
 |INFO request 2
`},
		{"Java", `
 |INFO request 1
xt|Exception in thread "main" java.lang.IllegalStateException: no
t|	at org.example.Store.get(Store.java:12)
t|	at org.example.Main.main(Main.java:3)
xt|Caused by: java.lang.NullPointerException
t|	at org.example.X.y(X.java:1)
t|	... 2 more
 |INFO request 2
`},
		{"an exception without a word for a failure", `
 |INFO request 1
t|org.example.Lost: gone
t|	at org.example.Store.get(Store.java:12)
t|	at org.example.Main.main(Main.java:3)
 |INFO request 2
`},
		{"Go", `
 |served
t|panic: boom
t|
t|goroutine 1 [running]:
t|main.run(0x1, 0x2)
t|	/src/main.go:12 +0x1d
t|created by main.main
t|	/src/main.go:3 +0x2
 |served
`},
		{"Node", `
 |served
xt|TypeError: x is not a function
t|    at f (/app/x.js:3:5)
t|    at async /app/y.js:9:1
 |served
`},
		{"Rust", `
 |served
t|thread 'main' panicked at src/main.rs:2:5:
 |served
`},
		{"lines that are not traces", `
 |at noon all was well
 |	indented
 |File "x" was saved
 |... and so on
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, want := readSnippet(test.snippet)
			l := split(text)
			o := outlineOf(l, Logs, never)
			for i := range want {
				got := ""
				if o.is(i, failure) {
					got += "x"
				}
				if o.is(i, trace) {
					got += "t"
				}
				if got != want[i] {
					t.Errorf("line %d, %q: got %q, want %q", i+1, l.line(i), got, want[i])
				}
			}
		})
	}
}

func TestRecordsOfLogs(t *testing.T) { // P77
	l := split("a\n  of a\n\tof a\n\nb\nc\n  of c\n")
	o := outlineOf(l, Logs, never)
	for i, same := range []bool{false, true, true, true, false, false, true} {
		if i > 0 && (o.block[i] == o.block[i-1]) != same {
			t.Errorf("line %d, %q: belongs to the previous record: %v, want %v", i+1, l.line(i), !same, same)
		}
	}
}

func TestHasFailureWord(t *testing.T) { // P36
	for line, want := range map[string]bool{
		"ERROR x":                               true,
		"an eRrOr":                              true,
		`{"level":"info","error":null}`:         false,
		`{"errors":0,"msg":"served"}`:           false,
		`{"errors":0,"error":"lost"}`:           true,
		"served errors=0 in 3 ms":               false,
		"served errors=05":                      true,
		`level=info error="" exception=nil`:     false,
		"java.lang.NullPointerException: null":  true,
		"TypeError: null":                       true,
		"error: 0.5 of the requests were lost":  true,
		"0 errors":                              true,
		"Traceback (most recent call last):":    true,
		"error:":                                true,
		"error = nothing at all could be found": true,

		`ERROR:  null value in column "id" violates not-null constraint`: true,
		"Error: nil pointer dereference":                                 true,
		"error: 0 is not a valid port":                                   true,
		`error: "" is not a valid name`:                                  true,
		"error: null-terminated text expected":                           true,
		"errors: 0 warnings: 2":                                          false,
		"exception: none code=0":                                         false,
		`{"error": null }`:                                               false,
	} {
		if got := hasFailureWord(line); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
