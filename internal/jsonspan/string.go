package jsonspan

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxChar is how many bytes a character has in JSON at most: two \uXXXX escapes.
const maxChar = 12

const (
	eachByte = 0x0101010101010101
	highBits = 0x80 * eachByte
)

// special returns a word whose lowest set high bit marks the first byte of w that is
// not plain ASCII text: a quote, a backslash, a control character or a byte of 0x80
// or more. The other bits are undefined.
//
// With its second bit flipped, a quote directly follows the control characters, so
// one subtraction finds both.
func special(w uint64) uint64 {
	return ((w ^ 0x02*eachByte) - 0x21*eachByte) | ((w ^ '\\'*eachByte) - eachByte) | w
}

// plainPrefix returns how many bytes at the beginning of b are plain ASCII text.
func plainPrefix(b []byte) int {
	n := 0
	if len(b) >= 8 { // most strings are short
		if m := special(binary.LittleEndian.Uint64(b)) & highBits; m != 0 {
			return bits.TrailingZeros64(m) >> 3
		}
		n = 8
	}
	for len(b)-n >= 32 {
		p := b[n : n+32 : n+32]
		m0 := special(binary.LittleEndian.Uint64(p[0:8]))
		m1 := special(binary.LittleEndian.Uint64(p[8:16]))
		m2 := special(binary.LittleEndian.Uint64(p[16:24]))
		m3 := special(binary.LittleEndian.Uint64(p[24:32]))
		if (m0|m1|m2|m3)&highBits == 0 {
			n += 32
			continue
		}
		for _, m := range [...]uint64{m0, m1, m2, m3} {
			if m &= highBits; m != 0 {
				return n + bits.TrailingZeros64(m)>>3
			}
			n += 8
		}
	}
	for len(b)-n >= 8 {
		if m := special(binary.LittleEndian.Uint64(b[n:])) & highBits; m != 0 {
			return n + bits.TrailingZeros64(m)>>3
		}
		n += 8
	}
	for n < len(b) && b[n] >= 0x20 && b[n] < 0x80 && b[n] != '"' && b[n] != '\\' {
		n++
	}
	return n
}

// escapedPrefix reads plain ASCII text with escapes, such as source code, from the
// beginning of b. It returns how many bytes it read, how many characters they are,
// and how many of those are \uXXXX escapes. It finds the escapes of all 64 bytes at
// once: finding them one by one would cost a mispredicted branch for each.
func escapedPrefix(b *[64]byte) (n, chars, long int) {
	var backslashes, quotes, others uint64
	for i := 0; i < 64; i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		backslashes |= gatherHighBits(^((w ^ '\\'*eachByte) + 0x7F*eachByte)) << i
		quotes |= gatherHighBits(^((w ^ '"'*eachByte) + 0x7F*eachByte)) << i
		others |= (w - 0x20*eachByte) | w
	}
	stop := uint64(0)
	if others&highBits != 0 { // rare, so they are located only here
		for i := 0; i < 64; i += 8 {
			w := binary.LittleEndian.Uint64(b[i:])
			stop |= gatherHighBits((w-0x20*eachByte)|w) << i
		}
	}
	// A backslash that is itself escaped does not start an escape.
	starts := backslashes
	if starts&(starts<<1) != 0 {
		starts = 0
		for rest := backslashes; rest != 0; {
			first := rest & -rest
			starts |= first
			rest &^= first | first<<1
		}
	}
	// Stop at the end of the string, at a byte that is not plain text, or at an
	// escape that continues after b.
	stop |= quotes&^(starts<<1) | starts&(1<<63)
	n = bits.TrailingZeros64(stop)
	starts &= 1<<n - 1
	for rest := starts; rest != 0; rest &= rest - 1 {
		at := bits.TrailingZeros64(rest)
		if shortEscape[b[(at+1)&63]] {
			continue
		}
		if b[(at+1)&63] == 'u' && at+6 <= n {
			if r, size := hex4(b[at : at+6]); size == 6 && !utf16.IsSurrogate(r) {
				long++
				continue
			}
		}
		n = at
		starts &= 1<<n - 1
		break
	}
	return n, n - bits.OnesCount64(starts) - 4*long, long
}

