// Package mcpgateway implements the HTTP handler http.handlers.mcp_gateway, which serves many MCP
// servers at one endpoint.
package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/storepool"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler is a gateway to MCP servers. Each server has a name and a list of routes as in a site,
// usually one reverse_proxy. The routes may use any Caddy handler. The gateway finds the server of
// a request, shortens results that are too large as observation_mask does, and logs and counts each
// request.
//
// The gateway serves these paths:
//
//   - `/mcp`: all servers as one, over Streamable HTTP. Clients and servers of every protocol
//     revision can be mixed. The names of tools and prompts start with the name of their server.
//   - `/mcp/{server}`: one server, unchanged, over Streamable HTTP. POST, GET and DELETE are
//     forwarded with their statuses, sessions and event streams. Response headers that could redirect
//     a client are removed. Servers with the older HTTP+SSE transport work, too.
//   - `/api/mcp-gateway/{server}/rpc`: one JSON-RPC message by POST, one JSON response. There is no
//     handshake, session or event stream.
//   - `/mcp/health`: for probes. The status is 200 if every server that is not optional is up, and
//     503 otherwise. It needs no credentials and contacts no server.
//
// All other requests go to the next handler unchanged. If no handler responds, the gateway sends a
// 404 that names these paths, because Caddy would send an empty 200.
//
// If the gateway refuses a request, or the server does not respond, the gateway responds with a
// JSON-RPC error. The error has the ID of the request, or null if the request was refused before it
// was read. error.data.code says what happened:
//
// Symbol | Status | Code | What happened
// -------|--------|------|--------------
// `unknown_server` | 404 | -32001 | No server has this name
// `timeout` | 502, 200 | -32002 | The server, or with 200 the person who must confirm a call, was too slow
// `connect_error` | 502 | -32002 | The server cannot be reached, or closed the connection
// `invalid_json` | 502 | -32003 | The response is not JSON
// `invalid_response` | 502 | -32003 | Not a JSON-RPC response, unreadable, or larger than response_limit
// `http_error` | 502 | -32603 | A status such as 404 or a redirect, or a route refused the request
// `invalid_request` | 400, 405, 408, 415, 425 | -32600 | See below
// `parse_error` | 400 | -32700 | The request is not JSON
// `busy` | 503 | -32002 | in_flight_limit, or the limit on responses that clients have not read, is reached
// `payload_too_large` | 413 | -32600 | The request exceeds request_limit, or client info exceeds 16 KiB
// `unauthorized` | 401 | -32600 | auth, or a handler in front of the server, does not accept the credentials
// `acl_denied` | 403 | -32600 | A rule denies this to the client
// `rate_limited` | 429 | -32600 | The client has used up a rate. Retry-After says when to retry
// `store_unavailable` | 503 | -32002 | mcp_store is unavailable, so a rate or nonce cannot be checked
// `tool_changed` | 403 | -32600 | The definition of the tool has changed, and pin_tools is on
// `confirmation_required` | 403 | -32600 | A person must confirm the call, and the client cannot ask
// `confirmation_declined` | 200 | -32600 | The person at the client did not confirm the call
// `forbidden_origin` | 403 | -32600 | The Origin of the request is not in origins
// `forbidden_host` | 403 | -32600 | The Host of the request is not in hosts
// `unknown_session` | 404 | -32001 | The session has ended, is older than seven days, or is another client's
// `invalid_params` | 200, 400 | -32602 | Unknown tool, prompt, resource or cursor; missing or ambiguous parameter
// `method_not_found` | 200, 404 | -32601 | At /mcp: the method does not exist
// `header_mismatch` | 400 | -32020 | See below
// `unsupported_version` | 400 | -32022 | At /mcp: the protocol revision is not supported
// `missing_capability` | 200 | -32021 | A server needs an answer that the client cannot give
// `input_refused` | 200 | the client's, -32042 | The client refused to answer a server, or a person to log in
// `login_required` | 200 | -32042 | A person must log in to the server. error.data.elicitations may have the URL
// `login_failed` | 502 | -32603 | The gateway cannot log in to the server, and another login would not help
//
// invalid_request means that the request is not a JSON object (batches are not supported), that its
// HTTP method, Content-Encoding or charset is not supported, that it did not arrive in time, or
// that it came in HTTP/3 early data. header_mismatch means that the headers of a request contradict
// its body: at /mcp with revision 2026-07-28, at other paths where a rule or auth applies.
//
// At /mcp, an error of one server has status 200, because clients take any other status as a
// failure of the whole connection.
//
// A web page can make a browser send requests to servers on the user's machine or network. With DNS
// rebinding it can do so under a host name of its own. As MCP requires, the gateway therefore
// refuses requests with an Origin that is neither local nor in origins, requests without one that
// the browser marks as cross-origin, and requests to a loopback address whose Host is neither local
// nor in hosts. If another proxy on the same machine forwards the original Host, add that host to
// hosts.
//
// With auth, every request needs credentials that one of the providers accepts. Without auth, a
// client has the identity that Caddy's authentication gives it, or is anonymous. The client block
// of a client says what it may use, how often, and what is redacted. A client without a block, and
// without a block for all others (client *), may use everything. Each refusal is logged by
// http.handlers.mcp_gateway.audit, counted in caddy_mcp_denied_total by client and reason, and
// emitted as the event mcp_access_denied.
//
// The gateway remembers the definition of each tool. If a definition changes, the gateway logs it,
// counts it in caddy_mcp_tool_changes_total and emits the event mcp_tool_changed. With pin_tools,
// it also withholds the tool until an operator accepts the change with the admin API. Control and
// bidirectional characters, which can hide text from people, are removed from descriptions.
//
// The metrics caddy_mcp_requests_total and caddy_mcp_request_duration_seconds count requests by
// gateway, server and method, the former also by outcome. A request to all servers counts once for
// each server that was contacted, and once without a server. The outcome is ok, error for a
// JSON-RPC error of the server, canceled, http_4xx and the like, or one of the symbols above. The
// access log has the same data for each request, in mcp_server, mcp_method, mcp_tool, mcp_client
// and mcp_error_code. Results are never logged; arguments are logged only if audit is set to
// arguments.
//
// These placeholders are set before the routes of a server run:
//
// Placeholder | Description
// ------------|-------------
// `{http.mcp.server}` | The name of the MCP server, even if the client used an alias
// `{http.mcp.method}` | The JSON-RPC method
// `{http.mcp.tool}` | The name of the tool or prompt, or of another target that has a name
// `{http.mcp.request_id}` | The ID of the JSON-RPC request
// `{http.mcp.client}` | The identity of the client, if it is known
type Handler struct {
	// The name of this gateway in metrics and the admin API. Used-up rates and hosted templates are
	// kept over reloads under this name. Gateways with the same name and mcp_path share them. Default:
	// none
	Name string `json:"name,omitempty"`

	// The MCP servers. At least one is required, unless servers_from is set.
	Servers []*Server `json:"servers,omitempty"`

	// JSON files with an mcpServers object, as MCP clients use them. Their servers are added to this
	// gateway. The files are read every second. When one changes, its servers are added, changed or
	// removed as by a reload: other servers keep their sessions, streams and child processes. A file
	// with an error changes nothing, and the servers of a file that disappears stay. Placeholders such
	// as {env.HOME} are replaced, and ~/ is the home folder. Default: none
	ServersFrom []string `json:"servers_from,omitempty"`

	// How long to wait for a server: at /rpc for the whole response, at other paths for the next byte.
	// At /mcp, the time a client takes to answer a request of the server does not count. Streams that
	// a client opens to listen may stay silent forever. Default: 30s
	ResponseTimeout caddy.Duration `json:"response_timeout,omitempty"`

	// How to shorten results, for servers without a mask of their own. Default: at /rpc like an
	// observation_mask without options; at other paths results are not shortened
	Mask *observationmask.Handler `json:"mask,omitempty"`

	// Give tools an argument with which clients say what they look for, so that results are cut to
	// what is relevant. It applies to servers that have a mask and no focus of their own. Default: no
	// such argument
	Focus *Focus `json:"focus,omitempty"`

	// Maximum size of a request in bytes. Requests are held in memory up to this size, and larger ones
	// are refused. Default: 10 MiB
	RequestLimit int64 `json:"request_limit,omitempty"`

	// Maximum number of bytes of all requests held in memory at a time. Beyond it, requests of more
	// than 64 KiB are refused with status 503. Originals that clients read as resources count, too. One
	// client may use half of it, and requests that are not yet authenticated a quarter. It must not be
	// less than request_limit. Default: 256 MiB, or a quarter of Go's memory limit if that is less
	InFlightLimit int64 `json:"in_flight_limit,omitempty"`

	// Maximum size of a response in bytes. A larger one is replaced by an error, or cut off if part of
	// it has been sent. Streams that a client opens to listen have no limit. Default: no limit;
	// responses are forwarded as they arrive
	ResponseLimit int64 `json:"response_limit,omitempty"`

	// Separator between the name of a server and the names of its tools and prompts at /mcp. Model
	// APIs accept only letters, digits, _ and - in names, so __ works with all of them. Clients can
	// always use ::, too. With none, names do not change; that requires a single server. Default: ::
	Separator string `json:"separator,omitempty"`

	// Maximum length of a name with its server and separator. Longer names are cut and end in a hash
	// of the full name. Default: 64
	MaxNameLength int `json:"max_name_length,omitempty"`

	// How long to wait for a server to connect and to list its tools. After that, clients get the
	// lists without it. A client with an open stream waits 2 seconds only, and is notified when the
	// server is available. Default: 15s
	JoinTimeout caddy.Duration `json:"join_timeout,omitempty"`

	// When to start servers that have no start of their own. lazy starts a server when a client needs
	// it, eager when the configuration is loaded. An eager child process runs from then on. With an
	// eager HTTP server the gateway connects once. Both are retried until they succeed. Default: lazy
	Start string `json:"start,omitempty"`

	// The key that seals session IDs. All replicas that share clients need the same key. It has at
	// least 32 characters and usually comes from the environment: {env.MCP_SESSION_KEY}. Default: the
	// key of mcp_store, or a random key that lasts as long as the process
	SessionKey string `json:"session_key,omitempty"`

	// Maximum number of idle sessions kept in memory, each for half an hour. Beyond it, the client
	// with the most idle sessions, by identity or address, loses its oldest. Such a session continues
	// from the state in its ID. Default: 100000
	MaxSessions int `json:"max_sessions,omitempty"`

	// List only the tools search_tools, describe_tool and call_tool, with which clients find and call
	// all others. It keeps many tool definitions out of contexts. Default: false
	Discovery bool `json:"discovery,omitempty"`

	// Name unavailable servers, and the reasons, in the instructions that clients get at mcp_path. A
	// client sees only the servers that it may use. Default: true
	ReportMissing *bool `json:"report_missing,omitempty"`

	// The path of the endpoint for all servers. Each server is served below it, over Streamable HTTP.
	// Default: /mcp
	MCPPath string `json:"mcp_path,omitempty"`

	// The path below which each server takes single JSON-RPC messages by POST. Default:
	// /api/mcp-gateway
	RPCPath string `json:"rpc_path,omitempty"`

	// Origins of web pages that may use the gateway, such as https://app.example.com, or * for all.
	// Local origins are always allowed. Default: none
	Origins []string `json:"origins,omitempty"`

	// Host names under which the gateway may be called, or * for any. localhost and loopback addresses
	// are always allowed. If set, the Host of every request is checked. Default: any name, except for
	// requests to a loopback address
	Hosts []string `json:"hosts,omitempty"`

	// The URL at which browsers reach the gateway, such as https://mcp.example.com. People who log in
	// to a server with oauth return to it. Default: the host of the client's request; for logins that
	// the operator starts, http://localhost with the port of the site
	PublicURL string `json:"public_url,omitempty"`

	// The providers that authenticate clients, in order. The first that identifies the client decides.
	// Default: none; every client may use the gateway
	AuthRaw []json.RawMessage `json:"auth,omitempty" caddy:"namespace=http.handlers.mcp_gateway.auth inline_key=provider"`

	// Do not warn that clients on other machines can use the gateway without credentials. Default:
	// false
	AllowUnauthenticated bool `json:"allow_unauthenticated,omitempty"`

	// Forward the credentials of clients to servers: Authorization, Cookie, and keys such as
	// X-Api-Key. At /mcp every server would get them. To give a server credentials of its own, use
	// request_header in its block. If clients log in to a server themselves, set this in the block of
	// that server only. Default: false
	ForwardAuthHeader bool `json:"forward_auth_header,omitempty"`

	// What each client may do. Default: everything
	Clients []*Client `json:"clients,omitempty"`

	// How often each client may make requests. Anonymous clients are counted by address. Default: no
	// limit
	Rates []*Rate `json:"rates,omitempty"`

	// How often to check whether servers are alive, at least 100ms apart. Child processes that are not
	// alive are restarted. Default: never; reverse_proxy has health checks of its own
	HealthInterval caddy.Duration `json:"health_interval,omitempty"`

	// How long to wait for the response to a health check. Default: 5s
	HealthTimeout caddy.Duration `json:"health_timeout,omitempty"`

	// Withhold a tool whose definition has changed since it was first seen, until an operator accepts
	// the change. Default: false
	PinTools bool `json:"pin_tools,omitempty"`

	// Which calls http.handlers.mcp_gateway.audit logs. denied logs refusals only. all also logs each
	// call of a tool, prompt or resource when it ends. arguments does the same as all and adds the
	// arguments, redacted by the rules of the client. Default: denied
	Audit string `json:"audit,omitempty"`

	// Keep the arguments and results of calls for the admin API, redacted by the rules of the client:
	// up to 64 KiB of each, for up to a day. Default: false
	Record bool `json:"record,omitempty"`

	// Which servers get a notification from a client. The first route that matches decides.
	// Notifications about a call always go to the server of that call. Default: all servers
	NotificationRoutes []*NotificationRoute `json:"notification_routes,omitempty"`

	gateway *gateway.Gateway
	auth    authenticator
	pins    pinStore
	byName  map[string]*Server // by name and alias
	logins  *logins            // nil if no server has oauth

	kept      keptState
	store     *mcpstore.Store // shared by replicas; nil without mcp_store
	templates *hostedTemplates

	placeholders *placeholderNames // used by the routes of servers

	paths      paths
	generation any    // identifies the Caddy configuration; equal for all its gateways
	rawConfig  []byte // the configuration as JSON, without defaults

	lifetime  lifetime
	place     *placement
	announcer announcer

	live   *liveGateway // runs the gateway if servers_from is set; otherwise nil
	shell  *Handler     // the handler whose live loaded this one; otherwise nil
	nested []*Handler   // if shell is set, the gateways in the routes of servers, which start with this one

	health  *healthChecker // nil until the configuration runs
	starter *starter       // nil until the configuration runs
	events  *caddyevents.App
	ctx     caddy.Context
	logger  *zap.Logger

	auditLogger *zap.Logger
}

