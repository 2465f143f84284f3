package httpbody

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
)

// Post makes r a POST of a JSON message. Handlers can read the message more than once.
func Post(r *http.Request, message []byte) {
	r.Method = http.MethodPost
	r.Body = io.NopCloser(bytes.NewReader(message))
	r.GetBody = Keep(message)
	r.ContentLength, r.TransferEncoding = int64(len(message)), nil
	SetHeader(r.Header, "Content-Type", "application/json")
	SetHeader(r.Header, "Content-Length", strconv.Itoa(len(message)))
}

// GetHeader returns the first value of a header, like http.Header.Get. The name must be canonical,
// which saves most of the time of Get.
func GetHeader(header http.Header, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// SetHeader sets a header to one value, unless it has exactly that. The name must be canonical.
func SetHeader(header http.Header, name, value string) {
	if values := header[name]; len(values) != 1 || values[0] != value {
		header[name] = []string{value}
	}
}

// EmptyAs makes r a request with an HTTP method and without a body.
func EmptyAs(r *http.Request, method string) {
	r.Method = method
	Empty(r)
}

// Empty removes the body of r.
func Empty(r *http.Request) {
	r.Body, r.GetBody = http.NoBody, nil
	r.ContentLength, r.TransferEncoding = 0, nil
	for _, name := range [...]string{"Content-Type", "Content-Length", "Content-Encoding"} {
		r.Header.Del(name)
	}
}
