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

// A digest is a SHA-256 hash of a definition, either of its content or of its bytes.
type digest [sha256.Size]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// short returns enough of a digest to identify a definition.
func (d digest) short() string { return hex.EncodeToString(d[:16]) }

// maxRead is the longest definition, in bytes, whose content is hashed. A longer one is hashed byte
// for byte, because parsing is much slower.
const maxRead = 256 << 10

// digestOf returns the digest of a definition. The order of members, white space and escapes do not
// matter. Everything else does: numbers as they are written, and the member _meta, which can name
// the source of a user interface. A text that is not JSON, or that repeats a key in an object, is
// hashed byte for byte, because programs may read it differently.
func digestOf(raw []byte) digest { return digestWith(raw, false) }

// digestWithoutMeta returns the digest of a definition in the first format of pins, which ignored
// the member _meta.
func digestWithoutMeta(raw []byte) digest { return digestWith(raw, true) }

func digestWith(raw []byte, withoutMeta bool) digest {
	if len(raw) <= maxRead {
		if d, ok := canonicalDigest(raw, withoutMeta); ok {
			return d
		}
	}
	h := sha256.New()
	h.Write([]byte{'r'}) // a prefix that no value has
	h.Write(raw)
	return digest(h.Sum(nil))
}

// A value is an element or member of a container that is being read.
type value struct {
	key string // key in an object
	sum digest
}

// canonicalDigest hashes the content of a definition in one pass: a container by the hashes of its
// values.
func canonicalDigest(raw []byte, withoutMeta bool) (d digest, ok bool) {
	var (
		s      jsonspan.Scanner
		values []value // values of the open containers, each container before its own
		open   []int   // where their values begin
		key    string
		buf    []byte
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
				buf = appendArray(buf[:0], values[first:])
			} else if buf, ok = appendObject(buf[:0], values[first:], withoutMeta && len(open) == 0); !ok {
				return digest{}, false
			}
			values = values[:first]
			values[first-1].sum = sha256.Sum256(buf)
			continue
		case jsonspan.String:
			buf = appendText(append(buf[:0], '"'), raw[start+1:end-1])
		case jsonspan.Number:
			buf = append(append(buf[:0], '0'), raw[start:end]...)
		default:
			buf = append(buf[:0], raw[start:end]...)
		}
		values = append(values, value{key, sha256.Sum256(buf)})
	}
}

// appendText appends the decoded text of a string. If that is not valid UTF-8, it appends the
// encoded string after a byte that valid text cannot contain.
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

// appendObject appends an object, and reports whether its keys are unique.
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
