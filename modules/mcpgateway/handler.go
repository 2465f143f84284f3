// Package mcpgateway puts MCP servers behind one door: the HTTP handler
// http.handlers.mcp_gateway.
package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/auth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

func init() {
	caddy.RegisterModule(Handler{})
}

// Handler is a gateway to MCP servers. Each server has a name and is an ordinary
// list of routes, mostly a reverse_proxy: whatever Caddy can do on the way to an
// upstream can be done on the way to an MCP server. The gateway finds the server
// that a request is for, masks what is too large in its answer as observation_mask
// does, and counts and logs what was called.
//
// Path | What is served there
// -----|---------------------
// `/mcp` | All servers as one, over Streamable HTTP, for clients and servers of every revision of the protocol in any mixture. The name of a server stands before those of its tools and prompts
// `/mcp/{server}` | The server as it is, over Streamable HTTP: POST, GET and DELETE pass with their statuses, sessions and event streams, and with the headers that cannot lead a client elsewhere. Servers of the older HTTP+SSE transport work, too
// `/api/mcp-gateway/{server}/rpc` | One JSON-RPC message by POST, one JSON answer: no handshake, no session, no event stream
// `/mcp/health` | Whether every server that is not optional is up, for probes: status 200 or 503. It needs no credentials and contacts no server
//
// Every other request goes to the next handler untouched. If no handler answers it, the gateway
// does, with a 404 that names these paths. Otherwise Caddy would send an empty 200.
//
// What a server does not answer, the gateway answers with a JSON-RPC error that has
// the id of the request, or null if that was refused before it was read. Its error.data.code tells what has happened:
//
// Symbol | Status | Code | What has happened
// -------|--------|------|------------------
// `unknown_server` | 404 | -32001 | There is no server of this name
// `timeout` | 502, 200 | -32002 | The server did not answer in time; or, with 200, the person who was asked to confirm the call
// `connect_error` | 502 | -32002 | The server cannot be reached, or broke off
// `invalid_json` | 502 | -32003 | The answer is not JSON (/rpc only)
// `invalid_response` | 502 | -32003 | The answer is not a JSON-RPC response, cannot be looked at, or has more than response_limit bytes
// `http_error` | 502 | -32603 | The server answered with a redirect or, at /rpc, with any other status than 200; or a handler on the way refused the request with its status
// `invalid_request` | 400, 405, 408, 415, 425 | -32600 | The request is not a JSON object (batches are not taken), has another HTTP method, a Content-Encoding or a charset other than utf-8, did not arrive in time, or came in early data of HTTP/3
// `parse_error` | 400 | -32700 | The request is not JSON
// `busy` | 503 | -32002 | The gateway holds as many bytes of requests, or of answers that the client has not read, as it may
// `payload_too_large` | 413 | -32600 | The request has more than request_limit bytes, or the client says more than 16 KiB of itself
// `unauthorized` | 401 | -32600 | The client has no credentials that auth, or a handler on the way to the server, takes
// `acl_denied` | 403 | -32600 | The client may not use this
// `rate_limited` | 429 | -32600 | The client has used up a rate. Retry-After says when it can go on
// `store_unavailable` | 503 | -32002 | A rate or the nonce of a signature cannot be checked, because mcp_store is unavailable
// `tool_changed` | 403 | -32600 | The definition of the tool is not what it was, and pin_tools is on
// `confirmation_required` | 403 | -32600 | A person has to confirm the call, and the client cannot be asked
// `confirmation_declined` | 200 | -32600 | The person at the client did not confirm the call
// `forbidden_origin` | 403 | -32600 | The Origin of the request is not one of origins
// `forbidden_host` | 403 | -32600 | The Host of the request is not one of hosts
// `unknown_session` | 404 | -32001 | The session has ended, is older than seven days, never was, or belongs to another client
// `invalid_params` | 200, 400 | -32602 | There is no such tool, prompt, resource or cursor, something is missing, or nobody can know what is meant
// `method_not_found` | 200, 404 | -32601 | At /mcp: there is no such method
// `header_mismatch`, `unsupported_version` | 400 | -32020, -32022 | The headers of a request do not say what its body says: at /mcp for 2026-07-28, elsewhere where a rule or auth applies; or at /mcp it is of another revision
// `missing_capability`, `input_refused` | 200 | -32021 or the client's | A server needs an answer that the client cannot, or does not want to, give; or a person declined to log in (-32042)
// `login_required` | 200 | -32042 | A person has to log in to the server first. error.data.elicitations has the address to open, if the client can do it
// `login_failed` | 502 | -32603 | The gateway cannot log in to the server, and another login would not help
//
// At /mcp, what goes wrong at one server comes with status 200, because clients take
// any other for a fault of the connection to all of them.
//
// A web page can have the browser of its reader send requests to servers on the
// reader's machine or in its network, under a name of its own if it makes that
// resolve to their address (DNS rebinding). Therefore, as the protocol demands,
// requests with an Origin are refused unless it is local or one of origins, requests
// without one if the browser says that a page of another origin has sent them, and
// requests that come in at a loopback address unless their Host is local or one of
// hosts. Behind another proxy on the same machine, which passes on the Host it was
// asked for, that host has to be named.
//
// With auth, every request needs credentials that one of the providers takes; without,
// clients are who Caddy's authentication says they are, or anonymous. What a client may
// see and use, how often, and what of it is redacted, its client block says. Those for
// whom there is none, nor one for all others (client *), may use everything. Each
// refusal is one line of the logger http.handlers.mcp_gateway.audit, one
// caddy_mcp_denied_total by client and reason, and one event mcp_access_denied.
//
// Tools are known by their definitions. One that changes after it was first seen is
// logged, counted in caddy_mcp_tool_changes_total, an event mcp_tool_changed and, with
// pin_tools, withheld until it is accepted by the admin API. Control and bidirectional characters, with which
// texts can be hidden from people, are taken out of descriptions.
//
// The metrics caddy_mcp_requests_total and caddy_mcp_request_duration_seconds count
// requests by gateway, server and method, and the former by outcome. What is asked of
// all servers at once counts for each that had to be asked, and once without a server.
// Outcomes are ok, error for
// JSON-RPC errors of the server, canceled, http_4xx and the like, or one of the
// symbols above. In the access log, mcp_server, mcp_method, mcp_tool, mcp_client and
// mcp_error_code tell the same of each request. Results are never logged, and
// arguments only if audit says so.
//
// These placeholders are set before the routes of a server run:
//
// Placeholder | Description
// ------------|-------------
// `{http.mcp.server}` | The name of the MCP server, also if it was called by an alias
// `{http.mcp.method}` | The JSON-RPC method
// `{http.mcp.tool}` | The name of the tool, prompt or other thing called by name
// `{http.mcp.request_id}` | The id of the JSON-RPC request
// `{http.mcp.client}` | Who the client is, if anybody knows
type Handler struct {
	// The name of this gateway in metrics and the admin API. What clients have used of
	// their rates, and hosted templates, is found by it after a reload; gateways of the
	// same name share that. Default: none
	Name string `json:"name,omitempty"`

	// The MCP servers. There must be one at least, or a file in servers_from.
	Servers []*Server `json:"servers,omitempty"`

	// JSON files with an mcpServers object, as MCP clients have them, whose servers are added. The
	// files are read every second. When one changes, servers are added, changed and removed as by a
	// reload: sessions, streams and child processes of the others stay. Content with an error
	// changes nothing, and a file that disappears keeps its servers. Placeholders such as
	// {env.HOME} are replaced, and ~/ is the home folder. Default: none
	ServersFrom []string `json:"servers_from,omitempty"`

	// How long a server may take: at /rpc for the whole answer, at /mcp until its
	// next byte. Where all servers are one, the time in which the client has a
	// question of the server to answer does not count. Streams that a client opens to
	// listen may be silent forever.
	// Default: 30s
	ResponseTimeout caddy.Duration `json:"response_timeout,omitempty"`

	// How the results of servers are masked that do not say so themselves. Default: by
	// plain POST as by a bare observation_mask, elsewhere not at all
	Mask *observationmask.Handler `json:"mask,omitempty"`

	// Whether tools of servers whose results are masked have an argument that says what a client
	// looks for, unless these say so themselves. Default: they have none
	Focus *Focus `json:"focus,omitempty"`

	// Requests of more bytes are refused; so much of each is held in memory.
	// Default: 10 MiB
	RequestLimit int64 `json:"request_limit,omitempty"`

	// How many bytes of requests are held at once. Beyond that, requests of more than 64
	// KiB are refused with status 503. A single client may take half of it, and requests
	// whose sender is not known yet a quarter. Default: 256 MiB, or a quarter of Go's
	// memory limit if that is less
	InFlightLimit int64 `json:"in_flight_limit,omitempty"`

	// Responses of more bytes are cut off, or answered with an error as long as
	// nothing has been sent. Streams that a client opens to listen have no limit.
	// Default: no limit; responses are passed on as they arrive
	ResponseLimit int64 `json:"response_limit,omitempty"`

	// What stands between the name of a server and that of its tool or prompt where
	// all servers are one. Model APIs take letters, digits, _ and - only: __ is what
	// clients can pass on to all of them. Tools can always be called with ::, too.
	// none shows a single server as it is. Default: ::
	Separator string `json:"separator,omitempty"`

	// The longest that such a name may be. Longer ones are cut, and end in letters
	// that stand for what they were. Default: 64
	MaxNameLength int `json:"max_name_length,omitempty"`

	// How long a server may take to shake hands, or to list what it has, before all
	// others are shown without it. A client that listens is shown them after 2 seconds, and
	// told when the server is there. Default: 15s
	JoinTimeout caddy.Duration `json:"join_timeout,omitempty"`

	// When servers are started that do not say so themselves: lazy when a client needs them, or
	// eager when the configuration runs. An eager child process runs from then on. With an
	// eager server that is reached over HTTP the gateway shakes hands once. Both are tried again
	// until they are there. Default: lazy
	Start string `json:"start,omitempty"`

	// What seals the session ids of clients: the same at all replicas that share
	// clients. At least 32 characters, mostly from the environment:
	// {env.MCP_SESSION_KEY}. Default: random, for as long as the process lives
	SessionKey string `json:"session_key,omitempty"`

	// How many clients that do nothing are remembered, for half an hour. If there are
	// more, the one that has the most of them, by who it is or its address, loses the
	// oldest. Sessions go on from what their ids carry. Default: 100000
	MaxSessions int `json:"max_sessions,omitempty"`

	// List three tools, search_tools, describe_tool and call_tool, in place of all.
	// Default: false
	Discovery bool `json:"discovery,omitempty"`

	// Name the servers that cannot be reached, and why, in the instructions that clients get at
	// mcp_path. A client gets the names of those servers only that it may use. Default: true
	ReportMissing *bool `json:"report_missing,omitempty"`

	// Below which path servers are served over Streamable HTTP. All servers as one
	// are served at the path itself. Default: /mcp
	MCPPath string `json:"mcp_path,omitempty"`

	// Below which path servers are served by plain POST. Default: /api/mcp-gateway
	RPCPath string `json:"rpc_path,omitempty"`

	// Web pages of these origins may use the gateway, besides local ones: such as
	// https://app.example.com, or * for all. Default: none
	Origins []string `json:"origins,omitempty"`

	// The gateway may be called by these names, besides localhost and loopback
	// addresses, or * for any. If it is given, the Host of every request is
	// checked. Default: any name, except at a loopback address
	Hosts []string `json:"hosts,omitempty"`

	// Where browsers reach the gateway, such as https://mcp.example.com. People who log in to
	// a server with oauth come back there. Default: where the request of the client went to;
	// for the operator http://localhost, at the port of the site
	PublicURL string `json:"public_url,omitempty"`

	// What finds out who clients are. They are asked in their order; one that knows the
	// client is enough. Default: none, and everybody may use the gateway
	AuthRaw []json.RawMessage `json:"auth,omitempty" caddy:"namespace=http.handlers.mcp_gateway.auth inline_key=provider"`

	// Do not warn that clients on other machines can use the gateway without credentials.
	// Default: false
	AllowUnauthenticated bool `json:"allow_unauthenticated,omitempty"`

	// Pass the credentials of clients on to servers: Authorization, Cookie, and keys such
	// as X-Api-Key. What a client is known by is for one, and where all servers are one, all of them would get it. So
	// servers that need credentials get their own by request_header, and those that let
	// clients log in themselves need this in their block. Default: false
	ForwardAuthHeader bool `json:"forward_auth_header,omitempty"`

	// What clients may do. Default: everything
	Clients []*Client `json:"clients,omitempty"`

	// How often each client may make requests; of those that nobody knows, each
	// address. Default: as often as they like
	Rates []*Rate `json:"rates,omitempty"`

	// How often it is tried whether servers are alive. Child processes that are not are
	// started again. Default: never, except by the health checks of a reverse_proxy
	HealthInterval caddy.Duration `json:"health_interval,omitempty"`

	// How long a server has to show that it is alive. Default: 5s
	HealthTimeout caddy.Duration `json:"health_timeout,omitempty"`

	// Withhold tools whose definition has changed since it was first seen, until it is
	// accepted. Default: false
	PinTools bool `json:"pin_tools,omitempty"`

	// What is logged of calls by http.handlers.mcp_gateway.audit: denied for refusals only, all for calls of tools,
	// prompts and resources as well, each when it has ended, arguments for these with their arguments, redacted by
	// the rules of the client. Default: denied
	Audit string `json:"audit,omitempty"`

	// Keep the arguments and results of calls for the admin API, without what is redacted for the client: of each up
	// to 64 KiB, for up to a day. Default: false
	Record bool `json:"record,omitempty"`

	// To which servers notifications of clients are passed on, other than those about
	// calls, which go where they belong. The first route that fits decides. Default: to
	// all
	NotificationRoutes []*NotificationRoute `json:"notification_routes,omitempty"`

	gateway *gateway.Gateway
	auth    authenticator
	pins    pinStore
	byName  map[string]*Server // and by alias
	pages   *login.Pages       // nil if no server has oauth

	loginStore oauth.Store     // has the logins, encrypted
	logins     *replicas.Space // of all replicas; nil if there are no others
	stopLogins func()          // ends following theirs; nil if there is nothing to end

	retained *gateway.Retained // what outlives a reload, besides clients
	stateKey string            // of the clients of gateway, in states
	store    *mcpstore.Store   // what replicas share; nil if there are none

	templates *sharedTemplates // nil if there are no other replicas

	placeholders *placeholderNames // that the routes of servers use

	belowMCP, belowRPC string // how the escaped paths of requests begin, slash included
	generation         any    // the configuration that this is part of
	loaded             []byte // as the configuration has it, without defaults

	reauthenticate    context.Context // see [gateway.Config]
	endReauthenticate context.CancelFunc
	exiting           context.Context // done when Caddy exits
	exit              context.CancelFunc

	site    *caddyhttp.Server // that the handler stands in; nil if it is loaded alone
	guarded bool              // a handler in front authenticates clients
	told    string            // the key in announcements; empty before that

	live  *live    // runs the gateway if there are servers_from; nil otherwise
	shell *Handler // whose live has made this one; nil if none has

	recordKeys []string // of the records of servers

	health  *health  // nil unless servers are checked
	starter *starter // nil unless the configuration runs
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
	h.loaded = caddyconfig.JSON(h, nil)
	h.findShell(ctx)
	h.openLifetime()
	app, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting events app: %w", err)
	}
	h.generation = app // each configuration has one
	h.ctx, h.events = ctx, app.(*caddyevents.App)
	h.site, _ = ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	h.pins = pinStore{ctx: ctx, logger: h.logger, on: h.PinTools}
	// Before anything else: the health checks of a reverse_proxy begin when that is
	// provisioned, and emit events themselves.
	if err := h.subscribe(); err != nil {
		return err
	}
	if err := telemetry.Register(ctx, requests, durations, denials, redactions, invalidTools, toolChanges,
		loginCount, tokenRequests, fileLoads, mcpstdio.Healthy()); err != nil {
		return err
	}
	if len(h.ServersFrom) > 0 {
		return h.provisionLive(ctx)
	}
	if h.store, err = mcpstore.Open(ctx); err != nil {
		return err
	}
	if h.store != nil {
		h.pins.common, h.pins.storeID = h.store.Space("pins"), h.storeID()
	}
	h.setDefaults()
	if err := h.claimPlace(); err != nil {
		return err
	}
	h.belowMCP, h.belowRPC = below(h.MCPPath), below(h.RPCPath)
	h.byName = make(map[string]*Server)
	if err := h.openPages(); err != nil {
		return fmt.Errorf("oauth: %w", err)
	}
	for i, s := range h.Servers {
		if s == nil {
			return fmt.Errorf("servers: number %d is null", i)
		}
		s.id, s.source = serverID(h, s), serverSource(s)
		if err := s.provision(ctx, h); err != nil {
			return fmt.Errorf("server %q: %w", s.Name, err)
		}
		if err := h.pins.open(s); err != nil {
			return fmt.Errorf("server %q: %w", s.Name, err)
		}
		for _, name := range s.names() {
			if h.byName[name] != nil {
				return fmt.Errorf("server %q: the name or alias %q is given twice", s.Name, name)
			}
			h.byName[name] = s
		}
	}
	if err := h.loadProviders(ctx); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	h.openRecords()
	if err := h.openStreams(); err != nil {
		return err
	}
	if err := h.newGateway(); err != nil {
		return err
	}
	h.pins.follow(h.Servers, h.gateway.RefreshHere) // other replicas follow them, too
	h.followTemplates()
	h.followLogins()
	return nil
}

