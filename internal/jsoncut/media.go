package jsoncut

import (
	"bytes"
	"iter"
)

// minMedia is the minimum length in bytes of a string that counts as media.
const minMedia = 128

// isMedia reports whether the body of a string is a data URI or looks like base64.
func isMedia(body []byte) bool {
	if len(body) < minMedia {
		return false
	}
	if bytes.HasPrefix(body, []byte("data:")) {
		return !bytes.ContainsAny(body, ` \<`) && bytes.IndexByte(body, ',') > 0
	}
	// Long words and identifiers use the same alphabet, but rarely have upper case
	// letters, lower case letters and digits.
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

// mediaKey returns the key, with quotes, of the member that holds media: data if the
// object is image or audio content, blob if it is a resource, else "".
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
