package redact

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A pass reads one text and collects the replacements.
type pass struct {
	*Redactor
	scanner jsonspan.Scanner
	edits   []jsonspan.Edit
	quoted  []byte // replacement for the value of a field
	keys    int    // redacted keys so far

	text  []byte          // unescaped value of the current string
	found []jsonspan.Edit // replacements in it
	inner *pass           // for strings that contain JSON; nil in the inner pass
}

// values redacts a sequence of JSON values, up to the first invalid one. It reports whether data is
// a single valid value.
func (p *pass) values(data []byte, messages bool) bool {
	at := 0
	if bytes.HasPrefix(data, []byte(byteOrderMark)) {
		at = len(byteOrderMark) // invalid in JSON, but some parsers accept it
	}
	for n := 0; ; n++ {
		at = p.value(data, at, messages)
		if at < 0 {
			return false
		}
		at += len(data[at:]) - len(bytes.TrimLeft(data[at:], " \t\r\n"))
		if at == len(data) {
			return n == 0
		}
	}
}

const byteOrderMark = "\xEF\xBB\xBF"

// value redacts the value at an offset, and returns the offset of its end, or -1 if it is invalid.
func (p *pass) value(data []byte, offset int, messages bool) int {
	s := &p.scanner
	s.MaxDepth = math.MaxInt // the code here is not recursive
	s.SkipCounting = true
	s.Reset()
	s.Feed(data[offset:])
	s.Finish()
	var (
		pos     position
		hide    bool // the next or open value is a field
		keep    bool // the next value must stay unchanged
		from    int  // offset of the value of a field
		isFirst = true
	)
	for {
		k := s.Next()
		if k == jsonspan.Done || k == jsonspan.Invalid {
			if hide { // the data may be cut off inside the value
				p.hide(data, from, len(data))
			}
			return -1
		}
		first, last := s.Span()
		start, end := offset+int(first), offset+int(last)
		if isFirst {
			pos = newPosition(k, messages)
			isFirst = false
		}
		switch k {
		case jsonspan.Key:
			name := p.read(data[start+1 : end-1])
			var mayHide bool
			if mayHide, keep = pos.enter(name, s.Depth()); mayHide {
				_, hide = p.fields[string(name)]
				from = end
			}
			if !pos.isEnvelope(s.Depth()) {
				p.redactKey(data[start+1:end-1], start+1)
			}
			continue
		case jsonspan.BeginObject, jsonspan.BeginArray:
			from, keep = start, false
			if hide {
				s.Report(s.Depth(), math.MaxInt) // skip to its end
			}
			continue
		case jsonspan.EndObject, jsonspan.EndArray:
			if hide {
				s.ReportAll()
				start = from
			}
		}
		switch {
		case hide:
			p.hide(data, start, end)
		case k == jsonspan.String && !keep:
			p.redactString(data[start+1:end-1], start+1)
		}
		hide, keep = false, false
		if s.Depth() == 0 {
			return end
		}
	}
}

// hide replaces the value of a field, unless it is already replaced.
func (p *pass) hide(data []byte, start, end int) {
	if !bytes.Equal(data[start:end], quoted) {
		p.edits = append(p.edits, jsonspan.Edit{Start: start, End: end, New: p.quoted})
	}
}

// read returns the unescaped value of a string. It is valid until the next call.
func (p *pass) read(body []byte) []byte {
	if isPlain(body) {
		return body
	}
	return p.unescaped(body)
}

func (p *pass) unescaped(body []byte) []byte {
	p.text = jsonspan.AppendText(p.text[:0], body)
	return p.text
}

// isPlain reports whether a string has no escapes.
func isPlain(body []byte) bool { return bytes.IndexByte(body, '\\') < 0 }

// redactString redacts a string, of which the body begins at an offset.
func (p *pass) redactString(body []byte, offset int) {
	plain, text := isPlain(body), body
	if !plain {
		if p.isHarmless(body) {
			return
		}
		text = p.unescaped(body)
	}
	p.found = p.appendMatches(p.found[:0], text)
	if p.inner != nil && p.mayContainJSON(text) {
		p.inner.edits = p.inner.edits[:0]
		p.inner.values(text, false)
		p.found = append(p.found, p.inner.edits...)
	}
	if len(p.found) == 0 {
		return
	}
	// The text and the string have the same number of characters, so counting characters converts
	// an index of the text to an index of the string.
	read, done := 0, 0
	position := func(i int) int {
		if plain {
			return offset + i
		}
		read += jsonspan.Advance(body[read:], utf8.RuneCount(text[done:i]))
		done = i
		return offset + read
	}
	for _, e := range merge(p.found) {
		start := position(e.Start)
		p.edits = append(p.edits, jsonspan.Edit{Start: start, End: position(e.End), New: e.New})
	}
}

// redactKey redacts a key. It numbers redacted keys from the second on, so that the keys of an
// object stay distinct.
func (p *pass) redactKey(body []byte, offset int) {
	before := len(p.edits)
	p.redactString(body, offset)
	if len(p.edits) == before {
		return
	}
	p.keys++
	if p.keys > 1 {
		last := &p.edits[len(p.edits)-1]
		last.New = fmt.Appendf(nil, "%s %d", last.New, p.keys)
	}
}

// isHarmless reports whether a string with escapes certainly contains nothing to redact, so that it
// need not be unescaped.
func (p *pass) isHarmless(body []byte) bool {
	if bytes.Contains(body, []byte(`\u`)) {
		return false
	}
	if p.inner != nil {
		switch first := bytes.TrimLeft(body, " \t"); {
		case len(first) == 0, first[0] == '{', first[0] == '[', first[0] == '\\':
			return false // it may contain JSON, perhaps after a line break
		}
	}
	for i := range p.patterns {
		if p.patterns[i].mayMatchIn(body) {
			return false
		}
	}
	return true
}

// mayContainJSON reports whether a text may contain JSON with fields or escapes.
func (p *pass) mayContainJSON(text []byte) bool {
	first := bytes.TrimLeft(text, " \t\r\n")
	return len(first) > 0 && (first[0] == '{' || first[0] == '[') && (len(p.fields) > 0 || !isPlain(text))
}

// appendMatches appends edits for the matches of all patterns in text.
func (r *Redactor) appendMatches(edits []jsonspan.Edit, text []byte) []jsonspan.Edit {
	for i := range r.patterns {
		re := &r.patterns[i]
		if !re.mayMatchIn(text) || !re.Match(text) { // Match is faster than FindAllIndex
			continue
		}
		for _, at := range re.FindAllIndex(text, -1) {
			if at[0] < at[1] {
				edits = append(edits, jsonspan.Edit{Start: at[0], End: at[1], New: replacement})
			}
		}
	}
	return edits
}

// merge sorts edits and joins those that overlap, so that the whole of every match is replaced.
func merge(edits []jsonspan.Edit) []jsonspan.Edit {
	slices.SortFunc(edits, func(a, b jsonspan.Edit) int {
		switch {
		case a.Start != b.Start:
			return a.Start - b.Start
		case a.End != b.End:
			return b.End - a.End
		}
		return len(b.New) - len(a.New) // fields first
	})
	merged := edits[:0]
	for _, e := range edits {
		if n := len(merged); n > 0 && e.Start < merged[n-1].End {
			merged[n-1].End = max(merged[n-1].End, e.End)
			continue
		}
		merged = append(merged, e)
	}
	return merged
}
