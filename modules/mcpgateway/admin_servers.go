package mcpgateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/activity"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/inbound"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/tokens"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/toolpin"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// serverStatus returns the status of a server. sessions are the numbers of sessions by server.
func (g adminGateway) serverStatus(s *Server, sessions map[string]int) adminapi.ServerStatus {
	state := s.healthState()
	status := adminapi.ServerStatus{
		GatewayID: g.id(),
		Name:      s.Name,
		Aliases:   s.Aliases,
		From:      s.file,
		URL:       s.server.URL,
		Command:   s.upstreams.command(),
		State:     state.name(),
		LastError: state.LastError,
		FailedAt:  state.FailedAt,
		Tried:     state.Tried,
		TriedPath: state.Path,
		Since:     state.Since,
		Failures:  state.Failures,
		Sessions:  sessions[s.Name],
	}
	for _, c := range s.upstreams.children {
		for _, child := range c.pool.Status(c.host) {
			status.Children = append(status.Children, adminapi.ChildStatus{Address: c.host, Status: child})
			status.Restarts += child.Restarts
		}
	}
	down := state.Known && !state.Healthy // then all upstreams are down
	for _, upstream := range s.upstreams.proxied {
		status.Upstreams = append(status.Upstreams, adminapi.UpstreamStatus{
			Address: upstream.Dial, Healthy: !down && upstream.Healthy(), Requests: upstream.NumRequests(),
		})
	}
	if record := s.health.Load(); record != nil {
		status.Tools = record.count("tools")
		status.Prompts = record.count("prompts")
		status.Resources = record.count("resources")
	}
	status.Latency = activity.Process.Latency(g.Name, s.Name)
	status.ToolsChanged = len(s.pins.Changes())
	if s.login != nil {
		known := s.login.Status(g.ctx)
		status.Login, status.LoginURL = &known, known.URL
	}
	return status
}

// listServers returns the status of all servers.
func (g adminGateway) listServers() (all []adminapi.ServerStatus) {
	sessions := g.gateway.Links()
	for _, s := range g.Servers {
		all = append(all, g.serverStatus(s, sessions))
	}
	return all
}

// listFiles returns the state of the files in servers_from.
func (g adminGateway) listFiles() []adminapi.FileStatus {
	if g.shell == nil {
		return nil
	}
	return g.shell.live.statuses()
}

// A serverCall is a call about one server.
type serverCall struct {
	*adminCall
	owner  adminGateway
	target *Server
}

// onServer returns a function that serves calls about the server in the path. action is the action
// for the log, empty if the call only reads.
func onServer(action string, serve func(*serverCall) (any, error)) adminFunc {
	return func(c *adminCall) (any, error) {
		name := c.r.PathValue("server")
		c.action, c.server = action, name
		g, err := c.oneGateway(fmt.Sprintf("server %q", name), func(g adminGateway) bool { return g.byName[name] != nil })
		if err != nil {
			return nil, err
		}
		call := &serverCall{c, g, g.byName[name]}
		c.server = call.target.Name
		return serve(call)
	}
}

func (c *serverCall) show() (any, error) {
	return c.owner.serverStatus(c.target, c.owner.gateway.Links()), nil
}

// restart restarts the child processes of a server. If the server has several addresses, it
// restarts one after the other, so that the others keep running.
func (c *serverCall) restart() (any, error) {
	s, logger := c.target, c.owner.logger
	if len(s.upstreams.children) == 0 {
		return nil, adminErrorf(http.StatusConflict, "no_child_process", "server %q has no child process", s.Name)
	}
	ctx := context.WithoutCancel(c.r.Context()) // finish even if the operator disconnects
	var failures []error
	for _, child := range s.upstreams.children {
		if err := child.pool.Restart(ctx, child.host); err != nil {
			failures = append(failures, err)
		}
	}
	record := s.health.Load()
	if err := errors.Join(failures...); err != nil {
		record.failed(logger, s.server.FaultOf(err, "initialize"))
		return nil, adminErrorf(http.StatusBadGateway, "restart_failed",
			"server %q did not restart: %s", s.Name, mcp.OneLine(err.Error()))
	}
	record.succeeded(logger) // a restart initializes the server
	return c.show()
}

