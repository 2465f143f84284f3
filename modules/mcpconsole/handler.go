// Package mcpconsole shows people what goes through the gateways of this process: the HTTP handler
// http.handlers.mcp_console.
package mcpconsole

import (
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler is a console for the gateways of this process, in the browser. It has what the admin API of mcp_gateway has:
// servers, tools, calls, what was cut, what that saves.
//
// It is shown to users of this machine, and to users who are authenticated: by Caddy (basic_auth, or client
// certificates that it verifies), or by what auth and user say, which then count alone. A request is of a user of this
// machine if it comes from a loopback address, for a loopback address or localhost, and no proxy has passed it on, as
// far as its headers tell. All others get status 403, or 401 if a password would help.
//
// Pages of other sites can link to the console, and nothing else. What changes something needs a POST of a page of the
// console itself, with a token that is in its forms.
type Handler struct {
	// The path below which the console is served, as the browser has it: also where handlers in front, such as
	// handle_path, strip a part of it. Default: /console
	Path string `json:"path,omitempty"`

	// Whether nothing can be changed, and no tool called, by the console. Default: false for users on this machine who
	// did not have to authenticate, true for all others
	ReadOnly *bool `json:"read_only,omitempty"`

	// What a million tokens of input cost, to estimate what was saved. At most 1000000. Default: none, and no money is
	// shown
	Price float64 `json:"price,omitempty"`

	// The currency of the price. Default: $
	Currency string `json:"currency,omitempty"`

	// A placeholder whose value is the name of the user, such as {http.request.header.Remote-User} behind a
	// forward_auth that sets it. Without a value there is no user. Default: the user of Caddy's authentication
	User string `json:"user,omitempty"`

	// What finds out who users are, as auth of mcp_gateway does. Browsers are asked for a name and a password: the
	// password is the token, and the name does not matter. Default: none
	AuthRaw []json.RawMessage `json:"auth,omitempty" caddy:"namespace=http.handlers.mcp_gateway.auth inline_key=provider"`

	// The console may be called by these names, besides localhost and loopback addresses. Default: any name, except at
	// a loopback address
	Hosts []string `json:"hosts,omitempty"`

	admits   admission
	mux      *http.ServeMux
	stopping context.Context
	stop     context.CancelFunc
	logger   *zap.Logger
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
	if err := h.Validate(); err != nil { // before paths are made of it
		return err
	}
	if h.Path == "" {
		h.Path = "/console"
	}
	if h.Currency == "" {
		h.Currency = "$"
	}
	h.admits = admission{hosts: h.hostPolicy(), user: h.User}
	if len(h.AuthRaw) > 0 {
		modules, err := ctx.LoadModule(h, "AuthRaw")
		if err != nil {
			return fmt.Errorf("auth: %w", err)
		}
		for _, module := range modules.([]any) {
			h.admits.providers = append(h.admits.providers, module.(auth.Provider))
		}
	} else if h.User == "" {
		h.admits.byDefault()
	}
	h.stopping, h.stop = context.WithCancel(context.Background())
	app, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting events app: %w", err)
	}
	if err := app.(*caddyevents.App).On("stopping", lifecycle{h.stop}); err != nil {
		return err
	}
	h.mux = h.newMux()
	return nil
}

var (
	plainPath   = regexp.MustCompile(`^(/[A-Za-z0-9._~-]+)+$`)
	placeholder = regexp.MustCompile(`^\{[^{}\s]+\}$`)
)

// maxPrice is what a million tokens may cost, as for the admin API.
const maxPrice = 1_000_000

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	switch {
	case h.Path != "" && (!plainPath.MatchString(h.Path) || path.Clean(h.Path) != h.Path):
		return fmt.Errorf("path: %q is not a path such as /console", h.Path)
	case !(h.Price >= 0 && h.Price <= maxPrice):
		return fmt.Errorf("price: %v is not a number from 0 to %d", h.Price, maxPrice)
	case h.User != "" && !placeholder.MatchString(h.User):
		return fmt.Errorf("user: %q is not a placeholder such as {http.request.header.Remote-User}", h.User)
	}
	return h.hostPolicy().Validate()
}

func (h *Handler) hostPolicy() clientrequest.Policy {
	return clientrequest.Policy{Directive: "mcp_console", Hosts: h.Hosts}
}

// A lifecycle ends streams when the configuration stops: Caddy waits for all requests, and browsers come back to the
// configuration that takes its place. Caddy logs the handlers of events, and the Handler itself has secrets.
type lifecycle struct{ stop context.CancelFunc }

// Handle is called when the configuration is being stopped.
func (l lifecycle) Handle(context.Context, caddy.Event) error {
	l.stop()
	return nil
}

// Cleanup ends what the handler does.
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
		user, refused = h.admits.admit(r)
	}
	if refused != nil {
		h.logger.Info("refused", zap.String("remote_addr", r.RemoteAddr), zap.String("reason", refused.log()))
		refused.write(w)
		return nil
	}
	r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	r.URL = address
	h.mux.ServeHTTP(w, r)
	return nil
}

// securityPolicy lets pages load what the console has, and nothing else, and forbids frames around them.
const securityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// setHeaders sets what every answer has.
func setHeaders(header http.Header, r *http.Request) {
	header.Set("Content-Security-Policy", securityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "same-origin")                                    // with less, forms have no Origin
	if r.TLS != nil || clientrequest.IsLocal((&url.URL{Host: r.Host}).Hostname()) { // elsewhere browsers complain of it
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
	}
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyevents.Handler         = lifecycle{}
)