// openLifetime makes the contexts that last as long as the configuration.
func (h *Handler) openLifetime() {
	if s := h.shell; s != nil {
		h.exiting, h.exit, h.reauthenticate, h.endReauthenticate = s.exiting, s.exit, s.reauthenticate, s.endReauthenticate
		return
	}
	h.exiting, h.exit = context.WithCancel(context.Background())
	h.reauthenticate, h.endReauthenticate = context.WithCancel(context.Background())
}

// subscribe has the handler told when the configuration starts and stops. A shell passes that on.
func (h *Handler) subscribe() error {
	if h.shell != nil {
		return nil
	}
	for _, event := range []string{"started", "stopping"} {
		if err := h.events.On(event, lifecycle{h}); err != nil {
			return err
		}
	}
	return nil
}

// shortestInterval is how often servers may be tried.
const shortestInterval = 100 * time.Millisecond

// below returns how escaped paths begin that lie below a path.
func below(path string) string {
	return strings.TrimSuffix((&url.URL{Path: path}).EscapedPath(), "/") + "/"
}

// Validate ensures that the configuration makes sense.
func (h *Handler) Validate() error {
	if h.live != nil {
		return nil // the handler in it is valid
	}
	if err := h.validateSettings(); err != nil {
		return err
	}
	if h.AllowUnauthenticated && len(h.auth.providers) > 0 {
		return errors.New("allow_unauthenticated: there is auth, or a client with a token")
	}
	for _, s := range h.Servers {
		err := s.validate()
		if err == nil {
			err = h.checkNames(s)
		}
		if err == nil {
			err = h.checkFocus(s)
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
		if err := route.validate(h); err != nil {
			return fmt.Errorf("notification_routes: %w", err)
		}
	}
	h.warn()
	return nil
}

// A lifecycle handles the events of the configuration. Caddy logs the handlers of events, and
// the Handler itself has secrets.
type lifecycle struct{ handler *Handler }

// Handle is called when the configuration has been started, or is being stopped. If Caddy
// exits, streams that clients have opened to listen are ended: Caddy waits for all
// requests, and these would never end. A reload leaves them alone.
func (l lifecycle) Handle(_ context.Context, event caddy.Event) error {
	h := l.handler
	switch {
	case event.Name() == "started":
		h.start()
	case caddy.Exiting():
		h.exit()
	}
	return nil
}

// start is called when the handler serves.
func (h *Handler) start() {
	if h.live != nil {
		h.live.start()
		return
	}
	h.register()
	for _, s := range h.Servers {
		s.answerChildren()
		if h.store != nil {
			s.watchChildren(h.gateway)
		}
	}
	if forOneCommand {
		return
	}
	h.announce()
	h.startServers()
	h.startHealth()
}

// ServeHTTP answers requests to MCP servers.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if h.live != nil {
		return h.live.current.Load().ServeHTTP(w, r, next)
	}
	at, to, resource := h.find(r.URL)
	switch at {
	case elsewhere:
		return h.serveNext(w, r, next)
	case probe:
		return h.serveReadiness(w, r)
	case metadata:
		return h.serveMetadata(w, r, resource)
	case loginPages:
		return h.servePages(w, r)
	}
	r = h.withSubject(r)
	peer := peerOf(r)
	if to.Kind == upstream.Aggregate {
		// Requests besides the call start from these, and not from what its routes make of them.
		i := inherit(r)
		i.names = h.placeholders
		peer.Inherited = i
	}
	q := h.gateway.NewRequest(w, r, to, peer)
	telemetry.JoinAccessLog(r, q)
	if failure := h.checkOrigin(r); failure != nil {
		q.Refuse(failure)
		return nil
	}
	q.Serve()
	return nil
}

