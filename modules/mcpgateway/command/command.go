// Package command implements the commands of mcp_gateway: mcp-stdio, mcp-health, and mcp with its
// subcommands. They use the admin API of a running Caddy, or run the gateways of a configuration in
// their own process.
package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp",
		Short: "Manages the servers, tools and logins of an mcp_gateway",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.AddCommand(newServersCommand(), newToolsCommand(), newCallCommand(), newCheckCommand(), newImportCommand(),
				newLoginCommand(), newLogoutCommand())
			// Without RunE, cobra would print the help for an unknown subcommand, too.
			cmd.Use, cmd.Args = cmd.Name(), cobra.NoArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		},
	})
}

// An adminClient uses the admin API of the running Caddy, or of Caddy in this process.
type adminClient struct {
	address, config, adapter, gateway string // values of the flags

	private bool // Caddy runs in this process, see startPrivate
}

func (c *adminClient) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.address, "address", "", "Address of the admin API")
	cmd.Flags().StringVarP(&c.config, "config", "c", "", "Configuration file to read the admin address from")
	cmd.Flags().StringVarP(&c.adapter, "adapter", "a", "", "Name of config adapter")
	cmd.Flags().StringVar(&c.gateway, "gateway", "", "Name or mcp_path of the mcp_gateway, if there are several")
}

// serverPath returns the path of a server in the API.
func serverPath(server string) string { return "/servers/" + url.PathEscape(server) }

// errNotRunning means that nothing listens at the admin address.
var errNotRunning = errors.New("no Caddy is running")

// get sends a GET request to the API, and decodes the response into answer unless that is nil.
func (c *adminClient) get(ctx context.Context, path string, answer any) error {
	return c.request(ctx, http.MethodGet, path, nil, answer)
}

// post sends a POST request to the API. body and answer may be nil.
func (c *adminClient) post(ctx context.Context, path string, body, answer any) error {
	return c.request(ctx, http.MethodPost, path, body, answer)
}

func (c *adminClient) request(ctx context.Context, method, path string, body, answer any) error {
	res, err := c.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(answer); err != nil {
		return fmt.Errorf("admin API: %w", err)
	}
	return nil
}

// open sends a request to the API. Unless the path selects a gateway, the flag does. It returns
// error responses as *[adminapi.Error].
func (c *adminClient) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	client, origin, err := c.httpClient()
	if err != nil {
		return nil, err
	}
	var content []byte
	if body != nil {
		content = jsonrpc.Encode(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, origin+"/mcp_gateway"+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	if query := r.URL.Query(); c.gateway != "" && query.Get("gateway") == "" {
		query.Set("gateway", c.gateway)
		r.URL.RawQuery = query.Encode()
	}
	if origin != socketOrigin {
		r.Header.Set("Origin", origin)
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := client.Do(r)
	if err != nil {
		return nil, requestError(err)
	}
	if res.StatusCode >= 400 {
		defer res.Body.Close()
		return nil, readAdminError(res)
	}
	return res, nil
}

// socketOrigin is the origin of an API at a Unix socket. Caddy refuses any Origin there.
const socketOrigin = "http://127.0.0.1"

// httpClient returns an HTTP client that connects to the API, and its origin.
func (c *adminClient) httpClient() (_ *http.Client, origin string, err error) {
	if c.private {
		transport := &http.Transport{DialContext: pipenet.Dial, DisableKeepAlives: true}
		return &http.Client{Transport: transport}, "http://" + pipenet.AdminHost, nil
	}
	var config []byte
	if c.config != "" {
		if config, _, err = configfile.Load(c.config, c.adapter); err != nil { // without Caddy's log line
			return nil, "", err
		}
		if c.isAdminOff() {
			return nil, "", fmt.Errorf("%s disables the admin API, which this command needs", c.config)
		}
	}
	text, err := caddycmd.DetermineAdminAPIAddress(c.address, config, c.config, c.adapter)
	if err != nil {
		return nil, "", err
	}
	address, err := caddy.ParseNetworkAddress(text)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("invalid admin address %s: %w", text, err)
	case address.PortRangeSize() > 1, !address.IsUnixNetwork() && strings.Contains(address.Host, "/"):
		return nil, "", fmt.Errorf("invalid admin address %s: must be <host>:<port> or unix/<path>", text)
	}
	origin = "http://" + address.JoinHostPort(0)
	if address.IsUnixNetwork() {
		origin = socketOrigin
		address.Host, _, _ = strings.Cut(address.Host, "|") // permissions follow
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, address.Network, address.JoinHostPort(0))
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}, origin, nil
}

// requestError returns the error of a request. It wraps errNotRunning if there was no connection.
func requestError(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return fmt.Errorf("%w: %w; set --address or --config if its admin API is elsewhere", errNotRunning, err)
	}
	return fmt.Errorf("admin API: %w", err)
}

// readAdminError returns the error in a response of the API.
func readAdminError(res *http.Response) error {
	failure := &adminapi.Error{Status: res.StatusCode}
	body, err := io.ReadAll(io.LimitReader(res.Body, adminapi.MaxBody))
	if err != nil {
		return fmt.Errorf("admin API: status %d: %w", res.StatusCode, err)
	}
	if json.Unmarshal(body, failure) != nil || failure.Message == "" {
		failure.Message = fmt.Sprintf("status %d: %s", res.StatusCode, body)
	}
	if failure.Code == "ambiguous" {
		failure.Message = strings.Replace(failure.Message, adminapi.GatewayParameter, "--gateway", 1)
	}
	failure.Message = printable(failure.Message)
	return failure
}

// errFailed makes a command exit with status 1, after it has printed why.
var errFailed = errors.New("failed")

// run runs a command until it ends or is interrupted. Then it stops Caddy if that runs in this
// process.
func (c *adminClient) run(cmd *cobra.Command, do func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := do(ctx)
	cmd.SilenceErrors = errors.Is(err, errFailed)
	if !c.private {
		return err
	}
	code := caddy.ExitCodeSuccess
	if err != nil {
		code = caddy.ExitCodeFailedStartup
	}
	if err != nil && !cmd.SilenceErrors {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	_, err = exitPrivate(code)
	return err
}

// printable escapes control and invisible characters in a text of unknown origin, so that a
// terminal shows it on one line.
func printable(text string) string { return escaped(text, "") }

// printableLines is printable for texts of several lines. It keeps newlines and tabs.
func printableLines(text string) string { return escaped(text, "\n\t") }

func escaped(text, kept string) string {
	plain := func(r rune) bool { return unicode.IsPrint(r) || strings.ContainsRune(kept, r) }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case plain(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		i += size
	}
	return b.String()
}

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && info.Mode()&os.ModeDevice != 0 && f.Name() != os.DevNull
}
