// Package recovery lets agents read the originals of shortened tool results.
//
// Where observation_mask removes the middle of a string, it leaves a marker with the id under
// which the original is kept for a limited time. An agent reads it with the tool that [Tool]
// describes: a part of it, the lines that match a pattern or are relevant to a goal, or the result
// of a jq expression. The whole original is the resource of [Template]. A character is a Unicode
// code point, as in the markers.
package recovery

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/focus"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/prune"
)

// A Reader handles calls of the tool and reads of the resource for one client.
type Reader struct {
	// Get returns the original with a handle: the body of a JSON string, without its quotes. It
	// fails if the store is unavailable.
	Get func(ctx context.Context, handle string) (original []byte, ok bool, err error)

	// Client identifies the client. Expensive calls are queued by client.
	Client string

	// MaxChars limits texts in results, so that they are not masked again. 0 means no limit.
	MaxChars int
}

// Text returns a whole original.
func (r Reader) Text(ctx context.Context, handle string) (text string, ok bool, err error) {
	body, ok, err := r.Get(ctx, handle)
	if !ok {
		return "", false, err
	}
	return string(jsonspan.AppendText(nil, body)), true, nil
}

// Call handles a call of the tool. Arguments and result are JSON.
//
// The first content of the result is the requested text and nothing else. The second tells the
// model which part it is and how to continue; _meta has the same for programs.
func (r Reader) Call(ctx context.Context, arguments []byte) (result []byte) {
	a, err := parseArguments(arguments)
	if err != nil {
		return failure(err.Error())
	}
	var body []byte
	ok := len(a.id) <= maxID
	if ok {
		body, ok, err = r.Get(ctx, a.id)
	}
	if err != nil {
		return unavailable(a.id)
	}
	if !ok {
		return failure(fmt.Sprintf("Nothing is kept under the id %s. Originals are kept for a limited time, "+
			"and only for the client that got the marker. Check that the id is as in the marker, "+
			"or run the tool that gave the result again.", shortQuote(a.id)))
	}
	if a.maxChars > 0 && (r.MaxChars <= 0 || a.maxChars < r.MaxChars) {
		r.MaxChars = a.maxChars
	}
	if a.isSearch(len(body)) {
		done := searches.wait(ctx, r.Client)
		if done == nil {
			return failure("Too many searches at once: try again, or use a range of characters.")
		}
		defer done()
	}
	total := jsonspan.Count(body)
	if a.firstLine > 0 || a.endLine > 0 {
		if err := a.findLines(string(jsonspan.AppendText(nil, body))); err != nil {
			return failure(err.Error())
		}
	}
	if a.start > 0 && a.start >= total {
		// A result is never empty, because some model APIs reject empty texts.
		return failure(fmt.Sprintf("start_char (%d) is at or beyond the end: the original has %d characters", a.start, total))
	}
	if a.end < 0 || a.end > total {
		a.end = total
	}
	switch {
	case a.query != "":
		return r.query(ctx, a, body, total)
	case a.pattern != nil:
		return r.find(a, body, total)
	case a.goal != "":
		return r.focus(ctx, a, body, total)
	}
	return r.part(a, body, total, "")
}

// isSearch reports whether the call takes long, or much memory, with an original of a number of bytes.
// Queries have a queue of their own.
func (a *arguments) isSearch(bytes int) bool {
	const enoughBytes, enoughWork = 256 << 10, 1 << 24 // some ten milliseconds
	return bytes > enoughBytes && (a.pattern != nil || a.goal != "" || a.firstLine > 0 || a.endLine > 0) ||
		bytes*a.steps > enoughWork
}

// part returns a part of the original. Its note begins with intro.
func (r Reader) part(a arguments, body []byte, total int, intro string) []byte {
	end := a.end
	if r.MaxChars > 0 {
		end = min(end, a.start+r.MaxChars)
	}
	m := meta{Total: total, Start: &a.start, End: &end}
	if a.lines > 0 && end == a.end {
		intro += fmt.Sprintf("lines %d to %d of %d, ", a.firstLine, a.endLine, a.lines)
	}
	note := fmt.Sprintf("[%scharacters %d to %d of %d", intro, a.start, end, total)
	if end < a.end {
		m.Next = &end
		note += fmt.Sprintf("; go on with start_char=%d", end)
		if a.end < total {
			note += fmt.Sprintf(" and end_char=%d", a.end)
		}
	}
	return success(m, excerpt(body, a.start, end), note+"]")
}

// maxWork bounds the cost of one search, in regexp program steps times bytes, to some seconds. A
// simple pattern searches dozens of megabytes; one of a thousand characters can cost ten thousand
// times as much. It is a variable for tests.
var maxWork = 1 << 29

// find returns the lines that match a pattern.
func (r Reader) find(a arguments, body []byte, total int) []byte {
	s := newSearch(a, string(jsonspan.AppendText(nil, body)), r.MaxChars)
	from, to := s.byteAt(a.start), s.byteAt(a.end)
	if (to-from)*a.steps > maxWork {
		return failure("pattern is too complex for a text of this length: use a simpler one, or add a range")
	}
	next := s.run(from, to)
	m := meta{Total: total, Matches: &s.matchCount}
	if s.matchCount == 0 {
		return success(m, fmt.Sprintf("[no line matches in characters %d to %d of %d]", a.start, a.end, total))
	}
	note := fmt.Sprintf("[matches: %d", s.matchCount)
	if next >= 0 {
		n := s.charAt(next)
		m.Next = &n
		note += fmt.Sprintf("; go on with start_char=%d", n)
	}
	return success(m, s.out.String(), fmt.Sprintf("%s; the original has %d characters]", note, total))
}

