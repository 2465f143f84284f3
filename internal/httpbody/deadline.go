package httpbody

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

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