// gatherHighBits returns the high bits of the 8 bytes of w as the 8 lowest bits.
func gatherHighBits(w uint64) uint64 {
	return (w & highBits) * 0x0002040810204081 >> 56
}

// widePrefix counts the valid non-ASCII characters at the beginning of b and returns
// how many bytes they have. It stops up to 7 bytes before the end of b.
func widePrefix(b []byte) (chars, n int) {
	for len(b)-n >= 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		switch lead := byte(w); {
		case lead < 0xC2:
			return chars, n
		case lead < 0xE0:
			if w&0xC000 != 0x8000 {
				return chars, n
			}
			chars, n = chars+1, n+2
		case lead < 0xF0:
			if w&0xC0C0F0_C0C0F0 == 0x8080E0_8080E0 && plainLeads(w) {
				chars, n = chars+2, n+6
				continue
			}
			if w&0xC0C000 != 0x808000 || !threeBytes(w) {
				return chars, n
			}
			chars, n = chars+1, n+3
		default:
			if w&0xC0C0C000 != 0x80808000 || !fourBytes(w) {
				return chars, n
			}
			chars, n = chars+1, n+4
			if w >>= 32; w&0xC0C0C0F8 == 0x808080F0 && fourBytes(w) {
				chars, n = chars+1, n+4
			}
		}
	}
	return chars, n
}

// plainLeads reports whether two three-byte sequences begin with E1 to EC, as in most
// CJK text. They are then neither overlong nor surrogates.
func plainLeads(w uint64) bool {
	low := w & 0x00000F_00000F
	return ((low-0x000001_000001)|(low+0x000003_000003))&0x0000F0_0000F0 == 0
}

// threeBytes reports whether a three-byte sequence is neither overlong nor a
// surrogate, from its first byte and one bit of its second.
func threeBytes(w uint64) bool {
	v := w & 0x200F
	return v != 0x0000 && v != 0x200D
}

// fourBytes reports whether a four-byte sequence is neither overlong nor beyond
// U+10FFFF, from its first byte and two bits of its second.
func fourBytes(w uint64) bool {
	lead, second := w&0x0F, w&0x3000
	return 0 < lead && lead < 4 || lead == 0 && second != 0 || lead == 4 && second == 0
}

const (
	incomplete = -1 // more bytes are needed
	malformed  = -2 // not a valid JSON escape
)

// charLen returns how many bytes the character at the beginning of b has, or
// incomplete or malformed. b begins with a backslash or a byte of 0x80 or more.
func charLen(b []byte) int {
	if b[0] != '\\' {
		if !utf8.FullRune(b) {
			return incomplete
		}
		_, n := utf8.DecodeRune(b)
		return n
	}
	r, n := readEscape(b)
	if n != 6 {
		return n
	}
	if r < 0xD800 || r >= 0xDC00 {
		return 6
	}
	// A high surrogate is one character together with a low surrogate that follows,
	// or else alone.
	switch {
	case len(b) == 6:
		return incomplete
	case b[6] != '\\':
		return 6
	case len(b) == 7:
		return incomplete
	case b[7] != 'u':
		return 6
	}
	low, n := hex4(b[6:])
	switch {
	case n == incomplete:
		return incomplete
	case n == 6 && 0xDC00 <= low && low < 0xE000:
		return 12
	}
	return 6
}

// readEscape returns how many bytes the escape at the beginning of b has, or incomplete
// or malformed, and the value of a \uXXXX escape. It does not combine surrogate pairs.
func readEscape(b []byte) (r rune, n int) {
	switch {
	case len(b) == 1:
		return 0, incomplete
	case shortEscape[b[1]]:
		return 0, 2
	case b[1] != 'u':
		return 0, malformed
	}
	return hex4(b)
}

var shortEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// hex4 reads a \uXXXX escape and returns its value and 6, or incomplete or malformed.
func hex4(b []byte) (r rune, n int) {
	for i := 2; i < 6; i++ {
		if i == len(b) {
			return 0, incomplete
		}
		d := hexDigit[b[i]]
		if d == 0 {
			return 0, malformed
		}
		r = r<<4 | rune(d-1)
	}
	return r, 6
}

// hexDigit maps each hexadecimal digit to its value plus one.
var hexDigit = func() (table [256]uint8) {
	for i, c := range "0123456789abcdef" {
		table[c] = uint8(i + 1)
	}
	for i, c := range "ABCDEF" {
		table[c] = uint8(i + 11)
	}
	return table
}()

// readString continues to read a string or key at buf[i].
func (s *Scanner) readString(i int) Kind {
	buf, chars := s.buf, s.chars
	for s.npart > 0 {
		// Complete in s.part a character that began in an earlier piece.
		had := s.npart
		filled := had + copy(s.part[had:], buf[i:])
		switch n := charLen(s.part[:filled]); {
		case n == incomplete:
			// The piece has ended, as maxChar bytes are always enough.
			s.npart = filled
			s.pos = len(buf)
			return More
		case n == malformed:
			return s.fail(ErrSyntax, int(s.bound-s.base))
		case n < had:
			// A lone surrogate or an invalid byte. The other bytes in s.part
			// begin another character.
			s.npart = copy(s.part[:], s.part[n:had])
			chars++
			s.chars, s.bound = chars, s.bound+int64(n)
		default:
			s.npart = 0
			chars++
			i += n - had
		}
	}
	var stopped stop
	if s.SkipCounting {
		i, stopped = skipText(buf, i)
	} else {
		i, chars, _, stopped = readText(buf, i, chars)
	}
	switch stopped {
	case atQuote:
		s.chars, s.bound = chars, s.base+int64(i)
		if s.state == inKey {
			return s.endKey(i + 1)
		}
		return s.endValue(i+1, String)
	case atEnd:
		return s.suspend(i, chars)
	case inChar:
		s.npart = copy(s.part[:], buf[i:])
		s.suspend(i, chars)
		s.pos = len(buf)
		return More
	}
	return s.fail(ErrSyntax, i)
}

// stop is the reason why [readText] stopped.
type stop uint8

const (
	atQuote   stop = iota
	atEnd          // at the end of the bytes
	inChar         // inside a character that more bytes may complete
	atInvalid      // at a byte that is not valid in a string
)

// readText reads the characters of a string from buf[i] on and adds their number to
// chars. It returns where it stopped, the new count, whether there are \uXXXX
// escapes, and why it stopped.
func readText(buf []byte, i, chars int) (int, int, bool, stop) {
	hasUnicode := false
	for {
		n := plainPrefix(buf[i:])
		i += n
		chars += n
		if i == len(buf) {
			return i, chars, hasUnicode, atEnd
		}
		c := buf[i]
		switch {
		case c == '"':
			return i, chars, hasUnicode, atQuote
		case c == '\\':
			// Fast path for a single escape, as at the end of a line of text.
			if i+10 <= len(buf) && shortEscape[buf[i+1]] &&
				special(binary.LittleEndian.Uint64(buf[i+2:]))&highBits == 0 {
				i += 10
				chars += 9
				continue
			}
			// Fast path for many escapes, as in source code.
			read := i
			for len(buf)-i >= 64 {
				n, k, long := escapedPrefix((*[64]byte)(buf[i:]))
				i += n
				chars += k
				hasUnicode = hasUnicode || long > 0
				if n < 60 || n-k < 2 {
					break
				}
			}
			if i > read {
				continue
			}
		case c < 0x20:
			return i, chars, hasUnicode, atInvalid
		default:
			if k, n := widePrefix(buf[i:]); n > 0 {
				i += n
				chars += k
				continue
			}
		}
		switch n := charLen(buf[i:]); n {
		case incomplete:
			return i, chars, hasUnicode, inChar
		case malformed:
			return i, chars, hasUnicode, atInvalid
		default:
			hasUnicode = hasUnicode || c == '\\' && n > 2
			i += n
			chars++
		}
	}
}