// CaddyModule returns the Caddy module information.
func (Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_gateway",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets up the handler and its servers.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	h.auditLogger = h.logger.Named("audit")
	h.rawConfig = caddyconfig.JSON(h, nil)
	info, live := ctx.Value(shellKey{}).(shellInfo)
	nested := live && len(ctx.Modules()) > 1 // in the routes of a server
	if live && !nested {
		h.shell, h.lifetime, h.place = info.shell, info.shell.lifetime, info.shell.place
		info.setFiles(h.Servers)
	} else {
		h.lifetime = newLifetime()
		h.place = &placement{handler: h, publicURL: h.PublicURL}
		h.place.site, _ = ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	}
	app, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting events app: %w", err)
	}
	h.generation = app // one per configuration
	h.ctx, h.events = ctx, app.(*caddyevents.App)
	storepool.SetReadable(h.events)
	h.pins = pinStore{ctx: ctx, logger: h.logger, enabled: h.PinTools}
	switch {
	case nested:
		info.addNested(ctx, h)
	case h.shell == nil:
		// Subscribe first: the health checks of a reverse_proxy start when it is provisioned, and
		// emit events.
		if err := (lifecycle{h}).subscribe(); err != nil {
			return err
		}
	}
	if err := telemetry.Register(ctx, requests, durations, denials, redactions, invalidTools, toolChanges,
		loginCount, tokenRequests, fileLoads, mcpstdio.Healthy()); err != nil {
		return err
	}
	if len(h.ServersFrom) > 0 {
		h.live = &liveGateway{shell: h, ctx: ctx}
		return h.live.open()
	}
	if h.store, err = mcpstore.Open(ctx); err != nil {
		return err
	}
	if h.store != nil {
		h.pins.shared, h.pins.storeID = h.store.Space("pins"), storeID(h.store)
	}
	h.setDefaults()
	if err := h.claimSharedKey(); err != nil {
		return err
	}
	h.paths = newPaths(h.MCPPath, h.RPCPath)
	if h.logins, err = newLogins(h); err != nil {
		return fmt.Errorf("oauth: %w", err)
	}
	if err := h.provisionServers(ctx); err != nil {
		return err
	}
	if err := h.auth.load(ctx, h); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	h.paths.login, h.paths.metadata = h.logins != nil, h.auth.describer() != nil
	admits := h.sharedKey() + "\x00" + h.auth.fingerprint + "\x00" + digest(h.Clients) + "\x00"
	for _, s := range h.Servers {
		s.health.open(h.Name, s)
		s.streams.open(admits+s.id, h.lifetime.exiting)
	}
	if err := h.newGateway(); err != nil {
		return err
	}
	h.pins.follow(h.Servers, h.gateway.RefreshLocal) // other replicas follow the pins themselves
	h.templates = newHostedTemplates(h)
	if h.logins != nil {
		h.logins.follow(h.gateway)
	}
	return nil
}

