package command

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func TestPrintCheck(t *testing.T) {
	servers := []adminapi.ServerStatus{{Name: "files", Command: "npx"}, {Name: "search"}, {Name: "linear"},
		{Name: "a\x1bb"}}
	results := map[string]adminapi.ServerCheck{
		"files":  {Up: true, Seconds: 1.234, Tools: 14, Prompts: 1, Resources: 3, Tokens: 2310},
		"search": {Code: "connect_error", Error: "connect: connection refused", URL: "http://127.0.0.1:3001/mcp"},
		"linear": {Code: "login_required", Error: "log in", Name: "linear"},
		"a\x1bb": {Code: "connect_error", Error: "exit \x1b[2Jstatus 1", Stderr: []string{"Error: \x9bno key", "at main.js"}},
	}
	var out bytes.Buffer
	run := newCheckRun(&out, &out, false, servers)
	got := run.checkAll(t.Context(),
		func(_ context.Context, s *adminapi.ServerStatus) adminapi.ServerCheck { return results[s.Name] })
	if len(got) != 4 || !got[0].Up || got[1].Code != "connect_error" {
		t.Errorf("got %+v", got)
	}
	for _, want := range []string{
		"files   up in 1.2 s   14 tools   1 prompt    3 resources   2,310 tokens\n",
		"search  down: connect: connection refused (http://127.0.0.1:3001/mcp)\n",
		"linear  login required: caddy mcp login linear\n",
		`a\x1bb  down: exit \x1b[2Jstatus 1` + "\n" + `    Error: \x9bno key` + "\n    at main.js\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant\n%s", &out, want)
		}
	}
}

func TestCheckProgress(t *testing.T) {
	servers := []adminapi.ServerStatus{{Name: "files", Command: "npx"}, {Name: "web"}}
	began := time.Now()
	for _, tt := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"a terminal", true,
			"files: starting for 3 s, web: connecting for 3 s\r\x1b[Kfiles: starting for 11 s, web: connecting for 11 s" +
				"\r\x1b[Kfiles: starting for 12 s, web: connecting for 12 s\r\x1b[Kfiles  down: y\nweb    down: x\n"},
		{"a file", false,
			"files: starting for 11 s\nweb: connecting for 11 s\nfiles: starting for 20 s\nweb    down: x\nfiles  down: y\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			run := newCheckRun(&out, &out, tt.terminal, servers)
			run.servers[0].began, run.servers[1].began = began, began
			for _, seconds := range []time.Duration{1, 2, 3, 11, 12} {
				run.reportProgressAt(began.Add(seconds * time.Second))
			}
			run.end(run.servers[1], &adminapi.ServerCheck{Error: "x"})
			if !tt.terminal {
				run.reportProgressAt(began.Add(20 * time.Second))
			}
			run.end(run.servers[0], &adminapi.ServerCheck{Error: "y"})
			if out.String() != tt.want {
				t.Errorf("got %q", &out)
			}
		})
	}
}

func TestPrintServers(t *testing.T) {
	now := time.Date(2026, 1, 15, 8, 0, 0, 0, time.UTC)
	var all []adminapi.ServerStatus
	if err := json.Unmarshal([]byte(`[
		{"name":"files","command":"npx","state":"healthy","restarts":2,"tools":14,"children":[{"state":"running","since":"2026-01-15T07:57:00Z"}]},
		{"name":"idle","command":"npx","state":"unknown","children":[{"state":"idle"}]},
		{"name":"search","url":"https://example.com/mcp","state":"unhealthy","since":"2026-01-15T07:59:50Z","last_error":"no\u001b[2J answer"},
		{"name":"linear","url":"https://example.com/mcp","state":"healthy","login_url":"https://x"},
		{"name":"own","state":"unknown"}]`), &all); err != nil {
		t.Fatal(err)
	}
	const want = "server  kind                     state      tools  restarts  since    last error\n" +
		"files   npx                      healthy       14         2  3m ago\n" +
		"idle    npx                      idle           -         0  -\n" +
		`search  https://example.com/mcp  unhealthy      -         0  10s ago  no\x1b[2J answer` + "\n" +
		"linear  https://example.com/mcp  healthy        -         0  -        login required: caddy mcp login linear\n" +
		"own     handlers                 unknown        -         0  -\n"
	var out bytes.Buffer
	if printServers(&out, all, now); out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	all[1].Gateway = "other"
	out.Reset()
	if printServers(&out, all[:2], now); !strings.HasPrefix(out.String(), "gateway  server") {
		t.Errorf("two gateways:\n%s", &out)
	}
}

