package mcpgateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI tells of the gateways, and steers their servers, at Caddy's admin endpoint.
// Everything is JSON. Adding and removing servers is what /config/ is for.
//
// Method and path | What it does
// ----------------|-------------
// `GET /mcp_gateway/servers` | All servers: their health, processes, upstreams
// `GET /mcp_gateway/servers/{server}` | One of them, by its name or an alias
// `POST /mcp_gateway/servers/{server}/restart` | Ends its child processes and starts others, without a pause
// `POST /mcp_gateway/servers/{server}/refresh` | Forgets what it has listed, and tells clients to ask again
// `POST /mcp_gateway/servers/{server}/accept` | Takes the definitions of its tools for good that have changed: all, or that of {"tool": "name"}
// `GET /mcp_gateway/tools/changes` | The tools whose definitions have changed
// `GET /mcp_gateway/clients` | The clients
// `GET /mcp_gateway/metrics` | What is counted, as JSON
// `GET /mcp_gateway/templates` | The resource templates that gateways host themselves
// `POST /mcp_gateway/templates` | Adds one, or puts it in the place of the one of its name
// `DELETE /mcp_gateway/templates/{name}` | Removes one
//
// With ?gateway= it is about the gateway of this name, or at this mcp_path. Where it is
// not given and several gateways fit, what would change something is refused.
type adminAPI struct {
	ctx    caddy.Context
	logger *zap.Logger // nil for Caddy's
}

// CaddyModule returns the Caddy module information.
func (adminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.mcp_gateway",
		New: func() caddy.Module { return new(adminAPI) },
	}
}

// Provision sets up the API.
func (a *adminAPI) Provision(ctx caddy.Context) error {
	a.ctx = ctx
	return nil
}

// adminMethods are the methods of a resource.
type adminMethods map[string]func(*adminCall) (status int, answer any, err error)

// Routes implements caddy.AdminRouter.
func (a *adminAPI) Routes() (routes []caddy.AdminRoute) {
	for path, methods := range map[string]adminMethods{
		"/":                         {},
		"/servers":                  {http.MethodGet: (*adminCall).listServers},
		"/servers/{server}":         {http.MethodGet: (*adminCall).showServer},
		"/servers/{server}/restart": {http.MethodPost: (*adminCall).restart},
		"/servers/{server}/refresh": {http.MethodPost: (*adminCall).refresh},
		"/servers/{server}/accept":  {http.MethodPost: (*adminCall).accept},
		"/tools/changes":            {http.MethodGet: (*adminCall).listChanges},
		"/clients":                  {http.MethodGet: (*adminCall).listClients},
		"/metrics":                  {http.MethodGet: (*adminCall).showMetrics},
		"/templates":                {http.MethodGet: (*adminCall).listTemplates, http.MethodPost: (*adminCall).putTemplate},
		"/templates/{name}":         {http.MethodDelete: (*adminCall).deleteTemplate},
	} {
		routes = append(routes, caddy.AdminRoute{
			Pattern: "/mcp_gateway" + path,
			Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return a.serve(w, r, methods) }),
		})
	}
	return routes
}

// An adminCall is a request to the API.
type adminCall struct {
	api *adminAPI
	r   *http.Request

	action                string // what it changes, for the log; empty for nothing
	gateway, server, name string // of what it changes
}

// An adminError is an error that the API answers with.
type adminError struct {
	status  int
	Message string `json:"error"`
	Code    string `json:"code"`
}

func (e *adminError) Error() string { return e.Message }

func adminErrorf(status int, code, format string, args ...any) *adminError {
	return &adminError{status, fmt.Sprintf(format, args...), code}
}

func notFound(format string, args ...any) *adminError {
	return adminErrorf(http.StatusNotFound, "not_found", format, args...)
}

func invalid(err error) *adminError {
	return adminErrorf(http.StatusBadRequest, "invalid_request", "%v", err)
}

// serve answers a request, and leaves a line in the log if that was to change something.
func (a *adminAPI) serve(w http.ResponseWriter, r *http.Request, methods adminMethods) error {
	call := &adminCall{api: a, r: r}
	status, answer, err := call.answer(w, methods)
	outcome := "ok"
	if err != nil {
		var failure *adminError
		if !errors.As(err, &failure) {
			failure = adminErrorf(http.StatusInternalServerError, "internal_error", "%v", err)
		}
		status, answer, outcome = failure.status, failure, failure.Code
	}
	if call.action != "" {
		a.log().Info("control", zap.String("action", call.action), zap.String("gateway", call.gateway), zap.String("server", call.server),
			zap.String("name", call.name), zap.String("remote_addr", r.RemoteAddr), zap.String("outcome", outcome))
	}
	if answer == nil {
		w.WriteHeader(status)
		return nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(answer)
}

// answer has the method of the request answer it.
func (c *adminCall) answer(w http.ResponseWriter, methods adminMethods) (status int, answer any, err error) {
	if len(methods) == 0 {
		return 0, nil, notFound("there is nothing at %s", c.r.URL.Path)
	}
	method := methods[c.r.Method]
	if method == nil {
		w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		return 0, nil, adminErrorf(http.StatusMethodNotAllowed, "method_not_allowed", "the method %s is not allowed here", c.r.Method)
	}
	return method(c)
}

func (a *adminAPI) log() *zap.Logger {
	if a.logger != nil {
		return a.logger
	}
	return caddy.Log().Named("admin.api.mcp_gateway")
}

// maxAdminBody is how many bytes a request may have.
const maxAdminBody = 2 << 20

// decode reads the body of the request. It may be empty if it is optional.
func (c *adminCall) decode(into any, optional bool) error {
	body, err := io.ReadAll(io.LimitReader(c.r.Body, maxAdminBody+1))
	switch {
	case err != nil:
		return invalid(fmt.Errorf("read the request: %w", err))
	case len(body) > maxAdminBody:
		return adminErrorf(http.StatusRequestEntityTooLarge, "payload_too_large", "the request has more than %d bytes", maxAdminBody)
	case len(strings.TrimSpace(string(body))) == 0 && optional:
		return nil
	}
	decoder := json.NewDecoder(strings.NewReader(string(body)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return invalid(fmt.Errorf("the request is not what is expected here: %w", err))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return invalid(errors.New("something follows the JSON of the request"))
	}
	return nil
}

// gateways returns the gateways that the request is about.
func (c *adminCall) gateways() ([]*Handler, error) {
	return gatewaysNamed(c.r.URL.Query().Get("gateway"))
}

// gatewaysNamed returns the gateways of a name or at a path, or all if it is empty.
func gatewaysNamed(name string) (found []*Handler, err error) {
	for _, h := range registry.current() {
		if name == "" || name == h.Name || name == h.MCPPath {
			found = append(found, h)
		}
	}
	if name != "" && len(found) == 0 {
		return nil, notFound("there is no gateway %q", name)
	}
	return found, nil
}

// only returns the only one of some gateways that have what is asked for.
func only(found []*Handler, what string) (*Handler, error) {
	switch len(found) {
	case 0:
		return nil, notFound("there is no %s", what)
	case 1:
		return found[0], nil
	}
	var names []string
	for _, h := range found {
		names = append(names, fmt.Sprintf("%q at %s", h.Name, h.MCPPath))
	}
	return nil, adminErrorf(http.StatusConflict, "ambiguous", "several gateways fit; name one of them by ?gateway=: %s", strings.Join(names, ", "))
}

// Interface guards
var (
	_ caddy.AdminRouter = (*adminAPI)(nil)
	_ caddy.Provisioner = (*adminAPI)(nil)
)
