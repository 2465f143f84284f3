package main

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
)

// A text is the input of a baseline.
type text struct {
	goal   string
	source prune.Source
	lines  []string // with line ends
	tokens []int    // tokens of each line; one that spans two lines counts for the first
	marker int      // approximate tokens of a marker
}

func newText(content, goal string, source prune.Source) *text {
	t := &text{goal: goal, source: source}
	var starts []int
	at := 0
	for _, line := range prune.Lines(content) {
		end := at + len(line)
		end += len(content[end:]) - len(strings.TrimPrefix(content[end:], "\r"))
		end += len(content[end:]) - len(strings.TrimPrefix(content[end:], "\n"))
		t.lines, starts = append(t.lines, content[at:end]), append(starts, at)
		at = end
	}
	t.tokens = make([]int, len(t.lines))
	line := 0
	for offset, n := range tokens.Pieces(content) {
		for line+1 < len(starts) && starts[line+1] <= offset {
			line++
		}
		t.tokens[line] += n
	}
	t.marker = tokens.Count(marker(len(t.lines)/2, len(t.lines)) + "\n")
	return t
}

// handle replaces the random prune id in all markers, so that tokens are the same in each run.
const handle = "prn_3mKq81ZtBv"

// marker returns the marker for lines [start, end), as package prune writes it.
func marker(start, end int) string {
	return fmt.Sprintf("⟦PRUNÉ: prune_id=%s lignes %d-%d (%d) raison=hors focus⟧", handle, start+1, end, end-start)
}

// render returns the kept lines, with markers for removed ones.
func (t *text) render(kept []bool) string {
	var b strings.Builder
	for i := 0; i < len(t.lines); i++ {
		if kept[i] {
			b.WriteString(t.lines[i])
			continue
		}
		start := i
		for i+1 < len(t.lines) && !kept[i+1] {
			i++
		}
		b.WriteString(marker(start, i+1))
		if strings.HasSuffix(t.lines[i], "\n") {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// cost returns the approximate tokens of an answer. Counting exactly is slow.
func (t *text) cost(kept []bool) (sum int) {
	for i, is := range kept {
		if is {
			sum += t.tokens[i]
		} else if i == 0 || kept[i-1] {
			sum += t.marker
		}
	}
	return sum
}

// runs returns the number of runs of removed lines, which is the number of markers.
func runs(kept []bool) (n int) {
	for i, is := range kept {
		if !is && (i == 0 || kept[i-1]) {
			n++
		}
	}
	return n
}

// fill returns the largest answer of a baseline within a budget of tokens, counted exactly.
// Choose returns the lines to keep for about this many tokens.
func (t *text) fill(budget int, choose func(about int) []bool) answer {
	if whole := keepAll(len(t.lines)); t.cost(whole) <= budget {
		return answer{whole, t.cost(whole), 0}
	}
	const tries = 5
	var best answer
	for about, try := budget, 0; try < tries || best.kept == nil; try++ {
		kept := choose(about)
		a := answer{kept, tokens.Count(t.render(kept)), runs(kept)}
		if a.tokens <= budget && (best.kept == nil || a.tokens > best.tokens) {
			best = a
		}
		about += budget - a.tokens
		if about < 0 || a.tokens == budget { // a single marker may exceed the budget
			break
		}
	}
	if best.kept == nil {
		best.kept = make([]bool, len(t.lines))
		best.tokens, best.runs = tokens.Count(t.render(best.kept)), 1
	}
	return best
}

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

var encoding = sync.OnceValue(func() *tiktoken.Tiktoken {
	tiktoken.SetBpeLoader(loader.NewOfflineLoader())
	e, err := tiktoken.GetEncoding("o200k_base")
	if err != nil {
		panic(err)
	}
	return e
})

// tiktokens counts tokens with an independent implementation.
func tiktokens(text string) int { return len(encoding().EncodeOrdinary(text)) }
