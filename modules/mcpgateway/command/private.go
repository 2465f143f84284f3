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

// startPrivate runs the gateways of a configuration in this process, for its admin client alone. Nothing
// else of the configuration runs but mcp_store, nothing listens on the network, and nothing is logged.
func (c *adminClient) startPrivate(file string) error {
	config, from, err := configfile.Load(file, c.adapter)
	switch {
	case err != nil:
		return err
	case config == nil:
		return errors.New("there is no Caddyfile in the current directory; --config names another file")
	}
	config, err = privateConfig(config, c.gateway)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	mcpgateway.ForOneCommand()
	// A reader of the output that has gone must not end this process before its children.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := caddy.Load(config, true); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	c.private = true
	return nil
}

// privateConfig makes of a configuration one that has just its gateways, or the one of a name.
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
		return nil, fmt.Errorf("there is no mcp_gateway %q", name)
	}
	servers := object{}
	for i, g := range found {
		servers["mcp"+strconv.Itoa(i)] = g.site(net.JoinHostPort("localhost", strconv.Itoa(unusedPort+i)))
	}
	// Caddy would say that it logs elsewhere if the writer was another one.
	nothing := object{"logs": object{"default": object{"level": "FATAL"}}}
	return whole.withOnly(servers, nothing)
}

// unusedPort is the first port of private sites on the network of this process, which the command does
// not connect to.
const unusedPort = 10000

// exitPrivate has Caddy exit with a status, after the child processes have ended.
func exitPrivate(code int) (int, error) {
	if code != caddy.ExitCodeSuccess {
		caddy.OnExit(func(context.Context) { os.Exit(code) }) // after those who wait for children
	}
	return exitStdio()
}
