package httpbody

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net/http"
	"os"
	"sync"
	"time"
)

// Read reads the body of a request of at most limit bytes, or one byte more if it is longer.
func Read(r *http.Request, limit int64) ([]byte, error) { return read(r, limit, pace{}) }

func read(r *http.Request, limit int64, arriving pace) ([]byte, error) {
	if r.Body == nil {
		return nil, nil
	}
	// Memory for the announced length is allocated only after some bytes have arrived.
	const trust = 1 << 20
	announced := announcedSize(r.ContentLength, limit)
	grow := func(raw []byte, size int64) ([]byte, error) { return append(make([]byte, 0, size), raw...), nil }
	return fill(r.Body, announced, min(announced, trust), limit, arriving, grow)
}

// announcedSize returns the expected size of a body, at most limit.
func announcedSize(length, limit int64) int64 {
	if length < 0 {
		return min(limit, 4<<10)
	}
	return min(length, limit)
}

// fill reads a body of at most limit bytes, or one byte more if it is longer. grow copies what has
// been read to a larger buffer. The first buffer has trusted bytes, the next the announced size.
func fill(
	body io.Reader, announced, trusted, limit int64, arriving pace, grow func(raw []byte, size int64) ([]byte, error),
) (raw []byte, err error) {
	size := trusted + 1 // one byte more, to find the end of the body
	for int64(len(raw)) <= limit {
		if len(raw) == cap(raw) {
			larger, err := grow(raw, size)
			if err != nil {
				return raw, err
			}
			raw = larger
			size = max(min(2*int64(cap(raw)), limit+1), announced+1)
		}
		n, err := arriving.read(body, raw[len(raw):min(int64(cap(raw)), limit+1)])
		raw = raw[:len(raw)+n]
		if err == io.EOF {
			return raw, nil
		}
		if err != nil {
			return raw, err
		}
	}
	return raw, nil
}

// progress is how many bytes of a body must arrive within the time given to [ReadWithin].
const progress = 16 << 10

// Pace is the default time in which a client must send 16 KiB of a body.
const Pace = 10 * time.Second

// ReadWithin reads like [Read], but each 16 KiB of the body, or its end, must arrive within a time.
// Otherwise it fails with an error that is [os.ErrDeadlineExceeded]. So a client that sends a few
// bytes at a time cannot occupy memory and a connection for long.
//
// The time is checked only when bytes arrive. A client that sends nothing is ended by Caddy's
// read_idle_timeout, which sets a new deadline before each read of a body, by default one minute.
func ReadWithin(r *http.Request, limit int64, within time.Duration) ([]byte, error) {
	return read(r, limit, pace{within: within})
}

// Skip reads the body of a request at the pace of [ReadWithin], up to limit bytes, and discards it.
// A client that sends everything before it reads can then get the response.
func Skip(r *http.Request, limit int64, within time.Duration) {
	if r.Body != nil {
		_, _ = io.CopyN(io.Discard, &pacedBody{r.Body, pace{within: within}}, limit)
	}
}

// A pacedBody fails if it arrives too slowly.
type pacedBody struct {
	io.ReadCloser
	pace pace
}

func (b *pacedBody) Read(p []byte) (int, error) { return b.pace.read(b.ReadCloser, p) }

// A pace is how fast a body must arrive. The zero value has no limit.
type pace struct {
	within   time.Duration
	deadline time.Time
	left     int // bytes to read before the deadline moves
}

// read reads from a body, and fails if it arrives too slowly.
func (a *pace) read(body io.Reader, p []byte) (int, error) {
	if a.within == 0 {
		return body.Read(p)
	}
	if a.left <= 0 {
		a.left, a.deadline = progress, time.Now().Add(a.within)
	}
	n, err := body.Read(p)
	a.left -= n
	if err == nil && a.left > 0 && time.Now().After(a.deadline) {
		err = fmt.Errorf("less than %d bytes of the body have arrived in %s: %w",
			progress, a.within, os.ErrDeadlineExceeded)
	}
	return n, err
}

// Abandon limits how long the server waits for the body of a request that no handler will read. The
// server discards such a body before it responds or reads the next request.
func Abandon(w http.ResponseWriter, r *http.Request, within time.Duration) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within)) // some writers do not support it
	}
}

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

// A keptBody is a body whose bytes stay in memory and never change.
type keptBody struct {
	bytes.Reader
	raw []byte
}

func (*keptBody) Close() error { return nil }

// Keep returns the GetBody of a request with the body raw. It lets [ReadKept] return raw itself.
func Keep(raw []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) {
		body := &keptBody{raw: raw}
		body.Reset(raw)
		return body, nil
	}
}

// ReadKept reads a body like [Read]. If the body has the bytes that the request keeps in memory,
// see [Keep], it returns those instead of a copy, so they must not be changed. It reads the body in
// any case, because a handler may have replaced it.
func ReadKept(r *http.Request, limit int64) ([]byte, error) {
	known := keptBytes(r)
	if len(known) == 0 || int64(len(known)) > limit {
		return Read(r, limit)
	}
	buf := make([]byte, min(len(known)+1, 16<<10))
	for at := 0; ; {
		n, err := r.Body.Read(buf)
		same := bytes.HasPrefix(known[at:], buf[:n])
		if same && err == nil {
			at += n
			continue
		}
		if same && err == io.EOF && at+n == len(known) {
			return known, nil
		}
		if err != nil && err != io.EOF {
			return known[:at:at], err
		}
		rest := r.Body
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(known[:at]), bytes.NewReader(buf[:n]), rest), rest}
		return Read(r, limit)
	}
}

func keptBytes(r *http.Request) []byte {
	if r.Body == nil || r.GetBody == nil {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close()
	if body, ok := body.(*keptBody); ok {
		return body.raw
	}
	return nil
}
