package httpbody

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
)

// Post has r post a JSON message, whatever it was to do before. Who passes it on can read
// the message as often as it takes.
func Post(r *http.Request, message []byte) {
	r.Method = http.MethodPost
	r.Body = io.NopCloser(bytes.NewReader(message))
	r.GetBody = Keep(message)
	r.ContentLength, r.TransferEncoding = int64(len(message)), nil
	SetHeader(r.Header, "Content-Type", "application/json")
	SetHeader(r.Header, "Content-Length", strconv.Itoa(len(message)))
}

// GetHeader returns the first value of a header, as the header's own Get does. Its name must be in
// the form that http.Header has it: to bring it there takes most of the time of Get.
func GetHeader(header http.Header, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// SetHeader gives a header one value, unless it has just that. Its name must be in the form that
// http.Header has it.
func SetHeader(header http.Header, name, value string) {
	if values := header[name]; len(values) != 1 || values[0] != value {
		header[name] = []string{value}
	}
}

// EmptyAs makes r a request of an HTTP method without a body.
func EmptyAs(r *http.Request, method string) {
	r.Method = method
	Empty(r)
}

// Empty has r have no body.
func Empty(r *http.Request) {
	r.Body, r.GetBody = http.NoBody, nil
	r.ContentLength, r.TransferEncoding = 0, nil
	for _, name := range [...]string{"Content-Type", "Content-Length", "Content-Encoding"} {
		r.Header.Del(name)
	}
}
