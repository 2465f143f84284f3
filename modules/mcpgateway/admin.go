package mcpgateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func init() {
	caddy.RegisterModule(adminAPI{})
}

// adminAPI reports on gateways and controls their servers, at Caddy's admin endpoint. All bodies
// are JSON. To add or remove servers, use /config/.
//
// GET /mcp_gateway lists all routes, as adminRoutes defines them.
//
// ?gateway= selects a gateway by its name or mcp_path. Without it, a change is refused if several
// gateways match.
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

// An adminRoute is one method of one path.
type adminRoute struct {
	Method      string `json:"method"`
	Path        string `json:"path"`
	Description string `json:"description"`

	serve adminFunc
}

// An adminFunc serves a request. If answer is nil, the response has no body.
type adminFunc func(*adminCall) (answer any, err error)

// adminRoutes returns all routes.
func adminRoutes() []adminRoute {
	const (
		get, post = http.MethodGet, http.MethodPost
		root      = "/mcp_gateway"
		server    = root + "/servers/{server}"
	)
	return []adminRoute{
		{get, root, "this list", listRoutes},
		{get, root + "/servers", "all servers: their health, processes and upstreams", listOf(adminGateway.listServers)},
		{get, server, "one server, by its name or an alias", onServer("", (*serverCall).show)},
		{post, server + "/check", `connects to the server now, within {"timeout"}, and counts the items that it lists`,
			onServer("check", (*serverCall).check)},
		{post, server + "/restart", "restarts the child processes of the server at once",
			onServer("restart", (*serverCall).restart)},
		{post, server + "/refresh", "drops the cached lists of the server, and notifies clients",
			onServer("refresh", (*serverCall).refresh)},
		{post, server + "/logout", `ends the gateway's login to the server, or that of {"client"}`,
			onServer("logout", (*serverCall).logout)},
		{post, server + "/accept", `accepts changed tool definitions of the server: all, that of {"tool"}, ` +
			`or that of {"tool","seen"} if it is still the latest`, onServer("accept", (*serverCall).accept)},
		{get, root + "/files", "the files of servers_from: their servers, and why the latest content is not used",
			listOf(adminGateway.listFiles)},
		{get, root + "/tools", "the tools that clients see, or that ?client= sees, with the size of their definitions; " +
			"contacts the servers. With ?client= and ?why=true also the decision on every item, and its rule",
			(*adminCall).listTools},
		{post, root + "/call", `calls {"tool"} with {"arguments"} and {"texts"}, and returns the result that {"client"} ` +
			`gets, with {"raw"} the result that the server sent, or with {"both"} the two results of one call; ` +
			`with {"progress"}, progress notifications come first, one per line`, (*adminCall).call},
		{get, root + "/tools/{tool}", "one tool with its definition, by its name as one escaped segment; " +
			"contacts its server. With ?client= also the decision for that client, and its rule", (*adminCall).showTool},
		{get, root + "/tools/changes", "the tools whose definitions have changed, before and after",
			listOf(adminGateway.listChanges)},
		{post, root + "/store/check", "contacts the store that replicas share, and measures how long it takes",
			(*adminCall).checkStore},
		{get, root + "/overview", "the gateways, their URLs, and their activity", (*adminCall).overview},
		{get, root + "/savings", "how much was kept out of contexts, by tool and by day; " +
			"with ?price=, the price of a million tokens, also as money", (*adminCall).savings},
		{get, root + "/calls", "the last calls, at most ?limit=; with ?client=, ?server=, ?tool= or ?outcome= only " +
			"matching calls, with ?after= only calls after the one with this id", (*adminCall).listCalls},
		{get, root + "/calls/{id}", "one call, with its arguments and result if the gateway records them",
			onCall((*adminCall).showCall)},
		{get, root + "/calls/{id}/originals/{original}", "the original of a text that was cut in the result of a call, " +
			"if it is kept", onCall((*adminCall).showOriginal)},
		{get, root + "/conversations", "what tool_result_mask has removed from requests to models, by route",
			listConversations},
		{get, root + "/clients", "the clients: their rules, sessions, requests and refusals",
			listOf(adminGateway.listClients)},
		{get, root + "/metrics", "all metrics of these modules", (*adminCall).showMetrics},
		{get, root + "/templates", "the resource templates that gateways host themselves",
			listOf(adminGateway.listTemplates)},
		{post, root + "/templates", "adds a resource template, or replaces the one with its name",
			(*adminCall).putTemplate},
		{http.MethodDelete, root + "/templates/{name}", "removes a resource template", (*adminCall).deleteTemplate},
	}
}

// adminMethods are the functions of a path, by HTTP method.
type adminMethods map[string]adminFunc

// adminPaths returns the methods of each path.
func adminPaths() map[string]adminMethods {
	paths := map[string]adminMethods{"/mcp_gateway/": {}} // matches all unknown paths
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
			Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				return a.serve(w, r, methods)
			}),
		})
	}
	return routes
}

