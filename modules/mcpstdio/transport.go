// Package mcpstdio implements http.reverse_proxy.transport.mcp_stdio, which makes MCP servers that
// are child processes upstreams of reverse_proxy.
package mcpstdio

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/unlogged"
)

func init() {
	caddy.RegisterModule(Transport{})
}

// Transport runs an MCP server as a child process and exchanges messages with it over stdin
// and stdout. To reverse_proxy it is an HTTP server with MCP's Streamable HTTP transport: POST
// sends a message to the child. The response is JSON, or an event stream if progress, a log
// message or a server request comes first. GET opens the stream of a session, DELETE ends the
// session.
//
// The address of an upstream only names children; nothing is dialed. everything:1 is one
// address, everything:1-4 in a Caddyfile is four of them, for any lb_policy. The part before the
// colon is the server's name in logs and metrics.
//
// A child is started when it is first needed, in its own process group, without a shell. Its
// environment has only PATH, HOME and what env sets or inherits. It is initialized once, for the
// clients that share it or for the session that owns it. Its stderr is logged. When it dies,
// calls in progress fail at once and it is restarted after a second. The delay grows, up to 30
// seconds, while it keeps dying before it answers a request.
//
// Active health checks of reverse_proxy (health_uri and so on) send the child a ping, whatever
// the URI. Any response shows that it is alive; a child that does not respond within
// health_timeout is ended and restarted.
//
// Children, their sessions and calls survive configuration reloads that do not change the
// transport and the upstream. Otherwise calls in progress are completed before the children of
// removed upstreams end.
//
// A server that supports both eras of the protocol gets one child for each era that clients use.
//
// These metrics have the label server: caddy_mcp_upstream_healthy (children that run and are
// initialized), caddy_mcp_upstream_restarts_total, caddy_mcp_stdio_noise_total (lines on stdout
// that are not messages) and caddy_mcp_stdio_dropped_total (messages without a recipient). The
// events mcp_server_started and mcp_server_exited have its name and the process id in their data.
type Transport struct {
	// The command to run and its arguments. Placeholders such as {env.HOME} are replaced. Required.
	Command []string `json:"command,omitempty"`

	// Environment variables of the child, besides PATH and HOME. Placeholders such as {env.API_KEY}
	// are replaced, so that the configuration need not contain secrets. Default: none
	Env map[string]string `json:"env,omitempty"`

	// Names of variables that the child inherits from Caddy's environment, besides PATH and HOME: for
	// example NODE_EXTRA_CA_CERTS and HTTPS_PROXY, to reach the network. In a name, * matches any
	// characters. On Windows the child also inherits variables without which programs fail, such as
	// SystemRoot. Default: none
	InheritEnv []string `json:"inherit_env,omitempty"`

	// The child's working directory. Default: Caddy's
	Dir string `json:"dir,omitempty"`

	// How messages are separated on the child's stdin: newline or content-length. On its stdout the
	// gateway accepts both, but with newline it accepts content-length only until the child has
	// written a message as a line. Default: newline
	Framing stdio.Framing `json:"framing,omitempty"`

	// How clients share children. With shared, all clients that declare the same capabilities share
	// one child. With session, each session has its own child. With none, all clients share one child,
	// which is initialized with sampling and elicitation whatever the clients declare.
	//
	// A client cannot change what a shared child does for others: the child does not get any
	// client's roots. It cannot tell which of several clients a server request (sampling,
	// elicitation) or log message is for, so an ambiguous server request gets no response. Use
	// session for servers that send requests to many clients or keep state for each, and none for
	// servers that must run as one process. Default: shared
	Isolation stdio.Isolation `json:"isolation,omitempty"`

	// URIs of the roots that the child gets on request. With isolation session the client's own roots
	// come first. Default: none
	Roots []string `json:"roots,omitempty"`

	// How long the child may take to start and initialize. The first start of npx or uvx downloads
	// packages. Clients do not wait that long. Default: 2m
	StartTimeout caddy.Duration `json:"start_timeout,omitempty"`

	// How long the child may take to exit after its stdin is closed. Then it gets SIGTERM, and SIGKILL
	// a second later. Default: 2s
	StopGrace caddy.Duration `json:"stop_grace,omitempty"`

	// Size limit of a message in bytes, in either direction, at least 4 KiB. A longer response fails
	// only its own call. Default: 64 MiB
	MaxLine int64 `json:"max_line,omitempty"`

	// Maximum number of sessions. Default: 10000, or 100 with isolation session
	MaxSessions int `json:"max_sessions,omitempty"`

	// How long an unused session is kept. Default: 1h
	SessionTTL caddy.Duration `json:"session_ttl,omitempty"`

	pool   *pool
	logged unlogged.Headers
	user   *user // this module as a user of the pool
}

