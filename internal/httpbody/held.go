package httpbody

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"sync"
	"time"
)

// A Held is a body in memory that another body gets when it is released. Transports may
// still read a request when the answer is complete, and so it is read by readers that
// then find nothing.
type Held struct {
	mu       sync.Mutex
	raw      []byte
	released bool
}

// ErrNoRoom says that a body could not be held as a whole.
var ErrNoRoom = errors.New("no memory left for the body")

// Hold reads a body of at most limit bytes, or one byte more of a longer one, at the pace
// of [ReadWithin]. Of the length that is announced, -1 if none is, some must have come
// before memory is taken for all of it. take is asked before memory is taken, and told by a
// negative number when it is given back before the body is released; if it refuses, Hold
// fails with [ErrNoRoom]. What has been read is held in any case.
func Hold(body io.Reader, length, limit int64, within time.Duration, take func(bytes int64) bool) (*Held, error) {
	announced := announcedSize(length, limit)
	trusted := min(announced, max(smallRoom, min(announced/16, 1<<20)))
	grow := func(raw []byte, size int64) ([]byte, error) {
		n, pool := roomOf(int(size))
		if !take(int64(n)) {
			return nil, ErrNoRoom
		}
		larger := append(newRoom(n, pool), raw...)
		freeRoom(raw)
		take(-int64(cap(raw)))
		return larger, nil
	}
	raw, err := fill(body, announced, trusted, limit, pace{within: within}, grow)
	return &Held{raw: raw}, err
}

// Bytes returns the body, which is good until it is released.
func (h *Held) Bytes() []byte { return h.raw }

// Reader returns a reader of r, which reads from the body. Once that is released, it fails
// as a body does that is closed.
func (h *Held) Reader(r io.Reader) io.Reader { return &heldReader{h, r} }

// Release lets others have the memory. The body may be read meanwhile.
func (h *Held) Release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.released {
		h.released = true
		freeRoom(h.raw)
		h.raw = nil
	}
}

// A heldReader has no WriteTo: what it has read must be a copy.
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

// smallRoom is what is not worth to be used again.
const smallRoom = 64 << 10

// rooms has memory that is not used, by its size. The garbage collector takes what stays.
var rooms [4 * 64]sync.Pool

// roomOf returns how large a room for n bytes is, at most a quarter larger, and where in
// rooms its like are, or -1.
func roomOf(n int) (size, pool int) {
	if n <= smallRoom {
		return n, -1
	}
	shift := bits.Len(uint(n-1)) - 3
	quarter := (n - 1) >> shift // 4 to 7
	return (quarter + 1) << shift, 4*shift + quarter - 4
}

func newRoom(size, pool int) []byte {
	if pool >= 0 {
		if room, ok := rooms[pool].Get().(*[]byte); ok {
			return (*room)[:0]
		}
	}
	return make([]byte, 0, size)
}

func freeRoom(room []byte) {
	if size, pool := roomOf(cap(room)); pool >= 0 && size == cap(room) {
		rooms[pool].Put(&room)
	}
}
