package mask

import (
	"bytes"
	"hash/maphash"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsoncut"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// shorten lets the Shortener replace the cuts of the complete message.
func (m *Masker) shorten() {
	own := slices.IndexFunc(m.cuts, func(c cut) bool { return c.start >= m.msg.start })
	if own < 0 {
		own = len(m.cuts)
	}
	whole := m.shortenStructured(own)
	cuts, structured := m.cuts[own:], m.msg.structured
	for i := range cuts {
		if !structured.contains(&cuts[i]) {
			m.shortenText(&cuts[i])
		}
	}
	if whole != nil {
		kept := slices.DeleteFunc(cuts, func(c cut) bool { return structured.contains(&c) })
		m.cuts = append(m.cuts[:own+len(kept)], whole...)
		slices.SortStableFunc(m.cuts[own:], func(a, b cut) int { return int(a.start - b.start) })
		return
	}
	if structured.end > 0 {
		m.shortenEqual(cuts, structured)
	}
}

// shortenEqual shortens strings in the structured content. A string that occurs outside, too, gets
// the same replacement and handle.
func (m *Masker) shortenEqual(cuts []cut, structured span) {
	seed := maphash.MakeSeed()
	body := func(c *cut) []byte { return m.bytes(c.start+1, c.end-1) }
	outside := map[uint64]*cut{}
	for i := range cuts {
		if c := &cuts[i]; !structured.contains(c) {
			outside[maphash.Bytes(seed, body(c))] = c
		}
	}
	for i := range cuts {
		c := &cuts[i]
		if !structured.contains(c) {
			continue
		}
		if other := outside[maphash.Bytes(seed, body(c))]; other != nil && bytes.Equal(body(other), body(c)) {
			c.replace(c.start+1, c.end-1, other.text, other.left)
			c.handle, c.saved = other.handle, true
		} else {
			m.shortenText(c)
		}
	}
}

// shortenText shortens a string.
func (m *Masker) shortenText(c *cut) {
	body := m.bytes(c.start+1, c.end-1)
	if short := m.policy.Shorten.Text(body, m.save(c), c.structured); short != nil {
		c.replace(c.start+1, c.end-1, short, jsonspan.Count(short))
	}
}

// replace makes text, of chars characters, the replacement of the bytes between two offsets. A nil
// text changes nothing.
func (c *cut) replace(from, to int64, text []byte, chars int) {
	if text != nil {
		c.head, c.tail, c.text, c.left = from, to, text, chars
	}
}

// shortenStructured shortens the structured content as a whole if it is too long even without its
// long strings, or if a text repeats the content, which is then shortened alike. It returns the
// cuts to use in place of those inside the content, with a note; nil if the content is not
// shortened as a whole.
func (m *Masker) shortenStructured(own int) []cut {
	s := m.msg.structured
	if s.end-s.start <= int64(m.policy.MaxChars) {
		return nil
	}
	value := m.bytes(s.start, s.end)
	rest := utf8.RuneCount(value) // without strings that are cut
	if rest <= m.policy.MaxChars {
		return nil
	}
	var text *cut
	var compact []byte
	for i := range m.cuts[own:] {
		c := &m.cuts[own+i]
		if s.contains(c) {
			rest -= utf8.RuneCount(m.bytes(c.start, c.end))
			continue
		}
		if compact == nil {
			if compact = compacted(value); compact == nil {
				return nil
			}
		}
		c.structured = m.isText(c, compact)
		if c.structured && text == nil {
			text = c
		}
	}
	var short []byte
	if text != nil || rest > m.policy.MaxChars {
		short = m.policy.Shorten.Structured(value)
	}
	if short == nil {
		for i := range m.cuts[own:] {
			m.cuts[own+i].structured = false
		}
		return nil
	}
	whole := cut{start: s.start, end: s.end, chars: jsonspan.Count(value), saved: true}
	whole.replace(s.start, s.end, short, jsonspan.Count(short))
	if compact == nil {
		compact = compacted(value)
	}
	if bytes.Equal(short, compact) {
		return []cut{whole} // only white space was removed
	}
	if text != nil {
		whole.handle = m.save(text)
	} else if body := jsonspan.AppendBody(nil, string(value)); m.policy.Save != nil && len(body) <= m.policy.HoldLimit {
		whole.handle = m.policy.Save(body)
	}
	return append(m.note(m.policy.Shorten.Note(value, whole.handle)), whole)
}

// isText reports whether a string is the JSON text of an object, which is given compacted.
func (m *Masker) isText(c *cut, object []byte) bool {
	body := m.bytes(c.start+1, c.end-1)
	if !bytes.HasPrefix(bytes.TrimLeft(body, " "), []byte("{")) {
		return false
	}
	return bytes.Equal(compacted([]byte(jsonspan.Text(body))), object)
}

// compacted returns JSON in a canonical form without differences in white space and escapes; nil if
// text is not an object or array.
func compacted(text []byte) []byte {
	compact, _ := jsoncut.Cutter{MaxChars: math.MaxInt}.Cut(text)
	return compact
}

// note returns the cut that adds a text to the content of the result, if it has content.
func (m *Masker) note(text string) []cut {
	at := m.msg.content
	if at == 0 || text == "" {
		return nil
	}
	item := append([]byte(`{"type":"text","text":`), jsonrpc.Quote(text)...)
	item = append(item, '}')
	if before := bytes.TrimRight(m.bytes(m.msg.start, at), " \t\r\n"); before[len(before)-1] != '[' {
		item = append([]byte{','}, item...)
	}
	return []cut{{start: at, end: at, head: at, tail: at, text: item, saved: true}}
}
