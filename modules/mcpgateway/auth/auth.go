// Package auth identifies the clients of an mcp_gateway. Its modules are guests in
// http.handlers.mcp_gateway.auth.
package auth

import (
	"net/http"
)

// A Provider checks one kind of credentials. The gateway asks its providers in order, and
// the first that identifies the client decides.
type Provider interface {
	// Authenticate returns the client that sent a request, "" if the request has no
	// credentials of this kind, or an error if they are invalid. The error goes to the
	// log and must not contain credentials. A [ForbiddenError] results in status 403, an
	// [UnavailableError] in 503, any other error in 401.
	Authenticate(*Request) (identity string, err error)

	// BodyNeeded returns how many bytes of the body of a POST Authenticate needs at most,
	// 0 if the headers suffice. That much of the body is held in memory before the client
	// is known.
	BodyNeeded(*http.Request) int64

	// CredentialHeaders returns the headers that carry such credentials. The gateway
	// removes them from requests to servers.
	CredentialHeaders() []string
}

// A SecretHolder is a Provider that reads secrets from outside the configuration.
type SecretHolder interface {
	// FingerprintOf returns a hash of the secrets of a client, or of all secrets if
	// client is "".
	FingerprintOf(client string) string
}

// A Challenger is a Provider that tells clients how to authenticate.
type Challenger interface {
	// Challenge returns the WWW-Authenticate header for a request that was refused, with
	// the error that Authenticate returned.
	Challenge(*http.Request, error) string
}

// A Describer is a Provider that publishes the protected resource metadata of RFC 9728.
type Describer interface {
	// Metadata returns the metadata, as JSON, of the resource at a path of the host of
	// the request.
	Metadata(r *http.Request, path string) []byte
}

// A Request is a request as providers see it.
type Request struct {
	*http.Request

	// Body is the body of the request, unchanged.
	Body []byte

	// ProxyToken is the params.proxy.authToken of the message in the body, for clients
	// that cannot set headers.
	ProxyToken string
}

// A ForbiddenError reports valid credentials that do not allow the request.
type ForbiddenError struct{ Reason string }

// Error implements error.
func (e *ForbiddenError) Error() string { return e.Reason }

// An UnavailableError reports credentials that cannot be checked now, and may be valid.
type UnavailableError struct{ Err error }

// Error implements error.
func (e *UnavailableError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }
