package toolpin

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// A digest identifies what a definition says, or the bytes that say it.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// short is enough of a digest to say which definition is meant.
func (d digest) short() string { return hex.EncodeToString(d[:16]) }

// maxRead is the longest definition that is read. Of a longer one every byte counts:
// to read costs many times what is read.
const maxRead = 256 << 10

// define returns the digest of a definition. The order of members, white space and
// escapes do not count. Everything else does, numbers as they are written; also its
// member _meta, which can say what a user interface is loaded from. Of a text that is no
// JSON or repeats a key in an object every byte counts, as readers may disagree about it.
func define(raw []byte) digest { return digestOf(raw, false) }

// defineWithoutMeta returns the digest of a definition in the first format of pins, in
// which its member _meta did not count.
func defineWithoutMeta(raw []byte) digest { return digestOf(raw, true) }

func digestOf(raw []byte, withoutMeta bool) digest {
	if len(raw) <= maxRead {
		if d, ok := meaning(raw, withoutMeta); ok {
			return d
		}
	}
	h := sha256.New()
	h.Write([]byte{'r'}) // no kind of value begins with it
	h.Write(raw)
	return digest(h.Sum(nil))
}

// A value is one of an object or array that is being read.
type value struct {
	key string // in an object
	sum digest
}

// meaning makes the digest of each container of those of its values, in one pass.
func meaning(raw []byte, withoutMeta bool) (d digest, ok bool) {
	var (
		s      jsonspan.Scanner
		values []value // those of the open containers, which are themselves before theirs
		open   []int   // where their values begin
		key    string
		room   []byte
	)
	s.Feed(raw)
	s.Finish()
	for {
		k := s.Next()
		start, end := s.Span()
		switch k {
		case jsonspan.Done:
			return values[0].sum, true
		case jsonspan.Invalid:
			return digest{}, false
		case jsonspan.Key:
			key = string(appendText(nil, raw[start+1:end-1]))
			continue
		case jsonspan.BeginObject, jsonspan.BeginArray:
			values = append(values, value{key: key})
			open = append(open, len(values))
			continue
		case jsonspan.EndObject, jsonspan.EndArray:
			first := open[len(open)-1]
			open = open[:len(open)-1]
			if k == jsonspan.EndArray {
				room = appendArray(room[:0], values[first:])
			} else if room, ok = appendObject(room[:0], values[first:], withoutMeta && len(open) == 0); !ok {
				return digest{}, false
			}
			values = values[:first]
			values[first-1].sum = sha256.Sum256(room)
			continue
		case jsonspan.String:
			room = appendText(append(room[:0], '"'), raw[start+1:end-1])
		case jsonspan.Number:
			room = append(append(room[:0], '0'), raw[start:end]...)
		default:
			room = append(room[:0], raw[start:end]...)
		}
		values = append(values, value{key, sha256.Sum256(room)})
	}
}

// appendText appends what a string stands for. If it stands for something that
// cannot be told in UTF-8, it appends how it is written, in a way that no text is.
func appendText(dst, body []byte) []byte {
	start := len(dst)
	dst = jsonspan.AppendText(dst, body)
	if bytes.ContainsRune(dst[start:], utf8.RuneError) {
		dst = append(append(dst[:start], 0xFF), body...)
	}
	return dst
}

func appendArray(dst []byte, elements []value) []byte {
	dst = append(dst, '[')
	for i := range elements {
		dst = append(dst, elements[i].sum[:]...)
	}
	return dst
}

// appendObject also reports whether each key is there just once.
func appendObject(dst []byte, members []value, withoutMeta bool) ([]byte, bool) {
	slices.SortFunc(members, func(a, b value) int { return cmp.Compare(a.key, b.key) })
	dst = append(dst, '{')
	for i := range members {
		m := &members[i]
		if i > 0 && m.key == members[i-1].key {
			return dst, false
		}
		if withoutMeta && m.key == "_meta" {
			continue
		}
		key := sha256.Sum256([]byte(m.key))
		dst = append(append(dst, key[:]...), m.sum[:]...)
	}
	return dst, true
}
