package command

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
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func newLoginCommand() *cobra.Command {
	var admin adminClient
	cmd := &cobra.Command{
		Use:   "login <server>",
		Short: "Logs the gateway in to a server with oauth",
		Long: `
Prints the URL of the login page, and waits until you have logged in. All clients of
the gateway use this login. It needs the admin API of the running Caddy, and a browser
that reaches the gateway: at its public_url, or on this machine.`,
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
		Short: "Ends the login of the gateway, or of one of its clients, to a server",
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
			path := serverPath(args[0]) + "/logout"
			if err := admin.request(context.Background(), http.MethodPost, path, url.Values{}, body, nil); err != nil {
				return err
			}
			fmt.Println("logged out of", args[0])
			return nil
		},
	}
	admin.addFlags(cmd)
	cmd.Flags().StringVar(&client, "client", "", "The client whose login to end, with oauth per_client")
	return cmd
}

// logIn prints the URL to log in to a server, and waits for the login.
func (c *adminClient) logIn(ctx context.Context, w io.Writer, server string) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for shown := false; ; {
		var status adminapi.ServerStatus
		if err := c.request(ctx, http.MethodGet, serverPath(server), url.Values{}, "", &status); err != nil {
			return err
		}
		switch {
		case status.Login == nil:
			return fmt.Errorf("server %q has no oauth", server)
		case status.Login.State == "logged_in" && shown:
			fmt.Fprintln(w, "logged in to", server)
			return nil
		case status.Login.State == "logged_in":
			fmt.Fprintf(w, "already logged in to %s; caddy mcp logout %s ends the login\n", server, server)
			return nil
		case status.LoginURL == "":
			return fmt.Errorf("server %q needs no login by the operator: its oauth is %s", server, status.Login.State)
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
