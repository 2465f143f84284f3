package chat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// Errors says which old results are kept because they are errors.
type Errors uint8

const (
	// ErrorsOff keeps none.
	ErrorsOff Errors = iota
	// ErrorsOn keeps results that mention an error anywhere, by the rules of T18
	// and T19, even where that is a line of a source.
	ErrorsOn
	// ErrorsPrecise keeps results of calls that failed, as far as their first and
	// last lines show.
	ErrorsPrecise
)

// A verdict is whether a result is an error, once it has been judged.
type verdict uint8

const (
	unheard verdict = iota
	fine
	failure
)

// keepsError reports whether a result is an error that is kept.
func (c *Conversation) keepsError(r *result, kept Errors) bool {
	if kept == ErrorsOff {
		return false
	}
	v := &r.verdict[kept]
	if *v == unheard {
		*v = fine
		if r.failed || kept == ErrorsPrecise && c.reportsFailure(r) || kept == ErrorsOn && c.mentionsError(r) {
			*v = failure
		}
	}
	return *v == failure
}

// mentionsError reports whether one of the texts of a result looks like an error.
func (c *Conversation) mentionsError(r *result) bool {
	return slices.ContainsFunc(c.texts[r.texts:r.texts+r.n], c.valueLooksLikeError)
}

var anyMember = jsonspan.CompilePaths("*")

// valueLooksLikeError reports whether a text looks like an error. An object or list that
// stands in the place of one does if it says so, or a string in it does.
func (c *Conversation) valueLooksLikeError(t value) bool {
	if t.kind == jsonspan.String {
		return c.textLooksLikeError(t)
	}
	object := c.body[t.start:t.end]
	looks := saysError(object)
	_ = anyMember.Find(object, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && !looks {
			start, end := t.start+int32(v.Start), t.start+int32(v.End)
			looks = c.textLooksLikeError(value{start, end, int32(v.Chars), v.Kind, v.Numbered})
		}
	})
	return looks
}

// textLooksLikeError applies the rules of T18 and T19 to what stands between the
// quotes of a string: it mentions an exception, a traceback, a timeout or a failed
// connection, it has a line that begins with "error", or it is a JSON object that
// says so.
func (c *Conversation) textLooksLikeError(t value) bool {
	body := c.text(t)
	if t.numbered && spellsLetters(body) {
		c.scratch = respell(c.scratch[:0], body)
		body = c.scratch
	}
	found, mentioned := tellsOfError(body)
	switch {
	case found:
		return true
	case !quotesJSON(body), !mentioned && !bytes.Contains(body, []byte(`\\u`)):
		return false
	}
	return saysError(jsonspan.AppendText(nil, body))
}

var errorMembers = jsonspan.CompilePaths("error", "status")

// saysError reports whether a text that looks like JSON says that it is an error.
func saysError(text []byte) bool {
	says := false
	err := errorMembers.Find(text, func(path int, v jsonspan.Value) {
		says = says || path == 0 ||
			v.Kind == jsonspan.String && strings.EqualFold(string(jsonspan.AppendText(nil, v.Body(text))), "error")
	})
	if err != nil && !errors.Is(err, jsonspan.ErrDuplicate) { // it was no JSON after all
		return bytes.Contains(text, []byte(`"error"`))
	}
	return says || err != nil // who says it twice may mean the one or the other
}

// quotesJSON reports whether the body of a JSON string begins as an object or a list.
func quotesJSON(body []byte) bool {
	for {
		switch {
		case len(body) == 0:
			return false
		case body[0] == ' ':
			body = body[1:]
		case body[0] == '\\' && (body[1] == 'n' || body[1] == 'r' || body[1] == 't'):
			body = body[2:]
		default:
			return body[0] == '{' || body[0] == '['
		}
	}
}

// The words of errors are looked for all at once, in any case, by six letters of
// each and the one before. A search looks at two letters in every five, and at the
// one before these: that is enough to rule out nearly every place.
const stride = 5

type clue struct {
	before  string // any of these letters
	letters string
}