func (c *serverCall) refresh() (any, error) {
	return struct {
		Clients int `json:"clients"` // number of notified clients
	}{c.owner.gateway.Refresh(c.target.Name)}, nil
}

// logout ends a login to a server.
func (c *serverCall) logout() (any, error) {
	s := c.target
	var whose struct {
		Client string `json:"client"`
	}
	if err := c.decode(&whose, true); err != nil {
		return nil, err
	}
	c.name = whose.Client
	if s.login == nil {
		return nil, adminErrorf(http.StatusConflict, "no_oauth", "server %q has no oauth", s.Name)
	}
	if err := s.login.Logout(c.r.Context(), whose.Client); err != nil {
		return nil, adminErrorf(http.StatusBadRequest, "logout_failed", "server %q: %v", s.Name, err)
	}
	return c.show()
}

func (c *serverCall) accept() (any, error) {
	s := c.target
	var which struct {
		Tool string  `json:"tool"`
		Seen *string `json:"seen"`
	}
	if err := c.decode(&which, true); err != nil {
		return nil, err
	}
	c.name = which.Tool
	seen := ""
	if which.Seen != nil {
		seen = *which.Seen
	}
	switch {
	case which.Seen != nil && which.Tool == "":
		return nil, invalidRequest(errors.New("tool: missing, but required with seen"))
	case which.Seen != nil && seen == "":
		return nil, invalidRequest(errors.New("seen: empty"))
	}
	accepted, err := c.owner.acceptTools(s, which.Tool, seen)
	switch {
	case errors.Is(err, toolpin.ErrChangedAgain):
		return nil, adminErrorf(http.StatusConflict, "changed_again",
			"tool %q of server %q: %v", which.Tool, s.Name, err)
	case errors.Is(err, errNotSaved):
		return nil, adminErrorf(http.StatusInternalServerError, "not_saved",
			"tools of server %q are %v; the gateway will retry", s.Name, err)
	case err != nil:
		return nil, err
	case which.Tool != "" && accepted == 0:
		return nil, notFound("tool %q of server %q has not changed", which.Tool, s.Name)
	}
	return struct {
		Accepted int `json:"accepted"`
	}{accepted}, nil
}

// maxTimeout is the maximum timeout of an operator's request.
const maxTimeout = time.Hour

// readTimeout parses the timeout of an operator's request.
func readTimeout(text string) (time.Duration, error) {
	if text == "" {
		return adminapi.DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > maxTimeout {
		return 0, invalidRequest(fmt.Errorf("timeout: %q must be a duration such as 30s, at most %s",
			mcp.Shortened(text), maxTimeout))
	}
	return d, nil
}

// check connects to a server, even if it is known to be down. Only one check of a server runs at a
// time.
func (c *serverCall) check() (any, error) {
	s := c.target
	var options struct {
		Timeout string `json:"timeout"`
	}
	if err := c.decode(&options, true); err != nil {
		return nil, err
	}
	timeout, err := readTimeout(options.Timeout)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), timeout)
	defer cancel()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return nil, adminErrorf(http.StatusConflict, "busy", "another check of server %q is still running", s.Name)
	}
	return c.owner.connect(ctx, s, timeout), nil
}

// connect connects to a server and counts the items of its lists.
func (g adminGateway) connect(ctx context.Context, s *Server, timeout time.Duration) adminapi.ServerCheck {
	s.upstreams.skipBackoff()
	began := time.Now()
	o := g.gateway.NewOperator(operatorRequest(ctx), "")
	o.Patience = timeout
	found := o.Check(s.Name)
	check := adminapi.ServerCheck{
		GatewayID: g.id(), Name: s.Name, Up: found.Failure == nil, Seconds: time.Since(began).Seconds(),
		Protocol: found.Protocol, Tools: len(found.Tools), Prompts: found.Prompts, Resources: found.Resources,
		Templates: found.Templates, URL: s.server.URL,
	}
	if found.Name != "" {
		check.Info = &adminapi.ServerInfo{Name: found.Name, Version: found.Version}
	}
	for _, tool := range found.Tools {
		check.Tokens += tokens.Count(string(tool.Definition))
	}
	if found.Failure != nil {
		check.Code, check.Error = found.Failure.Data.Symbol, withoutAddress(found.Fault.Reason)
		check.Stderr = found.Fault.Stderr
	}
	return check
}

