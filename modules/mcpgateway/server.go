package mcpgateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/gateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

// Server is an MCP server behind the gateway.
type Server struct {
	// The name of the server in paths, metrics and logs. Names and aliases must be unique; upper and
	// lower case differ. Required.
	Name string `json:"name,omitempty"`

	// Other names under which clients can call the server. Default: none
	Aliases []string `json:"aliases,omitempty"`

	// The path, and query, of all requests to the server. Its routes see this path; clients cannot
	// change it. Default: /rpc
	Path string `json:"path,omitempty"`

	// How long to wait for a response of the server. Default: the gateway's response_timeout
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// When to start the server: lazy or eager. Default: the gateway's start
	Start string `json:"start,omitempty"`

	// How to shorten its results. Default: the gateway's mask
	Mask *observationmask.Handler `json:"mask,omitempty"`

	// Whether its tools get an argument with which clients say what they look for. Default: the
	// gateway's focus
	Focus *Focus `json:"focus,omitempty"`

	// The tools to list at /mcp, as patterns in which * matches any characters. Other tools cannot be
	// called there. Default: all
	Expose []string `json:"expose,omitempty"`

	// Changes to how clients see its tools and to the calls that the server gets, by the server's own
	// names of the tools. The rest of the configuration, metrics and logs use these names, too.
	// Default: no changes
	Tools map[string]*ToolOverride `json:"tools,omitempty"`

	// Forward the credentials of clients to this server. Default: the gateway's forward_auth_header
	ForwardAuthHeader *bool `json:"forward_auth_header,omitempty"`

	// Report the gateway as ready at /mcp/health even while this server is down. Default: false
	Optional bool `json:"optional,omitempty"`

	// How the gateway logs in to the server. Default: no login
	OAuth *login.Config `json:"oauth,omitempty"`

	// How to handle requests and notifications that the server sends to clients. Default: deliver them
	Answers []*Answer `json:"answers,omitempty"`

	// The handlers that forward requests to the server, or respond themselves. Required.
	Routes caddyhttp.RouteList `json:"routes,omitempty"`

	id         string // changes with any setting that clients can notice
	source     string // identifies where its tools come from; see serverSource
	file       string // the file of servers_from; empty if part of the configuration
	pins       *serverPins
	savingPins upstream.SideRequests // running saves of pins
	retryPins  *time.Timer           // saves pins after a failed save; nil before; guarded by pins.mu
	target     *url.URL              // the parsed Path
	routes     caddyhttp.Handler
	login      *login.Login             // nil without oauth
	mask       *observationmask.Handler // nil if nothing is shortened
	hasMask    bool                     // the configuration sets a mask
	focus      *toolview.Focus          // nil for none
	server     *upstream.Server         // this server in internal/gateway

	overrides *toolview.Overrides // made of Tools; nil for none

	isDefaultPath bool // Path is the default

	streams   serverStreams
	releases  []func()    // undo answerChildren and watchChildren
	replaced  atomic.Bool // a newer configuration is in use
	upstreams upstreams   // found in the routes
	health    serverHealth
	checking  chan struct{} // holds a value while the admin API checks the server
}

