package inbound

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An authentication identifies the client of a request.
type authentication struct{ *Request }

// run identifies the client before anything else (A30), and reads the posted message. bodyFailure
// is an error in the message, which only an identified client gets.
//
// Credentials in headers are checked first. Without valid ones, it reads no more of the body than
// the Authenticator needs, and nothing for an address that has reached its rate limit.
func (q authentication) run() (bodyFailure, failure *jsonrpc.Failure) {
	gate, post := q.gate, q.HTTP.Method == http.MethodPost
	known := q.identifyWithoutAuth()
	var needed int64 // bytes of the body
	var reason error
	if !known {
		if post {
			needed = gate.config.Auth.BodyNeeded(q.HTTP)
		}
		known, reason = q.identify(needed == 0, nil, "")
	}
	switch {
	case !known && needed == 0:
		return nil, q.refuse(reason)
	case !known:
		if failure := q.checkAddressLimit(); failure != nil {
			return nil, failure
		}
		bodyFailure = q.read(min(needed, gate.config.RequestLimit), gate.unidentified)
		if bodyFailure != nil && q.Message.Raw == nil && needed >= gate.config.RequestLimit {
			return nil, bodyFailure // the Authenticator needs the whole body
		}
	case post:
		bodyFailure = q.read(gate.config.RequestLimit, gate.bodies)
	}
	token := q.Message.Text(jsonrpc.AuthToken)
	if known && (token == "" || gate.config.Auth == nil) {
		return bodyFailure, nil
	}
	body := q.Message.Raw
	if known, reason = q.identify(true, body, token); !known {
		return bodyFailure, q.refuse(reason)
	}
	q.held.release()
	if !q.held.reserve(gate.bodies, q.Caller.BodyOwner(), int64(len(body))) {
		return jsonrpc.Busy(), nil
	}
	return bodyFailure, nil
}

// setCaller sets the caller.
func (q authentication) setCaller(identity string) {
	q.Caller = q.gate.Rules.Caller(identity)
	q.Caller.Address, q.Caller.User = q.Peer.Address, q.Peer.User
}

// identifyWithoutAuth identifies a client without the Authenticator. It reports whether it could:
// Caddy has authenticated the user and a client's match names it, or there is no Authenticator.
func (q authentication) identifyWithoutAuth() bool {
	user := q.Peer.User
	switch {
	case q.operator != nil:
		q.setCaller(q.operator.Identity)
	case q.Peer.Trusted != "":
		q.setCaller(q.Peer.Trusted)
	case q.gate.config.Auth == nil, q.gate.Rules.Match(user):
		q.setCaller(user)
	default:
		return false
	}
	return true
}

// identify calls the Authenticator.
func (q authentication) identify(bodyRead bool, body []byte, token string) (known bool, reason error) {
	identity, err := q.gate.config.Auth.Authenticate(q.HTTP, bodyRead, body, token)
	if identity == "" {
		return false, err
	}
	q.setCaller(identity)
	return true, nil
}

// refuse refuses an unidentified client. It charges the rate limit of the address, to stop
// guessing, unless the credentials could not be checked.
func (q authentication) refuse(reason error) *jsonrpc.Failure {
	status := q.gate.config.Auth.Challenge(q.Writer.Header(), q.HTTP, reason)
	if reason == nil {
		reason = errNoCredentials
	}
	q.setCaller("")
	if status == http.StatusServiceUnavailable {
		return q.deny(jsonrpc.StoreUnavailable("the credentials cannot be checked"), Denial{Reason: reason})
	}
	switch wait, ok, err := q.gate.takeTokens(q.HTTP.Context(), &q.Caller, mcp.Target{}, true); {
	case err != nil:
		return q.deny(rateUnchecked(""), Denial{Reason: fmt.Errorf("%w; %w", reason, err)})
	case !ok:
		return q.rateLimited(wait, reason)
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
func (q authentication) checkAddressLimit() *jsonrpc.Failure {
	q.setCaller("")
	limits := q.gate.Rules.Limits(nil, &q.Caller, mcp.Target{}, true)
	if len(limits) == 0 {
		return nil
	}
	switch wait, err := q.gate.retained.Usage.buckets.Wait(q.HTTP.Context(), q.Caller.Budget(), limits); {
	case err != nil:
		return q.deny(rateUnchecked(""), Denial{Reason: err})
	case wait > 0:
		return q.rateLimited(wait, errTooManyGuesses)
	}
	return nil
}

// rateLimited refuses an unidentified client for some time.
func (q authentication) rateLimited(wait time.Duration, reason error) *jsonrpc.Failure {
	q.Writer.Header().Set("Retry-After", retryAfter(wait))
	return q.deny(jsonrpc.Refused("", http.StatusTooManyRequests), Denial{Reason: reason})
}

var (
	errNoCredentials  = errors.New("no credentials")
	errTooManyGuesses = errors.New("too many requests without valid credentials from this address")
)
