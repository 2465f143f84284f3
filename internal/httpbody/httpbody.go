// Package httpbody reads and writes bodies of HTTP messages, and the headers that describe them.
package httpbody

import (
	"bytes"
	"io"
	"iter"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
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
// digests and its ETag. The last two may also be trailers.
func DropDescription(header http.Header) {
	for _, name := range description {
		delete(header, name)
	}
}

var description = []string{
	"Content-Length", "Content-Encoding", "Etag",
	"Content-Md5", "Digest", "Content-Digest", "Repr-Digest", http.TrailerPrefix + "Etag",
	http.TrailerPrefix + "Content-Md5", http.TrailerPrefix + "Digest",
	http.TrailerPrefix + "Content-Digest", http.TrailerPrefix + "Repr-Digest",
}

// opener returns a function that opens a body with a Content-Encoding; nil if the encoding is
// unknown.
func opener(encoding string) func(io.Reader) (io.ReadCloser, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "gzip", "x-gzip":
		return func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
	case "br":
		return func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(brotli.NewReader(r)), nil }
	case "zstd":
		return func(r io.Reader) (io.ReadCloser, error) {
			// Decode in the caller's goroutine, with no larger window than browsers allow.
			d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
			if err != nil {
				return nil, err
			}
			return d.IOReadCloser(), nil
		}
	}
	return nil
}

// NewReader returns a reader that decodes r; nil if the encoding is unknown.
func NewReader(encoding string, r io.Reader) (io.ReadCloser, error) {
	open := opener(encoding)
	if open == nil {
		return nil, nil
	}
	return open(r)
}

// A Decoder decodes a body as it is written.
//
// The decoding readers pull their input, but a response is pushed. So the reader is a coroutine
// that each write resumes and that runs until it needs more input. It runs only during Write, Close
// and Stop.
type Decoder struct {
	in     []byte // written, but not read yet
	begun  bool
	closed bool
	err    error

	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
}

// NewDecoder returns a Decoder that writes to dst; nil if the encoding is unknown. It must be
// closed or stopped.
func NewDecoder(encoding string, dst io.Writer) *Decoder {
	open := opener(encoding)
	if open == nil {
		return nil
	}
	d := new(Decoder)
	d.resume, d.stop = iter.Pull(func(yield func(struct{}) bool) {
		d.yield = yield
		var r io.ReadCloser
		if r, d.err = open(input{d}); d.err != nil {
			return
		}
		defer r.Close()
		_, d.err = io.Copy(dst, r)
	})
	return d
}

// input is the reader of a Decoder's coroutine.
type input struct{ *Decoder }

// Read returns what was written, or yields until there is more.
func (d input) Read(p []byte) (int, error) {
	for len(d.in) == 0 {
		if d.closed {
			return 0, io.EOF
		}
		if !d.yield(struct{}{}) {
			return 0, io.ErrUnexpectedEOF
		}
	}
	n := copy(p, d.in)
	d.in = d.in[n:]
	return n, nil
}

// Write decodes as much of p as possible.
func (d *Decoder) Write(p []byte) (int, error) {
	d.in = p
	d.begun = d.begun || len(p) > 0
	if _, running := d.resume(); running || d.err == nil {
		return len(p), nil
	}
	return 0, d.err
}

// Close ends a complete body. An empty body is valid in any encoding.
func (d *Decoder) Close() error {
	if !d.begun {
		d.stop()
		return nil
	}
	d.closed = true
	d.resume()
	return d.err
}

// Stop ends an incomplete body.
func (d *Decoder) Stop() { d.stop() }

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
