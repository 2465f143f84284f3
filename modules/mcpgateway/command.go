package mcpgateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bridge"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-stdio",
		Usage: "[--config <path> [--adapter <name>]] [--gateway <name>] [--server <name>] [--client <name>]",
		Short: "Serves an mcp_gateway on standard input and output",
		Long: `
Serves an mcp_gateway of a configuration to one client, on standard input and
output: for clients that start MCP servers as processes. Nothing else of the
configuration runs but mcp_store, and nothing listens on the network. Only for
servers with oauth, the pages to log in have an address on this machine. Handlers
in front of the gateway do not run: the client is the process that has started
this one.

The configuration is the Caddyfile in the current directory unless --config names
another. With several gateways, --gateway chooses the one of this name. With
--server it is one of its servers alone, as below mcp_path. No credentials are
needed, and no rules apply, unless --client names the client to be treated as.

Logs go to standard error, wherever the configuration has them go. It ends when its
input does, and its child processes with it.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("mcp-stdio", flag.ExitOnError)
			flags.String("config", "", "Configuration file")
			flags.String("adapter", "", "Name of config adapter")
			flags.String("gateway", "", "The name of the mcp_gateway to serve")
			flags.String("server", "", "The one server of it to serve")
			flags.String("client", "", "The client whose rules apply")
			return flags
		}(),
		Func: serveStdio,
	})
}

func serveStdio(flags caddycmd.Flags) (int, error) {
	// Whatever else in the process believes that it may print must not.
	stdout := os.Stdout
	os.Stdout = os.Stderr

	config, file, err := configfile.Load(flags.String("config"), flags.String("adapter"))
	switch {
	case err != nil:
		return caddy.ExitCodeFailedStartup, err
	case config == nil:
		return caddy.ExitCodeFailedStartup, errors.New("there is no Caddyfile in the current directory; --config names another file")
	}
	config, path, err := stdioConfig(config, flags.String("gateway"), flags.String("server"), flags.String("client"))
	if err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("%s: %w", file, err)
	}

	SoleClient(flags.String("client"))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A client that has gone is an error of writing, not the death of this process
	// before its children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := caddy.Load(config, true); err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("%s: %w", file, err)
	}
	err = bridgeStdio(ctx, path, os.Stdin, stdout)
	if err != nil && ctx.Err() == nil {
		caddy.Log().Named("mcp_stdio").Error("connection lost", zap.Error(err))
	}
	return exitStdio()
}

// bridgeStdio connects two streams with the gateway that runs.
func bridgeStdio(ctx context.Context, path string, in io.Reader, out io.Writer) error {
	transport := &http.Transport{DialContext: pipenet.Dial, DisableCompression: true, MaxIdleConnsPerHost: 16}
	defer transport.CloseIdleConnections()
	logger := caddy.Log().Named("mcp_stdio")
	b := &bridge.Bridge{
		Transport: transport,
		URL:       "http://" + pipenet.Host + path,
		Log:       func(message string, err error) { logger.Warn(message, zap.Error(err)) },
	}
	return b.Run(ctx, in, out)
}

// exitStdio has Caddy exit in its own way, in which child processes are waited for.
// That can only be asked of its admin API.
func exitStdio() (int, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: pipenet.Dial, DisableKeepAlives: true}}
	res, err := client.Post("http://"+pipenet.AdminHost+"/stop", "", nil)
	if err == nil {
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			select {} // it exits by itself
		}
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return caddy.ExitCodeFailedQuit, errors.Join(fmt.Errorf("stop: %w", err), caddy.Stop())
}

// freeLoopbackAddress returns an address of this machine that is free.
func freeLoopbackAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// stdioConfig makes of a configuration one that serves just a gateway of it, or just
// one server of that, to this process. It also returns the path it is served at.
func stdioConfig(config []byte, gateway, server, client string) (made []byte, path string, err error) {
	var whole wholeConfig
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, "", err
	}
	chosen, err := whole.chooseGateway(gateway)
	if err != nil {
		return nil, "", err
	}
	if chosen.Servers, err = chosen.AllServers(); err != nil {
		return nil, "", err
	}
	if path, err = chosen.path(server); err != nil {
		return nil, "", err
	}
	mcpPath, err := chosen.path("")
	if err != nil {
		return nil, "", err
	}
	if err := chosen.knows(client); err != nil {
		return nil, "", err
	}
	logging, err := stdioLogging(whole.Logging)
	if err != nil {
		return nil, "", fmt.Errorf("logging: %w", err)
	}
	site := chosen.site(pipenet.Host)
	servers := object{"mcp_stdio": site}
	if chosen.hasLogin() && chosen.PublicURL == "" {
		// People log in with a browser, which needs an address.
		address, err := freeLoopbackAddress()
		if err != nil {
			return nil, "", err
		}
		chosen.publish("http://" + address)
		site["routes"] = []any{object{"handle": []any{chosen.raw}}}
		logins := maps.Clone(site)
		logins["listen"] = []string{address}
		pages := object{"path": []string{mcpPath + "/" + login.Segment + "/*"}}
		logins["routes"] = []any{object{"match": []any{pages}, "handle": []any{chosen.raw}}}
		servers["mcp_login"] = logins
	}
	made, err = whole.withOnly(servers, logging)
	return made, path, err
}

// An object is one of JSON.
type object = map[string]any

// A wholeConfig is a configuration, as far as commands need it.
type wholeConfig struct {
	Logging map[string]json.RawMessage `json:"logging"`
	Storage json.RawMessage            `json:"storage"`
	Apps    struct {
		HTTP struct {
			Servers map[string]json.RawMessage `json:"servers"`
		} `json:"http"`
		Store json.RawMessage `json:"mcp_store"`
	} `json:"apps"`
}

// withOnly returns a configuration for this process alone, with some HTTP servers and what they share with
// others.
func (w *wholeConfig) withOnly(servers, logging object) ([]byte, error) {
	apps := object{
		"http": object{"grace_period": "5s", "servers": servers},
		// Every HTTP app has one, and it would tidy up what belongs to another process.
		"tls": object{"disable_storage_clean": true},
	}
	if w.Apps.Store != nil {
		apps["mcp_store"] = w.Apps.Store
	}
	small := object{
		"admin":   object{"listen": pipenet.Name + "/" + pipenet.AdminHost, "config": object{"persist": false}},
		"logging": logging,
		"apps":    apps,
	}
	if w.Storage != nil {
		small["storage"] = w.Storage
	}
	return json.Marshal(small)
}

// A configuredGateway is a gateway in a configuration.
type configuredGateway struct {
	Handler
	raw         json.RawMessage
	namedRoutes json.RawMessage // of the HTTP server it stands in, which it may invoke
}

// site returns an HTTP server that has just the gateway, for this process alone.
func (g *configuredGateway) site(address string) object {
	site := object{
		"listen":          []string{pipenet.Name + "/" + address},
		"routes":          []any{object{"handle": []any{g.raw}}},
		"protocols":       []string{"h1"},
		"automatic_https": object{"disable": true},
	}
	if g.namedRoutes != nil {
		site["named_routes"] = g.namedRoutes
	}
	return site
}

// gateways returns all gateways in the HTTP servers of a configuration.
func (w *wholeConfig) gateways() (found []*configuredGateway, err error) {
	servers := w.Apps.HTTP.Servers
	for _, key := range slices.Sorted(maps.Keys(servers)) {
		var site struct {
			NamedRoutes json.RawMessage `json:"named_routes"`
		}
		if err := json.Unmarshal(servers[key], &site); err != nil {
			return nil, fmt.Errorf("HTTP server %s: %w", key, err)
		}
		handlers, err := configfile.Handlers(servers[key], "mcp_gateway")
		if err != nil {
			return nil, fmt.Errorf("HTTP server %s: %w", key, err)
		}
		for _, raw := range handlers {
			g := &configuredGateway{namedRoutes: site.NamedRoutes}
			if err := caddy.StrictUnmarshalJSON(raw, &g.Handler); err != nil {
				return nil, fmt.Errorf("mcp_gateway: %w", err)
			}
			if len(g.Servers) == 0 && len(g.ServersFrom) == 0 {
				return nil, errors.New("mcp_gateway needs at least one server")
			}
			// No other client can come in, so no secrets of clients are needed. Logins are
			// encrypted with the session_key.
			for _, member := range []string{"auth", "session_key"} {
				if edit, ok := jsonspan.Remove(raw, member); ok && (member == "auth" || !g.hasLogin()) {
					raw = jsonspan.Spliced(raw, edit)
				}
			}
			g.raw = append([]byte(`{"handler":"mcp_gateway",`), raw[1:]...)
			// The same gateway may stand in several sites.
			if !slices.ContainsFunc(found, func(other *configuredGateway) bool { return bytes.Equal(g.raw, other.raw) }) {
				found = append(found, g)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("there is no mcp_gateway; for the mcpServers JSON of a client, add --adapter mcp")
	}
	return found, nil
}

// chooseGateway returns the gateway of this name, or the only one.
func (w *wholeConfig) chooseGateway(name string) (*configuredGateway, error) {
	found, err := w.gateways()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(found))
	for i, g := range found {
		names[i] = cmp.Or(g.Name, "(no name)")
	}
	if name != "" {
		found = slices.DeleteFunc(found, func(g *configuredGateway) bool { return g.Name != name })
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("no mcp_gateway has the name %q; the names are %s", name, strings.Join(names, ", "))
	case len(found) > 1 && name != "":
		return nil, fmt.Errorf("there are %d mcp_gateway with the name %q", len(found), name)
	case len(found) > 1:
		return nil, fmt.Errorf("there are several mcp_gateway; --gateway names one of: %s", strings.Join(names, ", "))
	}
	return found[0], nil
}

// hasLogin reports whether the gateway logs in to a server.
func (g *configuredGateway) hasLogin() bool {
	return slices.ContainsFunc(g.Servers, func(s *Server) bool { return s != nil && s.OAuth != nil })
}

// publish sets where browsers reach the gateway.
func (g *configuredGateway) publish(address string) {
	g.raw = jsonspan.Spliced(g.raw, jsonspan.Insert(g.raw, slices.Concat([]byte(`"public_url":`), jsonrpc.Quote(address))))
}

// knows reports whether there are rules for a client, if one is named.
func (g *configuredGateway) knows(client string) error {
	if client == "" || g.HasRules(client) {
		return nil
	}
	var names []string
	for _, c := range g.Clients {
		if c != nil {
			names = append(names, c.Name)
		}
	}
	return unknownName("client", client, names)
}

// path returns where the gateway serves all its servers, or this one.
func (g *configuredGateway) path(server string) (string, error) {
	path := strings.TrimSuffix((&url.URL{Path: cmp.Or(g.MCPPath, "/mcp")}).EscapedPath(), "/")
	if server == "" {
		return cmp.Or(path, "/"), nil
	}
	var names []string
	for _, s := range g.Servers {
		if s != nil && (s.Name == server || slices.Contains(s.Aliases, server)) {
			return path + "/" + url.PathEscape(server), nil
		}
		if s != nil {
			names = append(names, s.Name)
		}
	}
	return "", unknownName("server", server, names)
}

// unknownName returns the error about a client or server that a gateway does not have.
func unknownName(kind, name string, known []string) error {
	if len(known) == 0 {
		return fmt.Errorf("mcp_gateway has no %s %q; it has no %ss", kind, name, kind)
	}
	return fmt.Errorf("mcp_gateway has no %s %q; it has %s", kind, name, strings.Join(known, ", "))
}

// stdioLogging has all logs go to standard error, but for those that go nowhere. The admin endpoint,
// which is not on the network here, is in none of them.
func stdioLogging(logging map[string]json.RawMessage) (map[string]any, error) {
	made := map[string]any{"logs": map[string]any{"default": map[string]any{"exclude": []string{adminLogger}}}}
	for name, raw := range logging {
		if name != "logs" { // the sink
			log, err := toStderr(raw)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			made[name] = log
			continue
		}
		var logs map[string]json.RawMessage
		if err := json.Unmarshal(raw, &logs); err != nil {
			return nil, err
		}
		redirected := made["logs"].(map[string]any)
		for name, raw := range logs {
			log, err := toStderr(raw)
			if err == nil {
				err = withoutAdmin(log)
			}
			if err != nil {
				return nil, fmt.Errorf("log %s: %w", name, err)
			}
			redirected[name] = log
		}
	}
	return made, nil
}

// adminLogger is the logger of Caddy's admin endpoint.
const adminLogger = "admin"

// withoutAdmin leaves the admin endpoint out of a log that takes everything.
func withoutAdmin(log map[string]json.RawMessage) error {
	if log["include"] != nil {
		return nil
	}
	var exclude []string
	if log["exclude"] != nil {
		if err := json.Unmarshal(log["exclude"], &exclude); err != nil {
			return err
		}
	}
	log["exclude"] = caddyconfig.JSON(append(exclude, adminLogger), nil)
	return nil
}

func toStderr(raw json.RawMessage) (map[string]json.RawMessage, error) {
	var log map[string]json.RawMessage
	if err := json.Unmarshal(raw, &log); err != nil || log == nil {
		return map[string]json.RawMessage{}, err
	}
	var writer struct {
		Output string `json:"output"`
	}
	if log["writer"] != nil {
		if err := json.Unmarshal(log["writer"], &writer); err != nil {
			return nil, err
		}
	}
	if writer.Output != "discard" {
		log["writer"] = json.RawMessage(`{"output":"stderr"}`)
	}
	return log, nil
}
