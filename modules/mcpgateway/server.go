package mcpgateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolview"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/observationmask"
)

// Server is an MCP server behind the gateway.
type Server struct {
	// The name of the server in paths, metrics and logs. Required; names and aliases
	// are different from each other, upper and lower case too.
	Name string `json:"name,omitempty"`

	// Other names by which it can be called. Default: none
	Aliases []string `json:"aliases,omitempty"`

	// The path, and query, that its routes see in requests to the server. A client
	// has no say in it. Default: /rpc
	Path string `json:"path,omitempty"`

	// How long the server may take. Default: the gateway's response_timeout
	Timeout caddy.Duration `json:"timeout,omitempty"`

	// The same as the gateway's start, for this server. Default: as that says
	Start string `json:"start,omitempty"`

	// How its results are masked. Default: as the gateway's mask says
	Mask *observationmask.Handler `json:"mask,omitempty"`

	// Whether its tools have an argument that says what a client looks for. Default: as the
	// gateway's focus says
	Focus *Focus `json:"focus,omitempty"`

	// Which tools are shown where all servers are one: patterns in which * stands for
	// any characters. Others cannot be called there. Default: all
	Expose []string `json:"expose,omitempty"`

	// How clients see its tools, and what it gets of their calls, by the names that it has for them.
	// Everything else in the configuration, metrics and logs use these names, too. Default: as they are
	Tools map[string]*ToolOverride `json:"tools,omitempty"`

	// The same as the gateway's forward_auth_header, for this server. Default: as that
	// says
	ForwardAuthHeader *bool `json:"forward_auth_header,omitempty"`

	// The gateway is ready without it: see the path /mcp/health. Default: false
	Optional bool `json:"optional,omitempty"`

	// How the gateway logs in to the server. Default: not at all
	OAuth *login.Config `json:"oauth,omitempty"`

	// What becomes of what the server sends to clients on its own account. Default: it
	// is delivered
	Answers []*Answer `json:"answers,omitempty"`

	// The routes that answer in the place of the server, or pass requests on to it.
	Routes caddyhttp.RouteList `json:"routes,omitempty"`

	id      string // the same as long as nothing changes for clients
	source  string // the same as long as it is the same server, by which its tools are known
	from    string // the file that it comes from; empty if it is part of the configuration
	pins    *pinning
	pinning string          // the key of pins, in pinnings
	saving  upstream.Asides // of pins
	target  *url.URL        // Path
	routes  caddyhttp.Handler
	login   *login.Login             // nil if it needs none
	mask    *observationmask.Handler // nil if nothing is masked
	masked  bool                     // the configuration asks for that
	focus   *toolview.Focus          // nil for none
	server  *upstream.Server         // this server in the gateway

	overrides *toolview.Overrides // Tools; nil for none

	pathless bool // it is at the default path

	streams    *streamScope
	streamsKey string      // of streams; empty if they are closed
	unfollow   func() bool // stops streams from ending when Caddy exits
	releases   []func()    // of what answers and watches its children
	replaced   atomic.Bool // another configuration has taken the place of this one
	upstreams  upstreams   // that the routes pass requests on to
	health     atomic.Pointer[healthRecord]
	checking   chan struct{} // holds one token during a check by the admin API
}