// provisionServers sets up the servers, and their pins.
func (h *Handler) provisionServers(ctx caddy.Context) error {
	h.byName = make(map[string]*Server)
	for i, s := range h.Servers {
		if s == nil {
			return fmt.Errorf("servers[%d] is null", i)
		}
		s.id, s.source = serverID(h, s), serverSource(s)
		if err := s.provision(ctx, h); err != nil {
			return fmt.Errorf("server %q: %w", s.Name, err)
		}
		h.pins.open(s)
		for _, name := range s.names() {
			if h.byName[name] != nil {
				return fmt.Errorf("server %q: duplicate name or alias %q", s.Name, name)
			}
			h.byName[name] = s
		}
	}
	return nil
}

// shortestInterval is the minimum of health_interval.
const shortestInterval = 100 * time.Millisecond

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	if h.live != nil {
		return nil // the handler that it loaded is valid
	}
	check := newChecker(h)
	if err := check.settings(); err != nil {
		return err
	}
	if h.AllowUnauthenticated && len(h.auth.providers) > 0 {
		return errors.New("allow_unauthenticated: auth or a client token is configured")
	}
	for _, s := range h.Servers {
		err := s.validate()
		if err == nil {
			err = check.server(s)
		}
		if err != nil {
			return fmt.Errorf("server %q: %w", s.Name, err)
		}
	}
	for _, c := range h.Clients {
		if err := c.validate(); err != nil {
			return fmt.Errorf("client %q: %w", c.Name, err)
		}
	}
	for _, route := range h.NotificationRoutes {
		if err := route.validate(check.names); err != nil {
			return fmt.Errorf("notification_routes: %w", err)
		}
	}
	warner{h}.warn()
	return nil
}

// A lifetime has the contexts that last as long as the configuration. A shell and its handlers
// share it.
type lifetime struct {
	reauthenticate    context.Context // see [gateway.Config]
	endReauthenticate context.CancelFunc
	exiting           context.Context // done when Caddy exits
	exit              context.CancelFunc
}

func newLifetime() (l lifetime) {
	l.exiting, l.exit = context.WithCancel(context.Background())
	l.reauthenticate, l.endReauthenticate = context.WithCancel(context.Background())
	return l
}

// A lifecycle handles the events of the configuration. It is a type of its own because Caddy logs
// event handlers, and Handler contains secrets.
type lifecycle struct{ handler *Handler }

// subscribe subscribes to the start and stop of the configuration. A shell passes them on to its
// handler.
func (l lifecycle) subscribe() error {
	for _, event := range []string{"started", "stopping"} {
		if err := l.handler.events.On(event, l); err != nil {
			return err
		}
	}
	return nil
}

// Handle runs when the configuration has started or is stopping. If Caddy exits, it ends the
// streams on which clients listen, because Caddy waits for all requests, and these would never end.
// A reload keeps them.
func (l lifecycle) Handle(_ context.Context, event caddy.Event) error {
	h := l.handler
	switch {
	case event.Name() == "started":
		h.start()
	case caddy.Exiting():
		h.lifetime.exit()
	}
	return nil
}

