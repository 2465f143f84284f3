// Package auth finds out who the clients of an mcp_gateway are. Its modules are the
// guests of http.handlers.mcp_gateway.auth.
package auth

import (
	"net/http"
)

// A Provider knows one kind of credentials. Several can stand side by side: they are
// asked in their order, and the first that knows the client decides.
type Provider interface {
	// Authenticate returns who sends a request. It returns nobody, "", if the request
	// has no credentials of this kind, and an error if it has some and they are not
	// good. The error is for the log and must not tell any of them.
	Authenticate(*Request) (identity string, err error)

	// BodyNeeded returns how many bytes of the body it must see, at most, to judge the
	// POST of an unknown sender: 0 if the headers decide. The body is read
	// before the sender is known, so it costs memory for strangers.
	BodyNeeded(*http.Request) int64

	// CredentialHeaders returns the headers that carry such credentials. They are
	// taken off requests before these are passed on.
	CredentialHeaders() []string
}

// A SecretHolder is a Provider that reads secrets from elsewhere.
type SecretHolder interface {
	// FingerprintOf returns a text that changes with the secrets of a client, or with
	// all if none is named, and does not tell any of them.
	FingerprintOf(client string) string
}

// A Challenger is a Provider that tells clients how they can get in.
type Challenger interface {
	// Challenge returns the WWW-Authenticate header for a request that nobody has
	// let in. The error is what Authenticate returned for it.
	Challenge(*http.Request, error) string
}

// A Describer is a Provider that describes to clients where they get credentials, in
// the protected resource metadata of RFC 9728.
type Describer interface {
	// Metadata returns that description, as JSON, of the resource at a path of the
	// host that the request is for.
	Metadata(r *http.Request, path string) []byte
}

// A Request is a request as providers see it.
type Request struct {
	*http.Request

	// Body is what the request posts, as it came.
	Body []byte

	// ProxyToken is the params.proxy.authToken of the message in the body: where
	// clients put a token that cannot set headers.
	ProxyToken string
}

// A ForbiddenError says that the credentials are good, but not for this.
type ForbiddenError struct{ Reason string }

func (e *ForbiddenError) Error() string { return e.Reason }
