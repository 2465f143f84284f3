package prune

import (
	"strings"
	"unicode/utf8"
)

// readDocs finds headings and fences of Markdown, and headings of reStructuredText, AsciiDoc and
// HTML.
func (o *outline) readDocs(l lines) {
	var fence string // open fence
	var levels []int // levels of the enclosing headings
	var under []int  // their lines
	for i := 0; i < l.len(); i++ {
		text := strings.TrimSpace(l.line(i))
		mark := fenceOf(withoutBullets(text))
		switch {
		case fence != "":
			o.kinds[i] |= fenced | joined
			text = strings.TrimLeft(text, "> \t") // the block may be in a quotation
			if strings.HasPrefix(text, fence) && fenceOf(text) == text {
				fence = ""
			}
		case mark != "" && o.indent[i] <= maxFenceIndent:
			o.kinds[i] |= fenced
			fence = mark
		default:
			level := 0
			if o.indent[i] <= maxHeadingIndent {
				level = headingLevel(text)
			}
			if level == 0 && i+1 < l.len() && !o.is(i, blank|bracket) && (i == 0 || o.is(i-1, blank|bracket)) {
				level = underlineLevel(text, l.line(i+1))
			}
			if level == 0 {
				break
			}
			o.kinds[i] |= heading
			for len(levels) > 0 && levels[len(levels)-1] >= level {
				levels, under = levels[:len(levels)-1], under[:len(under)-1]
			}
			if len(under) > 0 {
				o.parent[i] = under[len(under)-1]
			}
			levels, under = append(levels, level), append(under, i)
			o.blocks++
			o.block[i] = o.blocks
			if isUnderline(l, i+1) && headingLevel(text) == 0 {
				i++
				o.kinds[i] |= heading | joined
				o.parent[i], o.block[i] = i-1, o.blocks
			}
			continue
		}
		o.block[i] = o.blocks
		if len(under) > 0 {
			o.parent[i] = under[len(under)-1]
		}
	}
	o.blocks++
}

// maxHeadingIndent is the largest indentation of a heading. Indented code has more, and comments in
// it look like headings.
const maxHeadingIndent = 3

// maxFenceIndent is the largest indentation of a fence. Fences in lists have less, those in code
// more.
const maxFenceIndent = 12

// withoutBullets returns a line without list bullets and quotation marks.
func withoutBullets(text string) string {
	for {
		rest := strings.TrimLeft(text, "0123456789")
		if len(rest) < len(text) && !strings.HasPrefix(rest, ". ") && !strings.HasPrefix(rest, ") ") {
			return text
		}
		if rest = strings.TrimLeft(rest, ">"); len(rest) == len(text) {
			if len(rest) < 2 || rest[1] != ' ' || strings.IndexByte("-*+.)", rest[0]) < 0 {
				return text
			}
			rest = rest[1:]
		} else if strings.HasPrefix(rest, ". ") || strings.HasPrefix(rest, ") ") {
			rest = rest[1:]
		}
		text = strings.TrimLeft(rest, " \t")
	}
}

// fenceOf returns the fence at the beginning of a line, or nothing.
func fenceOf(text string) string {
	for _, c := range [...]byte{'`', '~'} {
		n := 0
		for n < len(text) && text[n] == c {
			n++
		}
		if n >= 3 && (c == '~' || strings.IndexByte(text[n:], '`') < 0) {
			return text[:n]
		}
	}
	return ""
}

// headingLevel returns the level of a heading that its own line marks, or 0.
func headingLevel(text string) int {
	for _, c := range [...]byte{'#', '='} {
		n := 0
		for n < len(text) && text[n] == c {
			n++
		}
		if 0 < n && n <= 6 && n < len(text) && text[n] == ' ' && strings.TrimLeft(text[n:], "# =") != "" {
			return n
		}
	}
	if len(text) > 3 && text[0] == '<' && text[1]|0x20 == 'h' && '1' <= text[2] && text[2] <= '6' {
		return int(text[2] - '0')
	}
	return 0
}

// underlineLevel returns the level of a heading that the next line underlines, or 0.
func underlineLevel(text, next string) int {
	next = strings.TrimSpace(next)
	if len(next) < 3 || strings.Trim(next, next[:1]) != "" || strings.HasPrefix(text, "|") {
		return 0
	}
	// In Markdown, = and - underline a heading and may be shorter. Other underlines may not.
	if next[0] != '=' && next[0] != '-' && len(next) < utf8.RuneCountInString(text) {
		return 0
	}
	return 1 + strings.IndexByte("=-~^\"'*+#:", next[0])
}

func isUnderline(l lines, i int) bool {
	return i < l.len() && underlineLevel("", l.line(i)) > 0
}
