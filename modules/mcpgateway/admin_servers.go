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

// status returns the status of a server.
func (h *Handler) status(s *Server) adminapi.ServerStatus { return h.statusWith(s, h.gateway.Links()) }

// statusWith returns the status of a server. sessions are the numbers of sessions by server.
func (h *Handler) statusWith(s *Server, sessions map[string]int) adminapi.ServerStatus {
	state := s.healthState()
	status := adminapi.ServerStatus{
		Gateway:   h.Name,
		Path:      h.MCPPath,
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
		for _, child := range c.transport.Status(c.host) {
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
	status.Latency = activity.Process.Latency(h.Name, s.Name)
	status.ToolsChanged = len(s.pins.Changes())
	if s.login != nil {
		known := s.login.Status(h.ctx)
		status.Login, status.LoginURL = &known, known.URL
	}
	return status
}

func (c *adminCall) listServers() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	all := []adminapi.ServerStatus{}
	for _, h := range found {
		sessions := h.gateway.Links()
		for _, s := range h.Servers {
			all = append(all, h.statusWith(s, sessions))
		}
	}
	return http.StatusOK, all, nil
}

func (c *adminCall) listFiles() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	all := []adminapi.FileStatus{}
	for _, h := range found {
		if h.shell != nil {
			all = append(all, h.shell.live.statuses()...)
		}
	}
	return http.StatusOK, all, nil
}

// findServer returns the server in the path.
func (c *adminCall) findServer() (*Handler, *Server, error) {
	name := c.r.PathValue("server")
	h, err := c.oneGateway(fmt.Sprintf("server %q", name), func(h *Handler) bool { return h.byName[name] != nil })
	if err != nil {
		return nil, nil, err
	}
	return h, h.byName[name], nil
}

func (c *adminCall) showServer() (int, any, error) {
	h, s, err := c.findServer()
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, h.status(s), nil
}

// startChange returns the server in the path, and sets the action for the log.
func (c *adminCall) startChange(action string) (*Handler, *Server, error) {
	c.action, c.server = action, c.r.PathValue("server")
	h, s, err := c.findServer()
	if err == nil {
		c.server = s.Name
	}
	return h, s, err
}

// restart restarts the child processes of a server. If the server has several addresses, it
// restarts one after the other, so that the others keep running.
func (c *adminCall) restart() (int, any, error) {
	h, s, err := c.startChange("restart")
	if err != nil {
		return 0, nil, err
	}
	if len(s.upstreams.children) == 0 {
		return 0, nil, adminErrorf(http.StatusConflict, "no_child_process", "server %q has no child process", s.Name)
	}
	ctx := context.WithoutCancel(c.r.Context()) // finish even if the operator disconnects
	var failures []error
	for _, child := range s.upstreams.children {
		if err := child.transport.Restart(ctx, child.host); err != nil {
			failures = append(failures, err)
		}
	}
	record := s.health.Load()
	if err := errors.Join(failures...); err != nil {
		record.failed(h.logger, s.server.FaultOf(err, "initialize"))
		return 0, nil, adminErrorf(http.StatusBadGateway, "restart_failed",
			"server %q did not restart: %s", s.Name, mcp.OneLine(err.Error()))
	}
	record.succeeded(h.logger) // a restart initializes the server
	return http.StatusOK, h.status(s), nil
}

func (c *adminCall) refresh() (int, any, error) {
	h, s, err := c.startChange("refresh")
	if err != nil {
		return 0, nil, err
	}
	return http.StatusOK, struct {
		Clients int `json:"clients"` // number of notified clients
	}{h.gateway.Refresh(s.Name)}, nil
}

// logout ends a login to a server.
func (c *adminCall) logout() (int, any, error) {
	h, s, err := c.startChange("logout")
	if err != nil {
		return 0, nil, err
	}
	var whose struct {
		Client string `json:"client"`
	}
	if err := c.decode(&whose, true); err != nil {
		return 0, nil, err
	}
	c.name = whose.Client
	if s.login == nil {
		return 0, nil, adminErrorf(http.StatusConflict, "no_oauth", "server %q has no oauth", s.Name)
	}
	if err := s.login.Logout(c.r.Context(), whose.Client); err != nil {
		return 0, nil, adminErrorf(http.StatusBadRequest, "logout_failed", "server %q: %v", s.Name, err)
	}
	return http.StatusOK, h.status(s), nil
}

