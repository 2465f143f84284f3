package main

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxMarkdown = 100
	maxGo       = 120
)

// unwrappable matches text that Markdown, or a program that reads the page, needs on one line: a
// row of a table, an image, a long link, long code.
var unwrappable = regexp.MustCompile("^\\s*\\||^!\\[|\\S{76,}|`[^`]{70,}`")

// checkMarkdown checks the words and lines of a page, except code blocks. Lines between comments that
// say where a generated part begins and ends may have any length.
func checkMarkdown(text string, report func(line int, text string)) {
	prose := withoutCode(text)
	checkWords(prose, 1, report)
	generated := false
	for i, line := range strings.Split(prose, "\n") {
		if strings.HasPrefix(line, "<!--") {
			generated = strings.HasSuffix(line, "begins -->")
		}
		if !generated && !unwrappable.MatchString(line) {
			checkWidth(i+1, line, maxMarkdown, report)
		}
	}
}

// withoutCode returns a page with the lines of code blocks emptied.
func withoutCode(text string) string {
	lines := strings.Split(text, "\n")
	fence := ""
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			lines[i] = ""
		case strings.HasPrefix(line, "\t"):
			lines[i] = ""
		case strings.HasPrefix(trimmed, "```"):
			fence = trimmed[:len(trimmed)-len(strings.TrimLeft(trimmed, "`"))]
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

func isTable(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "|") }

func checkWidth(line int, text string, width int, report func(line int, text string)) {
	if n := utf8.RuneCountInString(text); n > width {
		report(line, "the line has "+strconv.Itoa(n)+" columns, of "+strconv.Itoa(width))
	}
}
