package observationmask

import (
	"io"
	"iter"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// A decoder decodes a body as it is written. Go's transport asks for gzip and
// decodes it, but some upstreams use what nobody asked for.
//
// Decoders read, and a response is written: so the reading side is a coroutine
// that is resumed with each write and runs until it wants more. It is never
// running when Write, Close or Stop is not.
type decoder struct {
	in     []byte // written, and not yet read
	begun  bool
	closed bool
	err    error

	resume func() (struct{}, bool)
	stop   func()
	yield  func(struct{}) bool
}

// newDecoder returns a decoder that writes to dst, or nil for an encoding it does
// not know.
func newDecoder(encoding string, dst io.Writer) *decoder {
	var open func(io.Reader) (io.Reader, error)
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "gzip", "x-gzip":
		open = func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "br":
		open = func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil }
	case "zstd":
		open = func(r io.Reader) (io.Reader, error) {
			// One goroutine only, ours; and no more than browsers allow.
			return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		}
	default:
		return nil
	}
	d := new(decoder)
	d.resume, d.stop = iter.Pull(func(yield func(struct{}) bool) {
		d.yield = yield
		r, err := open(d)
		if err == nil {
			_, err = io.Copy(dst, r)
		}
		if z, ok := r.(*zstd.Decoder); ok {
			z.Close()
		}
		d.err = err
	})
	return d
}

// Read gives the reading side what was written, or the turn to the writing side.
func (d *decoder) Read(p []byte) (int, error) {
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
func (d *decoder) Write(p []byte) (int, error) {
	d.in = p
	d.begun = d.begun || len(p) > 0
	if _, running := d.resume(); running || d.err == nil {
		return len(p), nil
	}
	return 0, d.err
}

// Close says that the body is complete. An empty one is, in any encoding.
func (d *decoder) Close() error {
	if !d.begun {
		d.stop()
		return nil
	}
	d.closed = true
	d.resume()
	return d.err
}

// Stop gives up a body that will not be completed.
func (d *decoder) Stop() { d.stop() }
