package mcpgateway

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcpjson"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/configfile"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/login"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstdio"
)

var update = flag.Bool("update", false, "write the goldens")

// clientFiles returns the paths of configuration files of MCP clients by client.
func clientFiles(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, pattern := range []string{"*/*.json", "*/.*.json", "*/.*/*.json"} {
		files, err := filepath.Glob("../../internal/mcpjson/testdata/" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			path, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			client, _, _ := strings.Cut(strings.TrimPrefix(filepath.ToSlash(file), "../../internal/mcpjson/testdata/"), "/")
			found[client] = path
		}
	}
	if len(found) != 12 {
		t.Fatalf("found files of %d clients, want 12", len(found))
	}
	return found
}

// importFile returns the Caddyfile that caddy mcp import prints for a file, and its notes.
func importFile(t *testing.T, path string, secrets bool) (printed, notes string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	printed, told, err := ImportServers(content, path, "", secrets)
	if err != nil {
		t.Fatal(err)
	}
	return printed, strings.Join(told, "\n")
}

// A standInConsole has the module ID of the console, which imports this package and so cannot be
// imported here.
type standInConsole struct{}

func init() {
	caddy.RegisterModule(standInConsole{})
	httpcaddyfile.RegisterHandlerDirective("mcp_console",
		func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
			h.Next()
			return standInConsole{}, nil
		})
	httpcaddyfile.RegisterDirectiveOrder("mcp_console", httpcaddyfile.Before, "respond")
}

func (standInConsole) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.mcp_console", New: func() caddy.Module { return new(standInConsole) }}
}

func (standInConsole) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(w, r)
}

