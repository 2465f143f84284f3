package redact

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A pass goes through one text and gathers what is to be replaced in it.
type pass struct {
	*Redactor
	scanner jsonspan.Scanner
	edits   []jsonspan.Edit
	quoted  []byte // what stands for the value of a field
	keys    int    // in which something was replaced

	text  []byte          // what the latest string stands for
	found []jsonspan.Edit // in it
	inner *pass           // for strings that are JSON; nil in one of them
}

// values looks at the JSON values that data is, one behind the other, up to where it
// is no JSON. It reports whether data is one value and nothing else.
func (p *pass) values(data []byte, messages bool) bool {
	at := 0
	if bytes.HasPrefix(data, []byte(byteOrderMark)) {
		at = len(byteOrderMark) // no JSON has one, but there are readers that do not mind
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

// value looks at the value that begins at at, and returns where it ends, or -1 if it
// is none.
func (p *pass) value(data []byte, at int, messages bool) int {
	s := &p.scanner
	s.MaxDepth = math.MaxInt // nothing here recurs
	s.Uncounted = true
	s.Reset()
	s.Feed(data[at:])
	s.Finish()
	var (
		in      place
		hide    bool // the next value, or the one that is open, is that of a field
		keep    bool // the next value names the message
		from    int  // where the value of a field begins
		isFirst = true
	)
	for {
		k := s.Next()
		if k == jsonspan.Done || k == jsonspan.Invalid {
			if hide { // who cut it off may have cut it in its value
				p.hide(data, from, len(data))
			}
			return -1
		}
		first, last := s.Span()
		start, end := at+int(first), at+int(last)
		if isFirst {
			in = begin(k, messages)
			isFirst = false
		}
		switch k {
		case jsonspan.Key:
			name := p.read(data[start+1 : end-1])
			var mayHide bool
			if mayHide, keep = in.enter(name, s.Depth()); mayHide {
				_, hide = p.fields[string(name)]
				from = end
			}
			if !in.isEnvelope(s.Depth()) {
				p.lookAtKey(data[start+1:end-1], start+1)
			}
			continue
		case jsonspan.BeginObject, jsonspan.BeginArray:
			if from, keep = start, false; hide {
				s.Report(s.Depth(), math.MaxInt) // straight to its end
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
			p.look(data[start+1:end-1], start+1)
		}
		if hide, keep = false, false; s.Depth() == 0 {
			return end
		}
	}
}

// hide replaces the value of a field, unless somebody has done so before.
func (p *pass) hide(data []byte, start, end int) {
	if !bytes.Equal(data[start:end], quoted) {
		p.edits = append(p.edits, jsonspan.Edit{Start: start, End: end, New: p.quoted})
	}
}

// read returns what a string stands for, for a while.
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

// isPlain reports whether a string stands for its own bytes, which are UTF-8 here.
func isPlain(body []byte) bool { return bytes.IndexByte(body, '\\') < 0 }

// look looks at the string with this body, which stands at at.
func (p *pass) look(body []byte, at int) {
	same, text := isPlain(body), body
	if !same {
		if p.isHarmless(body) {
			return
		}
		text = p.unescaped(body)
	}
	p.found = p.appendMatches(p.found[:0], text)
	if p.inner != nil && p.mayHold(text) {
		p.inner.edits = p.inner.edits[:0]
		p.inner.values(text, false)
		p.found = append(p.found, p.inner.edits...)
	}
	if len(p.found) == 0 {
		return
	}
	// A character of the text is one of the string, so counting them leads from a
	// place in the text to that in the string.
	read, done := 0, 0
	place := func(i int) int {
		if same {
			return at + i
		}
		read += jsonspan.Advance(body[read:], utf8.RuneCount(text[done:i]))
		done = i
		return at + read
	}
	for _, e := range merge(p.found) {
		start := place(e.Start)
		p.edits = append(p.edits, jsonspan.Edit{Start: start, End: place(e.End), New: e.New})
	}
}

// lookAtKey looks at a key. From the second one on in which something is replaced they are
// numbered, so that the keys of an object stay different.
func (p *pass) lookAtKey(body []byte, at int) {
	before := len(p.edits)
	if p.look(body, at); len(p.edits) == before {
		return
	}
	if p.keys++; p.keys > 1 {
		last := &p.edits[len(p.edits)-1]
		last.New = fmt.Appendf(nil, "%s %d", last.New, p.keys)
	}
}

// isHarmless reports whether a string that has escapes certainly has nothing to
// replace, which spares reading what it stands for.
func (p *pass) isHarmless(body []byte) bool {
	if bytes.Contains(body, []byte(`\u`)) {
		return false
	}
	if p.inner != nil {
		switch first := bytes.TrimLeft(body, " \t"); {
		case len(first) == 0, first[0] == '{', first[0] == '[', first[0] == '\\':
			return false // it may be JSON, or be after a line break
		}
	}
	for i := range p.patterns {
		if p.patterns[i].isIn(body) {
			return false
		}
	}
	return true
}

// mayHold reports whether a text may be JSON that says more than the text does: in
// fields, or by escapes.
func (p *pass) mayHold(text []byte) bool {
	first := bytes.TrimLeft(text, " \t\r\n")
	return len(first) > 0 && (first[0] == '{' || first[0] == '[') && (len(p.fields) > 0 || bytes.IndexByte(text, '\\') >= 0)
}

// appendMatches appends edits for the matches of all patterns in text.
func (r *Redactor) appendMatches(edits []jsonspan.Edit, text []byte) []jsonspan.Edit {
	for i := range r.patterns {
		re := &r.patterns[i]
		if !re.isIn(text) || !re.Match(text) { // which costs less than to find out where
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

// merge puts edits in order and makes one of those that overlap, so that what one
// pattern finds is not spared because another found a part of it.
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
