package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	_ "github.com/caddyserver/caddy/v2/modules/filestorage"
	_ "github.com/caddyserver/caddy/v2/modules/logging"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/pipenet"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
	_ "github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpsample"
)

// adapt adapts a Caddyfile to JSON.
func adapt(t *testing.T, caddyfile string) []byte {
	t.Helper()
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

const (
	gatewayOne = "mcp_gateway {\n name one\n server sample {\n alias other\n mcp_sample\n }\n server second {\n " +
		"mcp_sample\n }\n}\n"
	gatewayTwo = "mcp_gateway {\n name two\n mcp_path /x/y\n server sample {\n mcp_sample\n }\n}\n"
)

func TestStdioConfig(t *testing.T) { // A42
	file := filepath.Join(t.TempDir(), "mcp.json")
	if err := os.WriteFile(file, []byte(`{"mcpServers":{"third":{"url":"http://127.0.0.1:1"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	third := "mcp_gateway {\n server third http://127.0.0.1:2\n servers_from " + file + "\n}\n"
	tests := []struct {
		name            string
		caddyfile       string
		gateway, server string
		path            string
		err             string
	}{
		{"the only gateway", ":80 {\n" + gatewayOne + "}", "", "", "/mcp", ""},
		{"a gateway by name", ":80 {\n" + gatewayOne + "}\n:81 {\n" + gatewayTwo + "}", "two", "", "/x/y", ""},
		{"a gateway in a subroute", ":80 {\nhandle /a/* {\n" + gatewayTwo + "}\n}", "", "", "/x/y", ""},
		{"the same gateway in two sites", ":80 {\n" + gatewayOne + "}\n:81 {\n" + gatewayOne + "}", "", "", "/mcp", ""},
		{"one server", ":80 {\n" + gatewayTwo + "}", "", "sample", "/x/y/sample", ""},
		{"a server by an alias", ":80 {\n" + gatewayOne + "}", "one", "other", "/mcp/other", ""},
		{"no gateway", ":80 {\nrespond hello\n}", "", "", "", "no mcp_gateway configured"},
		{"several gateways", ":80 {\n" + gatewayOne + "}\n:81 {\n" + gatewayTwo + "}", "", "", "",
			"set --gateway to one of: one, two"},
		{"a gateway by its path", ":80 {\n" + gatewayOne + "}\n:81 {\n" + gatewayTwo + "}", "/x/y", "", "/x/y", ""},
		{"a gateway without a name", ":80 {\n" + third + "}\n:81 {\n" + gatewayOne + "}", "/mcp", "fourth", "",
			`servers_from: duplicate server "third"`},
		{"gateways without a name", ":80 {\n" + third + "}\n:81 {\n" + gatewayOne + "}", "", "", "",
			"set --gateway to one of: /mcp, one"},
		{"an unknown gateway", ":80 {\n" + gatewayOne + "}", "three", "", "",
			`no mcp_gateway has the name "three"; the names are one`},
		{"an unknown server", ":80 {\n" + gatewayOne + "}", "", "third", "", `no server "third"; it has sample, second`},
		{"a duplicate server in a file", ":80 {\n" + third + "}", "", "fourth", "", `servers_from: duplicate server "third"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, path, err := stdioConfig(adapt(t, tt.caddyfile), tt.gateway, tt.server, "")
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil || path != tt.path {
				t.Fatalf("got %s, %v", path, err)
			}
			if err := caddy.Validate(parsedConfig(t, config)); err != nil {
				t.Errorf("%v\n%s", err, config)
			}
		})
	}
}