func (s *Server) provision(ctx caddy.Context, h *Handler) error {
	s.isDefaultPath = s.Path == ""
	if s.isDefaultPath {
		s.Path = "/rpc"
	}
	s.Timeout = cmp.Or(s.Timeout, h.ResponseTimeout)
	s.Start = cmp.Or(s.Start, h.Start)
	target, err := parsePath(s.Path)
	if err != nil {
		return fmt.Errorf("path: %w", err)
	}
	s.target, s.checking = target, make(chan struct{}, 1)
	if err := s.provisionMask(ctx, h.Mask); err != nil {
		return fmt.Errorf("mask: %w", err)
	}
	if err := s.provisionFocus(h.Focus); err != nil {
		return fmt.Errorf("focus: %w", err)
	}
	if s.overrides, err = s.newOverrides(caddy.NewReplacer()); err != nil {
		return err
	}
	for _, a := range s.Answers {
		if err := a.provision(); err != nil {
			return fmt.Errorf("answers: %w", err)
		}
	}
	s.ForwardAuthHeader = cmp.Or(s.ForwardAuthHeader, &h.ForwardAuthHeader)
	for _, route := range s.Routes {
		for i, handler := range route.HandlersRaw {
			route.HandlersRaw[i] = withTransport(handler)
		}
	}
	if err := s.Routes.Provision(ctx); err != nil {
		return err
	}
	s.upstreams = findUpstreams(s.Routes)
	if s.OAuth != nil {
		if s.login, err = h.logins.add(s.Name, s.OAuth); err != nil {
			return fmt.Errorf("oauth: %w", err)
		}
	}
	routes := s.Routes.Compile(caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
		return jsonrpc.NoHandler(s.Name)
	}))
	s.routes = caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		defer s.closeIdle()
		return routes.ServeHTTP(w, r)
	})
	return nil
}

// closeIdle closes idle connections if the configuration has been replaced. Caddy closes them only
// once, when it replaces the configuration. Streams and ending sessions use the old configuration
// longer, and would leave connections open for minutes.
func (s *Server) closeIdle() {
	if s.replaced.Load() {
		for _, pool := range s.upstreams.pools {
			pool.CloseIdleConnections()
		}
	}
}

// config converts the server for internal/gateway.
func (s *Server) config() *upstream.Server {
	s.server = &upstream.Server{
		Name: s.Name, ID: s.id, Source: s.source, Aliases: s.Aliases, Expose: s.Expose, Overrides: s.overrides,
		Routes: route{s}, Target: s.target, Timeout: time.Duration(s.Timeout),
		ForwardAuth: *s.ForwardAuthHeader, MaskMCP: s.hasMask, Focus: s.focus, Pins: &s.pins.Pins,
		Streams: s.streams.scope.Context, ChildrenOnly: len(s.upstreams.children) > 0 && len(s.upstreams.proxied) == 0,
	}
	for _, proxied := range s.upstreams.proxied {
		s.server.Hosts = append(s.server.Hosts, proxied.Dial)
	}
	s.server.URL, s.server.DefaultPath = s.upstreams.url(s.target), s.isDefaultPath
	if s.mask != nil {
		s.server.Mask = mask{s.mask}
	}
	if s.login != nil {
		s.server.Login = s.login
	}
	for _, a := range s.Answers {
		s.server.Answers = append(s.server.Answers, a.config())
	}
	return s.server
}

// cleanup releases the resources of the server.
func (s *Server) cleanup() error {
	for _, release := range s.releases {
		release()
	}
	s.replaced.Store(true)
	s.pins.release()
	return s.streams.close()
}

// provisionMask loads the mask of the server, or else a copy of fallback. The mask gets the name of
// the server.
func (s *Server) provisionMask(ctx caddy.Context, fallback *observationmask.Handler) error {
	var config observationmask.Handler
	switch {
	case s.Mask != nil:
		config, s.hasMask = *s.Mask, true
	case fallback != nil:
		config, s.hasMask = *fallback, true
	}
	config.Server = cmp.Or(config.Server, s.Name)
	module, err := ctx.LoadModuleByID("http.handlers.observation_mask", caddyconfig.JSON(config, nil))
	if err != nil {
		return err
	}
	if config.MaxChars == nil || *config.MaxChars > 0 {
		s.mask = module.(*observationmask.Handler)
	}
	return nil
}

// names returns the name and the aliases.
func (s *Server) names() []string { return append([]string{s.Name}, s.Aliases...) }

// errChildLogin is the error for oauth on a server that is a child process.
var errChildLogin = errors.New("oauth: a child process has no login; pass credentials with env")

// validate checks a provisioned server.
func (s *Server) validate() error {
	if err := s.check(); err != nil {
		return err
	}
	for _, a := range s.Answers {
		if err := a.validate(); err != nil {
			return fmt.Errorf("answers: %w", err)
		}
	}
	if s.OAuth != nil && len(s.upstreams.children) > 0 {
		return errChildLogin
	}
	return nil
}