// checkStore contacts the shared store, even if it is known to be unavailable.
func (c *adminCall) checkStore() (any, error) {
	found, err := c.gateways()
	if err != nil {
		return nil, err
	}
	store, err := sharedStore(found)
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, notFound("mcp_store is not configured")
	}
	c.action, c.name = "check", "mcp_store"
	return store.Check(c.r.Context()), nil
}

// sharedStore returns the store that gateways share with other replicas, or nil. A configuration
// has at most one store, which handlers other than gateways may use, too.
func sharedStore(gateways []adminGateway) (*mcpstore.Store, error) {
	if len(gateways) == 0 {
		return mcpstore.Active()
	}
	return gateways[0].store, nil
}

// withoutAddress removes the dialed address from the reason of a fault, because the URL contains
// it.
func withoutAddress(reason string) string {
	if address, cause, ok := strings.Cut(reason, ": "); ok && strings.HasPrefix(address, "dial ") {
		return cause
	}
	return reason
}

// operatorRequest returns a request for messages that the operator sends to servers.
func operatorRequest(ctx context.Context) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost", nil)
	if err != nil {
		panic(err) // cannot happen: the URL is constant
	}
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), noResponse{}, new(caddyhttp.Server))
}

// skipBackoff ends the pauses before child processes are restarted.
func (u *upstreams) skipBackoff() {
	for _, c := range u.children {
		c.pool.SkipBackoff(c.host)
	}
}

// A GatewayClient is the status of a client block of a gateway, or of all clients without one.
type GatewayClient struct {
	Gateway  string         `json:"gateway"`
	Name     string         `json:"name"`
	Match    []string       `json:"match,omitempty"`
	Rules    []*AccessRule  `json:"rules,omitempty"`
	Default  string         `json:"default,omitempty"`
	Rates    []*Rate        `json:"rates,omitempty"`
	Sessions map[string]int `json:"sessions,omitempty"` // sessions in memory, by identity
	Requests int64          `json:"requests"`
	Denied   int64          `json:"denied"`
	LastSeen *time.Time     `json:"last_seen,omitempty"`
}

// listClients returns the rules, sessions and counters of all clients.
func (g adminGateway) listClients() []GatewayClient {
	byLabel := map[string]*GatewayClient{}
	var order []string
	statusOf := func(label string) *GatewayClient {
		if byLabel[label] == nil {
			byLabel[label] = &GatewayClient{Gateway: g.Name, Name: label, Sessions: map[string]int{}}
			order = append(order, label)
		}
		return byLabel[label]
	}
	for _, h := range registry.everywhere() {
		if fingerprint(h) != fingerprint(g.Handler) {
			continue
		}
		for _, c := range h.Clients { // of all sites; the first has precedence
			if byLabel[c.Name] == nil {
				status := statusOf(c.Name)
				status.Match, status.Rules, status.Default, status.Rates = c.Match, c.Rules, c.Default, c.Rates
			}
		}
	}
	sessions := g.gateway.Sessions()
	for _, label := range slices.Sorted(maps.Keys(sessions)) {
		statusOf(label).Sessions = sessions[label]
	}
	g.kept.retained.Usage.Tallies(func(label string, t *inbound.Tally) {
		status := statusOf(label)
		status.Requests, status.Denied = t.Requests.Load(), t.Denied.Load()
		if last := t.Last.Load(); last > 0 {
			seen := time.UnixMilli(last).UTC()
			status.LastSeen = &seen
		}
	})
	all := make([]GatewayClient, len(order))
	for i, label := range order {
		all[i] = *byLabel[label]
	}
	return all
}