func listRoutes(*adminCall) (any, error) { return adminRoutes(), nil }

// An adminGateway is a gateway for which the API reports and acts.
type adminGateway struct{ *Handler }

func (g adminGateway) id() adminapi.GatewayID {
	return adminapi.GatewayID{Gateway: g.Name, Path: g.MCPPath}
}

// listOf returns a function that lists items of all requested gateways.
func listOf[T any](items func(adminGateway) []T) adminFunc {
	return func(c *adminCall) (any, error) {
		found, err := c.gateways()
		if err != nil {
			return nil, err
		}
		all := []T{}
		for _, g := range found {
			all = append(all, items(g)...)
		}
		return all, nil
	}
}

// An adminCall is a request to the API.
type adminCall struct {
	api *adminAPI
	w   http.ResponseWriter
	r   *http.Request

	status       int    // of the response, unless the request fails
	wroteHeader  bool   // part of the response has been written
	action       string // for the log; empty for a request that only reads
	gateway      string // requested name or path, then the name of the gateway found
	server, name string // target of the action, for the log
	client       string // client as which a tool is called; empty for the operator
	user         string // user of mcp_console; empty if unknown
}

func adminErrorf(status int, code, format string, args ...any) *adminapi.Error {
	return &adminapi.Error{Status: status, Message: fmt.Sprintf(format, args...), Code: code}
}

func notFound(format string, args ...any) *adminapi.Error {
	return adminErrorf(http.StatusNotFound, "not_found", format, args...)
}

func invalidRequest(err error) *adminapi.Error {
	return adminErrorf(http.StatusBadRequest, "invalid_request", "%v", err)
}

func (a *adminAPI) newCall(w http.ResponseWriter, r *http.Request) *adminCall {
	return &adminCall{api: a, w: w, r: r, status: http.StatusOK, gateway: r.URL.Query().Get("gateway")}
}

// serve serves a request.
func (a *adminAPI) serve(w http.ResponseWriter, r *http.Request, methods adminMethods) error {
	call := a.newCall(w, r)
	status, answer := call.run(methods)
	if answer == nil {
		w.WriteHeader(status)
		return nil
	}
	return call.write(status, "application/json", answer)
}

// run runs the method of the request, and logs it if it is an action.
func (c *adminCall) run(methods adminMethods) (status int, answer any) {
	answer, err := c.dispatch(methods)
	status, outcome := c.status, "ok"
	if err != nil {
		failure, known := errors.AsType[*adminapi.Error](err)
		if !known {
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
		c.api.log().Info("admin action", fields...)
	}
	return status, answer
}

// write writes a part of the response. The first part sets status and type.
func (c *adminCall) write(status int, contentType string, part any) error {
	if !c.wroteHeader {
		c.wroteHeader = true
		c.w.Header().Set("Content-Type", contentType)
		c.w.WriteHeader(status)
	}
	encoder := json.NewEncoder(c.w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(part)
}

// dispatch calls the function for the method of the request.
func (c *adminCall) dispatch(methods adminMethods) (answer any, err error) {
	if len(methods) == 0 {
		return nil, notFound("unknown path %s; GET /mcp_gateway lists all paths", c.r.URL.Path)
	}
	method := methods[c.r.Method]
	if method == nil {
		c.w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
		return nil, adminErrorf(http.StatusMethodNotAllowed, "method_not_allowed",
			"the method %s is not allowed here", c.r.Method)
	}
	return method(c)
}

func (a *adminAPI) log() *zap.Logger {
	if a.logger != nil {
		return a.logger
	}
	return caddy.Log().Named("admin.api.mcp_gateway")
}

// decode decodes the body of the request, which may be empty if optional.
func (c *adminCall) decode(into any, optional bool) error {
	body, err := io.ReadAll(io.LimitReader(c.r.Body, adminapi.MaxBody+1))
	switch {
	case err != nil:
		return invalidRequest(fmt.Errorf("read the request: %w", err))
	case len(body) > adminapi.MaxBody:
		return adminErrorf(http.StatusRequestEntityTooLarge, "payload_too_large",
			"the request has more than %d bytes", adminapi.MaxBody)
	}
	body = bytes.TrimSpace(body)
	switch {
	case len(body) == 0 && optional:
		return nil
	case !bytes.HasPrefix(body, []byte("{")):
		return invalidRequest(errors.New("the request must be a JSON object"))
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return invalidRequest(rewordJSONError(err))
	}
	if _, err := decoder.Token(); err != io.EOF {
		return invalidRequest(errors.New("unexpected data after the JSON object of the request"))
	}
	return nil
}

// rewordJSONError rewords a JSON error without names of Go types.
func rewordJSONError(err error) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		member := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
		return fmt.Errorf("%s: must be %s, got %s", member, typeNames[wrong.Type.Kind()], wrong.Value)
	}
	if member, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("unknown member %s", member)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the JSON object of the request is incomplete")
	}
	return fmt.Errorf("the request is not JSON: %w", err)
}