// start runs once the configuration has started.
func (h *Handler) start() {
	if h.live != nil {
		h.live.start()
		return
	}
	for _, inner := range h.nested {
		inner.start()
	}
	registry.add(h)
	for _, s := range h.Servers {
		h.pins.retry(s)
		s.answerChildren()
		if h.store != nil {
			s.watchChildren(h.gateway)
		}
	}
	if forOneCommand || h.starter != nil {
		return
	}
	h.announcer.announce(h)
	h.starter = &starter{gateway: h.gateway, timeout: time.Duration(h.JoinTimeout), logger: h.logger}
	h.starter.start(h.lifetime.exiting, h.Servers, h.reloadKey())
	h.health = &healthChecker{
		interval: time.Duration(h.HealthInterval), timeout: time.Duration(h.HealthTimeout), logger: h.logger,
	}
	h.health.start(h.Servers)
}

// ServeHTTP serves the endpoints of the gateway and forwards all other requests to next.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if h.live != nil {
		return h.live.current.Load().ServeHTTP(w, r, next)
	}
	if r.ProtoMajor > 1 { // in a goroutine of its own
		growStack(0)
	}
	loc, target, resource := h.paths.find(r.URL)
	switch loc {
	case otherPath:
		return h.serveNext(w, r, next)
	case probe:
		return h.serveReadiness(w, r)
	case metadata:
		return h.auth.serveMetadata(w, r, resource)
	case loginPages:
		return h.logins.serve(w, r, h.originPolicy())
	}
	r = h.logins.withSubject(r)
	peer := peerOf(r)
	if target.Kind == upstream.Aggregate {
		// Side requests get the values that the request has now, before routes change them.
		i := inherit(r)
		i.names = h.placeholders
		peer.Inherited = i
	}
	q := h.gateway.NewRequest(w, r, target, peer)
	telemetry.JoinAccessLog(r, q)
	if failure := h.originPolicy().Admit(r); failure != nil {
		q.Refuse(failure)
		return nil
	}
	q.Serve()
	return nil
}

