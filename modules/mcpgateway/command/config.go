package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
)

// An object is a JSON object.
type object = map[string]any

// A wholeConfig holds the parts of a configuration that commands need.
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

// withOnly returns a configuration that has only these HTTP servers and logs, the store and the
// storage. Its admin endpoint is inside this process.
func (w *wholeConfig) withOnly(servers, logging object) ([]byte, error) {
	apps := object{
		"http": object{"grace_period": "5s", "servers": servers},
		// Every HTTP app starts a TLS app, which would clean up the storage of the running Caddy.
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
	mcpgateway.Handler
	raw         json.RawMessage
	namedRoutes json.RawMessage // of its HTTP server; the gateway may invoke them
}

// site returns an HTTP server that has only this gateway, at an address inside this process.
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
			// No other client can connect, so auth is not needed. session_key is needed only to
			// decrypt logins.
			for _, member := range []string{"auth", "session_key"} {
				if edit, ok := jsonspan.Remove(raw, member); ok && (member == "auth" || !g.hasLogin()) {
					raw = jsonspan.Spliced(raw, edit)
				}
			}
			g.raw = append([]byte(`{"handler":"mcp_gateway",`), raw[1:]...)
			// Several sites may contain the same gateway.
			if !slices.ContainsFunc(found, func(other *configuredGateway) bool { return bytes.Equal(g.raw, other.raw) }) {
				found = append(found, g)
			}
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no mcp_gateway configured; for the mcpServers JSON of a client, add --adapter mcp")
	}
	return found, nil
}

// label returns the name of the gateway, or its path if it has no name.
func (g *configuredGateway) label() string { return cmp.Or(g.Name, g.mcpPath()) }

// mcpPath returns the configured or default path.
func (g *configuredGateway) mcpPath() string { return cmp.Or(g.MCPPath, "/mcp") }

// withLabel returns the gateways with a label or, if none has it, with this path. It returns all if
// the label is empty.
func withLabel(all []*configuredGateway, label string) (found []*configuredGateway) {
	if label == "" {
		return all
	}
	var byPath []*configuredGateway
	for _, g := range all {
		switch label {
		case g.label():
			found = append(found, g)
		case g.mcpPath():
			byPath = append(byPath, g)
		}
	}
	if len(found) == 0 {
		return byPath
	}
	return found
}

// chooseGateway returns the gateway with this name or path, or the only one.
func (w *wholeConfig) chooseGateway(name string) (*configuredGateway, error) {
	found, err := w.gateways()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(found))
	for i, g := range found {
		names[i] = g.label()
	}
	found = withLabel(found, name)
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("no mcp_gateway has the name %q; the names are %s", name, strings.Join(names, ", "))
	case len(found) > 1 && name != "":
		return nil, fmt.Errorf("%d mcp_gateway have the name %q; give them different names", len(found), name)
	case len(found) > 1:
		return nil, fmt.Errorf("several mcp_gateway configured; set --gateway to one of: %s", strings.Join(names, ", "))
	}
	return found[0], nil
}

// hasLogin reports whether the gateway logs in to a server.
func (g *configuredGateway) hasLogin() bool {
	return slices.ContainsFunc(g.Servers, func(s *mcpgateway.Server) bool { return s != nil && s.OAuth != nil })
}

// publish sets public_url.
func (g *configuredGateway) publish(address string) {
	g.raw = jsonspan.Spliced(g.raw, jsonspan.Insert(g.raw, slices.Concat([]byte(`"public_url":`), jsonrpc.Quote(address))))
}

// checkClient returns an error if the client is not empty and no client block applies to it.
func (g *configuredGateway) checkClient(client string) error {
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

// path returns the path of the gateway, or of one of its servers.
func (g *configuredGateway) path(server string) (string, error) {
	path := strings.TrimSuffix((&url.URL{Path: g.mcpPath()}).EscapedPath(), "/")
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

// unknownName returns the error that a gateway does not have a client or server. kind is client or
// server.
func unknownName(kind, name string, known []string) error {
	if len(known) == 0 {
		return fmt.Errorf("mcp_gateway has no %s %q; it has no %ss", kind, name, kind)
	}
	return fmt.Errorf("mcp_gateway has no %s %q; it has %s", kind, name, strings.Join(known, ", "))
}

// readConfig reads a configuration file, by default the Caddyfile in the current directory. from is
// the name of the file.
func readConfig(file, adapter string) (config []byte, from string, err error) {
	config, from, err = configfile.Load(file, adapter)
	if err == nil && config == nil {
		err = errors.New("no Caddyfile in the current directory; set --config")
	}
	return config, from, err
}

// runConfig makes this process run a configuration that was made from a file.
func runConfig(config []byte, from string) error {
	// If the reader of the output disappears, SIGPIPE must not kill this process before its children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := caddy.Load(config, true); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return nil
}

// startPrivate runs the gateways of a configuration in this process, for this adminClient only. Of
// the rest of the configuration only mcp_store runs. It neither listens on the network nor logs.
func (c *adminClient) startPrivate(file string) error {
	config, from, err := readConfig(file, c.adapter)
	if err != nil {
		return err
	}
	config, err = privateConfig(config, c.gateway)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	mcpgateway.SetOneCommand()
	if err := runConfig(config, from); err != nil {
		return err
	}
	c.private = true
	return nil
}

// privateConfig reduces a configuration to its gateways, or to those with a name or mcp_path.
func privateConfig(config []byte, name string) ([]byte, error) {
	var whole wholeConfig
	if err := json.Unmarshal(config, &whole); err != nil {
		return nil, err
	}
	found, err := whole.gateways()
	if err != nil {
		return nil, err
	}
	if found = withLabel(found, name); len(found) == 0 {
		return nil, fmt.Errorf("no mcp_gateway has the name or mcp_path %q", name)
	}
	servers := object{}
	for i, g := range found {
		servers["mcp"+strconv.Itoa(i)] = g.site(net.JoinHostPort("localhost", strconv.Itoa(unusedPort+i)))
	}
	// With another writer, Caddy would print that it has redirected the default logger.
	nothing := object{"logs": object{"default": object{"level": "FATAL"}}}
	return whole.withOnly(servers, nothing)
}

// unusedPort is the port of the first private site, on the network inside this process. The command
// never connects to these sites.
const unusedPort = 10000

// exitPrivate makes Caddy exit with a status, after the child processes have ended.
func exitPrivate(code int) (int, error) {
	if code != caddy.ExitCodeSuccess {
		caddy.OnExit(func(context.Context) { os.Exit(code) }) // runs after the waits for children
	}
	return exitStdio()
}