// check validates the settings of a server. It need not be provisioned.
func (s *Server) check() error {
	for _, name := range s.names() {
		switch {
		case name == "":
			return errors.New("name is empty")
		case strings.Contains(name, mcp.Separator):
			return fmt.Errorf("name: %q contains %s, which separates server and tool names", name, mcp.Separator)
		case strings.Contains(name, "/"):
			return fmt.Errorf("name: %q contains a slash", name)
		case strings.Trim(name, ".") == "":
			return fmt.Errorf("name: %q consists of dots", name)
		case name == healthSegment:
			return fmt.Errorf("name: %s is reserved: below mcp_path it is the path of health probes", name)
		case name == login.Segment:
			return fmt.Errorf("name: %s is reserved: below mcp_path it is the path of the login pages", name)
		}
	}
	if s.Path != "" {
		if _, err := parsePath(s.Path); err != nil {
			return fmt.Errorf("path: %w", err)
		}
	}
	if s.OAuth != nil {
		if err := s.OAuth.Validate(); err != nil {
			return fmt.Errorf("oauth: %w", err)
		}
	}
	if err := validateStart(s.Start); err != nil {
		return err
	}
	if s.Timeout < 0 {
		return fmt.Errorf("timeout: %s is negative", time.Duration(s.Timeout))
	}
	for _, pattern := range s.Expose {
		switch {
		case pattern == "":
			return errors.New("expose: empty pattern")
		case strings.Contains(pattern, mcp.Separator):
			return fmt.Errorf("expose: %q contains %s; write tool names without the server name",
				pattern, mcp.Separator)
		}
	}
	_, err := s.newOverrides(nil)
	return err
}

// parsePath parses a path with an optional query.
func parsePath(path string) (*url.URL, error) {
	switch {
	case strings.ContainsAny(path, "{}"):
		return nil, fmt.Errorf("%q has a placeholder, which is not replaced here; "+
			"in a Caddyfile, use {$NAME} for environment variables", path)
	case !strings.HasPrefix(path, "/"):
		return nil, fmt.Errorf("%q does not start with a slash", path)
	case strings.Contains(path, "#"):
		return nil, fmt.Errorf("%q has a fragment, which is never sent", path)
	}
	u, err := url.ParseRequestURI(path)
	if err != nil || u.Host != "" || !strings.HasPrefix(u.Path, "/") {
		return nil, fmt.Errorf("%q is not a path", path)
	}
	return u, nil
}

// Values of start.
const (
	startLazy  = "lazy"  // start a server when a client needs it
	startEager = "eager" // start a server when the configuration runs
)

// maxStarting limits how many servers start at the same time. Each may be a program that is
// downloaded first.
const maxStarting = 4

// startPause is the pause before a failed start is retried.
var startPause = backoff.Exponential{First: time.Second, Max: 30 * time.Second}

// A starter starts the eager servers of a gateway.
type starter struct {
	gateway *gateway.Gateway
	timeout time.Duration // of an attempt
	logger  *zap.Logger

	cancel  context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{} // semaphore of maxStarting
	keys    []string      // keys in startRecords
}

// A startRecord records whether an eager server has been started. It outlives reloads that do not
// change the server.
type startRecord struct{ done atomic.Bool }

// startRecords are the records in use, by gateway and server.
var startRecords = caddy.NewUsagePool()

// start starts the eager servers in the background. It is called when the configuration has
// started, because validation must not start anything. key identifies the gateway over reloads.
func (st *starter) start(ctx context.Context, servers []*Server, key string) {
	ctx, st.cancel = context.WithCancel(ctx)
	st.slots = make(chan struct{}, maxStarting)
	for _, s := range servers {
		if s.Start != startEager {
			continue
		}
		key := key + "\x00" + s.id
		value, _ := startRecords.LoadOrStore(key, new(startRecord))
		st.keys = append(st.keys, key)
		record := value.(*startRecord)
		if record.done.Load() && len(s.upstreams.children) == 0 {
			continue
		}
		st.running.Go(func() { st.startServer(ctx, s, record) })
	}
}

