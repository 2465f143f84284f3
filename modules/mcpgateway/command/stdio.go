package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bridge"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp-stdio",
		Usage: "[--config <path> [--adapter <name>]] [--gateway <name>] [--server <name>] [--client <name>]",
		Short: "Serves an mcp_gateway on standard input and output",
		Long: `
Serves an mcp_gateway of a configuration to one client, on standard input and
output. It is for clients that start MCP servers as processes. Of the rest of the
configuration only mcp_store runs, and nothing listens on the network, except that
servers with oauth have their login pages at an address of this machine. Handlers in
front of the gateway do not run.

The configuration is the Caddyfile in the current directory, or the file of
--config. If it has several gateways, --gateway selects one by name, or by mcp_path if
it has no name. --server serves only one of its servers, as below mcp_path. The client
needs no credentials, and no rules apply, unless --client names the client whose rules
to apply.

Logs go to standard error, whatever the configuration says. The command and its child
processes end when standard input ends.`,
		Flags: func() *flag.FlagSet {
			flags := flag.NewFlagSet("mcp-stdio", flag.ExitOnError)
			flags.String("config", "", "Configuration file")
			flags.String("adapter", "", "Name of config adapter")
			flags.String("gateway", "", "Name or mcp_path of the mcp_gateway to serve")
			flags.String("server", "", "Serve only this server of the gateway")
			flags.String("client", "", "The client whose rules apply")
			return flags
		}(),
		Func: serveStdio,
	})
}

func serveStdio(flags caddycmd.Flags) (int, error) {
	// Only the bridge may write to standard output.
	stdout := os.Stdout
	os.Stdout = os.Stderr

	config, file, err := readConfig(flags.String("config"), flags.String("adapter"))
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	config, path, err := stdioConfig(config, flags.String("gateway"), flags.String("server"), flags.String("client"))
	if err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("%s: %w", file, err)
	}

	mcpgateway.SetSoleClient(flags.String("client"))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := runConfig(config, file); err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	err = bridgeStdio(ctx, path, os.Stdin, stdout)
	if err != nil && ctx.Err() == nil {
		caddy.Log().Named("mcp_stdio").Error("connection to the client failed", zap.Error(err))
	}
	return exitStdio()
}

// bridgeStdio connects in and out to the gateway in this process.
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

// exitStdio makes Caddy exit as usual, so that it waits for child processes. It uses the admin API,
// because Caddy exports no function for that.
func exitStdio() (int, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: pipenet.Dial, DisableKeepAlives: true}}
	res, err := client.Post("http://"+pipenet.AdminHost+"/stop", "", nil)
	if err == nil {
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			select {} // until Caddy exits
		}
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return caddy.ExitCodeFailedQuit, errors.Join(fmt.Errorf("stop: %w", err), caddy.Stop())
}

// freeLoopbackAddress returns a free address of this machine.
func freeLoopbackAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// stdioConfig reduces a configuration to one gateway inside this process. It returns the path of
// the gateway, or of one of its servers.
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
	if err := chosen.checkClient(client); err != nil {
		return nil, "", err
	}
	logging, err := stdioLogging(whole.Logging)
	if err != nil {
		return nil, "", fmt.Errorf("logging: %w", err)
	}
	site := chosen.site(pipenet.Host)
	servers := object{"mcp_stdio": site}
	if chosen.hasLogin() && chosen.PublicURL == "" {
		// Browsers need an address for the login pages.
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

// stdioLogging returns a logging configuration with all logs redirected to standard error, except
// those that are discarded. It excludes the admin endpoint, which is inside this process.
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

// withoutAdmin excludes the admin endpoint from a log without an include list.
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

// toStderr returns the configuration of a log, redirected to standard error unless it is discarded.
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
