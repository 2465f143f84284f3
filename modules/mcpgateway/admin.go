package mcpgateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI tells of the gateways, and steers their servers, at Caddy's admin endpoint.
// Everything is JSON. Adding and removing servers is what /config/ is for.
//
// What there is are the adminRoutes; GET /mcp_gateway lists them, too.
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

// An adminRoute is what a method does at a path.
type adminRoute struct {
	Method      string `json:"method"`
	Path        string `json:"path"`
	Description string `json:"description"`

	serve adminFunc
}

// An adminFunc answers a request.
type adminFunc func(*adminCall) (status int, answer any, err error)

// adminRoutes are all there is.
func adminRoutes() []adminRoute {
	const (
		get, post = http.MethodGet, http.MethodPost
		at        = "/mcp_gateway"
	)
	return []adminRoute{
		{get, at, "this list", (*adminCall).index},
		{get, at + "/servers", "all servers: their health, processes, upstreams", (*adminCall).listServers},
		{get, at + "/servers/{server}", "one of them, by its name or an alias", (*adminCall).showServer},
		{post, at + "/servers/{server}/check", `connects to it now, within {"timeout"}, and counts what it lists`, (*adminCall).check},
		{post, at + "/servers/{server}/restart", "ends its child processes and starts others, without a pause", (*adminCall).restart},
		{post, at + "/servers/{server}/refresh", "forgets what it has listed, and tells clients to ask again", (*adminCall).refresh},
		{post, at + "/servers/{server}/logout", `ends the login of the gateway there, or that of {"client"}`, (*adminCall).logout},
		{post, at + "/servers/{server}/accept", `accepts the definitions of its tools that have changed: all, that of {"tool"}, or that of {"tool","seen"} if it is still the latest`, (*adminCall).accept},
		{get, at + "/files", "the files of servers_from: their servers, and why a change was not taken over", (*adminCall).listFiles},
		{get, at + "/tools", "the tools that clients see, or ?client= sees, and what their definitions cost; asks the servers. " +
			"With ?client= and ?why=true also what is decided on all that they have, and by which rule", (*adminCall).listTools},
		{post, at + "/call", `calls {"tool"} with {"arguments"} and {"texts"} as {"client"} gets it, ` +
			`{"raw"} as the server has sent it, or {"both"} of one call; with {"progress"}, each progress comes as a line before`, (*adminCall).call},
		{get, at + "/tools/{tool}", "one of them with its definition, by its name as one escaped segment; asks its server. " +
			"With ?client= also what is decided on it for that client, and by which rule", (*adminCall).showTool},
		{get, at + "/tools/changes", "the tools whose definitions have changed, before and after", (*adminCall).listChanges},
		{post, at + "/store/check", "asks the store that replicas share now, and says how long that took", (*adminCall).checkStore},
		{get, at + "/overview", "the gateways, where clients reach them, and what goes on", (*adminCall).overview},
		{get, at + "/savings", "how much was kept out of contexts, by tool and by day; " +
			"with ?price= of a million tokens in money, too", (*adminCall).savings},
		{get, at + "/calls", "the last calls; with ?client=, ?server=, ?tool=, ?outcome= those only, " +
			"with ?after= those since a call, at most ?limit=", (*adminCall).listCalls},
		{get, at + "/calls/{id}", "one of them, with its arguments and result if the gateway records them", (*adminCall).showCall},
		{get, at + "/calls/{id}/originals/{original}", "a whole text that was cut in its result, if it is kept",
			(*adminCall).showOriginal},
		{get, at + "/conversations", "what tool_result_mask has left out of requests to models, by route",
			(*adminCall).listConversations},
		{get, at + "/clients", "the clients: their rules, sessions, requests and refusals", (*adminCall).listClients},
		{get, at + "/metrics", "what is counted", (*adminCall).showMetrics},
		{get, at + "/templates", "the resource templates that gateways host themselves", (*adminCall).listTemplates},
		{post, at + "/templates", "adds one, or puts it in the place of the one of its name", (*adminCall).putTemplate},
		{http.MethodDelete, at + "/templates/{name}", "removes one", (*adminCall).deleteTemplate},
	}
}

// adminMethods are what can be done at a path.
type adminMethods map[string]adminFunc

// adminPaths returns what can be done at each path.
func adminPaths() map[string]adminMethods {
	paths := map[string]adminMethods{"/mcp_gateway/": {}} // all that is not named
	for _, route := range adminRoutes() {
		if paths[route.Path] == nil {
			paths[route.Path] = adminMethods{}
		}
		paths[route.Path][route.Method] = route.serve
		if route.Method == http.MethodGet {
			paths[route.Path][http.MethodHead] = route.serve
		}
	}
	paths["/mcp_gateway/{$}"] = paths["/mcp_gateway"]
	return paths
}

// Routes implements caddy.AdminRouter.
func (a *adminAPI) Routes() (routes []caddy.AdminRoute) {
	for path, methods := range adminPaths() {
		routes = append(routes, caddy.AdminRoute{
			Pattern: path,
			Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error { return a.serve(w, r, methods) }),
		})
	}
	return routes
}

func (*adminCall) index() (int, any, error) { return http.StatusOK, adminRoutes(), nil }

// An adminCall is a request to the API.
type adminCall struct {
	api *adminAPI
	w   http.ResponseWriter
	r   *http.Request

	begun        bool   // a part of the answer was written
	action       string // what it changes, for the log; empty for nothing
	gateway      string // that it is about: as it is asked for, then by its name
	server, name string // of what it changes
	client       string // as whom it acts; empty for none
	user         string // who asks, if a module in front knows; empty for none
}

