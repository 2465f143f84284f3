package mcpconsole

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

// A consoleRequest is a user's request to the console.
type consoleRequest struct {
	h        *Handler
	w        http.ResponseWriter
	r        *http.Request // with its path relative to the console's
	User     string        // "" for a local user
	ReadOnly bool          // nothing can be changed
	Token    string        // CSRF token of forms
}

// userKey is the context key of the user's name.
type userKey struct{}

// newRequest returns the consoleRequest for an admitted HTTP request.
func (h *Handler) newRequest(w http.ResponseWriter, r *http.Request) *consoleRequest {
	user, _ := r.Context().Value(userKey{}).(string)
	readOnly := user != ""
	if h.ReadOnly != nil {
		readOnly = *h.ReadOnly
	}
	below := *r.URL
	below.Path, below.RawPath = strings.TrimPrefix(below.Path, h.Path), strings.TrimPrefix(below.RawPath, h.Path)
	r = r.WithContext(r.Context())
	r.URL = &below
	return &consoleRequest{h: h, w: w, r: r, User: user, ReadOnly: readOnly, Token: h.token(user, r.Host)}
}

// newMux returns a mux with all routes of the console.
func (h *Handler) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(method, pattern string, serve func(*consoleRequest)) {
		mux.HandleFunc(method+" "+h.Path+pattern, func(w http.ResponseWriter, r *http.Request) { serve(h.newRequest(w, r)) })
	}
	for i := range pages {
		p := &pages[i]
		handle(http.MethodGet, p.pattern, func(v *consoleRequest) { v.show(p) })
		if p.live != nil {
			handle(http.MethodGet, "/live/"+p.name, func(v *consoleRequest) { v.stream(p) })
		}
	}
	for _, a := range actions {
		handle(http.MethodPost, a.pattern, func(v *consoleRequest) { v.act(a) })
	}
	handle(http.MethodGet, "/servers/{server}/login", (*consoleRequest).logIn)
	for _, a := range assets() {
		handle(http.MethodGet, "/assets/"+a.name, a.serve)
	}
	handle(http.MethodGet, "/", func(v *consoleRequest) { v.fail(httpError(http.StatusNotFound, "page not found")) })
	return mux
}

// Link returns the URL of a console path, such as /servers/files, with a query of name and value
// pairs; empty values are left out. Link escapes the query; escape the path with url.PathEscape.
func (v *consoleRequest) Link(path string, query ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		if query[i+1] != "" {
			values.Set(query[i], query[i+1])
		}
	}
	if encoded := values.Encode(); encoded != "" {
		path += "?" + encoded
	}
	return v.h.Path + path
}

// get sends a GET request to the admin API. T is the type of the response.
func get[T any](v *consoleRequest, path string) (T, error) {
	return mcpgateway.RequestAdmin[T](v.r.Context(), v.adminRequest(http.MethodGet, path, nil))
}

// post sends a POST request to the admin API.
func post[T any](v *consoleRequest, path string, body any) (T, error) {
	return mcpgateway.RequestAdmin[T](v.r.Context(), v.adminRequest(http.MethodPost, path, body))
}

func (v *consoleRequest) adminRequest(method, path string, body any) mcpgateway.AdminRequest {
	return mcpgateway.AdminRequest{Method: method, Path: path, Body: body, User: v.User, Address: v.r.RemoteAddr}
}

// show shows a page.
func (v *consoleRequest) show(p *page) {
	data, err := p.show(v)
	if err != nil {
		v.fail(err)
		return
	}
	v.render(http.StatusOK, p, data)
}

// fail shows an error page.
func (v *consoleRequest) fail(err error) {
	status := http.StatusInternalServerError
	if known, ok := errors.AsType[*adminapi.Error](err); ok {
		status = known.Status
	}
	v.render(status, &page{name: "error"}, failure{status, err.Error()})
}

// render writes a page.
func (v *consoleRequest) render(status int, p *page, data any) {
	var written bytes.Buffer
	if err := templates().ExecuteTemplate(&written, p.name, layoutData{v, p, data}); err != nil {
		v.h.logger.Error("failed to render page", zap.String("page", p.name), zap.Error(err))
		http.Error(v.w, "Failed to render the page; see the log.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(written.Bytes())
}

// httpError returns an error with a status and a message for the user.
func httpError(status int, format string, args ...any) error {
	return &adminapi.Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// errReadOnly rejects changes in a read-only console.
var errReadOnly = httpError(http.StatusForbidden, "the console is read-only; see read_only of mcp_console")

// maxForm is the size limit of a form in bytes, as in the admin API.
const maxForm = 2 << 20

// act runs the action of a posted form.
func (v *consoleRequest) act(a action) {
	next, err := "", v.readForm()
	if err == nil {
		next, err = a.do(v)
	}
	switch {
	case err != nil:
		v.fail(err)
	case next != "":
		http.Redirect(v.w, v.r, next, http.StatusSeeOther)
	}
}

// readForm reads the form of an action. It rejects forms that were not sent by a page of the
// console for the same user.
func (v *consoleRequest) readForm() error {
	switch kind, _, _ := mime.ParseMediaType(v.r.Header.Get("Content-Type")); {
	case v.ReadOnly:
		return errReadOnly
	case len(v.r.Header["Origin"]) != 1: // admit has checked its value
		return httpError(http.StatusForbidden, "the request has no Origin header: only pages of the console can do this")
	case v.r.TLS != nil && !v.r.TLS.HandshakeComplete: // early data can be replayed
		return httpError(http.StatusTooEarly, "the request was sent as TLS early data")
	case kind != "application/x-www-form-urlencoded":
		return httpError(http.StatusUnsupportedMediaType, "the request is not a form")
	}
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
	if err := v.r.ParseForm(); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return httpError(http.StatusRequestEntityTooLarge, "the form has more than %d bytes", maxForm)
		}
		return httpError(http.StatusBadRequest, "the form cannot be read: %v", err)
	}
	if !hmac.Equal([]byte(v.r.PostForm.Get("token")), []byte(v.Token)) {
		return httpError(http.StatusForbidden, "the page belongs to another user or to an earlier process: reload it")
	}
	return nil
}

// tokenKey signs tokens. They survive configuration reloads.
var tokenKey = func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
}()

// token returns the CSRF token of a user's forms. It includes the host and path, because another
// console of the process may have another user of the same name.
func (h *Handler) token(user, host string) string {
	mac := hmac.New(sha256.New, tokenKey)
	mac.Write([]byte(user + "\n" + host + "\n" + h.Path))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
