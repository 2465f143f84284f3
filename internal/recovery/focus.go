package recovery

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// focus returns the lines relevant to a goal, or the beginning of the range if they cannot be
// found.
func (r Reader) focus(ctx context.Context, a arguments, body []byte, total int) []byte {
	limit := r.MaxChars
	if limit <= 0 {
		limit = a.end - a.start
	}
	before, text := excerpt(body, 0, a.start), excerpt(body, a.start, a.end)
	cutter := focus.Cutter{Goal: a.goal, MaxChars: limit, Ratio: a.ratio, FirstLine: 1 + lineBreaks(before)}
	m := meta{Total: total, Start: &a.start, End: &a.end, Focused: true}
	note := fmt.Sprintf("[the parts of characters %d to %d of %d that match the goal; to read ", a.start, a.end, total)
	if short, ok := cutter.Value(ctx, []byte(text)); ok && a.ratio == 0 {
		return success(m, string(short), note+"the rest, use query]")
	}
	if short, _, ok := cutter.Lines(ctx, text); ok {
		return success(m, short, note+"omitted lines, use start_line and end_line]")
	}
	return r.part(a, body, total, "not cut by goal, this is the beginning; ")
}

// excerpt returns characters of the body of a JSON string, decoded.
func excerpt(body []byte, start, end int) string {
	body = body[jsonspan.Advance(body, start):]
	body = body[:jsonspan.Advance(body, end-start)]
	return string(jsonspan.AppendText(nil, body))
}

// findLines converts a range of lines to characters.
func (a *arguments) findLines(text string) error {
	first := max(a.firstLine, 1)
	from := skipLines(text, first-1)
	if from == len(text) && first > 1 {
		return fmt.Errorf("start_line (%d) is beyond the end: the original has %d lines", first, prune.CountLines(text))
	}
	a.firstLine, a.lines = first, prune.CountLines(text)
	if a.endLine == 0 || a.endLine > a.lines {
		a.endLine = a.lines
	}
	to := from + skipLines(text[from:], a.endLine-first+1)
	a.start = utf8.RuneCountInString(text[:from])
	a.end = a.start + utf8.RuneCountInString(text[from:to])
	return nil
}

// skipLines returns the position after n lines, or the end of the text. Lines end with LF, CRLF or
// CR, as everywhere where lines are counted for the model.
func skipLines(text string, n int) (at int) {
	for ; n > 0; n-- {
		end := strings.IndexAny(text[at:], "\r\n")
		if end < 0 {
			return len(text)
		}
		at += end + 1
		if strings.HasSuffix(text[:at], "\r") && strings.HasPrefix(text[at:], "\n") {
			at++
		}
	}
	return at
}

// lineBreaks returns the number of line ends in a text.
func lineBreaks(text string) int {
	return strings.Count(text, "\n") + strings.Count(text, "\r") - strings.Count(text, "\r\n")
}