func adminErrorf(status int, code, format string, args ...any) *adminapi.Error {
	return &adminapi.Error{Status: status, Message: fmt.Sprintf(format, args...), Code: code}
}

func notFound(format string, args ...any) *adminapi.Error {
	return adminErrorf(http.StatusNotFound, "not_found", format, args...)
}

func invalid(err error) *adminapi.Error {
	return adminErrorf(http.StatusBadRequest, "invalid_request", "%v", err)
}

// serve answers a request.
func (a *adminAPI) serve(w http.ResponseWriter, r *http.Request, methods adminMethods) error {
	call := &adminCall{api: a, w: w, r: r, gateway: r.URL.Query().Get("gateway")}
	status, answer := call.run(methods)
	if answer == nil {
		w.WriteHeader(status)
		return nil
	}
	return call.write(status, "application/json", answer)
}

// run has the method of the request answer it, and leaves a line in the log if that was to change something.
func (c *adminCall) run(methods adminMethods) (status int, answer any) {
	status, answer, err := c.answer(methods)
	outcome := "ok"
	if err != nil {
		var failure *adminapi.Error
		if !errors.As(err, &failure) {
			failure = adminErrorf(http.StatusInternalServerError, "internal_error", "%v", err)
		}
		status, answer, outcome = failure.Status, failure, failure.Code
	}
	if c.action != "" {
		fields := []zap.Field{
			zap.String("action", c.action), zap.String("gateway", c.gateway), zap.String("mcp_server", c.server),
			zap.String("name", c.name), zap.String("remote_addr", c.r.RemoteAddr), zap.String("outcome", outcome),
		}
		if c.client != "" {
			fields = append(fields, zap.String("client", c.client))
		}
		if c.user != "" {
			fields = append(fields, zap.String("user", c.user))
		}
		c.api.log().Info("control", fields...)
	}
	return status, answer
}

// write writes a part of the answer, the first of which has a status and a type.
func (c *adminCall) write(status int, contentType string, part any) error {
	if !c.begun {
		c.begun = true
		c.w.Header().Set("Content-Type", contentType)
		c.w.WriteHeader(status)
	}
	encoder := json.NewEncoder(c.w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(part)
}

// answer has the method of the request answer it.
func (c *adminCall) answer(methods adminMethods) (status int, answer any, err error) {
	if len(methods) == 0 {
		return 0, nil, notFound("there is nothing at %s", c.r.URL.Path)
	}
	method := methods[c.r.Method]
	if method == nil {
		c.w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
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

// decode reads the body of the request. It may be empty if it is optional.
func (c *adminCall) decode(into any, optional bool) error {
	body, err := io.ReadAll(io.LimitReader(c.r.Body, adminapi.MaxBody+1))
	switch {
	case err != nil:
		return invalid(fmt.Errorf("read the request: %w", err))
	case len(body) > adminapi.MaxBody:
		return adminErrorf(http.StatusRequestEntityTooLarge, "payload_too_large",
			"the request has more than %d bytes", adminapi.MaxBody)
	}
	body = bytes.TrimSpace(body)
	switch {
	case len(body) == 0 && optional:
		return nil
	case !bytes.HasPrefix(body, []byte("{")):
		return invalid(errors.New("the request must be a JSON object"))
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return invalid(inPlainWords(err))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return invalid(errors.New("something follows the JSON object of the request"))
	}
	return nil
}

// inPlainWords says what is wrong with an object, without a word about Go.
func inPlainWords(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		member := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
		return fmt.Errorf("%s: it must be %s, and is of the type %s", member, typeNames[wrong.Type.Kind()], wrong.Value)
	}
	if member, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("there is no member %s", member)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON object of the request has no end")
	}
	return fmt.Errorf("the request is not JSON: %w", err)
}

// typeNames are the types of members of requests.
var typeNames = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Bool: "true or false", reflect.Map: "an object",
}

// gateways returns the gateways that the request is about: those of the name that it
// gives, or at this path, or all if it gives none.
func (c *adminCall) gateways() (found []*Handler, err error) {
	for _, h := range registry.current() {
		if c.gateway == "" || c.gateway == h.Name || c.gateway == h.MCPPath {
			found = append(found, h)
		}
	}
	if c.gateway != "" && len(found) == 0 {
		return nil, notFound("there is no gateway %q", c.gateway)
	}
	return found, nil
}

// one returns the only gateway that the request is about and that has what it names.
func (c *adminCall) one(what string, has func(*Handler) bool) (*Handler, error) {
	found, err := c.gateways()
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(h *Handler) bool { return !has(h) })
	if len(found) == 0 {
		return nil, notFound("there is no %s", what)
	}
	if len(found) > 1 {
		return nil, ambiguous(found)
	}
	c.gateway = found[0].Name
	return found[0], nil
}

// ambiguous says which gateways fit, and how to name one of them.
func ambiguous(found []*Handler) *adminapi.Error {
	var names []string
	for _, h := range found {
		names = append(names, fmt.Sprintf("%q at %s", h.Name, h.MCPPath))
	}
	way := "name one of them by ?gateway="
	if len(slices.Compact(slices.Sorted(slices.Values(names)))) < len(names) {
		way = "give each a name of its own in the configuration"
	}
	return adminErrorf(http.StatusConflict, "ambiguous", "several gateways fit; %s: %s", way, strings.Join(names, ", "))
}

// Interface guards
var (
	_ caddy.AdminRouter = (*adminAPI)(nil)
	_ caddy.Provisioner = (*adminAPI)(nil)
)