// growStack makes the stack of a new goroutine large enough for a call. Otherwise it grows in steps,
// and each copies more frames than the one before.
//
//go:noinline
func growStack(i uint8) byte {
	var frame [16 << 10]byte
	return frame[i]
}

// originPolicy refuses requests that a web page of another origin may have caused.
func (h *Handler) originPolicy() clientrequest.Policy {
	return clientrequest.Policy{Directive: "mcp_gateway", Origins: h.Origins, Hosts: h.Hosts}
}

// Cleanup stops the gateway. If another handler replaces this one, that handler takes over the
// clients.
func (h *Handler) Cleanup() error {
	if h.live != nil {
		h.live.stop()
		return nil
	}
	if h.currentSibling() == nil && !caddy.Exiting() {
		h.lifetime.endReauthenticate()
	}
	registry.remove(h)
	h.announcer.stop()
	h.starter.stop()
	h.health.stop()
	for _, s := range h.Servers {
		if s != nil {
			s.health.close()
		}
	}
	if h.gateway != nil && caddy.Exiting() { // after a reload, earlier calls may still send side requests
		h.gateway.WaitForSideRequests()
	}
	if h.templates != nil {
		h.templates.close()
	}
	if h.logins != nil {
		h.logins.close()
	}
	h.pins.flush(h.Servers)
	var err error
	for _, s := range h.Servers {
		if s != nil {
			err = errors.Join(err, s.cleanup())
		}
	}
	return errors.Join(err, h.closeGateway(), h.store.Release())
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyevents.Handler         = lifecycle{}
)
