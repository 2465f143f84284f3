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

// Errors selects the old results that are kept as errors.
type Errors uint8

const (
	// ErrorsOff keeps none.
	ErrorsOff Errors = iota
	// ErrorsOn keeps results that mention an error anywhere, by the rules of T18 and T19, even in
	// source code.
	ErrorsOn
	// ErrorsPrecise keeps results of failed calls, judged by their first and last lines.
	ErrorsPrecise
)

// A verdict says whether a result is an error, once that is known.
type verdict uint8

const (
	unjudged verdict = iota
	notError
	isFailure
)

// keepsError reports whether a result is kept as an error.
func (c *Conversation) keepsError(r *result, mode Errors) bool {
	if mode == ErrorsOff {
		return false
	}
	v := &r.verdict[mode]
	if *v == unjudged {
		*v = notError
		if r.failed || mode == ErrorsPrecise && c.reportsFailure(r) || mode == ErrorsOn && c.mentionsError(r) {
			*v = isFailure
		}
	}
	return *v == isFailure
}

// mentionsError reports whether a text of a result looks like an error.
func (c *Conversation) mentionsError(r *result) bool {
	return slices.ContainsFunc(c.texts[r.texts:r.texts+r.n], c.valueLooksLikeError)
}

var anyMember = jsonspan.CompilePaths("*")

// valueLooksLikeError reports whether a text looks like an error. An object or list instead of a
// text does if one of its members or strings does.
func (c *Conversation) valueLooksLikeError(t value) bool {
	if t.kind == jsonspan.String {
		return c.textLooksLikeError(t)
	}
	object := c.body[t.start:t.end]
	looks := objectHasError(object)
	_ = anyMember.Find(object, func(_ int, v jsonspan.Value) {
		if v.Kind == jsonspan.String && !looks {
			start, end := t.start+int32(v.Start), t.start+int32(v.End)
			looks = c.textLooksLikeError(value{start, end, int32(v.Chars), v.Kind, v.HasUnicodeEscapes})
		}
	})
	return looks
}

// textLooksLikeError applies the rules of T18 and T19 to a string: it mentions an exception, a
// traceback, a timeout or a failed connection, has a line that begins with "error", or is a JSON
// object that reports an error.
func (c *Conversation) textLooksLikeError(t value) bool {
	body := c.text(t)
	if t.unicodeEscapes && mayEscapeASCII(body) {
		c.scratch = unescapeASCII(c.scratch[:0], body)
		body = c.scratch
	}
	found, mentioned := findErrorWords(body)
	switch {
	case found:
		return true
	case !quotesJSON(body), !mentioned && !bytes.Contains(body, []byte(`\\u`)):
		return false
	}
	return objectHasError(jsonspan.AppendText(nil, body))
}

var errorMembers = jsonspan.CompilePaths("error", "status")

// objectHasError reports whether a text that looks like JSON reports an error.
func objectHasError(text []byte) bool {
	reportsError := false
	err := errorMembers.Find(text, func(path int, v jsonspan.Value) {
		reportsError = reportsError || path == 0 ||
			v.Kind == jsonspan.String && strings.EqualFold(string(jsonspan.AppendText(nil, v.Body(text))), "error")
	})
	if err != nil && !errors.Is(err, jsonspan.ErrDuplicate) { // not JSON after all
		return bytes.Contains(text, []byte(`"error"`))
	}
	return reportsError || err != nil // a repeated key is ambiguous, and counts as an error
}

// quotesJSON reports whether the body of a JSON string begins like an object or a list.
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

// stride is the distance between the positions that the search for error words examines. It finds
// all words at once, ignoring case, by six letters of each and the letter before. In every five
// letters it looks at two, and the one before these, which rules out nearly every position.
const stride = 5

// A clue is a part of a word that means an error.
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
	// precedingLetters has, for each pair of letters, a bit set of the letters that may precede it.
	precedingLetters [1 << 10]uint32
	// cluePositions has, for each pair of letters, a bit for each clue and position where it
	// occurs.
	cluePositions [1 << 10]uint64
)

func init() {
	for i, clue := range clues {
		for at := range stride {
			pair := pairIndex(clue.letters[at], clue.letters[at+1])
			cluePositions[pair] |= 1 << (i*stride + at)
			if at > 0 {
				precedingLetters[pair] |= 1 << (clue.letters[at-1] & 31)
				continue
			}
			for _, c := range []byte(clue.before) {
				precedingLetters[pair] |= 1 << (c & 31)
			}
		}
	}
}

func pairIndex(a, b byte) int { return int(a&31)<<5 | int(b&31) }

// findErrorWords reports whether a text has a word that means an error, and whether it has "error"
// in quotes.
func findErrorWords(body []byte) (found, mentioned bool) {
	if beginsWithError(body) {
		return true, false
	}
	i := 0
	for ; i+8 <= len(body); i += 2 * stride {
		w := binary.LittleEndian.Uint64(body[i:]) & 0x1F1F1F1F1F1F1F1F
		first := precedingLetters[(w>>3&0x3E0|w>>16&0x1F)&1023] >> (w & 31)
		second := precedingLetters[(w>>43&0x3E0|w>>56)&1023] >> (w >> 40 & 31)
		if (first|second)&1 == 0 {
			continue
		}
		for _, at := range [...]int{i + 1, i + 1 + stride} {
			hit, quoted := clueAt(body, at)
			if hit {
				return true, false
			}
			mentioned = mentioned || quoted
		}
	}
	for i++; i+1 < len(body); i += stride {
		hit, quoted := clueAt(body, i)
		if hit {
			return true, false
		}
		mentioned = mentioned || quoted
	}
	return false, mentioned
}

// clueAt reports whether the two letters at i are part of a word that means an error, or of "error"
// in quotes.
func clueAt(body []byte, i int) (found, mentioned bool) {
	for rest := cluePositions[pairIndex(body[i], body[i+1])]; rest != 0; rest &= rest - 1 {
		bit := bits.TrailingZeros64(rest)
		at, clue := i-bit%stride, clues[bit/stride]
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

// isWord reports whether a word is at i. In \timeout the t belongs to a tab.
func isWord(body []byte, i int, word string) bool {
	return i >= 0 && hasWord(body[i:], word) && !escaped(body, i)
}

// beginsWithError reports whether body begins with "error", after blanks.
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

// beginsLine reports whether only blanks precede i in its line, which is not the first.
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

// hasWord reports whether body begins with a word, ignoring case.
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

// escaped reports whether the byte at i is part of an escape.
func escaped(body []byte, i int) bool {
	n := 0
	for n < i && body[i-n-1] == '\\' {
		n++
	}
	return n%2 == 1
}

// mayEscapeASCII reports whether body may have relevant ASCII characters as numeric escapes, such
// as \u0065. Go and others also escape < and >, but those are irrelevant.
func mayEscapeASCII(body []byte) bool {
	for {
		i := bytes.Index(body, []byte(`\u00`))
		if i < 0 {
			return false
		}
		if i+6 > len(body) { // an escaped backslash near the end
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

// unescapeASCII appends body with numeric escapes of ASCII characters replaced by their usual form.
func unescapeASCII(dst, body []byte) []byte {
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
