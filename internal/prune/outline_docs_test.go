package prune

import "testing"

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
