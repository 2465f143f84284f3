package httpbody

import (
	"io"
	"iter"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

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
