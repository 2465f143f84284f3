package jsoncut

import (
	"bytes"
	"iter"
)

// minMedia is how many bytes a string has at least that is taken for media.
const minMedia = 128

// isMedia reports whether the body of a string is a data URI or looks like base64.
func isMedia(body []byte) bool {
	if len(body) < minMedia {
		return false
	}
	if bytes.HasPrefix(body, []byte("data:")) {
		return !bytes.ContainsAny(body, ` \<`) && bytes.IndexByte(body, ',') > 0
	}
	// Words and identifiers repeated are of the alphabet, too, but hardly ever have all
	// of its kinds.
	var upper, lower, digit bool
	for _, c := range bytes.TrimRight(body, "=") {
		switch {
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z':
			lower = true
		case '0' <= c && c <= '9':
			digit = true
		case c != '+' && c != '/' && c != '-' && c != '_':
			return false
		}
	}
	return upper && lower && digit
}

// mediaKey returns the key of the member of an object that is media: data if the object is
// image or audio content, blob if it is a resource, else "". It has its quotes.
func (w *work) mediaKey(members iter.Seq[span]) string {
	found := ""
	for s := range members {
		switch string(w.text[s.key : s.start-len(":")]) {
		case `"type"`:
			if kind := string(w.text[s.start:s.end]); kind == `"image"` || kind == `"audio"` {
				return `"data"`
			}
		case `"uri"`:
			found = `"blob"`
		}
	}
	return found
}