// The golden files in testdata/import are outputs of caddy mcp import. -update writes them.
func TestImportOfEachClient(t *testing.T) {
	t.Setenv("HOME", "/home/ada")
	for client, path := range clientFiles(t) {
		t.Run(client, func(t *testing.T) {
			printed, _ := importFile(t, path, false)
			// The folder of the file depends on the machine.
			folder := filepath.Dir(path)
			if strings.HasPrefix(filepath.Base(folder), ".") {
				folder = filepath.Dir(folder)
			}
			printed = strings.ReplaceAll(printed, folder, "/project")
			golden := "testdata/import/" + client + ".Caddyfile"
			if *update {
				if err := os.WriteFile(golden, []byte(printed), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if printed != string(want) {
				t.Errorf("got\n%s\nwant\n%s", printed, want)
			}
			if formatted := caddyfile.Format([]byte(printed)); !bytes.Equal(formatted, []byte(printed)) && client != "uvx" {
				t.Errorf("caddy fmt changes it to\n%s", formatted)
			}
		})
	}
}

// gatewayOf returns the only gateway of a configuration.
func gatewayOf(t *testing.T, config []byte) *Handler {
	t.Helper()
	gateways, err := configfile.Handlers(config, "mcp_gateway")
	if err != nil || len(gateways) != 1 {
		t.Fatalf("got %d gateways, %v", len(gateways), err)
	}
	gateway := new(Handler)
	if err := caddy.StrictUnmarshalJSON(gateways[0], gateway); err != nil {
		t.Fatal(err)
	}
	return gateway
}

func indented(t *testing.T, value any) string {
	t.Helper()
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The imported Caddyfile defines the same servers as the file, and the same gateway as the adapter.
func TestImportMatchesTheFile(t *testing.T) {
	// Set variables would become placeholders, which differ from {$NAME}.
	for _, name := range []string{"API_BASE_URL", "CACHE_DIR", "LOG_LEVEL", "INPUT_REGION"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("API_HOST", "api.example.com")
	t.Setenv("MY_PORT", "3000")
	t.Setenv("USERNAME", "ada")
	// Servers that need an unset variable are left out.
	for _, name := range []string{"MCP_BINARY_PATH", "GITHUB_TOKEN", "GITHUB_OWNER"} {
		t.Setenv(name, "set")
	}
	for client, path := range clientFiles(t) {
		t.Run(client, func(t *testing.T) {
			printed, _ := importFile(t, path, true)
			config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(printed), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			servers, _, err := readServers(body, path)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := indented(t, gatewayOf(t, config).Servers), indented(t, servers); got != want {
				t.Errorf("printed\n%s\ngot servers\n%s\nwant\n%s", printed, got, want)
			}
			served, _, err := caddyconfig.GetAdapter("mcp").Adapt(body, map[string]any{"filename": path})
			if err != nil {
				t.Fatal(err)
			}
			gateway := gatewayOf(t, served)
			if len(gateway.Servers) != 0 || len(gateway.ServersFrom) != 1 ||
				filepath.Base(gateway.ServersFrom[0]) != filepath.Base(path) {
				t.Errorf("the adapter has %d servers, and servers_from %q", len(gateway.Servers), gateway.ServersFrom)
			}
			gateway.Servers, gateway.ServersFrom = servers, nil
			if got, want := indented(t, gateway), indented(t, gatewayOf(t, config)); got != want {
				t.Errorf("got from the adapter\n%s\nwant, from the Caddyfile\n%s", got, want)
			}
			parsed := new(caddy.Config)
			if err := caddy.StrictUnmarshalJSON(served, parsed); err != nil {
				t.Fatal(err)
			}
			if err := caddy.Validate(parsed); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestImportPrintsNoSecrets(t *testing.T) {
	for client, path := range clientFiles(t) {
		printed, notes := importFile(t, path, false)
		for _, secret := range []string{"0123456789", "hunter2", "abcdef"} {
			if strings.Contains(printed, secret) || strings.Contains(notes, secret) {
				t.Errorf("%s: found %s in\n%s\n%s", client, secret, printed, notes)
			}
		}
		if body, _ := os.ReadFile(path); bytes.Contains(body, []byte("0123456789")) {
			if printed, _ := importFile(t, path, true); !strings.Contains(printed, "0123456789") {
				t.Errorf("%s: --secrets prints no secrets:\n%s", client, printed)
			}
		}
	}
}

// writeFile writes a file into a temporary folder.
func writeFile(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadServersFails(t *testing.T) {
	tests := []struct{ name, text, err string }{
		{"a URL with another scheme", "{\"mcpServers\":{\n\"a\":{\"url\":\"ftp://x\"}}}",
			`mcp.json:2: server a: "ftp://x" is not an http or https URL`},
		{"credentials in a URL", `{"mcpServers":{"a":{"url":"ftp://u:s3cret@x"}}}`, "credentials in a URL"},
		{"a key in a query", `{"mcpServers":{"a":{"url":"https:///mcp?key=s3cret"}}}`, `"https:///mcp" has no host`},
		{"invalid JSON", "{\n\"mcpServers\": {\n", "mcp.json:3: not JSON"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := writeFile(t, "mcp.json", tt.text)
			_, _, err := readServers([]byte(tt.text), path)
			printed, _, importErr := ImportServers([]byte(tt.text), path, "", false)
			for _, err := range []error{err, importErr} {
				if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "s3cret") {
					t.Errorf("got %v", err)
				}
			}
			if printed != "" {
				t.Errorf("printed %s", printed)
			}
		})
	}
}

func TestStandardInputIsNamed(t *testing.T) {
	for _, tt := range []struct{ name, text, err string }{
		{"no list", `{}`, "standard input:1: no list of servers"},
		{"invalid JSON", "{\n", "standard input:2: not JSON"},
		{"an invalid URL", `{"mcpServers":{"a":{"url":"ftp://x"}}}`, "standard input:1: server a: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, importErr := ImportServers([]byte(tt.text), "-", "", false)
			_, _, adaptErr := caddyconfig.GetAdapter("mcp").Adapt([]byte(tt.text), map[string]any{"filename": "-"})
			for _, err := range []error{importErr, adaptErr} {
				if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
	const empty = `{"mcpServers":{"a":{"command":"x","disabled":true}}}`
	_, notes, err := ImportServers([]byte(empty), "-", "", false)
	if err == nil || err.Error() != "standard input: no servers to import" || len(notes) != 1 ||
		notes[0] != "standard input:1: a: left out, because the file disables it" {
		t.Errorf("got %q, %v", notes, err)
	}
}

func TestNotesOnUnsetVariables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mcp.json")
	servers, notes, err := readServers([]byte(`{"mcpServers":{
		"child":{"command":"x","args":["${NOT_SET_C:-c}"],"env":{"A":"${NOT_SET_A}"}},
		"argument":{"command":"x","args":["${NOT_SET_B}"]},
		"directory":{"command":"x","cwd":"${NOT_SET_B}/x"},
		"remote":{"url":"https://${NOT_SET_A}/mcp"}}}`), path)
	if err != nil || len(servers) != 1 {
		t.Fatalf("got %s, %q, %v", indented(t, servers), notes, err)
	}
	want := []string{
		path + ":2: child: needs environment variables that are not set: NOT_SET_A",
		path + ":3: argument: left out, because its command or URL needs environment variables that are not set: NOT_SET_B",
		path + ":4: directory: left out, because its command or URL needs environment variables that are not set: NOT_SET_B",
		path + ":5: remote: left out, because its command or URL needs environment variables that are not set: NOT_SET_A",
	}
	if got := strings.Join(notes, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s", got)
	}
}

// A server with a malformed list of tools is left out, because it would expose all tools. import
// does not print it.
func TestMalformedListsOfTools(t *testing.T) {
	const text = "{\"mcpServers\":{\n\"a\":{\"command\":\"x\",\n\"tools\":\"read\"},\n\"b\":{\"command\":\"x\"," +
		"\"tools\":[\"read\"]}}}"
	path := writeFile(t, "mcp.json", text)
	want := path + ":3: a: left out: tools: must be a list of tool names"
	servers, notes, err := readServers([]byte(text), path)
	if err != nil || len(servers) != 1 || servers[0].Name != "b" || len(notes) != 1 || notes[0] != want {
		t.Errorf("got %d servers, %q, %v", len(servers), notes, err)
	}
	printed, told := importFile(t, path, false)
	if strings.Contains(printed, "server a ") || !strings.Contains(printed, "expose read") || told != want {
		t.Errorf("printed\n%s\nnotes %s", printed, told)
	}
}

// The gateway accepts the servers that import prints, and the file itself.
func TestImportedServersAreAccepted(t *testing.T) {
	for name, server := range map[string]string{
		"health": `{"command":"x"}`, healthSegment + "/": `{"url":"http://x"}`, login.Segment: `{"command":"x"}`,
		"stdio": `{"command":"x"}`, "import": `{"command":"x"}`, "--": `{"command":"x"}`,
		"a line": `{"command":"sh -c true"}`, "words": `{"command":"sh -c","args":["true"]}`,
	} {
		text := `{"mcpServers":{"other":{"command":"x"},"` + name + `":` + server + `}}`
		printed, _, err := ImportServers([]byte(text), "-", "", false)
		if err == nil {
			_, _, err = caddyconfig.GetAdapter("caddyfile").Adapt([]byte(printed), nil)
		}
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, printed)
		}
		startLive(t, text, "") // fails if the gateway refuses the file
	}
}

// A child gets exactly the values of the file: Caddy replaces no placeholders in them.
func FuzzImport(f *testing.F) {
	for _, text := range []string{
		"plain", "a b", `a"b`, "a`b", `a\`, `\"`, "`\\\"", "{env.HOME}", "{$HOME}", `\{env.HOME}`, "{$", "}", "{", "{}", "#x",
		"<<X", "<<", "", " ", "a\nb", "\n",
		"TEXT`\\", "{http.request.host}", "{path}", "{{block}}", "{args[0]}", "${HOME}", `C:\${HOME}`, "${NOT_SET:-a b}",
		"${NOT_SET:-{\"a\"}", "import", "\t", "é\u2028",
	} {
		f.Add(text, text)
	}
	f.Setenv("HOME", "/home/ada")
	f.Fuzz(checkImport)
}

// checkImport compares the argument and the variable of a child with those in the file.
func checkImport(t *testing.T, arg, variable string) {
	home := func(name string) (string, bool) { return "/home/ada", name == "HOME" }
	path := filepath.Join(t.TempDir(), "mcp.json")
	body, err := json.Marshal(map[string]any{"mcpServers": map[string]any{
		"a": map[string]any{"command": "x", "args": []string{arg, "last"}, "env": map[string]string{"V": variable}},
		"b": map[string]any{"url": "http://127.0.0.1", "headers": map[string]string{"X": "x"}},
	}})
	if err != nil {
		t.Skip()
	}
	file, err := mcpjson.Parse(body, path, path, "/home/ada")
	if err != nil || len(file.Servers) != 2 {
		t.Skip() // another fuzz target covers invalid files
	}
	// The expected values come from Resolve, which does not use placeholders.
	want, unset := file.Servers[0].Command[1].Resolve(home)
	wantEnv, unsetEnv := file.Servers[0].Env[0].Value.Resolve(home)
	if len(unset)+len(unsetEnv) > 0 {
		t.Skip()
	}
	repl := caddy.NewReplacer()
	check := func(from string, raw json.RawMessage) {
		var proxy struct{ Transport mcpstdio.Transport }
		if err := json.Unmarshal(raw, &proxy); err != nil {
			t.Fatal(err)
		}
		child := proxy.Transport
		if len(child.Command) != 3 || repl.ReplaceKnown(child.Command[1], "") != want || child.Command[2] != "last" {
			t.Errorf("%s: got %q, want %q", from, child.Command, want)
		}
		if got := repl.ReplaceKnown(child.Env["V"], ""); got != wantEnv {
			t.Errorf("%s: got %q, want %q", from, got, wantEnv)
		}
	}
	made := &serversFile{file, path}
	servers, err := made.newServers()
	if err != nil {
		t.Fatal(err)
	}
	check("file", servers[0].Routes[0].HandlersRaw[0])
	printed := (&caddyfilePrinter{file: made}).print()
	if strings.Contains(printed, "cannot be written in a Caddyfile") {
		t.Skip()
	}
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(printed), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, printed)
	}
	gateways, err := configfile.Handlers(config, "mcp_gateway")
	if err != nil || len(gateways) != 1 {
		t.Fatal(err)
	}
	var gateway Handler
	if err := json.Unmarshal(gateways[0], &gateway); err != nil {
		t.Fatal(err)
	}
	check(printed, gateway.Servers[0].Routes[0].HandlersRaw[0])
}