var clues = [...]clue{
	{`a`, `ceback`},
	{`e`, `xcepti`},
	{`t`, `imeout`},
	{`n`, `nect_e`},
	{`r`, `efused`},
	{`\`, `"error`},
	{`\`, `nerror`},
	{`\`, `rerror`},
	{`\`, `terror`},
	{` nrt`, ` error`},
}

var (
	// before has which letters may come before each two letters.
	before [1 << 10]uint32
	// places has in which clues each two letters are, and where: a bit for each.
	places [1 << 10]uint64
)

func init() {
	for i, clue := range clues {
		for at := range stride {
			pair := letters(clue.letters[at], clue.letters[at+1])
			places[pair] |= 1 << (i*stride + at)
			if at > 0 {
				before[pair] |= 1 << (clue.letters[at-1] & 31)
				continue
			}
			for _, c := range []byte(clue.before) {
				before[pair] |= 1 << (c & 31)
			}
		}
	}
}

func letters(a, b byte) int { return int(a&31)<<5 | int(b&31) }

// tellsOfError reports whether a text has one of the words where it means an
// error, and whether it mentions "error" at the beginning of a quotation.
func tellsOfError(body []byte) (found, mentioned bool) {
	if beginsWithError(body) {
		return true, false
	}
	i := 0
	for ; i+8 <= len(body); i += 2 * stride {
		w := binary.LittleEndian.Uint64(body[i:]) & 0x1F1F1F1F1F1F1F1F
		first := before[(w>>3&0x3E0|w>>16&0x1F)&1023] >> (w & 31)
		second := before[(w>>43&0x3E0|w>>56)&1023] >> (w >> 40 & 31)
		if (first|second)&1 == 0 {
			continue
		}
		for _, at := range [...]int{i + 1, i + 1 + stride} {
			is, says := clueAt(body, at)
			if is {
				return true, false
			}
			mentioned = mentioned || says
		}
	}
	for i++; i+1 < len(body); i += stride {
		is, says := clueAt(body, i)
		if is {
			return true, false
		}
		mentioned = mentioned || says
	}
	return false, mentioned
}

// clueAt reports whether the two letters at i are part of a word that means an
// error, or of the mention of one.
func clueAt(body []byte, i int) (found, mentioned bool) {
	for rest := places[letters(body[i], body[i+1])]; rest != 0; rest &= rest - 1 {
		place := bits.TrailingZeros64(rest)
		at, clue := i-place%stride, clues[place/stride]
		if at < 1 || !hasWord(body[at:], clue.letters) {
			continue
		}
		switch clue.letters {
		case `ceback`:
			found = isWord(body, at-3, "traceback")
		case `xcepti`:
			found = isWord(body, at-1, "exception")
		case `imeout`:
			found = isWord(body, at-1, "timeout")
		case `nect_e`:
			found = isWord(body, at-3, "connect_error")
		case `efused`:
			found = isWord(body, at-12, "connection refused")
		case `"error`:
			mentioned = true
		default:
			found = beginsLine(body, at+1)
		}
		if found {
			return true, false
		}
	}
	return false, mentioned
}

// isWord reports whether a word stands at i. In \timeout there is a tab instead.
func isWord(body []byte, i int, word string) bool {
	return i >= 0 && hasWord(body[i:], word) && !escaped(body, i)
}

// beginsWithError reports whether "error" comes first, but for blanks.
func beginsWithError(body []byte) bool {
	for {
		if rest, blank := bytes.CutPrefix(body, []byte(" ")); blank {
			body = rest
		} else if rest, blank := bytes.CutPrefix(body, []byte(`\t`)); blank {
			body = rest
		} else {
			return hasWord(body, "error")
		}
	}
}

// beginsLine reports whether nothing but blanks comes before i in its line, which
// is not the first.
func beginsLine(body []byte, i int) bool {
	for i > 0 {
		switch {
		case body[i-1] == ' ':
			i--
		case !escaped(body, i-1):
			return false
		case body[i-1] == 't':
			i -= 2
		default:
			return body[i-1] == 'n' || body[i-1] == 'r'
		}
	}
	return false
}

// hasWord reports whether body begins with a word, in any case.
func hasWord(body []byte, word string) bool {
	if len(body) < len(word) {
		return false
	}
	for i := range len(word) {
		c := body[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// escaped reports whether the byte at i belongs to the backslash before it.
func escaped(body []byte, i int) bool {
	n := 0
	for n < i && body[i-n-1] == '\\' {
		n++
	}
	return n%2 == 1
}

// spellsLetters reports whether body may have characters that matter here spelled
// by their numbers, such as \u0065. Go and others spell < and > so: these do not.
func spellsLetters(body []byte) bool {
	for {
		i := bytes.Index(body, []byte(`\u00`))
		if i < 0 {
			return false
		}
		if i+6 > len(body) { // of an escaped backslash, and then the text ends
			return true
		}
		switch body[i+4] {
		case '4', '5', '6', '7', '0': // letters, underscore and brackets; line ends and tab
			return true
		case '2':
			if body[i+5] == '0' || body[i+5] == '2' { // space, quote
				return true
			}
		}
		body = body[i+4:]
	}
}

// respell appends body with every ASCII character that is spelled by its number
// spelled as usual.
func respell(dst, body []byte) []byte {
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			return append(dst, body...)
		}
		dst = append(dst, body[:i]...)
		body = body[i:]
		if body[1] != 'u' {
			dst = append(dst, body[:2]...)
			body = body[2:]
			continue
		}
		var room [utf8.UTFMax]byte
		if text := jsonspan.AppendText(room[:0], body[:6]); len(text) == 1 {
			dst = jsonspan.AppendBody(dst, string(text))
		} else {
			dst = append(dst, body[:6]...)
		}
		body = body[6:]
	}
}
