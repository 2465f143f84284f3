package httpbody

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// progress is how much of a body must arrive within the time of [ReadWithin].
const progress = 16 << 10

// Pace is how long a client may take for 16 KiB of a body, where nothing else is
// configured.
const Pace = 10 * time.Second

// ReadWithin reads like [Read], from a client that must go on sending: each 16 KiB
// of the body, or the end of it, must arrive within a time. Otherwise it fails with
// an error that is [os.ErrDeadlineExceeded]. A byte now and then thus keeps neither
// memory nor a connection.
//
// The time is looked at when something arrives. A client that sends nothing at all
// is given up by Caddy's read_idle_timeout, which sets a new deadline before each
// read of a body, by default a minute away.
func ReadWithin(r *http.Request, limit int64, within time.Duration) ([]byte, error) {
	return read(r, limit, pace{within: within})
}

// Skip reads the body of a request at the pace of [ReadWithin], up to limit bytes, and
// throws it away. A client that sends all before it reads gets to see the answer then.
func Skip(r *http.Request, limit int64, within time.Duration) {
	if r.Body != nil {
		_, _ = io.CopyN(io.Discard, &pacedBody{r.Body, pace{within: within}}, limit)
	}
}

// A pacedBody fails when too little of it arrives in a time.
type pacedBody struct {
	io.ReadCloser
	pace pace
}

func (b *pacedBody) Read(p []byte) (int, error) { return b.pace.read(b.ReadCloser, p) }

// A pace is how fast a body must arrive. The zero value is any.
type pace struct {
	within   time.Duration
	deadline time.Time
	left     int // bytes to read before the deadline moves
}

// read reads from a body, and fails when too little of it arrives in a time.
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

// Abandon says that the body of a request will not be read. The server skips it before
// it answers or takes the next request, and does not wait longer than that for it.
func Abandon(w http.ResponseWriter, r *http.Request, within time.Duration) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within)) // not all writers have one
	}
}