// CaddyModule returns the Caddy module information.
func (Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.mcp_stdio",
		New: func() caddy.Module { return new(Transport) },
	}
}

// Provision sets up the transport. It does not start a child.
func (t *Transport) Provision(ctx caddy.Context) error {
	t.setDefaults()
	// An invalid configuration must not create a pool.
	if err := t.Validate(); err != nil {
		return err
	}
	if err := telemetry.Register(ctx, restarts, healthy, noise, dropped); err != nil {
		return err
	}
	app, err := ctx.App("events")
	if err != nil {
		return fmt.Errorf("getting events app: %w", err)
	}
	events := app.(*caddyevents.App)
	config := t.config()
	t.pool, err = openPool(config)
	if err != nil {
		return err
	}
	t.user, t.logged = &user{ctx, ctx.Logger(), events, hosts(ctx)}, unlogged.HeadersFor(ctx.Logger())
	log := t.user.serverLogger()
	t.warnEnv(log)
	t.warnCommand(log, config)
	t.pool.join(t.user)
	if replaceable.Is(ctx) {
		return nil // the gateway that loaded it ends the streams
	}
	return events.On("stopping", t.pool)
}

// hosts returns the hosts of the reverse_proxy that loads the transport, or none if they are known
// only at request time.
func hosts(ctx caddy.Context) (hosts []string) {
	for _, module := range slices.Backward(ctx.Modules()) {
		proxy, ok := module.(*reverseproxy.Handler)
		if !ok {
			continue
		}
		for _, upstream := range proxy.Upstreams {
			host, known := Host(upstream.Dial)
			if !known {
				return nil
			}
			hosts = append(hosts, host)
		}
		if proxy.DynamicUpstreamsRaw != nil {
			return nil
		}
		break
	}
	return hosts
}

// Host returns the host to which reverse_proxy sends requests for an address. It is unknown if the
// address has placeholders of a request.
func Host(dial string) (host string, known bool) {
	dial, err := caddy.NewReplacer().ReplaceOrErr(dial, true, true)
	if err != nil {
		return "", false
	}
	address, err := caddy.ParseNetworkAddress(dial)
	if err != nil {
		return "", false
	}
	return address.JoinHostPort(0), true
}

func (t *Transport) setDefaults() {
	t.Framing = cmp.Or(t.Framing, stdio.Newline)
	t.Isolation = cmp.Or(t.Isolation, stdio.Shared)
	t.StartTimeout = cmp.Or(t.StartTimeout, caddy.Duration(2*time.Minute))
	t.StopGrace = cmp.Or(t.StopGrace, caddy.Duration(2*time.Second))
	t.MaxLine = cmp.Or(t.MaxLine, 64<<20)
	if t.MaxSessions == 0 {
		t.MaxSessions = 10_000
		if t.Isolation == stdio.PerSession {
			t.MaxSessions = 100
		}
	}
	t.SessionTTL = cmp.Or(t.SessionTTL, caddy.Duration(time.Hour))
}

// config returns the configuration of the pool. It replaces placeholders that do not depend on a
// request. Other braces stay, because an argument may be JSON.
func (t *Transport) config() stdio.Config {
	repl := caddy.NewReplacer()
	config := stdio.Config{
		Dir:          repl.ReplaceKnown(t.Dir, ""),
		Framing:      t.Framing,
		Isolation:    t.Isolation,
		Roots:        t.Roots,
		SoleClient:   soleClient,
		StartTimeout: time.Duration(t.StartTimeout),
		StopGrace:    time.Duration(t.StopGrace),
		MaxMessage:   int(t.MaxLine),
		MaxSessions:  t.MaxSessions,
		SessionTTL:   time.Duration(t.SessionTTL),
	}
	for _, arg := range t.Command {
		config.Command = append(config.Command, repl.ReplaceKnown(arg, ""))
	}
	config.Env, config.Withheld = t.environment(repl)
	return config
}

