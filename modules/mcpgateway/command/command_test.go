package command

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
)

func TestGroupCommand(t *testing.T) {
	for _, tt := range []struct {
		name     string
		args     []string
		out, err string
	}{
		{"no subcommand", nil, "Usage:\n  caddy mcp [flags]\n  caddy mcp [command]\n", ""},
		{"a misspelled subcommand", []string{"chek"}, "", `unknown command "chek" for "caddy mcp"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := &cobra.Command{Use: "caddy", SilenceUsage: true, SilenceErrors: true}
			cmd := &cobra.Command{Use: "mcp "} // as Caddy makes it
			root.AddCommand(cmd)
			caddycmd.Commands()["mcp"].CobraFunc(cmd)
			var out bytes.Buffer
			root.SetOut(&out)
			root.SetArgs(append([]string{"mcp"}, tt.args...))
			err := root.Execute()
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || err.Error() != tt.err) {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(out.String(), tt.out) || (out.Len() > 0) != (tt.out != "") {
				t.Errorf("printed %s", &out)
			}
		})
	}
}

func TestReadAdminError(t *testing.T) {
	for _, tt := range []struct{ name, body, want string }{
		{"an error", `{"error":"unknown server \"a\"","code":"not_found"}`, `unknown server "a"`},
		{"an error that names the parameter", `{"error":"several gateways match; select one with ?gateway=: \"a\" at /a",` +
			`"code":"ambiguous"}`, `several gateways match; select one with --gateway: "a" at /a`},
		{"an error that quotes the parameter", `{"error":"unknown server \"?gateway=\"","code":"not_found"}`,
			`unknown server "?gateway="`},
		{"not JSON", "no\x1b[2J", `status 409: no\x1b[2J`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res := &http.Response{StatusCode: http.StatusConflict, Body: io.NopCloser(strings.NewReader(tt.body))}
			if err := readAdminError(res); err.Error() != tt.want {
				t.Errorf("got %v", err)
			}
		})
	}
}