// typeNames are the types of members, for error messages.
var typeNames = map[reflect.Kind]string{
	reflect.String: "a string", reflect.Bool: "true or false", reflect.Map: "an object",
}

// gateways returns the requested gateways, each once even if it is in several sites.
func (c *adminCall) gateways() ([]adminGateway, error) { return c.requested(registry.current()) }

// requested returns the gateways with the requested label or, if none has it, with the requested
// mcp_path. If none is requested, it returns all.
func (c *adminCall) requested(all []*Handler) (found []adminGateway, err error) {
	byPath := []adminGateway{}
	for _, h := range all {
		switch g := (adminGateway{h}); {
		case c.gateway == "", c.gateway == g.id().Label():
			found = append(found, g)
		case c.gateway == h.MCPPath:
			byPath = append(byPath, g)
		}
	}
	if len(found) == 0 {
		found = byPath
	}
	if c.gateway != "" && len(found) == 0 {
		return nil, notFound("unknown gateway %q", c.gateway)
	}
	return found, nil
}

// records returns whether a record of a gateway with this name is requested. Records of calls have
// only names, and may be those of gateways of an earlier configuration.
func (c *adminCall) records() func(gateway string) bool {
	names := []string{c.gateway}
	if found, err := c.gateways(); err == nil {
		for _, g := range found {
			names = append(names, g.Name)
		}
	}
	return func(gateway string) bool { return c.gateway == "" || slices.Contains(names, gateway) }
}

// oneGateway returns the only requested gateway for which has returns true. what is the thing to
// find there, for the error.
func (c *adminCall) oneGateway(what string, has func(adminGateway) bool) (g adminGateway, err error) {
	found, err := c.gateways()
	if err != nil {
		return g, err
	}
	found = slices.DeleteFunc(found, func(g adminGateway) bool { return !has(g) })
	if len(found) == 0 {
		return g, notFound("%s not found", what)
	}
	if len(found) > 1 {
		return g, ambiguousError(found)
	}
	c.gateway = found[0].Name
	return found[0], nil
}

// ambiguousError returns the error that several gateways match. It says how to select one.
func ambiguousError(found []adminGateway) *adminapi.Error {
	var names []string
	for _, g := range found {
		name := fmt.Sprintf("%q at %s", g.Name, g.MCPPath)
		if g.Name == "" {
			name = g.MCPPath + " (no name)"
		}
		names = append(names, name)
	}
	way := "select one with " + adminapi.GatewayParameter
	if len(slices.Compact(slices.Sorted(slices.Values(names)))) < len(names) {
		way = "give each a name of its own in the configuration"
	}
	return adminErrorf(http.StatusConflict, "ambiguous",
		"several gateways match; %s: %s", way, strings.Join(names, ", "))
}

// An AdminRequest is a request to the admin API by another module of this process, such as
// mcp_console.
type AdminRequest struct {
	Method  string // GET if empty
	Path    string // below /mcp_gateway, with query
	Body    any    // nil for none
	User    string // who acts, for the log; "" if unknown
	Address string // address of the user, for the log
}

// RequestAdmin sends a request to the admin API. T is the response type of the route. Errors of the
// API are *[adminapi.Error].
func RequestAdmin[T any](ctx context.Context, q AdminRequest) (T, error) {
	var none T
	answer, err := q.send(ctx)
	if err != nil {
		return none, err
	}
	typed, ok := answer.(T)
	if !ok {
		return none, fmt.Errorf("%s returns a %T, not a %T", q.Path, answer, none)
	}
	return typed, nil
}

func (q *AdminRequest) send(ctx context.Context) (any, error) {
	var body []byte
	if q.Body != nil {
		var err error
		if body, err = json.Marshal(q.Body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, q.Method, "/mcp_gateway"+q.Path, bytes.NewReader(body))
	if err != nil {
		return nil, invalidRequest(err)
	}
	r.RemoteAddr = q.Address
	answer := &directResponse{user: q.User, header: http.Header{}}
	directMux().ServeHTTP(answer, r)
	if failure, failed := answer.value.(*adminapi.Error); failed {
		return nil, failure
	}
	return answer.value, nil
}

// directMux serves the routes of the admin API. The response writer must be a directResponse.
var directMux = sync.OnceValue(func() *http.ServeMux {
	mux := http.NewServeMux()
	for path, methods := range adminPaths() {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			into := w.(*directResponse)
			call := new(adminAPI).newCall(w, r)
			call.user = into.user
			_, into.value = call.run(methods)
		})
	}
	return mux
})

// A directResponse receives the value of a response instead of its encoding. It discards writes:
// routes write only if a request asks for progress.
type directResponse struct {
	noResponse
	user   string
	header http.Header
	value  any
}

func (a *directResponse) Header() http.Header { return a.header }

// Interface guards
var (
	_ caddy.AdminRouter   = (*adminAPI)(nil)
	_ caddy.Provisioner   = (*adminAPI)(nil)
	_ http.ResponseWriter = (*directResponse)(nil)
)