func (c *adminCall) accept() (int, any, error) {
	h, s, err := c.startChange("accept")
	if err != nil {
		return 0, nil, err
	}
	var which struct {
		Tool string  `json:"tool"`
		Seen *string `json:"seen"`
	}
	if err := c.decode(&which, true); err != nil {
		return 0, nil, err
	}
	c.name = which.Tool
	seen := ""
	if which.Seen != nil {
		seen = *which.Seen
	}
	switch {
	case which.Seen != nil && which.Tool == "":
		return 0, nil, invalidRequest(errors.New("tool: missing, but required with seen"))
	case which.Seen != nil && seen == "":
		return 0, nil, invalidRequest(errors.New("seen: empty"))
	}
	accepted, err := h.acceptTools(s, which.Tool, seen)
	switch {
	case errors.Is(err, toolpin.ErrChangedAgain):
		return 0, nil, adminErrorf(http.StatusConflict, "changed_again",
			"tool %q of server %q: %v", which.Tool, s.Name, err)
	case errors.Is(err, errNotSaved):
		return 0, nil, adminErrorf(http.StatusInternalServerError, "not_saved",
			"tools of server %q are %v; the gateway will retry", s.Name, err)
	case err != nil:
		return 0, nil, err
	case which.Tool != "" && accepted == 0:
		return 0, nil, notFound("tool %q of server %q has not changed", which.Tool, s.Name)
	}
	return http.StatusOK, struct {
		Accepted int `json:"accepted"`
	}{accepted}, nil
}

func (c *adminCall) listChanges() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	all := []adminapi.ToolChange{}
	for _, h := range found {
		all = append(all, changedTools(h)...)
	}
	return http.StatusOK, all, nil
}

// A GatewayClient is a client of a gateway.
type GatewayClient struct {
	Gateway string `json:"gateway"`
	ClientStatus
}

func (c *adminCall) listClients() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	all := []GatewayClient{}
	for _, h := range found {
		for _, client := range clientStatuses(h) {
			all = append(all, GatewayClient{h.Name, client})
		}
	}
	return http.StatusOK, all, nil
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
func (c *adminCall) check() (int, any, error) {
	h, s, err := c.startChange("check")
	if err != nil {
		return 0, nil, err
	}
	var options struct {
		Timeout string `json:"timeout"`
	}
	if err := c.decode(&options, true); err != nil {
		return 0, nil, err
	}
	timeout, err := readTimeout(options.Timeout)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), timeout)
	defer cancel()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return 0, nil, adminErrorf(http.StatusConflict, "busy", "another check of server %q is still running", s.Name)
	}
	return http.StatusOK, h.check(ctx, s, timeout), nil
}

// check connects to a server and counts the items of its lists.
func (h *Handler) check(ctx context.Context, s *Server, timeout time.Duration) adminapi.ServerCheck {
	s.upstreams.skipBackoff()
	began := time.Now()
	o := h.gateway.NewOperator(operatorRequest(ctx), "")
	o.Patience = timeout
	found := o.Check(s.Name)
	check := adminapi.ServerCheck{
		Gateway: h.Name, Path: h.MCPPath, Name: s.Name, Up: found.Failure == nil, Seconds: time.Since(began).Seconds(),
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
		if s.Path == "" && check.URL != "" {
			check.Error += fmt.Sprintf("; the URL of the server has no path, so the gateway tried %s. Most servers use /mcp",
				s.target.Path)
		}
	}
	return check
}

// checkStore contacts the shared store, even if it is known to be unavailable.
func (c *adminCall) checkStore() (int, any, error) {
	found, err := c.gateways()
	if err != nil {
		return 0, nil, err
	}
	store, err := sharedStore(found)
	if err != nil {
		return 0, nil, err
	}
	if store == nil {
		return 0, nil, notFound("mcp_store is not configured")
	}
	c.action, c.name = "check", "mcp_store"
	return http.StatusOK, store.Check(c.r.Context()), nil
}

// sharedStore returns the store that gateways share with other replicas, or nil. A configuration
// has at most one store, which handlers other than gateways may use, too.
func sharedStore(gateways []*Handler) (*mcpstore.Store, error) {
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
		c.transport.SkipBackoff(c.host)
	}
}

// A ClientStatus is the status of a client block, or of all clients without one.
type ClientStatus struct {
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

// clientStatuses returns the rules, sessions and counters of all clients.
func clientStatuses(h *Handler) []ClientStatus {
	byLabel := map[string]*ClientStatus{}
	var order []string
	statusOf := func(label string) *ClientStatus {
		if byLabel[label] == nil {
			byLabel[label] = &ClientStatus{Name: label, Sessions: map[string]int{}}
			order = append(order, label)
		}
		return byLabel[label]
	}
	for _, c := range h.Clients {
		status := statusOf(c.Name)
		status.Match, status.Rules, status.Default, status.Rates = c.Match, c.Rules, c.Default, c.Rates
	}
	sessions := h.gateway.Sessions()
	for _, label := range slices.Sorted(maps.Keys(sessions)) {
		statusOf(label).Sessions = sessions[label]
	}
	h.retained.Usage.Tallies(func(label string, t *inbound.Tally) {
		status := statusOf(label)
		status.Requests, status.Denied = t.Requests.Load(), t.Denied.Load()
		if last := t.Last.Load(); last > 0 {
			seen := time.UnixMilli(last).UTC()
			status.LastSeen = &seen
		}
	})
	all := make([]ClientStatus, len(order))
	for i, label := range order {
		all[i] = *byLabel[label]
	}
	return all
}
