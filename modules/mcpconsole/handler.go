// Package mcpconsole implements http.handlers.mcp_console, a web console for the gateways of this
// process.
package mcpconsole

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler is a web console for the gateways of this process. It shows their servers, tools and
// calls, how much of the results was cut, and what that saves. All of it comes from the admin API
// of mcp_gateway.
//
// It serves local users and authenticated users. A user is local if the request comes from a
// loopback address, is for a loopback address or localhost, and has no sign of a proxy. By
// default, Caddy authenticates users, with basic_auth or client certificates. If auth or user is
// set, only these authenticate users, and local users must authenticate, too. Other requests get
// status 403, or 401 if a password would help.
//
// Pages of other sites can only link to the console. Every change needs a POST from a page of
// the console itself, with a token from its forms.
type Handler struct {
	// The path of the console as the browser sees it, even if a handler in front, such as handle_path,
	// strips a part of it. Default: /console
	Path string `json:"path,omitempty"`

	// Make the console read-only: users can neither change anything nor call tools. Default: false for
	// local users who did not have to authenticate, true for all others
	ReadOnly *bool `json:"read_only,omitempty"`

	// Price of a million input tokens, to show savings as money. At most 1000000. Default: none; no
	// money is shown
	Price float64 `json:"price,omitempty"`

	// The currency of the price. Default: $
	Currency string `json:"currency,omitempty"`

	// A placeholder whose value is the name of the authenticated user, such as
	// {http.request.header.Remote-User} behind a forward_auth that sets this header. If the value is
	// empty, the user is not authenticated. Default: the user of Caddy's authentication
	User string `json:"user,omitempty"`

	// Providers that authenticate users, as in auth of mcp_gateway. Browsers ask for a name and a
	// password: the password is the token, and the name is ignored. Default: none
	AuthRaw []json.RawMessage `json:"auth,omitempty" caddy:"namespace=http.handlers.mcp_gateway.auth inline_key=provider"`

	// Host names under which browsers may reach the console, besides localhost and loopback addresses.
	// Default: any name, except on a loopback address
	Hosts []string `json:"hosts,omitempty"`

	admission admission
	mux       *http.ServeMux
	stopping  context.Context
	stop      context.CancelFunc
	logger    *zap.Logger
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_console",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	if err := h.Validate(); err != nil { // before paths are built from it
		return err
	}
	h.Path = cmp.Or(h.Path, "/console")
	h.Currency = cmp.Or(h.Currency, "$")
	h.admission = admission{hosts: h.hostPolicy(), user: h.User}
	if len(h.AuthRaw) > 0 {
		modules, err := ctx.LoadModule(h, "AuthRaw")
		if err != nil {
			return fmt.Errorf("auth: %w", err)
		}
		for _, module := range modules.([]any) {
			h.admission.providers = append(h.admission.providers, module.(auth.Provider))
		}
	} else if h.User == "" {
		h.admission.setDefaults()
	}
	h.stopping, h.stop = context.WithCancel(context.Background())
	h.mux = h.newMux()
	if replaceable.Is(ctx) {
		return nil // the gateway that loaded it ends the streams
	}
	app, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting events app: %w", err)
	}
	return app.(*caddyevents.App).On("stopping", lifecycle{h.stop})
}

var (
	plainPath   = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+$`)
	placeholder = regexp.MustCompile(`^\{[^{}\s]+\}$`)
)

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	switch {
	case h.Path != "" && (!plainPath.MatchString(h.Path) || path.Clean(h.Path) != h.Path):
		return fmt.Errorf("path: %q is not a path such as /console", h.Path)
	case !(h.Price >= 0 && h.Price <= adminapi.MaxPrice):
		return fmt.Errorf("price: %v must be from 0 to %d", h.Price, adminapi.MaxPrice)
	case h.User != "" && !placeholder.MatchString(h.User):
		return fmt.Errorf("user: %q is not a placeholder such as {http.request.header.Remote-User}", h.User)
	}
	return h.hostPolicy().Validate()
}

func (h *Handler) hostPolicy() clientrequest.Policy {
	return clientrequest.Policy{Directive: "mcp_console", Hosts: h.Hosts}
}

// A lifecycle ends streams when the configuration stops, because Caddy waits for all requests.
// Browsers reconnect to the new configuration. It is a type of its own because Caddy logs event
// handlers, and Handler contains secrets.
type lifecycle struct{ stop context.CancelFunc }

// Handle is called when the configuration is being stopped.
func (l lifecycle) Handle(context.Context, caddy.Event) error {
	l.stop()
	return nil
}

// Cleanup ends the streams.
func (h *Handler) Cleanup() error {
	if h.stop != nil {
		h.stop()
	}
	return nil
}

// ServeHTTP serves the console below its path, and passes other requests on.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	address := clientrequest.URL(r)
	rest, below := strings.CutPrefix(address.EscapedPath(), h.Path)
	if !below || rest != "" && rest[0] != '/' {
		return next.ServeHTTP(w, r)
	}
	setHeaders(w.Header(), r)
	user, refused := "", checkPath(address.Path)
	if refused == nil {
		user, refused = h.admission.admit(r)
	}
	if refused != nil {
		h.logger.Info("request refused", zap.String("remote_addr", r.RemoteAddr), zap.String("reason", refused.log()))
		refused.write(w)
		return nil
	}
	r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	r.URL = address
	h.mux.ServeHTTP(w, r)
	return nil
}

// securityPolicy lets pages load only the console's own assets, and forbids framing.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// setHeaders sets the headers of every response.
func setHeaders(header http.Header, r *http.Request) {
	header.Set("Content-Security-Policy", securityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	// a stricter policy would drop Origin from forms
	header.Set("Referrer-Policy", "same-origin")
	if r.TLS != nil || clientrequest.IsLocal((&url.URL{Host: r.Host}).Hostname()) { // otherwise browsers log a warning
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
	}
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

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
	v.r.Body = http.MaxBytesReader(v.w, v.r.Body, adminapi.MaxBody)
	if err := v.r.ParseForm(); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return httpError(http.StatusRequestEntityTooLarge, "the form has more than %d bytes", adminapi.MaxBody)
		}
		return httpError(http.StatusBadRequest, "the form cannot be read: %v", err)
	}
	if !hmac.Equal([]byte(v.r.PostForm.Get("token")), []byte(v.Token)) {
		return httpError(http.StatusForbidden, "the page belongs to another user or to an earlier process: reload it")
	}
	return nil
}

// tokenKey signs tokens. They survive configuration reloads.
var tokenKey = []byte(rand.Text())

// token returns the CSRF token of a user's forms. It includes the host and path, because another
// console of the process may have another user of the same name.
func (h *Handler) token(user, host string) string {
	mac := hmac.New(sha256.New, tokenKey)
	mac.Write([]byte(user + "\n" + host + "\n" + h.Path))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyevents.Handler         = lifecycle{}
)
