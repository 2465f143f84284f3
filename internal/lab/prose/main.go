// Command prose checks the language of Go files and Markdown pages: words that slow readers down,
// long lines, prepositions as parameter names, and unrelated assignments in if headers.
//
//	go -C internal/lab run ./prose [-figures] [folder]
//
// It prints each finding on a line, and exits with status 1 if there are any. With -figures it
// prints counts instead.
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

func main() {
	figures := flag.Bool("figures", false, "print counts instead of findings")
	flag.Parse()
	root := "../.."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	found, err := run(root, *figures)
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(1)
	}
	if found {
		os.Exit(1)
	}
}

// run checks all files below a folder, and reports whether there are findings.
func run(root string, figures bool) (found bool, err error) {
	files, err := sources(root)
	if err != nil {
		return false, err
	}
	var total counts
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return false, err
		}
		if figures {
			if err := total.add(name, string(text)); err != nil {
				return false, err
			}
			continue
		}
		findings, err := check(name, text)
		if err != nil {
			return false, err
		}
		for _, f := range findings {
			fmt.Println(f)
			found = true
		}
	}
	if figures {
		total.print(os.Stdout)
	}
	return found, nil
}

// A finding is a fault in a line of a file.
type finding struct {
	file string
	line int
	text string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text) }

func check(name string, text []byte) ([]finding, error) {
	var findings []finding
	report := func(line int, text string) { findings = append(findings, finding{name, line, text}) }
	if strings.HasSuffix(name, ".md") {
		checkMarkdown(string(text), report)
	} else if err := checkGo(name, text, report); err != nil {
		return nil, err
	}
	slices.SortStableFunc(findings, func(a, b finding) int { return a.line - b.line })
	return findings, nil
}

// sources returns the Go and Markdown files below a folder, except installed and built ones.
func sources(root string) (names []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{"node_modules", "testdata", ".git", "bin", "dist"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext == ".go" || ext == ".md" {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	return names, err
}

//go:embed words.txt
var wordList string

// A word is an entry of the list.
type word struct {
	pattern *regexp.Regexp
	text    string
	instead string
}

var words = readWords(wordList)

func readWords(list string) (words []word) {
	for line := range strings.Lines(list) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		text, instead, _ := strings.Cut(line, "  ")
		pattern := strings.Join(strings.Fields(regexp.QuoteMeta(text)), `[\s/]+`)
		words = append(words, word{regexp.MustCompile(`(?i)\b` + pattern + `\b`), text, strings.TrimSpace(instead)})
	}
	return words
}

// checkWords reports the listed words in a text. The line is that of its beginning. Phrases that end
// with "no" may be followed by "longer".
func checkWords(text string, line int, report func(line int, text string)) {
	for _, w := range words {
		for _, at := range w.pattern.FindAllStringIndex(text, -1) {
			if strings.HasSuffix(w.text, " no") && strings.HasPrefix(strings.TrimSpace(text[at[1]:]), "longer") {
				continue
			}
			report(line+strings.Count(text[:at[0]], "\n"), `"`+w.text+`": write `+w.instead)
		}
	}
}

// counts are figures of a folder.
type counts struct {
	lines, long, listed      int            // in Go: lines, long lines, listed words
	words                    map[string]int // by page
	sentences, sentenceWords int            // in all pages, and the words in them
}

var (
	sentence = regexp.MustCompile(`[.!?:](\s+|$)`)
	listItem = regexp.MustCompile(`^\s*([-*]|\d+\.)\s+`)
)

func (c *counts) add(name, text string) error {
	if strings.HasSuffix(name, ".go") {
		for line := range strings.Lines(text) {
			c.lines++
			if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > maxGo {
				c.long++
			}
		}
		return checkGo(name, []byte(text), func(_ int, finding string) {
			if strings.HasPrefix(finding, `"`) {
				c.listed++
			}
		})
	}
	if name != "README.md" && !strings.HasPrefix(name, "docs/") {
		return nil
	}
	if c.words == nil {
		c.words = make(map[string]int)
	}
	c.words[name] = len(strings.Fields(text))
	for _, paragraph := range paragraphs(text) {
		for _, s := range sentence.Split(paragraph, -1) {
			if n := len(strings.Fields(s)); n > 2 {
				c.sentences++
				c.sentenceWords += n
			}
		}
	}
	return nil
}

// paragraphs returns the paragraphs and list items of a page, without headings, tables and code.
func paragraphs(text string) (all []string) {
	var current []string
	end := func() {
		if current != nil {
			all = append(all, strings.Join(current, " "))
			current = nil
		}
	}
	for _, line := range strings.Split(withoutCode(text), "\n") {
		switch {
		case strings.TrimSpace(line) == "" || isTable(line) || strings.HasPrefix(line, "#"):
			end()
		case listItem.MatchString(line):
			end()
			current = []string{listItem.ReplaceAllString(line, "")}
		default:
			current = append(current, strings.TrimSpace(line))
		}
	}
	end()
	return all
}

func (c *counts) print(w io.Writer) {
	fmt.Fprintf(w, "lines of Go %d, over %d columns %d\n", c.lines, maxGo, c.long)
	fmt.Fprintf(w, "words of the list: %.2f in 1,000 lines of Go\n",
		1000*float64(c.listed)/float64(max(c.lines, 1)))
	total := 0
	var names []string
	for name, n := range c.words {
		total += n
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(w, "%6d words  %s\n", c.words[name], name)
	}
	fmt.Fprintf(w, "%6d words, %.1f in a sentence\n", total, float64(c.sentenceWords)/float64(max(c.sentences, 1)))
}
