package httpbody

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"sync"
	"time"
)

// A Held is a body in pooled memory. A transport may still read a request after its response is
// complete, so the readers of a Held fail once it is released.
type Held struct {
	mu       sync.Mutex
	raw      []byte
	released bool
}

// ErrNoRoom is the error of [Hold] if it gets no memory for a body.
var ErrNoRoom = errors.New("no memory left for the body")

// Hold reads a body of at most limit bytes, or one byte more if it is longer, at the pace of
// [ReadWithin]. length is the announced length; -1 for none. Memory for all of it is allocated only
// after some of it has arrived.
//
// Hold calls take before it allocates memory, and with a negative number when it frees some of it
// again. If take returns false, Hold fails with [ErrNoRoom]. Even then it returns a Held, with the
// bytes read so far.
func Hold(body io.Reader, length, limit int64, within time.Duration, take func(bytes int64) bool) (*Held, error) {
	announced := announcedSize(length, limit)
	trusted := min(announced, max(smallBuffer, min(announced/16, 1<<20)))
	grow := func(raw []byte, size int64) ([]byte, error) {
		n, pool := bufferClass(int(size))
		if !take(int64(n)) {
			return nil, ErrNoRoom
		}
		larger := append(newBuffer(n, pool), raw...)
		freeBuffer(raw)
		take(-int64(cap(raw)))
		return larger, nil
	}
	raw, err := fill(body, announced, trusted, limit, pace{within: within}, grow)
	return &Held{raw: raw}, err
}

// Bytes returns the body. It is valid until the body is released.
func (h *Held) Bytes() []byte { return h.raw }

// Reader wraps r, which reads from the body. Once the body is released, the Reader fails like a
// closed body.
func (h *Held) Reader(r io.Reader) io.Reader { return &heldReader{h, r} }

// Release returns the memory to the pool. Readers may still be in use.
func (h *Held) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.released {
		h.released = true
		freeBuffer(h.raw)
		h.raw = nil
	}
}

// A heldReader has no WriteTo, because it must copy what it reads.
type heldReader struct {
	held *Held
	from io.Reader
}

func (r *heldReader) Read(p []byte) (int, error) {
	r.held.mu.Lock()
	defer r.held.mu.Unlock()
	if r.held.released {
		return 0, http.ErrBodyReadAfterClose
	}
	return r.from.Read(p)
}

// smallBuffer is the size up to which memory is not pooled.
const smallBuffer = 64 << 10

// bufferPools are unused buffers, by size.
var bufferPools [4 * 64]sync.Pool

// bufferClass returns the size of a buffer for n bytes, which is at most a quarter more, and its
// index in bufferPools; -1 if it is not pooled.
func bufferClass(n int) (size, pool int) {
	if n <= smallBuffer {
		return n, -1
	}
	shift := bits.Len(uint(n-1)) - 3
	quarter := (n - 1) >> shift // 4 to 7
	return (quarter + 1) << shift, 4*shift + quarter - 4
}

func newBuffer(size, pool int) []byte {
	if pool >= 0 {
		if room, ok := bufferPools[pool].Get().(*[]byte); ok {
			return (*room)[:0]
		}
	}
	return make([]byte, 0, size)
}

func freeBuffer(room []byte) {
	if size, pool := bufferClass(cap(room)); pool >= 0 && size == cap(room) {
		bufferPools[pool].Put(&room)
	}
}
