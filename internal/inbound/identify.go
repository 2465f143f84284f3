package inbound

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/httpbody"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// identify identifies the client before anything else (A30), and reads the posted message.
// bodyFailure is an error in the message, which only an identified client gets.
//
// Credentials in headers are checked first. Without valid ones, it reads no more of the body than
// the Authenticator needs, and nothing for an address that has reached its rate limit.
func identify(q *Request) (bodyFailure, failure *jsonrpc.Failure) {
	gate, post := q.gate, q.HTTP.Method == http.MethodPost
	known := identifyWithoutAuth(q)
	var needed int64 // bytes of the body
	var reason error
	if !known {
		if post {
			needed = gate.config.Auth.BodyNeeded(q.HTTP)
		}
		known, reason = askAuthenticator(q, needed == 0, nil, "")
	}
	switch {
	case !known && needed == 0:
		return nil, refuseUnidentified(q, reason)
	case !known:
		if failure := checkAddressLimit(q); failure != nil {
			return nil, failure
		}
		bodyFailure = readMessage(q, min(needed, gate.config.RequestLimit), gate.unidentified)
		if bodyFailure != nil && q.Message.Raw == nil && needed >= gate.config.RequestLimit {
			return nil, bodyFailure // the Authenticator needs the whole body
		}
	case post:
		bodyFailure = readMessage(q, gate.config.RequestLimit, gate.bodies)
	}
	token := q.Message.Text(jsonrpc.AuthToken)
	if known && (token == "" || gate.config.Auth == nil) {
		return bodyFailure, nil
	}
	body := q.Message.Raw
	if known, reason = askAuthenticator(q, true, body, token); !known {
		return bodyFailure, refuseUnidentified(q, reason)
	}
	q.held.release()
	if !q.held.reserve(gate.bodies, q.Caller.BodyOwner(), int64(len(body))) {
		return jsonrpc.Busy(), nil
	}
	return bodyFailure, nil
}

// setCaller sets the caller.
func setCaller(q *Request, identity string) {
	q.Caller = q.gate.Rules.Caller(identity)
	q.Caller.Address, q.Caller.User = q.Peer.Address, q.Peer.User
}

// identifyWithoutAuth identifies a client without the Authenticator. It reports whether it could:
// Caddy has authenticated the user and a client's match names it, or there is no Authenticator.
func identifyWithoutAuth(q *Request) bool {
	user := q.Peer.User
	switch {
	case q.operator != nil:
		setCaller(q, q.operator.Identity)
	case q.Peer.Trusted != "":
		setCaller(q, q.Peer.Trusted)
	case q.gate.config.Auth == nil, q.gate.Rules.Match(user):
		setCaller(q, user)
	default:
		return false
	}
	return true
}

// askAuthenticator calls the Authenticator.
func askAuthenticator(q *Request, bodyRead bool, body []byte, token string) (known bool, reason error) {
	identity, err := q.gate.config.Auth.Authenticate(q.HTTP, bodyRead, body, token)
	if identity == "" {
		return false, err
	}
	setCaller(q, identity)
	return true, nil
}

// refuseUnidentified refuses an unidentified client. It charges the rate limit of the address, to
// stop guessing, unless the credentials could not be checked.
func refuseUnidentified(q *Request, reason error) *jsonrpc.Failure {
	status := q.gate.config.Auth.Challenge(q.Writer.Header(), q.HTTP, reason)
	if reason == nil {
		reason = errNoCredentials
	}
	setCaller(q, "")
	if status == http.StatusServiceUnavailable {
		return q.deny(jsonrpc.StoreUnavailable("the credentials cannot be checked"), Denial{Reason: reason})
	}
	switch wait, ok, err := q.gate.takeTokens(q.HTTP.Context(), &q.Caller, mcp.Target{}, true); {
	case err != nil:
		return q.deny(rateUnchecked(""), Denial{Reason: fmt.Errorf("%w; %w", reason, err)})
	case !ok:
		return refuseForNow(q, wait, reason)
	}
	failure := jsonrpc.Refused("", status)
	if status == http.StatusUnauthorized {
		failure.Data.Hint = bearerHint(q.Writer.Header(), reason)
	}
	return q.deny(failure, Denial{Reason: reason})
}

// bearerHint says how to send a token, if the response asks for one. Many clients show the body of
// a refusal to their user, and not its headers.
func bearerHint(header http.Header, reason error) string {
	if !slices.ContainsFunc(header["Www-Authenticate"], func(c string) bool { return strings.HasPrefix(c, "Bearer ") }) {
		return ""
	}
	if errors.Is(reason, errNoCredentials) {
		return "send the header Authorization: Bearer <token>"
	}
	return "the credentials are not valid; send the header Authorization: Bearer <token> with a valid token"
}

// checkAddressLimit refuses an unidentified client if its address has reached its rate limit.
func checkAddressLimit(q *Request) *jsonrpc.Failure {
	setCaller(q, "")
	limits := q.gate.Rules.Limits(nil, &q.Caller, mcp.Target{}, true)
	if len(limits) == 0 {
		return nil
	}
	switch wait, err := q.gate.retained.Usage.buckets.Wait(q.HTTP.Context(), q.Caller.Budget(), limits); {
	case err != nil:
		return q.deny(rateUnchecked(""), Denial{Reason: err})
	case wait > 0:
		return refuseForNow(q, wait, errTooManyGuesses)
	}
	return nil
}

// refuseForNow refuses an unidentified client for some time.
func refuseForNow(q *Request, wait time.Duration, reason error) *jsonrpc.Failure {
	q.Writer.Header().Set("Retry-After", retryAfter(wait))
	return q.deny(jsonrpc.Refused("", http.StatusTooManyRequests), Denial{Reason: reason})
}

var (
	errNoCredentials  = errors.New("no credentials")
	errTooManyGuesses = errors.New("too many requests without valid credentials from this address")
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

// HoldMore counts bytes that the response takes in memory, in addition to the body, until the request
// ends. It reports false if the client, or all clients together, hold too many. A client that holds
// nothing else may hold any number.
func (q *Request) HoldMore(bytes int64) bool {
	total := min(bytes, q.gate.config.InFlightLimit/2)
	if q.held.meter != nil {
		total += q.held.bytes
	}
	return q.held.reserve(q.gate.bodies, q.Caller.BodyOwner(), total)
}

// readMessage reads the posted message. Its bytes count in meter until the request ends.
func readMessage(q *Request, limit int64, meter *quota.Meter) *jsonrpc.Failure {
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
