// Package httpbody reads and writes bodies of HTTP messages, and the headers that describe them.
package httpbody

import (
	"mime"
	"net/http"
	"strings"
)

// A MediaType is the type of a body, as far as the gateway distinguishes it.
type MediaType uint8

const (
	// Other is every type but the two below.
	Other MediaType = iota
	// JSON is application/json and every type whose name ends with +json.
	JSON
	// EventStream is text/event-stream.
	EventStream
)

// TypeOf parses a Content-Type.
func TypeOf(contentType string) MediaType {
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	switch {
	case media == "text/event-stream":
		return EventStream
	case media == "application/json", strings.HasSuffix(media, "+json"):
		return JSON
	}
	return Other
}

// IsUTF8 reports whether a body of this Content-Type is UTF-8. JSON and event streams are, unless a
// charset says otherwise.
func IsUTF8(contentType string) bool {
	if !strings.Contains(strings.ToLower(contentType), "charset") {
		return true
	}
	_, params, err := mime.ParseMediaType(contentType)
	if err != nil { // a more lenient parser may find another charset
		return false
	}
	switch strings.ToLower(params["charset"]) {
	case "", "utf-8", "utf8", "us-ascii":
		return true
	}
	return false
}

// Encoding returns the Content-Encoding of a message; "" if its body is not encoded.
func Encoding(header http.Header) string {
	encoding := strings.Join(header["Content-Encoding"], ",")
	if strings.EqualFold(encoding, "identity") {
		return ""
	}
	return encoding
}

// DropDescription removes headers that are wrong for a changed body: its length, its encoding, its
// digests and its ETag.
func DropDescription(header http.Header) {
	for _, name := range description {
		delete(header, name)
	}
}

var description = []string{
	"Content-Length", "Content-Encoding", "Etag",
	"Content-Md5", "Digest", "Content-Digest", "Repr-Digest",
}