func (s *Server) provision(ctx caddy.Context, h *Handler) error {
	s.pathless = s.Path == ""
	if s.pathless {
		s.Path = "/rpc"
	}
	if s.Timeout == 0 {
		s.Timeout = h.ResponseTimeout
	}
	if s.Start == "" {
		s.Start = h.Start
	}
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
	if s.ForwardAuthHeader == nil {
		s.ForwardAuthHeader = &h.ForwardAuthHeader
	}
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
		if s.login, err = h.newLogin(s); err != nil {
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

// closeIdle closes idle connections if the configuration is no longer used.
// Caddy does so when it replaces one, but streams and the end of sessions go on in the old
// one after that, and their connections would wait for others for minutes.
func (s *Server) closeIdle() {
	if s.replaced.Load() {
		for _, pool := range s.upstreams.pools {
			pool.CloseIdleConnections()
		}
	}
}

// config returns the server as the gateway has it.
func (s *Server) config() *upstream.Server {
	s.server = &upstream.Server{
		Name: s.Name, ID: s.id, Source: s.source, Aliases: s.Aliases, Expose: s.Expose, Overrides: s.overrides,
		Routes: route{s}, Target: s.target, Timeout: time.Duration(s.Timeout),
		ForwardAuth: *s.ForwardAuthHeader, MaskMCP: s.masked, Focus: s.focus, Pins: &s.pins.Pins, Streams: s.streams.Context,
		ChildrenOnly: len(s.upstreams.children) > 0 && len(s.upstreams.proxied) == 0,
	}
	for _, proxied := range s.upstreams.proxied {
		s.server.Hosts = append(s.server.Hosts, proxied.Dial)
	}
	s.server.URL, s.server.DefaultPath = s.upstreams.url(s.target), s.pathless
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

// cleanup gives back what the server has taken.
func (s *Server) cleanup() error {
	for _, release := range s.releases {
		release()
	}
	s.replaced.Store(true)
	return errors.Join(s.closeStreams(), s.closePins())
}

// provisionMask gives the server a mask of its own, under its name.
func (s *Server) provisionMask(ctx caddy.Context, fallback *observationmask.Handler) error {
	var config observationmask.Handler
	switch {
	case s.Mask != nil:
		config, s.masked = *s.Mask, true
	case fallback != nil:
		config, s.masked = *fallback, true
	}
	if config.Server == "" {
		config.Server = s.Name
	}
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

// errChildLogin refuses oauth where it has no meaning.
var errChildLogin = errors.New("oauth: a child process has no login; give it credentials by env")

// validate reports what makes no sense, after the server is provisioned.
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
	return s.checkRoutes()
}

// checkRoutes reports a server that has nothing to answer.
func (s *Server) checkRoutes() error {
	if len(s.Routes) == 0 {
		return errors.New("routes: there are none; give it a URL, a command or handlers")
	}
	return nil
}

// check reports settings that make no sense. Nothing needs to be provisioned.
func (s *Server) check() error {
	for _, name := range s.names() {
		switch {
		case name == "":
			return errors.New("name is empty")
		case strings.Contains(name, mcp.Separator):
			return fmt.Errorf("name: %q has %s in it, which divides servers from tools", name, mcp.Separator)
		case strings.Contains(name, "/"):
			return fmt.Errorf("name: %q has a slash in it", name)
		case strings.Trim(name, ".") == "":
			return fmt.Errorf("name: %q has only dots", name)
		case name == healthSegment:
			return fmt.Errorf("name: below mcp_path, %s is where probes ask whether the gateway is ready", name)
		case name == login.Segment:
			return fmt.Errorf("name: below mcp_path, %s is where people log in to servers", name)
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
			return errors.New("expose: a pattern is empty")
		case strings.Contains(pattern, mcp.Separator):
			return fmt.Errorf("expose: %q has %s in it; write the names of tools without that of the server",
				pattern, mcp.Separator)
		}
	}
	_, err := s.newOverrides(nil)
	return err
}

// parsePath reads a path that may have a query.
func parsePath(path string) (*url.URL, error) {
	switch {
	case strings.ContainsAny(path, "{}"):
		return nil, fmt.Errorf("%q has a placeholder, which is not replaced there; in a Caddyfile {$NAME} is, when it is read", path)
	case !strings.HasPrefix(path, "/"):
		return nil, fmt.Errorf("%q does not begin with a slash", path)
	case strings.Contains(path, "#"):
		return nil, fmt.Errorf("%q has a fragment, which is never sent", path)
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, fmt.Errorf("%q is not a path", path)
	}
	if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
		return nil, fmt.Errorf("%q is not a path", path)
	}
	return u, nil
}
