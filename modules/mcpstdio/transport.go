// Package mcpstdio makes MCP servers that are child processes upstreams of
// reverse_proxy: the transport http.reverse_proxy.transport.mcp_stdio.
package mcpstdio

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/stdio"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/replaceable"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/telemetry"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/unlogged"
)

func init() {
	caddy.RegisterModule(Transport{})
}

// Transport runs an MCP server as a child process and speaks with it on its standard
// streams. To reverse_proxy it is an HTTP server of MCP's Streamable HTTP transport:
// a message that is POSTed goes to the child, its answer comes back as JSON, or as
// an event stream once progress, a log message or a question of the server precedes
// it. GET opens the stream of a session, DELETE ends the session.
//
// An upstream's address is a name for children, nothing is dialed: everything:1 is
// one address, everything:1-4 in a Caddyfile is four of them under any lb_policy. Its
// first part names the server in logs and metrics.
//
// A child is started when it is first needed, in a process group of its own, without
// a shell, and with nothing in its environment but PATH, HOME and what env sets or inherits. It
// is initialized once, for the clients that share it or for the session it belongs
// to. What it writes to stderr goes to the log. When it dies, calls that wait for it fail at once,
// and it is started again after a second; one that keeps dying before it has answered
// anybody is tried less and less often, at least every 30 seconds.
//
// With health_uri and the like of reverse_proxy a child is sent a ping, whatever the
// URI. Any answer shows that it is alive; one that does not answer within
// health_timeout is ended and started again.
//
// Children, their sessions and calls survive reloads of the configuration that leave
// the transport and the upstream as they are. Otherwise calls in flight come to their
// end, and then the children of upstreams that are gone end.
//
// A server that knows both eras of the protocol gets one child for each that clients
// use.
//
// The metrics caddy_mcp_upstream_healthy (children that run and are initialized),
// caddy_mcp_upstream_restarts_total, caddy_mcp_stdio_noise_total (lines on stdout that
// are no messages) and caddy_mcp_stdio_dropped_total (messages that had nobody to go
// to) tell of each server. The events mcp_server_started and mcp_server_exited have
// its name and the process id in their data.
type Transport struct {
	// The command to run and its arguments. Placeholders such as {env.HOME} are
	// replaced. Required.
	Command []string `json:"command,omitempty"`

	// Variables of its environment, besides PATH and HOME. Placeholders such as
	// {env.API_KEY} are replaced, so that no secret needs to be in a configuration.
	// Default: none
	Env map[string]string `json:"env,omitempty"`

	// Names of variables that it inherits from Caddy's environment, if they are set there,
	// besides PATH and HOME: such as NODE_EXTRA_CA_CERTS and HTTPS_PROXY, if it needs them to
	// reach the network. In a name, * stands for any characters. On Windows it inherits those,
	// too, without which programs fail, such as SystemRoot. Default: none
	InheritEnv []string `json:"inherit_env,omitempty"`

	// The directory in which it runs. Default: Caddy's
	Dir string `json:"dir,omitempty"`

	// How messages are told apart on its stdin: newline or content-length. On its
	// stdout both are understood; with newline only until it has written a message
	// as a line. Default: newline
	Framing stdio.Framing `json:"framing,omitempty"`

	// Who shares a child: shared is one for all clients that declare the same
	// capabilities, session one for each session, none one for all clients, which is
	// told that they can do everything. What one client says does not change what a
	// shared child does for others: it gets no client's roots, and it cannot tell
	// which of several clients a question (sampling, elicitation) or log message is
	// for, so in doubt it gets no answer. Servers that ask many clients, or keep a
	// state for each, want session; those of which there must be one process want
	// none. Default: shared
	Isolation stdio.Isolation `json:"isolation,omitempty"`

	// URIs of the roots that it is told of when it asks. With isolation session
	// those of a client come first. Default: none
	Roots []string `json:"roots,omitempty"`

	// How long it may take to start and to be initialized. The first start of npx or uvx
	// downloads. Clients do not wait that long. Default: 2m
	StartTimeout caddy.Duration `json:"start_timeout,omitempty"`

	// How long it may take to end by itself after its stdin has been closed. Then
	// it is sent TERM, and KILL a second later. Default: 2s
	StopGrace caddy.Duration `json:"stop_grace,omitempty"`

	// How many bytes a message may have, in either direction. An answer of more
	// fails alone. Default: 64 MiB
	MaxLine int64 `json:"max_line,omitempty"`

	// How many sessions there may be. Default: 10000, or 100 if each has a child
	MaxSessions int `json:"max_sessions,omitempty"`

	// How long a session is kept that is not used. Default: 1h
	SessionTTL caddy.Duration `json:"session_ttl,omitempty"`

	pool   *pool
	logged unlogged.Headers
	user   *user
}

// CaddyModule returns the Caddy module information.
func (Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.mcp_stdio",
		New: func() caddy.Module { return new(Transport) },
	}
}

