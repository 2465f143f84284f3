package login

import (
	"io"
	"maps"
	"net/http"
	"strings"
)

// An attempt receives the response to a request with a token. It discards a response that requires
// another token, and forwards all others.
type attempt struct {
	w      http.ResponseWriter
	header http.Header
	status int // 0 until known
}

// refused reports whether the response requires another token.
func (a *attempt) refused() bool {
	switch a.status {
	case http.StatusUnauthorized:
		return true
	case http.StatusForbidden:
		return strings.Contains(strings.Join(a.header.Values("WWW-Authenticate"), ","), "insufficient_scope")
	}
	return false
}

// Header returns the header of w once the response is forwarded. Until then, and if the response is
// discarded, it returns a header of its own.
func (a *attempt) Header() http.Header {
	switch {
	case a.status != 0 && !a.refused():
		return a.w.Header()
	case a.header == nil:
		a.header = a.w.Header().Clone()
	}
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

func (a *attempt) WriteHeader(status int) {
	if status < 200 {
		a.w.WriteHeader(status)
		return
	}
	if a.status != 0 {
		return
	}
	header := a.Header()
	a.status = status
	if a.refused() {
		return
	}
	sent := a.w.Header()
	clear(sent)
	maps.Copy(sent, header)
	a.w.WriteHeader(status)
}

func (a *attempt) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused() {
		return len(p), nil
	}
	return a.w.Write(p)
}

func (a *attempt) FlushError() error {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if a.refused() {
		return nil
	}
	return http.NewResponseController(a.w).Flush()
}

// Unwrap returns the underlying writer, for http.ResponseController.
func (a *attempt) Unwrap() http.ResponseWriter { return a.w }

// ReadFrom keeps io.Copy from using the ReadFrom of the underlying writer.
func (a *attempt) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{a}, r) }

// Interface guards
var (
	_ http.ResponseWriter = (*attempt)(nil)
	_ io.ReaderFrom       = (*attempt)(nil)
)