// A meta holds the information of a note for programs.
type meta struct {
	Total   int  `json:"total_chars"`
	Start   *int `json:"start_char,omitempty"`
	End     *int `json:"end_char,omitempty"`
	Focused bool `json:"focused,omitempty"`
	Matches *int `json:"matches,omitempty"`
	Results *int `json:"results,omitempty"`
	Shown   *int `json:"shown_results,omitempty"`
	Next    *int `json:"next_start_char,omitempty"`
}

type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func success(m meta, texts ...string) []byte {
	contents := make([]content, len(texts))
	for i, text := range texts {
		contents[i] = content{"text", text}
	}
	return jsonrpc.Encode(struct {
		Content []content `json:"content"`
		Meta    meta      `json:"_meta"`
	}{contents, m})
}

// unavailable returns the error for an original that may be in the shared store, which is
// unavailable.
func unavailable(id string) []byte {
	reason := fmt.Sprintf("Nothing is kept here under the id %s, "+
		"and the store that gateways share is unavailable. Try again later, or run the tool that gave the result again.",
		shortQuote(id))
	return jsonrpc.Encode(struct {
		Content []content         `json:"content"`
		IsError bool              `json:"isError"`
		Meta    map[string]string `json:"_meta"`
	}{[]content{{"text", reason}}, true, map[string]string{"code": "store_unavailable"}})
}

func failure(reason string) []byte {
	if !strings.HasSuffix(reason, ".") {
		reason += "."
	}
	return jsonrpc.Encode(struct {
		Content []content `json:"content"`
		IsError bool      `json:"isError"`
	}{[]content{{"text", reason}}, true})
}

// ToolName is the name of the tool.
const ToolName = "recover_observation"

// Tool is the descriptor of the tool, as tools/list has it.
var Tool = []byte(`{"name":"recover_observation",` +
	`"title":"Recover a cut tool result",` +
	`"description":"Reads back text that was cut out of an earlier tool result. The middle of a long one became a ` +
	`marker such as \"... [KIMI_PROXY_OBSERVATION_MASKED original_chars=52310 head=2000 tail=2000 id=obs_4kXbZ0aQe7] ` +
	`...\". Placeholders of old results may have an id, too. ` +
	`Call this with that id and one of\n` +
	`- goal: what you look for, in words. Returns the lines that matter for it, numbered, and says which lines were ` +
	`left out. Prefer this.\n` +
	`- query: a jq expression, if the original is JSON.\n` +
	`- pattern: a regular expression. Returns the lines that match, with those around them.\n` +
	`- a range, to read it unchanged: start_line and end_line, or start_char and end_char. The marker left out the ` +
	`characters from head to original_chars-tail.\n` +
	`With a range, goal and pattern search only that. An answer that is cut says how to continue. ` +
	`Originals are kept for a limited time. If one is gone, call its tool again.",` +
	`"inputSchema":{"type":"object","properties":{` +
	`"id":{"type":"string","description":"Such as: obs_4kXbZ0aQe7."},` +
	`"goal":{"type":"string","maxLength":1000,"description":"Such as: why the login test fails."},` +
	`"ratio":{"type":"number","minimum":0,"maximum":1,"description":"With goal: minimum share of lines to ` +
	`leave out."},` +
	`"max_chars":{"type":"integer","minimum":1,"description":"Maximum length of the answer."},` +
	`"query":{"type":"string","maxLength":1000,"description":"Such as: .items[] | select(.state==\"open\") | ` +
	`{id,title}. It cannot define functions or assign. JSON lines are read as one array."},` +
	`"pattern":{"type":"string","maxLength":1000,"description":"RE2 syntax, for each line: (?i) ignores case; no ` +
	`lookarounds, no backreferences."},` +
	`"context_lines":{"type":"integer","minimum":0,"maximum":20,"default":2,"description":"With pattern: lines to ` +
	`show before and after each match."},` +
	`"max_matches":{"type":"integer","minimum":1,"maximum":200,"default":20,"description":"With pattern: maximum ` +
	`number of matching lines."},` +
	`"start_line":{"type":"integer","minimum":1,"description":"First line, from 1."},` +
	`"end_line":{"type":"integer","minimum":1,"description":"Last line, included."},` +
	`"start_char":{"type":"integer","minimum":0,"default":0,"description":"First character, from 0."},` +
	`"end_char":{"type":"integer","minimum":0,"description":"The character to stop before."}` +
	`},"required":["id"],"additionalProperties":false},` +
	`"annotations":{"title":"Recover a cut tool ` +
	`result","readOnlyHint":true,"destructiveHint":false,"idempotentHint":true,"openWorldHint":false}}`)

// Template is the descriptor of the resource, as resources/templates/list has it.
var Template = []byte(`{"uriTemplate":"proxy://observation/{id}",` +
	`"name":"observation",` +
	`"title":"Cut tool result",` +
	`"description":"The whole of a text that was cut out of a tool result, by the id in the marker that was left in ` +
	`its place.",` +
	`"mimeType":"text/plain"}`)

// focus returns the lines relevant to a goal, or the beginning of the range if they cannot be
// found.
func (r Reader) focus(ctx context.Context, a arguments, body []byte, total int) []byte {
	limit := r.MaxChars
	if limit <= 0 {
		limit = a.end - a.start
	}
	before, text := excerpt(body, 0, a.start), excerpt(body, a.start, a.end)
	if strings.HasPrefix(text, "\n") { // perhaps the second half of a line end
		before = strings.TrimSuffix(before, "\r")
	}
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