// Provision sets up the transport. It starts no child.
func (t *Transport) Provision(ctx caddy.Context) error {
	t.setDefaults()
	// A configuration that makes no sense must not take part in the pool.
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
	if t.pool, err = openPool(config); err != nil {
		return err
	}
	t.user, t.logged = &user{ctx, ctx.Logger(), events, hosts(ctx)}, unlogged.HeadersFor(ctx.Logger())
	log := t.user.named()
	t.warnOfEmpty(log)
	t.warnOfCommand(log, config)
	t.pool.join(t.user)
	if replaceable.Is(ctx) {
		return nil // the gateway that has loaded it ends the streams
	}
	return events.On("stopping", t.pool)
}

// hosts returns the hosts of the reverse_proxy that loads the transport. There are none
// if they are known only when a request comes.
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

// Host returns the host to which reverse_proxy sends requests for an address. It is not
// known if the address has placeholders that a request fills.
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
	if t.Framing == "" {
		t.Framing = stdio.Newline
	}
	if t.Isolation == "" {
		t.Isolation = stdio.Shared
	}
	if t.StartTimeout == 0 {
		t.StartTimeout = caddy.Duration(2 * time.Minute)
	}
	if t.StopGrace == 0 {
		t.StopGrace = caddy.Duration(2 * time.Second)
	}
	if t.MaxLine == 0 {
		t.MaxLine = 64 << 20
	}
	if t.MaxSessions == 0 {
		t.MaxSessions = 10_000
		if t.Isolation == stdio.PerSession {
			t.MaxSessions = 100
		}
	}
	if t.SessionTTL == 0 {
		t.SessionTTL = caddy.Duration(time.Hour)
	}
}

// config resolves the placeholders. They are the configuration's own, never a
// request's, and braces that are no placeholder stay: an argument may be JSON.
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

// warnOfEmpty tells of variables that take their value from somewhere, and get none:
// what a child says of that is often something else.
func (t *Transport) warnOfEmpty(log *zap.Logger) {
	repl := caddy.NewReplacer()
	for name, value := range t.Env {
		if value != "" && repl.ReplaceKnown(value, "") == "" {
			log.Warn("variable for a child process is empty", zap.String("env", name), zap.String("value", value))
		}
	}
}

// Validate ensures that the configuration makes sense.
func (t *Transport) Validate() error {
	switch {
	case len(t.Command) == 0 || t.Command[0] == "":
		return errors.New("command: missing")
	case strings.ContainsAny(t.Command[0], " \t") && !strings.ContainsAny(t.Command[0], `/\`):
		return fmt.Errorf("command: %q has spaces in it; write the command and its arguments without quotes around all of them",
			t.Command[0])
	case t.Framing != stdio.Newline && t.Framing != stdio.ContentLength:
		return fmt.Errorf("framing: %q must be newline or content-length", t.Framing)
	case t.Isolation != stdio.OneForAll && t.Isolation != stdio.Shared && t.Isolation != stdio.PerSession:
		return fmt.Errorf("isolation: %q must be none, shared or session", t.Isolation)
	case t.StartTimeout < 0:
		return fmt.Errorf("start_timeout: %s is negative", time.Duration(t.StartTimeout))
	case t.StopGrace < 0:
		return fmt.Errorf("stop_grace: %s is negative", time.Duration(t.StopGrace))
	case t.MaxLine < 0:
		return fmt.Errorf("max_line: %d is negative", t.MaxLine)
	case t.MaxSessions < 0:
		return fmt.Errorf("max_sessions: %d is negative", t.MaxSessions)
	case t.SessionTTL < 0:
		return fmt.Errorf("session_ttl: %s is negative", time.Duration(t.SessionTTL))
	}
	return t.validateEnv()
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Context().Value(caddyhttp.VarsCtxKey) == nil { // no client's, so it is a health check
		return t.check(r)
	}
	return t.logged.RoundTrip(t.owned(r), t.pool.RoundTrip)
}

// owned has a session that the request begins belong to the client's address, unless a
// gateway in front knows better.
func (t *Transport) owned(r *http.Request) *http.Request {
	if stdio.HasOwner(r.Context()) {
		return r
	}
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	return r.WithContext(stdio.WithOwner(r.Context(), address))
}

// check answers a health check.
func (t *Transport) check(r *http.Request) (*http.Response, error) {
	if err := t.pool.Check(r.Context(), r.URL.Host); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// Cleanup gives up the children, unless another configuration has the same.
func (t *Transport) Cleanup() error {
	if t.pool == nil {
		return nil
	}
	return t.pool.leave(t.user)
}

// Interface guards
var (
	_ caddy.Provisioner   = (*Transport)(nil)
	_ caddy.Validator     = (*Transport)(nil)
	_ caddy.CleanerUpper  = (*Transport)(nil)
	_ http.RoundTripper   = (*Transport)(nil)
	_ caddyevents.Handler = (*pool)(nil)
	_ stdio.Observer      = (*pool)(nil)
)
