package login

import (
	"io"
	"maps"
	"net/http"
	"strings"
)

// An attempt is the response to a request with a token. It holds back a response that asks
// for another token, and passes on all others.
type attempt struct {
	to     http.ResponseWriter
	header http.Header
	status int // 0 until it has come
}

// refused reports whether the response asks for another token.
func (a *attempt) refused() bool {
	switch a.status {
	case http.StatusUnauthorized:
		return true
	case http.StatusForbidden:
		return strings.Contains(strings.Join(a.header.Values("WWW-Authenticate"), ","), "insufficient_scope")
	}
	return false
}

// Header returns the header of the attempt itself until it is known to pass.
func (a *attempt) Header() http.Header {
	switch {
	case a.status != 0 && !a.refused():
		return a.to.Header()
	case a.header == nil:
		a.header = a.to.Header().Clone()
	}
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

// WriteHeader takes the status.
func (a *attempt) WriteHeader(status int) {
	if status < 200 {
		a.to.WriteHeader(status)
		return
	}
	if a.status != 0 {
		return
	}
	header := a.Header()
	if a.status = status; a.refused() {
		return
	}
	to := a.to.Header()
	clear(to)
	maps.Copy(to, header)
	a.to.WriteHeader(status)
}

// Write takes the next bytes of the body.
func (a *attempt) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused() {
		return len(p), nil
	}
	return a.to.Write(p)
}

// FlushError sends on what has come.
func (a *attempt) FlushError() error {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused() {
		return nil
	}
	return http.NewResponseController(a.to).Flush()
}

// Unwrap returns the writer behind a, for http.ResponseController.
func (a *attempt) Unwrap() http.ResponseWriter { return a.to }

// ReadFrom keeps io.Copy from finding the ReadFrom of the writer below.
func (a *attempt) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{a}, r) }

// Interface guards
var (
	_ http.ResponseWriter = (*attempt)(nil)
	_ io.ReaderFrom       = (*attempt)(nil)
)
