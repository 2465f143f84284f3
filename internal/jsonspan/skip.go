package jsonspan

import (
	"encoding/binary"
	"math/bits"
)

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
