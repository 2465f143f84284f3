package modules_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
)

// A badConfiguration is a Caddyfile and the error of `caddy validate`.
type badConfiguration struct {
	name string
	text string // lines of the block, or a site
	want string
}

// frames are the Caddyfiles around the lines of a group. "…" marks the first line.
var frames = map[string]string{
	"site": "…",
	"mcp_store": "{\n\tmcp_store redis redis://127.0.0.1:1 {\n\t\tsession_key " +
		"0123456789abcdef0123456789abcdef\n…\n\t}\n}",
	"global":      "{\n…\n}",
	"mcp_gateway": ":8080 {\n\tmcp_gateway {\n…\n\t\tserver files http://127.0.0.1:1/mcp\n\t}\n}",
	"server":      ":8080 {\n\tmcp_gateway {\n\t\tserver files http://127.0.0.1:1/mcp {\n…\n\t\t}\n\t}\n}",
	"stdio":       ":8080 {\n\tmcp_gateway {\n\t\tserver files stdio sh -c true {\n…\n\t\t}\n\t}\n}",
	"client": ":8080 {\n\tmcp_gateway {\n\t\tserver files http://127.0.0.1:1/mcp\n\t\tclient alice " +
		"{\n…\n\t\t}\n\t}\n}",
	"observation_mask": ":8080 {\n\tobservation_mask {\n…\n\t}\n}",
	"tool_result_mask": ":8080 {\n\ttool_result_mask {\n…\n\t}\n}",
	"mcp_console":      ":8080 {\n\tmcp_console {\n…\n\t}\n}",
	"mcp_pruner":       ":8080 {\n\tmcp_pruner {\n…\n\t}\n}",
}

var caddysPrefix = regexp.MustCompile(`^.*(?:parsing caddyfile tokens for '[a-z_]+': |provision http[a-z_.]*: ` +
	`|loading [a-z_]+ app module: provision mcp_store: |invalid configuration: )`)

