package command

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-health",
		Usage: "[--config <path> [--adapter <name>]] [--address <interface>]",
		Short: "Checks that the running Caddy serves an mcp_gateway",
		Long: `
Prints the state of each server of the running gateways, with its last error if it
is not healthy, and exits with status 0. If Caddy does not respond, or has no
gateway, it exits with status 1. The state of the servers does not change the
status, because restarting the gateway would not help them.

It is meant for health checks of containers that have neither a shell nor curl.

It uses the admin API at its default address, at --address, or at the address in
the configuration file of --config.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("mcp-health", flag.ExitOnError)
			flags.String("config", "", "Configuration file to read the admin address from")
			flags.String("adapter", "", "Name of config adapter")
			flags.String("address", "", "Address of the admin API")
			return flags
		}(),
		Func: checkHealth,
	})
}

func checkHealth(flags caddycmd.Flags) (int, error) {
	address, err := caddycmd.DetermineAdminAPIAddress(
		flags.String("address"), nil, flags.String("config"), flags.String("adapter"))
	if err == nil {
		err = printHealth(os.Stdout, address)
	}
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

// printHealth prints the state of all servers. It requests them from the admin API at an address.
func printHealth(w io.Writer, address string) error {
	res, err := caddycmd.AdminAPIRequest(address, http.MethodGet, "/mcp_gateway/servers", nil, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var servers []adminapi.ServerStatus
	if err := json.NewDecoder(res.Body).Decode(&servers); err != nil {
		return fmt.Errorf("admin API at %s: %w", address, err)
	}
	if len(servers) == 0 {
		return fmt.Errorf("admin API at %s: no mcp_gateway is running", address)
	}
	for _, s := range servers {
		if s.State == adminapi.StateHealthy || s.LastError == "" {
			fmt.Fprintln(w, s.Name, s.State)
			continue
		}
		fmt.Fprintf(w, "%s %s: %s\n", s.Name, s.State, mcp.OneLine(s.LastError))
	}
	return nil
}
