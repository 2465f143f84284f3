package command

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpgateway/adminapi"
)

func TestPrintTools(t *testing.T) {
	for _, tt := range []struct {
		name    string
		list    string
		pattern string
		want    string
		failed  string
	}{
		{"one gateway with focus",
			`{"tools":[{"gateway":"g","server":"docs","name":"docs__get","tokens":95,"focus_tokens":0},
				{"gateway":"g","server":"größe","name":"größe__read_a_log","tokens":1203,"focus_tokens":20},
				{"gateway":"g","name":"recover","tokens":7}]}`, "",
			"server  name               tokens  focus\n" +
				"docs    docs__get              95      0\n" +
				"größe   größe__read_a_log    1203     20\n" +
				"-       recover                 7      0\n" +
				"3 tools: 1,305 tokens, of which focus 20\n",
			""},
		{"a pattern",
			`{"tools":[{"server":"a","name":"a__get","tokens":9},{"server":"a","name":"a__put","tokens":9}]}`, "*__get",
			"server  name    tokens\na       a__get       9\n1 tool: 9 tokens\n", ""},
		{"a part of the name",
			`{"tools":[{"server":"a","name":"a__get","tokens":9},{"server":"a","name":"a__put","tokens":9}]}`, "pu",
			"server  name    tokens\na       a__put       9\n1 tool: 9 tokens\n", ""},
		{"a pattern with the server",
			`{"tools":[{"server":"a","name":"a__get","qualified":"a::get","tokens":9},
				{"server":"b","name":"b__get","qualified":"b::get","tokens":9},{"name":"recover","tokens":7}]}`, "a::g*",
			"server  name    tokens\na       a__get       9\n1 tool: 9 tokens\n", ""},
		{"a part of the name with the server",
			`{"tools":[{"server":"a","name":"a__get","qualified":"a::get","tokens":9},
				{"server":"b","name":"b__get","qualified":"b::get","tokens":9},{"name":"recover","tokens":7}]}`, "b::",
			"server  name    tokens\nb       b__get       9\n1 tool: 9 tokens\n", ""},
		{"clients",
			`{"tools":[{"server":"a","name":"x","tokens":9,"clients":["ann","bob"],"all_clients":true},
				{"server":"a","name":"y","tokens":9,"clients":["ann","bob"]},{"server":"a","name":"z","tokens":9,"clients":[]}]}`,
			"",
			"server  name  tokens  clients\na       x          9  all\na       y          9  ann, bob\na       z          9  " +
				"none\n3 tools: 27 tokens\n", ""},
		{"two gateways, one of them with a failed server",
			`{"tools":[{"gateway":"g","server":"a","name":"x\u001b[2J","tokens":9}],
				"failed":[{"gateway":"h","server":"b","code":"timeout","error":"no\u001b[2J answer"}]}`, "",
			"gateway  server  name      tokens\ng        a       x\\x1b[2J       9\n1 tool: 9 tokens\n",
			`h b is not listed: timeout: "no\x1b[2J answer"` + "\n"},
		{"two gateways without a name",
			`{"tools":[{"mcp_path":"/a","server":"a","name":"x","tokens":9},
				{"mcp_path":"/b","server":"a","name":"x","tokens":9}]}`, "",
			"gateway  server  name  tokens\n" +
				"/a       a       x          9\n/b       a       x          9\n" +
				"2 tools: 18 tokens\n",
			""},
		{"no tools", `{"tools":[]}`, "", "server  name  tokens\n0 tools: 0 tokens\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list adminapi.ToolListing
			if err := json.Unmarshal([]byte(tt.list), &list); err != nil {
				t.Fatal(err)
			}
			several := hasSeveralGateways(&list)
			if tt.pattern != "" {
				selectBy(&list, tt.pattern)
			}
			var printed, failed bytes.Buffer
			printTools(&printed, &list, several, true)
			printFailed(&failed, &list, several)
			if printed.String() != tt.want {
				t.Errorf("got\n%s\nwant\n%s", &printed, tt.want)
			}
			if failed.String() != tt.failed {
				t.Errorf("failed: %s\nwant %s", &failed, tt.failed)
			}
		})
	}
}

