package integration

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestBinaryVersion checks the version of the built binary everywhere it is reported.
func TestBinaryVersion(t *testing.T) {
	isolate(t)
	out, err := caddy(t, "list-modules", "--versions", "--packages", "--skip-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // module, version, package, and maybe its replacement
		if len(fields) < 3 || fields[2] != "github.com/caddy-mcp-gateway/caddy-mcp-gateway" {
			continue
		}
		want = fields[1]
		if !strings.HasPrefix(want, "v") || strings.HasPrefix(want, "v0.0.0-0001") {
			t.Fatalf("not a useful version: %s", line)
		}
	}
	if want == "" {
		t.Fatalf("no module of this project is listed:\n%s", out)
	}

	legacy, modern := newJournal(t), newJournal(t)
	caddy := run(t, writeCaddyfile(t, site("127.0.0.1:8080", gateway("name all",
		block("server sample", "mcp_sample"),
		block(child("legacy"), legacy.env()),
		block(child("modern", "--modern-only"), modern.env())))))
	for _, path := range []string{"/mcp", "/mcp/sample"} {
		t.Run("serverInfo at "+path, func(t *testing.T) {
			got := post(t, "http://"+caddy.address+path, rpc("initialize", `{`+initParams+`}`))
			var hello struct {
				Result struct{ ServerInfo struct{ Version string } }
			}
			if err := json.Unmarshal([]byte(got.body), &hello); err != nil {
				t.Fatalf("%v: %s", err, got.body)
			}
			if hello.Result.ServerInfo.Version != want {
				t.Errorf("got %s, want %s", got.body, want)
			}
		})
	}
	for _, tt := range []struct {
		server string
		journal
		key string
	}{
		{"legacy", legacy, `"clientInfo"`},
		{"modern", modern, `"io.modelcontextprotocol/clientInfo"`},
	} {
		t.Run("clientInfo for a "+tt.server+" child", func(t *testing.T) {
			got := post(t, rpcAt("http://"+caddy.address, tt.server), rpc("tools/list", `{}`))
			text, err := os.ReadFile(string(tt.journal))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), tt.key+`:{"name":"caddy-mcp-gateway","version":"`+want+`"}`) {
				t.Errorf("clientInfo lacks version %s:\n%s%s", want, text, got.body)
			}
		})
	}
}