// endKey records that a key ends before buf[i], and reads the colon if it follows directly.
func (s *Scanner) endKey(i int) Kind {
	s.end = s.base + int64(i)
	s.state = wantColon
	if i < len(s.buf) && s.buf[i] == ':' {
		s.state = wantValue
		i++
	}
	s.pos = i
	return Key
}

// suspend leaves a string unfinished whose characters are complete up to buf[i].
func (s *Scanner) suspend(i, chars int) Kind {
	s.chars, s.bound = chars, s.base+int64(i)
	s.pos = i
	return More
}

// Advance returns how many bytes the first n characters of body have, or the length
// of body if it has fewer. body is the content between the quotes of a valid string,
// or the end of it from some character on.
func Advance(body []byte, n int) int {
	i := 0
	for n > 0 && i < len(body) {
		p := plainPrefix(body[i:min(len(body), i+n)])
		i += p
		n -= p
		if n == 0 || i == len(body) {
			break
		}
		// A wide character has at least two bytes, so these are at most n.
		if chars, size := widePrefix(body[i:min(len(body), i+2*n)]); size > 0 {
			i += size
			n -= chars
			continue
		}
		i += finalCharLen(body[i:])
		n--
	}
	return i
}

// Count returns how many characters body has. See [Advance] for body.
func Count(body []byte) int {
	i, chars := 0, 0
	for i < len(body) {
		p := plainPrefix(body[i:])
		i += p
		chars += p
		if i == len(body) {
			break
		}
		if k, n := widePrefix(body[i:]); n > 0 {
			i += n
			chars += k
			continue
		}
		i += finalCharLen(body[i:])
		chars++
	}
	return chars
}

// finalCharLen is charLen for a b that no bytes follow.
func finalCharLen(b []byte) int {
	n := charLen(b)
	switch {
	case n > 0:
		return n
	case b[0] == '\\' && len(b) >= 6: // a lone high surrogate at or near the end
		return 6
	}
	return 1
}

// Text returns the decoded body of a string. See [AppendText].
func Text(body []byte) string {
	if plainPrefix(body) == len(body) {
		return string(body)
	}
	return string(AppendText(nil, body))
}

// AppendText appends the decoded body of a string to dst, as encoding/json decodes
// it: lone surrogates and bytes that are not UTF-8 become U+FFFD.
func AppendText(dst, body []byte) []byte {
	for i := 0; i < len(body); {
		if p := plainPrefix(body[i:]); p > 0 {
			dst = append(dst, body[i:i+p]...)
			i += p
			continue
		}
		n := finalCharLen(body[i:])
		dst = appendChar(dst, body[i:i+n])
		i += n
	}
	return dst
}

func appendChar(dst, b []byte) []byte {
	if b[0] != '\\' {
		r, _ := utf8.DecodeRune(b)
		return utf8.AppendRune(dst, r)
	}
	switch len(b) {
	case 2:
		c := b[1]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		}
		return append(dst, c)
	case maxChar:
		high, _ := hex4(b)
		low, _ := hex4(b[6:])
		return utf8.AppendRune(dst, utf16.DecodeRune(high, low))
	}
	r, _ := hex4(b)
	return utf8.AppendRune(dst, r) // a lone surrogate becomes U+FFFD
}

