package mcpgateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "mcp",
		Short: "Works with the mcp_gateway of the running Caddy",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.AddCommand(newLoginCommand(), newLogoutCommand(), newToolsCommand(), newImportCommand())
		},
	})
}

func newLoginCommand() *cobra.Command {
	var admin adminClient
	cmd := &cobra.Command{
		Use:   "login <server>",
		Short: "Logs the gateway in to a server with oauth",
		Long: `
Prints the address to log in at, and waits until that is done. All clients of the
gateway use this login. It needs the admin API of the running Caddy, and a browser that
reaches the gateway: at its public_url, or on this machine.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return admin.logIn(ctx, os.Stdout, args[0])
		},
	}
	admin.addFlags(cmd)
	return cmd
}

func newLogoutCommand() *cobra.Command {
	var admin adminClient
	var client string
	cmd := &cobra.Command{
		Use:   "logout <server>",
		Short: "Ends the login of the gateway, or of one of its clients, at a server",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			body := ""
			if client != "" {
				text, err := json.Marshal(map[string]string{"client": client})
				if err != nil {
					return err
				}
				body = string(text)
			}
			if err := admin.request(http.MethodPost, serverPath(args[0])+"/logout", url.Values{}, body, nil); err != nil {
				return err
			}
			fmt.Println("logged out of", args[0])
			return nil
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().StringVar(&client, "client", "", "The client whose login ends, with oauth per_client")
	return cmd
}

// An adminClient talks to the admin API of the running Caddy.
type adminClient struct{ address, config, adapter, gateway string }

func (c *adminClient) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.address, "address", "", "Address of the admin API")
	cmd.Flags().StringVarP(&c.config, "config", "c", "", "Configuration file to read the admin address from")
	cmd.Flags().StringVarP(&c.adapter, "adapter", "a", "", "Name of config adapter")
	cmd.Flags().StringVar(&c.gateway, "gateway", "", "The name of the mcp_gateway, if there are several")
}

// serverPath returns where the API tells of a server.
func serverPath(server string) string { return "/servers/" + url.PathEscape(server) }

// request makes a request to a path of the API, which names the gateway in its query if it is given.
func (c *adminClient) request(method, path string, query url.Values, body string, answer any) error {
	address, err := caddycmd.DetermineAdminAPIAddress(c.address, nil, c.config, c.adapter)
	if err != nil {
		return err
	}
	if c.gateway != "" {
		query.Set("gateway", c.gateway)
	}
	uri := "/mcp_gateway" + path
	if len(query) > 0 {
		uri += "?" + query.Encode()
	}
	var content io.Reader
	if body != "" {
		content = strings.NewReader(body)
	}
	res, err := caddycmd.AdminAPIRequest(address, method, uri, nil, content)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(answer); err != nil {
		return fmt.Errorf("admin API at %s: %w", address, err)
	}
	return nil
}

// logIn prints where to log in to a server, and waits until that is done.
func (c *adminClient) logIn(ctx context.Context, w io.Writer, server string) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for shown := false; ; {
		var status serverStatus
		if err := c.request(http.MethodGet, serverPath(server), url.Values{}, "", &status); err != nil {
			return err
		}
		switch {
		case status.Login == nil:
			return fmt.Errorf("the server %q has no oauth in its configuration", server)
		case status.Login.State == "logged_in" && shown:
			fmt.Fprintln(w, "logged in to", server)
			return nil
		case status.Login.State == "logged_in":
			fmt.Fprintf(w, "%s is logged in already; caddy mcp logout %s ends that\n", server, server)
			return nil
		case status.LoginURL == "":
			return fmt.Errorf("the operator does not log in to %q: its oauth is %s", server, status.Login.State)
		case !shown:
			fmt.Fprintf(w, "Open this address to log in to %s:\n\n  %s\n\nwaiting for the login\n", server, status.LoginURL)
			shown = true
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.New("not logged in")
		}
	}
}
