package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
)

// startPrivate runs the gateways of a configuration in this process, for this adminClient only. Of
// the rest of the configuration only mcp_store runs. It neither listens on the network nor logs.
func (c *adminClient) startPrivate(file string) error {
	config, from, err := configfile.Load(file, c.adapter)
	switch {
	case err != nil:
		return err
	case config == nil:
		return errors.New("no Caddyfile in the current directory; set --config")
	}
	config, err = privateConfig(config, c.gateway)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	mcpgateway.SetOneCommand()
	// If the reader of the output disappears, SIGPIPE must not kill this process before its children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := caddy.Load(config, true); err != nil {
		return fmt.Errorf("%s: %w", from, err)
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
	if name != "" {
		found = slices.DeleteFunc(found, func(g *configuredGateway) bool {
			return g.Name != name && cmp.Or(g.MCPPath, "/mcp") != name
		})
	}
	if len(found) == 0 {
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
