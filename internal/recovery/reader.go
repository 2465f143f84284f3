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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
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