// Cleanup hands the clients over to the handler that takes the place of this one, if there
// is one.
func (h *Handler) Cleanup() error {
	if h.live != nil {
		h.live.stop()
		return nil
	}
	if h.incumbent() == nil && !caddy.Exiting() {
		h.endReauthenticate()
	}
	registry.remove(h)
	h.stopAnnouncing()
	h.stopStarting()
	h.stopHealth()
	h.closeRecords()
	if h.gateway != nil && caddy.Exiting() { // after a reload, earlier calls may still send some
		h.gateway.WaitForSideRequests()
	}
	if h.templates != nil {
		h.templates.stop()
	}
	if h.stopLogins != nil {
		h.stopLogins()
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

// A location is what is served at a path.
type location uint8

const (
	elsewhere  location = iota // the next handler
	endpoint                   // of the gateway
	probe                      // whether servers are up
	metadata                   // how clients authenticate
	loginPages                 // where people log in to servers
)

// find returns what is served at a path: an endpoint, or metadata of a resource.
func (h *Handler) find(u *url.URL) (at location, to inbound.Endpoint, resource string) {
	path := u.EscapedPath()
	if path == h.belowMCP || path == strings.TrimSuffix(h.belowMCP, "/") {
		return endpoint, inbound.Endpoint{Kind: upstream.Aggregate}, ""
	}
	if rest, ok := strings.CutPrefix(path, h.belowMCP); ok {
		if h.pages != nil && strings.HasPrefix(rest, login.Segment+"/") {
			return loginPages, inbound.Endpoint{}, ""
		}
		rest = strings.TrimSuffix(rest, "/")
		if rest == healthSegment {
			return probe, inbound.Endpoint{}, ""
		}
		return serverEndpoint(upstream.Single, rest)
	}
	if rest, ok := strings.CutPrefix(path, h.belowRPC); ok {
		if name, ok := strings.CutSuffix(rest, "/rpc"); ok {
			return serverEndpoint(upstream.RPC, name)
		}
	}
	if resource, ok := strings.CutPrefix(path, auth.MetadataPath); ok && h.auth.describer() != nil {
		return h.described(resource)
	}
	return elsewhere, inbound.Endpoint{}, ""
}

// serverEndpoint returns the endpoint of a server whose name is one segment of a path.
func serverEndpoint(kind upstream.EndpointKind, escaped string) (location, inbound.Endpoint, string) {
	name, err := url.PathUnescape(escaped)
	if err != nil || name == "" || strings.Contains(escaped, "/") {
		return elsewhere, inbound.Endpoint{}, ""
	}
	return endpoint, inbound.Endpoint{Kind: kind, Server: name}, ""
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddy.CleanerUpper          = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyevents.Handler         = lifecycle{}
)