func parsedConfig(t *testing.T, config []byte) *caddy.Config {
	t.Helper()
	parsed := new(caddy.Config)
	if err := caddy.StrictUnmarshalJSON(config, parsed); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestStdioConfigListensNowhere(t *testing.T) {
	config, _, err := stdioConfig(adapt(t, "{\nadmin :2019\nmetrics\n}\nlocalhost {\n"+gatewayOne+"}"), "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	var made struct {
		Admin struct{ Listen string }
		Apps  map[string]struct {
			Servers map[string]struct{ Listen []string }
		}
	}
	if err := json.Unmarshal(config, &made); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(made.Admin.Listen, pipenet.Name+"/") {
		t.Errorf("the admin API listens at %s", made.Admin.Listen)
	}
	for _, s := range made.Apps["http"].Servers {
		if len(s.Listen) != 1 || !strings.HasPrefix(s.Listen[0], pipenet.Name+"/") {
			t.Errorf("the site listens at %s", s.Listen)
		}
	}
	if _, has := made.Apps["pki"]; has || len(made.Apps["http"].Servers) != 1 {
		t.Errorf("the configuration has more than the gateway: %s", config)
	}
}

// A loopback address serves the login pages for browsers, and nothing else.
func TestStdioHasAnAddressForLogins(t *testing.T) {
	const oauth = "session_key {$KEY:0123456789abcdef0123456789abcdef}\nserver a https://a.example.com/mcp {\noauth\n}\n"
	for _, tt := range []struct {
		name, settings string
		listens        bool
	}{
		{"no server with a login", "server sample {\nmcp_sample\n}\n", false},
		{"a server with a login", oauth, true},
		{"a login at another Caddy", "public_url https://mcp.example.com\n" + oauth, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config, _, err := stdioConfig(adapt(t, ":80 {\nmcp_gateway {\nmcp_path /tools\n"+tt.settings+"}\n}"), "", "", "")
			if err != nil {
				t.Fatal(err)
			}
			type handler struct {
				PublicURL  string `json:"public_url"`
				SessionKey string `json:"session_key"`
			}
			var made struct {
				Apps struct {
					HTTP struct {
						Servers map[string]struct {
							Listen []string
							Routes []struct {
								Match  []struct{ Path []string }
								Handle []handler
							}
						}
					}
				}
			}
			if err := json.Unmarshal(config, &made); err != nil {
				t.Fatal(err)
			}
			site, listens := made.Apps.HTTP.Servers["mcp_login"]
			if listens != tt.listens {
				t.Fatalf("got %s", config)
			}
			if !listens {
				return
			}
			route := site.Routes[0]
			if !strings.HasPrefix(site.Listen[0], "127.0.0.1:") || route.Match[0].Path[0] != "/tools/oauth/*" {
				t.Errorf("the site serves %s at %s", route.Match, site.Listen)
			}
			inside := made.Apps.HTTP.Servers["mcp_stdio"].Routes[0].Handle[0]
			if inside.PublicURL != "http://"+site.Listen[0] || inside.SessionKey == "" || route.Handle[0] != inside {
				t.Errorf("got gateway %+v", inside)
			}
			if err := caddy.Validate(parsedConfig(t, config)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStdioKnowsItsClients(t *testing.T) { // A42, A57
	const caddyfile = ":80 {\nmcp_gateway {\nserver sample http://127.0.0.1:1\nclient cline {\nmatch line\ndeny " +
		"sample::*\n}\n%s}\n}"
	for _, tt := range []struct{ name, client, more, err string }{
		{"no client", "", "", ""},
		{"a client", "cline", "", ""},
		{"a client by a matching name", "line", "", ""},
		{"an unknown client", "clnie", "", `no client "clnie"; it has cline`},
		{"a client that matches a pattern", "clnie", "client c* {\ndeny sample::x\n}\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := stdioConfig(adapt(t, fmt.Sprintf(caddyfile, tt.more)), "", "", tt.client)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestStdioNeedsNoSecrets(t *testing.T) { // A42
	for _, text := range []string{
		"auth token {env.STDIO_NOT_SET} ann\n", "client ann {\ntoken {env.STDIO_NOT_SET}\n}\n",
		"auth hmac {\nclient ann {env.STDIO_NOT_SET}\n}\n", "session_key {env.STDIO_NOT_SET}\n",
	} {
		config, _, err := stdioConfig(adapt(t, ":80 {\nmcp_gateway {\n"+text+"server sample {\nmcp_sample\n}\n}\n}"), "",
			"", "")
		if err != nil {
			t.Fatal(err)
		}
		if err := caddy.Validate(parsedConfig(t, config)); err != nil || strings.Contains(string(config), "STDIO_NOT_SET") {
			t.Errorf("%s: %v\n%s", text, err, config)
		}
	}
}

func TestStdioLogging(t *testing.T) { // A42
	const site = "\n:80 {\n" + gatewayOne + "}"
	tests := []struct {
		name      string
		caddyfile string
		want      string
	}{
		{"no logging", site, `{"logs":{"default":{"exclude":["admin"]}}}`},
		{"a level", "{\ndebug\n}" + site,
			`{"logs":{"default":{"exclude":["admin"],"level":"DEBUG","writer":{"output":"stderr"}}}}`},
		{"stdout", "{\nlog {\noutput stdout\nformat json\nlevel WARN\n}\n}" + site,
			`{"logs":{"default":{"encoder":{"format":"json"},"exclude":["admin"],"level":"WARN",` +
				`"writer":{"output":"stderr"}}}}`},
		{"a file", "{\nlog {\noutput file /var/log/x\n}\n}" + site,
			`{"logs":{"default":{"exclude":["admin"],"writer":{"output":"stderr"}}}}`},
		{"all but one logger", "{\nlog {\nexclude http.log\n}\n}" + site,
			`{"logs":{"default":{"exclude":["http.log","admin"],"writer":{"output":"stderr"}}}}`},
		{"one logger", "{\nlog {\ninclude http.log\n}\n}" + site,
			`{"logs":{"default":{"include":["http.log"],"writer":{"output":"stderr"}}}}`},
		{"a discarded log", "{\nlog {\noutput discard\n}\n}" + site,
			`{"logs":{"default":{"exclude":["admin"],"writer":{"output":"discard"}}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, _, err := stdioConfig(adapt(t, tt.caddyfile), "", "", "")
			if err != nil {
				t.Fatal(err)
			}
			var made struct{ Logging json.RawMessage }
			if err := json.Unmarshal(config, &made); err != nil {
				t.Fatal(err)
			}
			if string(made.Logging) != tt.want {
				t.Errorf("got %s", made.Logging)
			}
		})
	}
	t.Run("the sink", func(t *testing.T) {
		got, err := stdioLogging(map[string]json.RawMessage{"sink": []byte(`{"writer":{"output":"stdout"}}`)})
		if text, _ := json.Marshal(got); err != nil ||
			string(text) != `{"logs":{"default":{"exclude":["admin"]}},"sink":{"writer":{"output":"stderr"}}}` {
			t.Errorf("got %s, %v", text, err)
		}
	})
}

// The commands find the admin API wherever Caddy listens.
func TestAdminAddresses(t *testing.T) {
	t.Cleanup(func() { _ = caddy.Stop() })
	socket := "unix/" + filepath.Join(t.TempDir(), "admin.sock")
	for _, listen := range []string{socket, socket + "|0600", "localhost:" + freePort(t), "127.0.0.1:" + freePort(t)} {
		file := filepath.Join(t.TempDir(), "Caddyfile")
		text := "{\nadmin " + listen + "\npersist_config off\nlog {\noutput discard\n}\n}\n" +
			"http://127.0.0.1:" + freePort(t) + " {\n" + gatewayOne + "}"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := caddy.Load(adapt(t, text), true); err != nil {
			t.Fatal(err)
		}
		for _, client := range []adminClient{{address: listen}, {config: file}} {
			var servers []adminapi.ServerStatus
			if err := client.get(t.Context(), "/servers", &servers); err != nil || len(servers) != 2 {
				t.Errorf("%+v: got %d servers, %v", client, len(servers), err)
			}
			var check adminapi.ServerCheck
			if err := client.post(t.Context(), "/servers/sample/check", nil, &check); err != nil || !check.Up {
				t.Errorf("%+v: got %+v, %v", client, check, err)
			}
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	address, err := freeLoopbackAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address[strings.LastIndexByte(address, ':')+1:]
}

func TestStdioServes(t *testing.T) { // A42
	config, path, err := stdioConfig(adapt(t, "{\nlog {\noutput discard\n}\n}\n:80 {\n"+gatewayOne+"}"), "", "sample",
		"")
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	var out bytes.Buffer
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"test","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
`)
	if err := bridgeStdio(t.Context(), path, in, &out); err != nil {
		t.Error(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `"protocolVersion"`) || !strings.Contains(lines[1], `"tools"`) {
		t.Errorf("got %s", out.String())
	}
}