// validated returns the error of a Caddyfile, without Caddy's prefix, and the warnings that are
// logged when it is provisioned.
func validated(t *testing.T, text string) (refusal string, warnings []string) {
	t.Helper()
	adapter := caddyfile.Adapter{ServerType: httpcaddyfile.ServerType{}}
	adapted, _, err := adapter.Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return caddysPrefix.ReplaceAllString(err.Error(), ""), nil
	}
	var config caddy.Config
	if err := json.Unmarshal(adapted, &config); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	config.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": {
		BaseLog: caddy.BaseLog{WriterRaw: json.RawMessage(`{"output":"file","filename":` + quote(log) + `}`), Level: "WARN"},
	}}}
	if err := caddy.Validate(&config); err != nil {
		return caddysPrefix.ReplaceAllString(err.Error(), ""), nil
	}
	logged, _ := os.ReadFile(log)
	for line := range strings.Lines(string(logged)) {
		var entry struct {
			Msg, Logger string
			DidYouMean  string `json:"did_you_mean"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(entry.Logger, "http.handlers.") || strings.HasPrefix(entry.Logger,
			"http.reverse_proxy.transport.mcp") {
			warnings = append(warnings, strings.TrimSpace(entry.Msg+" "+entry.DidYouMean))
		}
	}
	return "", warnings
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}

// TestBadConfigurations checks that errors name the file, the line and the word as written.
func TestBadConfigurations(t *testing.T) {
	for group, rows := range badConfigurations {
		for _, tt := range rows {
			t.Run(group+"/"+tt.name, func(t *testing.T) {
				got, _ := validated(t, strings.Replace(frames[group], "…", tt.text, 1)+"\n")
				if got != tt.want {
					t.Errorf("\n got %s\nwant %s", got, tt.want)
				}
			})
		}
	}
}

// TestDoubtfulConfigurations checks the warnings about configurations that are valid, but probably
// not intended.
func TestDoubtfulConfigurations(t *testing.T) {
	const (
		separator = "model APIs refuse tool names with this separator; set separator __ unless your clients rename tools"
		shell     = "command of a child process is not run by a shell; use a placeholder"
		notFound  = "command of a child process not found; Caddy's PATH is searched"
	)
	gateway := func(lines string) string { return "mcp_gateway {\n\tseparator __\n" + lines + "\n}" }
	const files = "server files http://127.0.0.1:1/mcp\n"
	for _, tt := range []struct {
		name, site string
		want       []string
	}{
		{"a good configuration", gateway(files), nil},
		{"a separator with a dot", "mcp_gateway {\n\tseparator .\n" + files + "}", []string{separator}},
		{"a separator with a slash", "mcp_gateway {\n\tseparator /\n" + files + "}", []string{separator}},
		{"a missing command", gateway("server a stdio no-such-command-anywhere"), []string{notFound}},
		{"a missing relative command", gateway("server a stdio ./no-such-command"), []string{notFound}},
		{"a missing command with spaces in its path", gateway(`server a stdio "/opt/no such/command -y"`),
			[]string{notFound}},
		{"a missing directory", gateway("server a stdio sh {\n\tdir /no/such/directory\n}"),
			[]string{"dir of a child process is not a directory"}},
		{"a home directory as a tilde", gateway("server a stdio sh ~/data"), []string{shell}},
		{"a home directory as a shell variable", gateway("server a stdio sh $HOME/data"), []string{shell}},
		{"a variable in braces", gateway("server a stdio sh --token=${API_TOKEN}"), []string{shell}},
		{"a script for a shell", gateway("server a stdio sh -c \"echo $HOME\""), nil},
		{"a placeholder", gateway("server a stdio sh {env.HOME}/data"), nil},
		{"a rule that allows an unknown server", gateway(files + "client anonymous {\n\tallow fils::*\n}"),
			[]string{"rule refers to an unknown server files"}},
		{"a rule that allows a server with no similar name", gateway(files + "client anonymous {\n\tallow github::*\n}"),
			[]string{"rule refers to an unknown server"}},
		{"a timeout longer than its interval", gateway(files + "health_interval 1s\nhealth_timeout 2s"),
			[]string{"health_timeout is longer than health_interval: servers that hang are checked less often"}},
		{"certificates without TLS", gateway(files + "auth mtls"),
			[]string{"auth mtls cannot identify clients: the site does not request client certificates; " +
				"set client_auth in tls"}},
		{"two gateways at one path", "route {\n" + gateway(files) + "\n" + gateway("server b http://127.0.0.1:2/mcp") + "\n}",
			[]string{"another mcp_gateway in front of this one has the same mcp_path: this one gets no requests"}},
		{"two gateways at two paths", "route {\n" + gateway(files) + "\n" +
			gateway("mcp_path /b\nrpc_path /c\nserver b http://127.0.0.1:2/mcp") + "\n}", nil},
		{"two gateways for two hosts", "@a host a.example.com\n@b host b.example.com\nhandle @a {\n" + gateway(files) +
			"\n}\nhandle @b {\n" + gateway(files) + "\n}", nil},
		{"a stripped mcp_path", "handle_path /mcp* {\n" + gateway(files) + "\n}",
			[]string{"a handler in front strips the beginning of mcp_path from requests; use handle instead of handle_path"}},
		{"a stripped prefix of mcp_path", "handle_path /team/* {\n" + gateway(files) + "\n}", nil},
		{"a negative mask", "observation_mask -1 2 3", []string{"negative max_chars turns the mask off; write off"}},
		{"a negative window", "tool_result_mask {\n\twindow_turns -3\n}",
			[]string{"negative window_turns turns the mask off; write enabled off"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			refusal, got := validated(t, ":8080 {\n\tbind 127.0.0.1\n"+tt.site+"\n}\n")
			if refusal != "" || !slices.Equal(got, tt.want) {
				t.Errorf("error: %s\n got %q\nwant %q", refusal, got, tt.want)
			}
		})
	}
}
