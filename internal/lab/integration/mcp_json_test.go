package integration

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// clientFile writes an MCP client's configuration file and returns its path.
func clientFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// caddy mcp import prints the output shown in docs/mcp_json.md for the file shown there.
func TestImportCommand(t *testing.T) {
	isolate(t)
	file := clientFile(t, "servers.json", blocksOf(t, "docs/mcp_json.md", "json")[0])
	for _, c := range commands(t, "docs/mcp_json.md") {
		if c.output == "" {
			continue // TestClientFileIsServed
		}
		cmd := caddy(t, strings.Fields(strings.Replace(c.typed, "servers.json", file, 1))[1:]...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		same(t, string(out), c.output)
	}
	out, err := caddy(t, "mcp", "import", clientFile(t, "x.json", "{\n\"mcpServers\": {\n\"a\": 1}}")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), `x.json:3: server "a" is not a JSON object`) {
		t.Errorf("%v: %s", err, out)
	}
	cmd := caddy(t, "mcp", "import", "-", "--name", "mine", "--secrets")
	cmd.Stdin = strings.NewReader(`{"mcpServers":{"a":{"command":"x","env":{"API_KEY":"s3cret"}}}}`)
	out, err = cmd.Output()
	if err != nil || !strings.Contains(string(out), "name mine\n") || !strings.Contains(string(out),
		"env API_KEY s3cret\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// A client uses the servers of a file: through the imported Caddyfile, the config adapter, and
// stdio.
func TestClientFileIsServed(t *testing.T) {
	isolate(t)
	received := make(chan string, 100)
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received <- r.Header.Get("X-Key")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	}))
	t.Cleanup(remote.Close)
	file := clientFile(t, ".mcp.json", `{
		// part of the binary
		"mcpServers": {
			"my sample": {"command": `+quote(binary(t))+`, "args": ["mcp-sample"], "env": {"A": "{env.B}"}},
			"remote": {"type": "http", "url": "`+remote.URL+`/mcp", "headers": {"X-Key": "{env.HOME} ${KEY_OF_TEST}"}},
		},
	}`)
	const key = "KEY_OF_TEST=k3y"
	check := func(t *testing.T, url string) {
		c := newLegacyClient(t, url, "{}")
		same(t, c.use("my-sample__echo", `{"text":"hello"}`), "hello")
		for len(received) > 0 {
			<-received
		}
		if got := post(t, rpcAt(url, "remote"), rpc("ping", "{}")); got.StatusCode != http.StatusOK {
			t.Errorf("got %d: %s", got.StatusCode, got.body)
		}
		same(t, <-received, "{env.HOME} k3y")
	}
	t.Run("import", func(t *testing.T) {
		out, err := caddy(t, "mcp", "import", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		check(t, "http://"+run(t, writeCaddyfile(t, string(out)), key).address)
	})
	t.Run("adapter", func(t *testing.T) {
		cmd := caddy(t, "adapt", "--adapter", "mcp", "--config", file)
		cmd.Env = append(cmd.Env, key)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		// Serve the adapted configuration on another port.
		address := freeAddress(t)
		config := strings.Replace(string(out), "127.0.0.1:8080", address, 1)
		config = `{"admin":{"disabled":true},` + strings.TrimPrefix(config, "{")
		served := caddy(t, "run", "--config", clientFile(t, "config.json", config))
		served.Env = append(served.Env, key)
		startCaddy(t, served)
		check(t, "http://"+address)
	})
	t.Run("stdio", func(t *testing.T) {
		cmd := caddy(t, "mcp-stdio", "--adapter", "mcp", "--config", file, "--server", "my-sample")
		cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize",` +
			`"params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n")
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), `"serverInfo"`) {
			t.Errorf("%v: %s", err, out)
		}
	})
}