// warnEnv warns of variables whose placeholders are empty, or that only a shell would replace. The
// child's own error is often misleading.
func (t *Transport) warnEnv(log *zap.Logger) {
	repl := caddy.NewReplacer()
	for name, value := range t.Env {
		switch {
		case value != "" && repl.ReplaceKnown(value, "") == "":
			log.Warn("variable for a child process is empty", zap.String("env", name), zap.String("value", value))
		case setting.IsShellVariable(value):
			log.Warn("variable for a child process: $NAME is shell syntax; write {env.NAME}", zap.String("env", name))
		}
	}
}

// Validate ensures that the configuration makes sense.
func (t *Transport) Validate() error {
	switch {
	case len(t.Command) == 0 || t.Command[0] == "":
		return errors.New("command: missing")
	case strings.ContainsAny(t.Command[0], " \t") && !strings.ContainsAny(t.Command[0], `/\`):
		return fmt.Errorf("command: %q contains spaces; "+
			"write the command and its arguments without quotes around all of them", t.Command[0])
	case t.Framing != stdio.Newline && t.Framing != stdio.ContentLength:
		return fmt.Errorf("framing: %q must be newline or content-length", t.Framing)
	case t.Isolation != stdio.SingleChild && t.Isolation != stdio.Shared && t.Isolation != stdio.PerSession:
		return fmt.Errorf("isolation: %q must be none, shared or session", t.Isolation)
	case t.StartTimeout < 0:
		return fmt.Errorf("start_timeout: %s is negative", time.Duration(t.StartTimeout))
	case t.StopGrace < 0:
		return fmt.Errorf("stop_grace: %s is negative", time.Duration(t.StopGrace))
	case t.MaxLine != 0 && t.MaxLine < smallestMaxLine:
		return fmt.Errorf("max_line: %d is too short for initialize, need at least %d", t.MaxLine, smallestMaxLine)
	case t.MaxSessions < 0:
		return fmt.Errorf("max_sessions: %d is negative", t.MaxSessions)
	case t.SessionTTL < 0:
		return fmt.Errorf("session_ttl: %s is negative", time.Duration(t.SessionTTL))
	}
	for _, root := range t.Roots {
		if u, err := url.Parse(root); err != nil || !u.IsAbs() {
			return fmt.Errorf("roots: %q is not a URI such as file:///srv", root)
		}
	}
	return t.validateEnv()
}

// smallestMaxLine is the smallest max_line that lets a client initialize.
const smallestMaxLine = 4 << 10

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Value(caddyhttp.VarsCtxKey) == nil { // not a client's request: a health check
		return t.check(r)
	}
	return t.logged.RoundTrip(t.withOwner(r), t.pool.RoundTrip)
}

// withOwner sets the client's address as the owner of a new session, unless a gateway in front has
// set one.
func (t *Transport) withOwner(r *http.Request) *http.Request {
	if stdio.HasOwner(r.Context()) {
		return r
	}
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return r.WithContext(stdio.WithOwner(r.Context(), address))
}

// check handles a health check.
func (t *Transport) check(r *http.Request) (*http.Response, error) {
	if err := t.pool.Check(r.Context(), r.URL.Host); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// Cleanup releases the children, which continue if another configuration uses them.
func (t *Transport) Cleanup() error {
	if t.pool == nil {
		return nil
	}
	return t.pool.leave(t.user)
}

// Pool returns the children. Transports with the same configuration share them.
func (t *Transport) Pool() *stdio.Pool { return t.pool.Pool }

// Healthy returns the gauge of healthy servers, for health checks of servers that are not child
// processes.
func Healthy() *prometheus.GaugeVec { return healthy }

// Interface guards
var (
	_ caddy.Provisioner   = (*Transport)(nil)
	_ caddy.Validator     = (*Transport)(nil)
	_ caddy.CleanerUpper  = (*Transport)(nil)
	_ http.RoundTripper   = (*Transport)(nil)
	_ caddyevents.Handler = (*pool)(nil)
	_ stdio.Observer      = (*pool)(nil)
)
