package httpbody

import (
	"io"
	"net/http"
	"time"
)

// progress is how many bytes of a body must arrive before its deadline moves. One
// byte now and then does not keep a connection and its memory.
const progress = 16 << 10

// ReadWithin reads like [Read], from a client that must go on sending: each 16 KiB
// of the body, or the end of it, must arrive within a time. Otherwise it fails with
// [os.ErrDeadlineExceeded], and the connection or stream cannot be read any more.
//
// A server with a ReadTimeout has a deadline of its own, which stays.
func ReadWithin(w http.ResponseWriter, r *http.Request, limit int64, within time.Duration) ([]byte, error) {
	server, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
	if r.Body == nil || r.Body == http.NoBody || server != nil && server.ReadTimeout > 0 {
		return Read(r, limit)
	}
	body := r.Body
	paced := &pacedBody{ReadCloser: body, control: http.NewResponseController(w), within: within}
	r.Body = paced
	raw, err := Read(r, limit)
	r.Body = body
	if err == nil {
		// The next handler may read more, and the server waits for the next request
		// or for the client to leave. After an error the deadline stays: the server
		// would otherwise wait for the rest of the body to skip it.
		_ = paced.control.SetReadDeadline(time.Time{})
	}
	return raw, err
}

// A pacedBody moves the deadline of its connection or stream as bytes arrive.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController
	within  time.Duration
	left    int // bytes to read before the deadline moves
}

func (b *pacedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.left = progress
		_ = b.control.SetReadDeadline(time.Now().Add(b.within)) // not all writers have one
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	return n, err
}

// Abandon says that the body of a request will not be read. The server skips it before
// it answers or takes the next request, and does not wait longer than that for it.
func Abandon(w http.ResponseWriter, r *http.Request, within time.Duration) {
	if r.Body != nil && r.Body != http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within)) // not all writers have one
	}
}
