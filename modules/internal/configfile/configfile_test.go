package configfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("PLACE", "there")
	if config, from, err := Load("", ""); config != nil || from != "Caddyfile" || err != nil {
		t.Errorf("no file: got %s, %s, %v", config, from, err)
	}
	for name, text := range map[string]string{
		"Caddyfile":       ":80 {\n\trespond {$PLACE}\n}\n",
		"elsewhere":       ":80 {\n\trespond elsewhere\n}\n",
		"caddy.json":      `{"apps":{}}`,
		"broken":          ":80 {",
		"mcp.json":        "{} // of a client",
		"Caddyfile.d.txt": ":80 {\n\trespond text\n}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name          string
		file, adapter string
		want          string // in the configuration
		err           string // in the error
	}{
		{"the Caddyfile of the directory, with its environment", "", "", `"there"`, ""},
		{"another file", "elsewhere", "", `"elsewhere"`, ""},
		{"a Caddyfile of any name", "Caddyfile.d.txt", "", `"text"`, ""},
		{"JSON", "caddy.json", "", `{"apps":{}}`, ""},
		{"an adapter", "elsewhere", "caddyfile", `"elsewhere"`, ""},
		{"an unknown adapter", "elsewhere", "toml", "", `"toml"`},
		{"a missing file", "nowhere", "", "", "nowhere"},
		{"a broken file", "broken", "", "", "broken"},
		{"mcpServers JSON of a client", "mcp.json", "", "",
			"mcp.json is not JSON; for the mcpServers JSON of a client, add --adapter mcp"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, _, err := Load(tt.file, tt.adapter)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatal(err)
			}
			if !strings.Contains(string(config), tt.want) {
				t.Errorf("got %s", config)
			}
		})
	}
}

func TestHandlers(t *testing.T) {
	got, err := Handlers([]byte(`{
		"b":[{"handler":"x","n":12345678901234567890},{"handler":"y"}],
		"a":{"handler":"subroute","routes":[{"handle":[{"handler":"x","inner":{"handler":"x"}}]}]}}`), "x")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || string(got[0]) != `{"inner":{"handler":"x"}}` || string(got[1]) != `{"n":12345678901234567890}` {
		t.Errorf("got %s", got)
	}
	if _, err := Handlers([]byte(`{`), "x"); err == nil {
		t.Error("broken JSON is accepted")
	}
}
