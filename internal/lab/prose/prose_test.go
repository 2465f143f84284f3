package main

import (
	"slices"
	"strings"
	"testing"
)

// useWords replaces the list, so that this file has none of its words.
func useWords(t *testing.T, list string) {
	before := words
	words = readWords(list)
	t.Cleanup(func() { words = before })
}

func TestCheckGo(t *testing.T) {
	useWords(t, "gnu  a noun\nin lieu of  instead of\n")
	const source = `package p

// f is for a gnu. A phrase that is in
// lieu of another is found over two lines.
func f(of int, names []string) {
	println("no Gnu")
	if x := g(); of > 0 {
		println(x)
	}
	if x := g(); x > 0 {
		println(x)
	}
	if _, ok := m[of]; ok {
		println(` + "`" + `
a line of a string may be as long as it has to be, because a program reads it; this one has more than 120 columns, too
` + "`" + `)
	}
}

// this comment is too long to be read without turning the head, because it has far more columns than a screen has, as you see
func h() {}
`
	want := []string{
		`f.go:3: "gnu": write a noun`,
		`f.go:3: "in lieu of": write instead of`,
		`f.go:5: the parameter "of"`,
		`f.go:6: "gnu"`,
		`f.go:7: the if header assigns x`,
		`f.go:20: the line has 126 columns, of 120`,
	}
	compare(t, "f.go", source, want)
}

func TestWordsFollowedByLonger(t *testing.T) {
	useWords(t, "gnu is no  a gnu is not a\n")
	compare(t, "page.md", "A gnu is no longer here.\nA gnu is no\nlonger here.\nA gnu is no\nzebra.\n",
		[]string{`page.md:4: "gnu is no"`})
}

func TestCheckMarkdown(t *testing.T) {
	useWords(t, "gnu  a noun\nin lieu of  instead of\n")
	long := strings.Repeat("word ", 30)
	page := "# Title\n\nA gnu reads this.\n\n```sh\n# a gnu reads " + long + "\n```\n\n" +
		"| a | " + long + "|\n\n" + long + "\n\n[x]: https://example.com/" + strings.Repeat("x", 100) + "\n\n" +
		"This is in lieu\nof others.\n"
	compare(t, "page.md", page, []string{
		`page.md:3: "gnu"`,
		`page.md:11: the line has 150 columns, of 100`,
		`page.md:15: "in lieu of"`,
	})
}

func compare(t *testing.T, name, source string, want []string) {
	t.Helper()
	findings, err := check(name, []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range findings {
		got = append(got, f.String())
	}
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestParagraphs(t *testing.T) {
	page := "# T\n\nOne\ntwo.\n- three\n  four\n- five\n\n| a | b |\n\n```\nsix\n```\nseven"
	want := []string{"One two.", "three four", "five", "seven"}
	if got := paragraphs(page); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