func TestPrintDecisions(t *testing.T) {
	const list = `{"tools":[],"decisions":[
		{"gateway":"g","server":"files","kind":"tool","name":"read_file","shown":"files__read_file","action":"allow","rule":"allow read_only"},
		{"gateway":"g","server":"files","kind":"tool","name":"rm","shown":"files__rm","action":"confirm","rule":"confirm destructive"},
		{"gateway":"g","server":"files","kind":"tool","name":"run","shown":"files__run",
			"action":"allow","depends":true,"rule":"allow *"},
		{"gateway":"g","server":"web","kind":"template","name":"x\u001b://{y}","action":"deny","rule":"default deny"}]}`
	for _, tt := range []struct{ name, pattern, want string }{
		{"all", "",
			"server  kind      name         action               rule\n" +
				"files   tool      read_file    allow                allow read_only\n" +
				"files   tool      rm           confirm              confirm destructive\n" +
				"files   tool      run          allow, by arguments  allow *\n" +
				"web     template  x\\x1b://{y}  deny                 default deny\n" +
				"3 tools, 1 template: 2 allowed, 1 to confirm, 1 denied\n"},
		{"a name of the server", "read_*",
			"server  kind  name       action  rule\nfiles   tool  read_file  allow   allow read_only\n1 tool: 1 allowed, 0 " +
				"denied\n"},
		{"a name that clients see", "files__read",
			"server  kind  name       action  rule\nfiles   tool  read_file  allow   allow read_only\n1 tool: 1 allowed, 0 " +
				"denied\n"},
		{"a server", "web::*",
			"server  kind      name         action  rule\nweb     template  x\\x1b://{y}  deny    default deny\n" +
				"0 tools, 1 template: 0 allowed, 1 denied\n"},
		{"a pattern that matches nothing", "none", "server  kind  name  action  rule\n0 tools: 0 allowed, 0 denied\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all adminapi.ToolListing
			if err := json.Unmarshal([]byte(list), &all); err != nil {
				t.Fatal(err)
			}
			if tt.pattern != "" {
				selectBy(&all, tt.pattern)
			}
			var printed bytes.Buffer
			printDecisions(&printed, &all, false)
			if printed.String() != tt.want {
				t.Errorf("got\n%s\nwant\n%s", &printed, tt.want)
			}
		})
	}
	var several adminapi.ToolListing
	if err := json.Unmarshal([]byte(list), &several); err != nil {
		t.Fatal(err)
	}
	several.Decisions[3].Gateway = "h"
	var printed bytes.Buffer
	printDecisions(&printed, &several, hasSeveralGateways(&several))
	if !strings.HasPrefix(printed.String(), "gateway  server") || !strings.Contains(printed.String(), "\nh        web ") {
		t.Errorf("got\n%s", &printed)
	}
}

func TestCommandTools(t *testing.T) {
	var asked string
	status, body := 200, `{"tools":[]}`
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.String()
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	defer admin.Close()
	run := func(args ...string) error {
		cmd := newToolsCommand()
		cmd.SetArgs(append(args, "--address", admin.Listener.Addr().String()))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		return cmd.Execute()
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "GET /mcp_gateway/tools"},
		{[]string{"--client", "a&b"}, "GET /mcp_gateway/tools?client=a%26b"},
		{[]string{"--why", "--client", "ann", "--json"}, "GET /mcp_gateway/tools?client=ann&why=true"},
		{[]string{"--gateway", "/x", "--client", "ann"}, "GET /mcp_gateway/tools?client=ann&gateway=%2Fx"},
	} {
		if err := run(tt.args...); err != nil || asked != tt.want {
			t.Errorf("%q: got request %s: %v", tt.args, asked, err)
		}
	}
	if err := run("extra", "more"); err == nil {
		t.Error("two arguments are accepted")
	}
	if err := run("--why"); err == nil || !strings.Contains(err.Error(), "--why needs --client") {
		t.Errorf("without a client: %v", err)
	}
	status, body = 404, `{"error":"no mcp_gateway is running","code":"not_found"}`
	if err := run(); err == nil || !strings.Contains(err.Error(), "no mcp_gateway is running") {
		t.Errorf("without a gateway: %v", err)
	}
	admin.Close()
	if err := run(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("without Caddy: %v", err)
	}
}
