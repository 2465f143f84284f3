package main

import (
	"regexp"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// blocks returns the block of each line, and the line that names it or -1. In code, a block
// is a definition without nested ones, or other lines up to a blank one. In documents, it is
// a section. In logs, it is a line with the indented lines below it.
func (t *text) blocks() (blocks, heads []int) {
	blocks, heads = make([]int, len(t.lines)), make([]int, len(t.lines))
	type scope struct{ head, indent, block int }
	scopes := []scope{{-1, -1, 0}} // scopes around the line, outermost first
	n, fenced := 0, false
	for i, line := range t.lines {
		content, indent := strings.TrimSpace(line), indentOf(line)
		current := &scopes[len(scopes)-1]
		begins := false
		switch {
		case t.source == prune.Logs:
			if content != "" && indent == 0 {
				n++
				current.block = n
			}
		case t.source == prune.Docs:
			if strings.HasPrefix(content, "```") {
				fenced = !fenced
			}
			begins = !fenced && t.isHeading(i)
			if begins {
				scopes = scopes[:1]
			}
		case content == "":
			if len(scopes) == 1 {
				n++
				current.block = n
			}
		default:
			for indent < current.indent || indent == current.indent && letter.MatchString(content) &&
				!directive.MatchString(content) {
				scopes = scopes[:len(scopes)-1]
				current = &scopes[len(scopes)-1]
				if len(scopes) == 1 {
					n++
					current.block = n
				}
			}
			begins = t.isDefinition(i)
		}
		if begins {
			n++
			scopes = append(scopes, scope{i, indent, n})
			// Comments and annotations above a definition are part of it.
			for j := i - 1; j >= 0 && t.source == prune.Code && indentOf(t.lines[j]) == indent &&
				comment.MatchString(strings.TrimSpace(t.lines[j])); j-- {
				blocks[j], heads[j] = n, i
			}
		}
		current = &scopes[len(scopes)-1]
		blocks[i], heads[i] = current.block, current.head
	}
	return blocks, heads
}

func indentOf(line string) int {
	space := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	return len(space) + 3*strings.Count(space, "\t")
}

var (
	heading   = regexp.MustCompile(`^ {0,3}(?:(?:#{1,6}|={1,6}) \S|<[hH][1-6])`)
	underline = regexp.MustCompile(`^(?:={3,}|-{3,}|~{3,}|\^{3,})\s*$`)
)

func (t *text) isHeading(i int) bool {
	return heading.MatchString(t.lines[i]) || i+1 < len(t.lines) && letter.MatchString(t.lines[i]) &&
		underline.MatchString(t.lines[i+1])
}

var (
	keyword = regexp.MustCompile(`^(?:(?:abstract|async|const|constexpr|data|declare|default|export|extern|final|inline|internal|local|open|override|partial|` +
		`private|protected|pub(?:\([^)]*\))?|public|readonly|sealed|static|suspend|unsafe|virtual)\s+)*` +
		`(?:class|def|enum|extension|fn|fun|func|function|impl|interface|macro_rules!|mod|module|namespace|object|protocol|record|struct|@test|trait|type|union)\b`)
	called    = regexp.MustCompile(`^[\w@$~"'][^=;]*\(|=>\s*\{$|\bfunction\b`)
	statement = regexp.MustCompile(`^(?:await|case|catch|do|elif|else|elsif|for|foreach|if|lock|loop|match|new|return|select|switch|throw|try|unless|until|using|while|with|yield)\b`)
	directive = regexp.MustCompile(`^#\s*(?:if|el|end|def|undef|include|pragma|error)`)
	comment   = regexp.MustCompile(`^(?://|/\*|\*|#|--|@|\[|"""|''')`)
)

// isDefinition reports whether a definition starts in line i: with a keyword, or with what
// looks like a call, possibly over several lines, before an opening brace.
func (t *text) isDefinition(i int) bool {
	line := strings.TrimSpace(t.lines[i])
	if keyword.MatchString(line) {
		return true
	}
	if !called.MatchString(line) || statement.MatchString(line) {
		return false
	}
	const most = 10 // lines
	open := 0
	for j := i; j < min(i+most, len(t.lines)); j++ {
		line := strings.TrimSpace(t.lines[j])
		open += strings.Count(line, "(") - strings.Count(line, ")")
		switch {
		case strings.HasSuffix(line, "{"):
			return true
		case open <= 0 || strings.HasSuffix(line, ";"):
			return j+1 < len(t.lines) && strings.TrimSpace(t.lines[j+1]) == "{"
		}
	}
	return false
}
