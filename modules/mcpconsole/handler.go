// Package mcpconsole implements http.handlers.mcp_console, a web console for the gateways of this
// process.
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
	if h.Path == "" {
		h.Path = "/console"
	}
	if h.Currency == "" {
		h.Currency = "$"
	}
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

// maxPrice is the highest price of a million tokens, as in the admin API.
const maxPrice = 1_000_000

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	switch {
	case h.Path != "" && (!plainPath.MatchString(h.Path) || path.Clean(h.Path) != h.Path):
		return fmt.Errorf("path: %q is not a path such as /console", h.Path)
	case !(h.Price >= 0 && h.Price <= maxPrice):
		return fmt.Errorf("price: %v must be from 0 to %d", h.Price, maxPrice)
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

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyevents.Handler         = lifecycle{}
)
