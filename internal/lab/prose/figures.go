package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

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
