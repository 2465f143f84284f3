package httpbody

import (
	"io"
	"iter"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// opener returns what opens a body of a Content-Encoding, or nil for one that is
// not known here.
func opener(encoding string) func(io.Reader) (io.ReadCloser, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "gzip", "x-gzip":
		return func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }
	case "br":
		return func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(brotli.NewReader(r)), nil }
	case "zstd":
		return func(r io.Reader) (io.ReadCloser, error) {
			// One goroutine only, the caller's; and no more than browsers allow.
			d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
			if err != nil {
				return nil, err
			}
			return d.IOReadCloser(), nil
		}
	}
	return nil
}

// NewReader returns a reader of what r reads, decoded. For an encoding that is not
// known here it returns nil.
func NewReader(encoding string, r io.Reader) (io.ReadCloser, error) {
	open := opener(encoding)
	if open == nil {
		return nil, nil
	}
	return open(r)
}

// A Decoder decodes a body as it is written.
//
// Decoders read, and a response is written: so the reading side is a coroutine
// that is resumed with each write and runs until it wants more. It is never
// running when Write, Close or Stop is not.
type Decoder struct {
	in     []byte // written, and not yet read
	begun  bool
	closed bool
	err    error

	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
}

// NewDecoder returns a Decoder that writes to dst, or nil for an encoding that is
// not known here. It must be closed or stopped.
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

// input is what the reading side of a Decoder reads.
type input struct{ *Decoder }

// Read gives the reading side what was written, or the turn to the writing side.
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

// Write decodes p as far as it goes.
func (d *Decoder) Write(p []byte) (int, error) {
	d.in = p
	d.begun = d.begun || len(p) > 0
	if _, running := d.resume(); running || d.err == nil {
		return len(p), nil
	}
	return 0, d.err
}

// Close says that the body is complete. An empty one is, in any encoding.
func (d *Decoder) Close() error {
	if !d.begun {
		d.stop()
		return nil
	}
	d.closed = true
	d.resume()
	return d.err
}

// Stop gives up a body that will not be completed.
func (d *Decoder) Stop() { d.stop() }
