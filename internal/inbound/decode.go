package inbound

import (
	"errors"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Kinds of request bodies in memory, as the quota metrics name them.
var (
	clientBodiesQuota       = quota.NewKind("request_bodies")
	unidentifiedBodiesQuota = quota.NewKind("unauthenticated_bodies")
)

const (
	// smallBody is the size up to which a body is not counted, and up to which an authentication
	// provider may read it before the client is identified.
	smallBody = 64 << 10

	// unidentifiedTime is how long an unidentified client may take to send its body.
	unidentifiedTime = time.Minute
)

// DefaultInFlightLimit returns the default limit of request bytes in memory: 256 MiB, or a quarter
// of Go's memory limit, which Caddy sets to that of its container.
func DefaultInFlightLimit() int64 { return min(256<<20, debug.SetMemoryLimit(-1)/4) }

// bodyMeters returns the meters of request bodies in memory: of identified clients, and of those
// that are not identified yet.
func bodyMeters(c *Config) (clients, unidentified *quota.Meter) {
	limits := func(all int64) quota.Limits {
		return quota.Limits{Bytes: all, OwnerBytes: max(all/2, min(all, c.RequestLimit))}
	}
	return quota.NewMeter(clientBodiesQuota, limits(c.InFlightLimit)),
		quota.NewMeter(unidentifiedBodiesQuota, limits(max(c.InFlightLimit/4, c.RequestLimit)))
}

// A heldBody counts the body of a request in a meter.
type heldBody struct {
	meter *quota.Meter
	owner string
	bytes int64
}

// reserve counts bytes for an owner, instead of those counted before. It reports whether the limits
// allow them.
func (b *heldBody) reserve(meter *quota.Meter, owner string, bytes int64) bool {
	switch {
	case bytes <= smallBody:
		return true
	case b.meter == nil && !meter.Take(owner, bytes), b.meter != nil && !meter.Grow(owner, bytes-b.bytes):
		return false
	}
	*b = heldBody{meter, owner, bytes}
	return true
}

// release removes the counted bytes from the meter.
func (b *heldBody) release() {
	if b.meter != nil {
		b.meter.Give(b.owner, b.bytes)
		b.meter = nil
	}
}

// read reads the posted message. Its bytes count in meter until the request ends.
func (q authentication) read(limit int64, meter *quota.Meter) *jsonrpc.Failure {
	r := q.HTTP
	if r.ContentLength > limit {
		return jsonrpc.PayloadTooLarge()
	}
	q.bodyRead = true
	body := r.Body
	switch {
	case body == nil:
	case r.ContentLength < 0, meter == q.gate.unidentified:
		counted := &countedBody{
			ReadCloser: body, held: &q.held, owner: q.Caller.BodyOwner(), meter: meter,
			limit: max(limit, smallBody+1), counted: smallBody,
		}
		if meter == q.gate.unidentified {
			// An announced length must not use up memory of others.
			counted.deadline, r.ContentLength = time.Now().Add(unidentifiedTime), -1
		}
		r.Body = counted
	case r.ContentLength <= smallBody: // not counted
	case !q.held.reserve(meter, q.Caller.BodyOwner(), r.ContentLength):
		httpbody.Skip(r, limit, httpbody.Pace)
		return jsonrpc.Busy()
	}
	raw, err := httpbody.ReadWithin(r, limit, httpbody.Pace)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge || int64(len(raw)) > limit:
		return jsonrpc.PayloadTooLarge()
	case errors.Is(err, errNoRoom):
		r.Body = body
		if meter == q.gate.bodies {
			httpbody.Skip(r, limit, httpbody.Pace)
		}
		return jsonrpc.Busy()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return jsonrpc.RequestTimeout()
	case err != nil:
		q.clientGone = r.Context().Err() != nil
		return jsonrpc.ParseError()
	}
	if httpbody.Encoding(r.Header) != "" {
		q.Message.Raw = raw // may be signed
		return jsonrpc.UnsupportedEncoding()
	}
	return q.Message.ReadRequest(raw)
}

// A countedBody counts a body of unknown length in a meter, as the buffer for it grows.
type countedBody struct {
	io.ReadCloser
	deadline time.Time // deadline; zero for none
	held     *heldBody
	owner    string
	meter    *quota.Meter
	limit    int64
	received int64
	counted  int64
}

var errNoRoom = errors.New("too many request bytes in memory")

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil && !b.deadline.IsZero() && time.Now().After(b.deadline) {
		err = os.ErrDeadlineExceeded
	}
	b.received += int64(n)
	if b.received <= b.counted {
		return n, err
	}
	total := min(2*b.received, b.limit) // the buffer doubles, too
	if !b.held.reserve(b.meter, b.owner, total) {
		return n, errNoRoom
	}
	b.counted = total
	return n, err
}

// stripToken removes the token for the gateway from a message, and the object around it if that has
// nothing else (A31).
func stripToken(m *jsonrpc.Message) *jsonrpc.Failure {
	if !m.Has(jsonrpc.AuthToken) {
		return nil
	}
	member, field := "authToken", jsonrpc.Proxy
	if isOnlyMember(m.Literal(jsonrpc.Proxy), member) {
		member, field = "proxy", jsonrpc.Params
	}
	edit, ok := jsonspan.Remove(m.Literal(field), member)
	if !ok {
		return jsonrpc.ParseError() // cannot happen: it was read there
	}
	edited, failure := m.Edited(m.Within(field, edit))
	*m = edited
	return failure
}

// isOnlyMember reports whether an object has no members except name.
func isOnlyMember(object []byte, name string) bool {
	for member := range jsonspan.Members(object) {
		if member.Key != name {
			return false
		}
	}
	return true
}

// KeepID drops the message except for its id, which is all that a stream needs. The stream may last
// for days.
func (q *Request) KeepID() {
	brief := jsonrpc.RequestAs(q.Message.Literal(jsonrpc.ID), mcp.MethodListen, nil)
	if len(brief) > smallBody {
		return // still counted
	}
	if q.Message.Read(brief) == nil {
		q.held.release()
	}
}
