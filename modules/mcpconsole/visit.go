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

// A visit is a request of a user to the console.
type visit struct {
	h        *Handler
	w        http.ResponseWriter
	r        *http.Request // with its path below that of the console
	User     string        // who it is; "" for a user of this machine
	ReadOnly bool          // nothing can be changed
	Token    string        // that forms carry
}

// userKey is where the context of a request has who has sent it.
type userKey struct{}

// newVisit returns the visit that a request is.
func (h *Handler) newVisit(w http.ResponseWriter, r *http.Request) *visit {
	user, _ := r.Context().Value(userKey{}).(string)
	readOnly := user != ""
	if h.ReadOnly != nil {
		readOnly = *h.ReadOnly
	}
	below := *r.URL
	below.Path, below.RawPath = strings.TrimPrefix(below.Path, h.Path), strings.TrimPrefix(below.RawPath, h.Path)
	r = r.WithContext(r.Context())
	r.URL = &below
	return &visit{h: h, w: w, r: r, User: user, ReadOnly: readOnly, Token: h.token(user, r.Host)}
}

// newMux returns what serves the paths of the console.
func (h *Handler) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(method, pattern string, serve func(*visit)) {
		mux.HandleFunc(method+" "+h.Path+pattern, func(w http.ResponseWriter, r *http.Request) { serve(h.newVisit(w, r)) })
	}
	for i := range pages {
		p := &pages[i]
		handle(http.MethodGet, p.pattern, func(v *visit) { v.show(p) })
		if p.live != nil {
			handle(http.MethodGet, "/live/"+p.name, func(v *visit) { v.stream(p) })
		}
	}
	for _, a := range actions {
		handle(http.MethodPost, a.pattern, func(v *visit) { v.act(a) })
	}
	handle(http.MethodGet, "/servers/{server}/login", (*visit).logIn)
	for _, a := range assets() {
		handle(http.MethodGet, "/assets/"+a.name, a.serve)
	}
	handle(http.MethodGet, "/", func(v *visit) { v.fail(refused(http.StatusNotFound, "there is no such page")) })
	return mux
}

// At returns the address of a path of the console, such as /servers/files, with a query. All texts of the query are
// escaped; those of the path must be, by url.PathEscape.
func (v *visit) At(path string, query ...string) string {
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

// get asks the admin API. T is the type of the answer of its route.
func get[T any](v *visit, path string) (T, error) {
	return mcpgateway.Ask[T](v.r.Context(), v.question(http.MethodGet, path, nil))
}

// post has the admin API do something.
func post[T any](v *visit, path string, body any) (T, error) {
	return mcpgateway.Ask[T](v.r.Context(), v.question(http.MethodPost, path, body))
}

func (v *visit) question(method, path string, body any) mcpgateway.Question {
	return mcpgateway.Question{Method: method, Path: path, Body: body, User: v.User, Address: v.r.RemoteAddr}
}

// show shows a page.
func (v *visit) show(p *page) {
	data, err := p.show(v)
	if err != nil {
		v.fail(err)
		return
	}
	v.render(http.StatusOK, p, data)
}

// fail shows a page that says what went wrong.
func (v *visit) fail(err error) {
	status := http.StatusInternalServerError
	if known, ok := errors.AsType[*adminapi.Error](err); ok {
		status = known.Status
	}
	v.render(status, &page{name: "error"}, failure{status, err.Error()})
}

// render writes a page that shows data.
func (v *visit) render(status int, p *page, data any) {
	var written bytes.Buffer
	if err := templates.ExecuteTemplate(&written, p.name, shown{v, p, data}); err != nil {
		v.h.logger.Error("page cannot be shown", zap.String("page", p.name), zap.Error(err))
		http.Error(v.w, "The page cannot be shown; see the log.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	_, _ = v.w.Write(written.Bytes())
}

// refused returns the error about something that the console does not do.
func refused(status int, format string, args ...any) error {
	return &adminapi.Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// errReadOnly is what users get who may only look.
var errReadOnly = refused(http.StatusForbidden, "the console is read-only; see read_only of mcp_console")

// maxForm is how many bytes a form may have, as for the admin API.
const maxForm = 2 << 20

// act does what a form asks for.
func (v *visit) act(a action) {
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

// readForm reads the form of an action, and refuses one that is not sent by a page of the console for its user.
func (v *visit) readForm() error {
	switch kind, _, _ := mime.ParseMediaType(v.r.Header.Get("Content-Type")); {
	case v.ReadOnly:
		return errReadOnly
	case len(v.r.Header["Origin"]) != 1: // what it is was looked at for all requests
		return refused(http.StatusForbidden, "the request has no Origin: only pages of the console can do this")
	case v.r.TLS != nil && !v.r.TLS.HandshakeComplete: // it may be there a second time
		return refused(http.StatusTooEarly, "the request came in early data")
	case kind != "application/x-www-form-urlencoded":
		return refused(http.StatusUnsupportedMediaType, "the request is not a form")
	}
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, maxForm)
	if err := v.r.ParseForm(); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return refused(http.StatusRequestEntityTooLarge, "the form has more than %d bytes", maxForm)
		}
		return refused(http.StatusBadRequest, "the form cannot be read: %v", err)
	}
	if !hmac.Equal([]byte(v.r.PostForm.Get("token")), []byte(v.Token)) {
		return refused(http.StatusForbidden, "the page is of another user, or older than the process: load it again")
	}
	return nil
}

// tokenKey is what tokens are made with. They outlive a reload of the configuration.
var tokenKey = func() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // it never fails
	return key
}()

// token returns what the forms of a user carry. Pages of other sites cannot know it. Another console of the process may
// have another user of the same name.
func (h *Handler) token(user, host string) string {
	mac := hmac.New(sha256.New, tokenKey)
	mac.Write([]byte(user + "\n" + host + "\n" + h.Path))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}