func TestPrivateConfig(t *testing.T) {
	config := adapt(t, "{\nadmin :2019\nmetrics\n}\nlocalhost {\n"+gatewayOne+
		"}\nexample.com {\nmcp_gateway {\nname two\nmcp_path /two\nserver b {\nmcp_sample\n}\n}\n}\n:80 {\nfile_server\n}")
	for _, tt := range []struct {
		name, gateway string
		want          int
		err           string
	}{
		{"all gateways", "", 2, ""},
		{"a gateway by name", "two", 1, ""},
		{"a gateway by path", "/two", 1, ""},
		{"an unknown gateway", "three", 0, `"three"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			made, err := privateConfig(config, tt.gateway)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			if n := strings.Count(string(made), `"handler":"mcp_gateway"`); n != tt.want {
				t.Errorf("%d gateways, want %d: %s", n, tt.want, made)
			}
			for _, part := range []string{"file_server", "metrics", "automation", ":443", "example.com"} {
				if strings.Contains(string(made), part) {
					t.Errorf("found %s in %s", part, made)
				}
			}
		})
	}
}

func TestCommandHealth(t *testing.T) {
	tests := []struct {
		name    string
		status  int
		body    string
		want    string
		wantErr string
	}{
		{"a gateway", 200, `[{"name":"a","state":"unhealthy"},{"name":"b","state":"healthy"}]`, "a unhealthy\nb healthy\n",
			""},
		{"a last error", 200,
			`[{"name":"a","state":"unhealthy","last_error":"no\u001b[2J"},{"name":"b","state":"healthy","last_error":"no"}]`,
			"a unhealthy: no\\x1b[2J\nb healthy\n", ""},
		{"no gateway", 200, `[]`, "", "no mcp_gateway is running"},
		{"not the admin API of a gateway", 404, `not found`, "", "HTTP 404"},
		{"not JSON", 200, `hello`, "", "invalid character"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || r.URL.Path != "/mcp_gateway/servers" {
					t.Errorf("got request %s %s", r.Method, r.URL.Path)
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
			}))
			defer admin.Close()
			var printed strings.Builder
			err := printHealth(&printed, admin.Listener.Addr().String())
			if printed.String() != tt.want {
				t.Errorf("printed %q, want %q", &printed, tt.want)
			}
			if (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
	t.Run("no admin API", func(t *testing.T) {
		admin := httptest.NewServer(nil)
		admin.Close()
		if err := printHealth(io.Discard, admin.Listener.Addr().String()); err == nil {
			t.Error("got no error")
		}
	})
}

func TestImportServers(t *testing.T) {
	for _, tt := range []struct{ name, text, out, notes, err string }{
		{"a server", `{"mcpServers":{"a":{"url":"https://x.test/mcp"}}}`, "server a https://x.test/mcp\n", "", ""},
		{"a secret", `{"mcpServers":{"a":{"command":"a","env":{"API_KEY":"s3cret-0123456789"}}}}`, "server a stdio a {\n",
			"set API_KEY to the value in the file", ""},
		{"an invalid server", `{"mcpServers":{"a":{"command":"a","tools":1}}}`, "", "mcp.json:1: a: left out",
			"no servers to import"},
		{"invalid JSON", `{`, "", "", "mcp.json:1: not JSON"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, notes bytes.Buffer
			path := filepath.Join(t.TempDir(), "mcp.json")
			err := importServers(&out, &notes, strings.NewReader(tt.text), path, "", false)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v", err)
			}
			if !strings.Contains(out.String(), tt.out) || (out.Len() > 0) != (tt.out != "") {
				t.Errorf("printed %s", &out)
			}
			if !strings.Contains(notes.String(), tt.notes) || (notes.Len() > 0) != (tt.notes != "") {
				t.Errorf("got notes %s", &notes)
			}
		})
	}
}