// AppendBody appends text to dst as the body of a JSON string. It escapes only what
// JSON requires, with the shortest escapes.
func AppendBody(dst []byte, text string) []byte {
	for _, r := range text {
		switch r {
		case '"', '\\':
			dst = append(dst, '\\', byte(r))
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			if r < ' ' {
				dst = fmt.Appendf(dst, `\u%04x`, r)
				continue
			}
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// TextIs reports whether the decoded body of a string equals text.
func TextIs(body []byte, text string) bool {
	if bytes.IndexByte(body, '\\') < 0 {
		return string(body) == text
	}
	if len(body) > maxChar*len(text) {
		return false
	}
	var room [64]byte
	return string(AppendText(room[:0], body)) == text
}

// skipText reads the characters of a string from buf[i] on like [readText], but faster,
// because it does not count them. It returns where and why it stopped.
func skipText(buf []byte, i int) (int, stop) {
	for len(buf)-i >= 8 {
		if m := stops(binary.LittleEndian.Uint64(buf[i:])) & highBits; m != 0 {
			i += bits.TrailingZeros64(m) >> 3
			if buf[i] == '"' { // most strings are short
				return i, atQuote
			}
			if len(buf)-i < 64 {
				break
			}
			// Escapes often occur close together.
			for empty := 0; len(buf)-i >= 64 && empty < 4; empty++ {
				n, found, stopped := skipEscapes((*[64]byte)(buf[i:]))
				i += n
				if stopped != atEnd {
					return i, stopped
				}
				if found {
					empty = 0
				}
			}
			continue
		}
		i += 8
		for len(buf)-i >= 32 {
			p := buf[i : i+32 : i+32]
			if (stops(binary.LittleEndian.Uint64(p))|stops(binary.LittleEndian.Uint64(p[8:]))|
				stops(binary.LittleEndian.Uint64(p[16:]))|stops(binary.LittleEndian.Uint64(p[24:])))&highBits != 0 {
				break
			}
			i += 32
		}
	}
	return skipBytes(buf, i)
}

// skipBytes is skipText byte by byte.
func skipBytes(buf []byte, i int) (int, stop) {
	for i < len(buf) {
		switch c := buf[i]; {
		case c == '"':
			return i, atQuote
		case c < 0x20:
			return i, atInvalid
		case c != '\\':
			i++
		default:
			switch _, n := readEscape(buf[i:]); n {
			case incomplete:
				return i, inChar
			case malformed:
				return i, atInvalid
			default:
				i += n
			}
		}
	}
	return i, atEnd
}

// skipEscapes is skipText for 64 bytes, or fewer if an escape may continue after them.
// found reports whether b has any byte to stop at. All such bytes are found at once:
// finding them one by one would cost a mispredicted branch for each.
func skipEscapes(b *[64]byte) (n int, found bool, _ stop) {
	places := stopMask(b[0:8]) | stopMask(b[8:16])<<8 | stopMask(b[16:24])<<16 | stopMask(b[24:32])<<24 |
		stopMask(b[32:40])<<32 | stopMask(b[40:48])<<40 | stopMask(b[48:56])<<48 | stopMask(b[56:64])<<56
	for found = places != 0; places != 0; {
		at := bits.TrailingZeros64(places) & 63
		if c := b[at]; c != '\\' {
			if c == '"' {
				return at, found, atQuote
			}
			return at, found, atInvalid
		}
		if !shortEscape[b[(at+1)&63]] || at == 63 {
			if at > 64-6 {
				return at, found, atEnd
			}
			if _, n := readEscape(b[at : at+6]); n != 6 {
				return at, found, atInvalid
			}
		}
		first := places & -places
		places &^= first | first<<1
	}
	return 64, found, atEnd
}

// stopMask returns a bit for each of 8 bytes that is a quote, a backslash or a control character.
func stopMask(b []byte) uint64 {
	w := binary.LittleEndian.Uint64(b)
	low := w &^ highBits
	return gatherHighBits(^(((low^0x02*eachByte)+0x5F*eachByte)&((low^'\\'*eachByte)+0x7F*eachByte) | w))
}

// stops returns a word whose lowest set high bit marks the first byte of w that is a
// quote, a backslash or a control character. See [special].
func stops(w uint64) uint64 {
	return (((w ^ 0x02*eachByte) - 0x21*eachByte) | ((w ^ '\\'*eachByte) - eachByte)) &^ w
}