// stop stops starting and waits for it. st may be nil.
func (st *starter) stop() {
	if st == nil {
		return
	}
	st.cancel()
	st.running.Wait()
	for _, key := range st.keys {
		_, _ = startRecords.Delete(key)
	}
	st.keys = nil
}

// startServer tries to start a server until it succeeds or ctx is done.
func (st *starter) startServer(ctx context.Context, s *Server, record *startRecord) {
	for failures := 0; ctx.Err() == nil; failures++ {
		select {
		case st.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		err := st.try(ctx, s)
		<-st.slots
		if err == nil {
			record.done.Store(true)
			if len(s.upstreams.children) == 0 { // child processes log their start themselves
				st.logger.Info("MCP server is up", zap.String("mcp_server", s.Name), zap.Duration("duration", time.Since(began)))
			}
			return
		}
		if record := s.health.Load(); record != nil && len(s.upstreams.children) > 0 && ctx.Err() == nil {
			record.failed(st.logger, s.server.FaultOf(err, "initialize"))
		}
		if !backoff.Sleep(ctx, startPause.Pause(failures)) {
			return
		}
	}
}

// try starts the child processes of a server, or connects to an HTTP server. It fails if that takes
// longer than timeout, but a child process continues to start.
func (st *starter) try(ctx context.Context, s *Server) error {
	if len(s.upstreams.children) > 0 {
		return s.upstreams.startChildren(ctx, st.timeout)
	}
	o := st.gateway.NewOperator(operatorRequest(ctx), "")
	o.Patience = st.timeout
	if failure := o.Check(s.Name).Failure; failure != nil && failure.Data.Symbol != "login_required" {
		return failure
	}
	return nil
}

// startChildren starts the child processes in order, and waits up to timeout for each.
func (u *upstreams) startChildren(ctx context.Context, timeout time.Duration) error {
	var failures []error
	for _, c := range u.children {
		waiting, cancel := context.WithTimeout(ctx, timeout)
		if err := c.pool.Start(waiting, c.host); err != nil {
			failures = append(failures, err)
		}
		cancel()
	}
	return errors.Join(failures...)
}

func validateStart(start string) error {
	if start != "" && start != startLazy && start != startEager {
		return fmt.Errorf("start: %q must be eager or lazy", start)
	}
	return nil
}

// A streamScope is the context of the streams that clients open to one server. It ends when no
// handler has the same server with the same clients and credentials any longer; clients then
// reconnect and authenticate again. It outlives reloads, so that a later reload still ends the
// streams of earlier configurations.
type streamScope struct {
	context.Context
	end context.CancelFunc
}

// streamScopes holds the scopes in use.
var streamScopes = caddy.NewUsagePool()

// Destruct implements caddy.Destructor.
func (s *streamScope) Destruct() error {
	s.end()
	return nil
}

// serverStreams is the use of a streamScope by a server. Streams at /mcp need no scope, because the
// gateway that replaces this one continues them.
type serverStreams struct {
	scope          *streamScope
	key            string      // of scope; empty once closed
	cancelExitHook func() bool // stops ending the streams when Caddy exits
}

// open acquires a scope. Its streams also end when exiting is done.
func (s *serverStreams) open(key string, exiting context.Context) {
	value, _, _ := streamScopes.LoadOrNew(key, func() (caddy.Destructor, error) {
		scope := new(streamScope)
		scope.Context, scope.end = context.WithCancel(context.Background())
		return scope, nil
	})
	s.scope, s.key = value.(*streamScope), key
	s.cancelExitHook = context.AfterFunc(exiting, s.scope.end)
}

// close releases the scope.
func (s *serverStreams) close() error {
	if s.key == "" {
		return nil
	}
	s.cancelExitHook()
	_, err := streamScopes.Delete(s.key)
	s.key = ""
	return err
}

// Interface guard
var _ caddy.Destructor = (*streamScope)(nil)
