// Package auth identifies the clients of an mcp_gateway. Its modules are guests in
// http.handlers.mcp_gateway.auth.
package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
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

var errLiteralSecret = errors.New("a secret does not belong in the configuration: " +
	"put it in an environment variable and write {env.NAME}, or in a file and write {file./path}")

// readSecret returns the secret that {env.NAME} or {file./path} names. Errors contain the
// name, never the secret.
func readSecret(text string) (string, error) {
	if text == "" {
		return "", errors.New("missing")
	}
	if !isPlaceholder(text) {
		return "", errLiteralSecret
	}
	secret, err := caddy.NewReplacer().ReplaceOrErr(text, true, true)
	if err != nil {
		return "", err
	}
	secret = strings.TrimRight(secret, "\r\n")
	if secret == "" {
		return "", fmt.Errorf("%s is empty", text)
	}
	if strings.TrimSpace(secret) != secret {
		return "", fmt.Errorf("%s begins or ends with white space", text)
	}
	return secret, nil
}

// isPlaceholder reports whether text is a single placeholder that readSecret reads. Other text next
// to it would be a part of the secret.
func isPlaceholder(text string) bool {
	name, ok := strings.CutPrefix(text, "{env.")
	if !ok {
		name, ok = strings.CutPrefix(text, "{file.")
	}
	name, closed := strings.CutSuffix(name, "}")
	return ok && closed && name != "" && !strings.ContainsAny(name, "{}")
}

type digest = [sha256.Size]byte

const digestPrefix = "sha256:"

// safeTokenLength is the minimum length of a token that causes no warning. Shorter tokens are not
// refused, because a reload would then lock out the clients that have one.
const safeTokenLength = 16

const shortTokenWarning = "token is short enough to be guessed; make one with openssl rand -hex 32"

// readToken returns the SHA-256 and the length of a token: a placeholder, or sha256:<hex> with an
// unknown length of 0.
func readToken(text string) (sum digest, length int, err error) {
	if sum, ok := parseDigest(text); ok {
		return sum, 0, nil
	}
	token, err := readSecret(text)
	if err != nil {
		return digest{}, 0, err
	}
	return sha256.Sum256([]byte(token)), len(token), nil
}

// WarnShortToken logs a warning if a literal token in a Caddyfile is short. The provider cannot do
// so: the configuration contains only the hash.
func WarnShortToken(d *caddyfile.Dispenser, text, client string) {
	if _, isDigest := parseDigest(text); isDigest || isPlaceholder(text) || len(text) >= safeTokenLength {
		return
	}
	caddy.Log().Named("http.handlers.mcp_gateway.auth.token").Warn(shortTokenWarning, zap.String("client", client),
		zap.Int("characters", len(text)), zap.String("file", d.File()), zap.Int("line", d.Line()))
}

func parseDigest(text string) (sum digest, ok bool) {
	text, ok = strings.CutPrefix(text, digestPrefix)
	if !ok || len(text) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	_, err := hex.Decode(sum[:], []byte(text))
	return sum, err == nil
}

// TokenFromCaddyfile returns the JSON form of a token in a Caddyfile. A literal token
// becomes sha256:<hex>, so that the configuration does not reveal it. Text with braces does
// not change: it is a placeholder, or loading it fails.
func TokenFromCaddyfile(text string) string {
	if _, ok := parseDigest(text); ok || text == "" || strings.ContainsAny(text, "{}") {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return digestPrefix + hex.EncodeToString(sum[:])
}

// CheckToken refuses text in a Caddyfile that cannot be a bearer token (RFC 6750). Errors
// do not repeat the text, which may be a secret.
func CheckToken(text string) error {
	switch _, isDigest := parseDigest(text); {
	case text == "":
		return errors.New("empty")
	case isDigest, isPlaceholder(text):
		return nil
	case strings.ContainsAny(text, "{}"):
		return errors.New("braces are for a single {env.NAME} or {file./path}")
	case strings.HasPrefix(text, "$"):
		return errors.New("$NAME is shell syntax; write {env.NAME}")
	case strings.Trim(text, wordCharacters+".~+/=") != "":
		return errors.New("only letters, digits and -._~+/= are allowed")
	}
	return nil
}

const maxIdentity = 256

// CheckIdentity refuses names of clients that cannot be used in logs, limits and patterns.
func CheckIdentity(identity string) error {
	switch {
	case identity == "":
		return errors.New("the name of the client is empty")
	case !utf8.ValidString(identity):
		return errors.New("the name of the client is not UTF-8")
	case utf8.RuneCountInString(identity) > maxIdentity:
		return fmt.Errorf("the name of the client is longer than %d characters", maxIdentity)
	case strings.ContainsFunc(identity, unicode.IsControl):
		return errors.New("the name of the client contains control characters")
	case identity == access.OperatorAccount:
		return errors.New("the name of the client is reserved")
	}
	return nil
}

// credentialsOf returns the credentials in the Authorization header. ok reports whether the header
// has the given scheme. Several headers are refused, because other software may read another one.
func credentialsOf(r *http.Request, scheme string) (credentials string, ok bool, err error) {
	headers := r.Header["Authorization"]
	if len(headers) > 1 {
		return "", false, errors.New("several Authorization headers")
	}
	if len(headers) == 0 {
		return "", false, nil
	}
	given, credentials, _ := strings.Cut(headers[0], " ")
	return strings.Trim(credentials, " "), strings.EqualFold(given, scheme), nil
}

// originalRequest returns a request as it arrived, before other handlers rewrote it.
func originalRequest(r *http.Request) *http.Request {
	if sent, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		return &sent
	}
	return r
}

// fingerprints holds a hash of the secrets of each client, and one of all secrets under "".
type fingerprints map[string]string

func (f fingerprints) add(client string, secret []byte) {
	digest := sha256.Sum256(secret)
	for _, name := range []string{"", client} {
		sum := sha256.Sum256(append([]byte(f[name]), digest[:]...))
		f[name] = hex.EncodeToString(sum[:])
	}
}
