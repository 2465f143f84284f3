package mcpgateway

import (
	"errors"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// Bodies of requests that are held in memory, as the metrics of all stores name them.
var (
	clientBodies   = quota.NewKind("request_bodies")
	strangerBodies = quota.NewKind("unauthenticated_bodies")
)

const (
	// smallBody is how large a body may be that is not counted, and that a provider may
	// read before it knows the client.
	smallBody = 64 << 10

	// strangerTime is how long one that is not known yet may take for all of it.
	strangerTime = time.Minute
)

// defaultInFlightLimit returns how many bytes of requests may be held at once: 256 MiB, or
// a quarter of what the process may have if that is less. Caddy sets the memory limit of
// Go by that of its container.
func defaultInFlightLimit() int64 { return min(256<<20, debug.SetMemoryLimit(-1)/4) }

// limitBodies sets up the limits of what is held of requests.
func (h *Handler) limitBodies() {
	if h.InFlightLimit == 0 {
		h.InFlightLimit = max(defaultInFlightLimit(), h.RequestLimit)
	}
	limits := func(all int64) quota.Limits {
		return quota.Limits{Bytes: all, OwnerBytes: max(all/2, min(all, h.RequestLimit))}
	}
	h.bodies = quota.NewMeter(clientBodies, limits(h.InFlightLimit))
	h.strangerBodies = quota.NewMeter(strangerBodies, limits(max(h.InFlightLimit/4, h.RequestLimit)))
}

// A heldBody is what a request has taken of a meter.
type heldBody struct {
	meter *quota.Meter
	owner string
	bytes int64
}

// hold counts so many bytes of the request for its client, or for the address that it
// comes from. It reports whether there is room for them.
func (b *heldBody) hold(meter *quota.Meter, x *exchange, bytes int64) bool {
	if bytes <= smallBody {
		return true
	}
	owner := x.caller.name
	if owner == "" {
		owner = "@" + ratelimit.Address(x.address)
	}
	if !meter.Take(owner, bytes) {
		return false
	}
	*b = heldBody{meter, owner, bytes}
	return true
}

// grow counts more bytes.
func (b *heldBody) grow(bytes int64) bool {
	if !b.meter.Grow(b.owner, bytes) {
		return false
	}
	b.bytes += bytes
	return true
}

// release gives back what the request has taken.
func (b *heldBody) release() {
	if b.meter != nil {
		b.meter.Give(b.owner, b.bytes)
		b.meter = nil
	}
}

// read reads the message that was posted. It counts for a meter as long as the exchange
// lasts.
func (x *exchange) read(r *http.Request, limit int64, meter *quota.Meter) *jsonrpc.Failure {
	if r.ContentLength > limit {
		return jsonrpc.PayloadTooLarge()
	}
	body := &countedBody{ReadCloser: r.Body, x: x, meter: meter, limit: max(limit, smallBody+1), counted: smallBody}
	switch {
	case r.Body == nil:
	case meter == x.handler.strangerBodies:
		// An announced length takes no room from others.
		body.until = time.Now().Add(strangerTime)
		r.Body, r.ContentLength = body, -1
	case r.ContentLength < 0:
		r.Body = body
	case !x.held.hold(meter, x, r.ContentLength):
		x.bodyRead = true
		httpbody.Skip(r, limit, httpbody.Pace)
		return x.busy()
	}
	x.bodyRead = true
	raw, err := httpbody.ReadWithin(r, limit, httpbody.Pace)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge || int64(len(raw)) > limit:
		return jsonrpc.PayloadTooLarge()
	case errors.Is(err, errNoRoom):
		if r.Body = body.ReadCloser; meter == x.handler.bodies {
			httpbody.Skip(r, limit, httpbody.Pace)
		}
		return x.busy()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return jsonrpc.RequestTimeout()
	case err != nil:
		x.left = r.Context().Err() != nil
		return jsonrpc.ParseError()
	}
	if httpbody.Encoding(r.Header) != "" {
		x.message.Raw = raw // which may be signed
		return jsonrpc.UnsupportedEncoding()
	}
	return x.message.ReadRequest(raw)
}

// busy refuses a request that there is no room for.
func (x *exchange) busy() *jsonrpc.Failure {
	x.w.Header().Set("Retry-After", "1")
	return jsonrpc.Busy()
}

// A countedBody is a body of unknown length. What arrives is counted as memory for it
// grows.
type countedBody struct {
	io.ReadCloser
	until   time.Time // when it must have arrived, if at any time
	x       *exchange
	meter   *quota.Meter
	limit   int64
	arrived int64
	counted int64
}

var errNoRoom = errors.New("too many bytes of requests are held")

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil && !b.until.IsZero() && time.Now().After(b.until) {
		err = os.ErrDeadlineExceeded
	}
	b.arrived += int64(n)
	if b.arrived <= b.counted {
		return n, err
	}
	total := min(2*b.arrived, b.limit) // the memory for it doubles, too
	held := &b.x.held
	room := false
	if held.meter == nil {
		room = held.hold(b.meter, b.x, total)
	} else {
		room = held.grow(total - b.counted)
	}
	if !room {
		return n, errNoRoom
	}
	b.counted = total
	return n, err
}
