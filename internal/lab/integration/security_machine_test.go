package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// Input is never expanded as a placeholder, where {env.NAME} is a secret and {file.path} a file.
// Such flaws were published for Caddy's own handlers (CVE-2026-30852, GHSA-wwhq-w58m-w29c,
// CVE-2026-77281), and for other programs (CVE-2026-32625).
func TestSecurityPlaceholderExpansion(t *testing.T) {
	isolate(t)
	secret := plantedSecret{"variable", "planted-in-the-environment", nil}
	inAFile := plantedSecret{"file", "planted-in-a-file", nil}
	file, dir := filepath.Join(t.TempDir(), "secret"), t.TempDir()
	if err := os.WriteFile(file, []byte(inAFile.value), 0o600); err != nil {
		t.Fatal(err)
	}
	attacks := []string{
		"{env.SECURITY_SECRET}", "{$SECURITY_SECRET}", "{file." + file + "}", "{{env.SECURITY_SECRET}}",
		`\{env.SECURITY_SECRET}`, "{http.request.header.X-Attack}", "{http.vars.attack}", "{re.attack.1}",
		"{env.SECURITY_SECRET", "{http.mcp.tool}{env.SECURITY_SECRET}", "${SECURITY_SECRET}", "$SECURITY_SECRET",
		"%SECURITY_SECRET%", "{tool_name}{env.SECURITY_SECRET}{original_chars}",
	}
	all := strings.Join(attacks, " ")

	// A server that sends the attacks in every field that it can.
	server := newLenientServer(t, all)
	server.Resources, server.Templates = []string{"file:///" + attacks[0]},
		[]string{"file:///{env.SECURITY_SECRET}/{file." + file + "}"}
	server.Handle = func(w http.ResponseWriter, _ *mcptest.Received) bool {
		for i, attack := range attacks {
			w.Header().Set(fmt.Sprintf("X-Server-%d", i), attack)
		}
		return false
	}
	model := newLenientServer(t)
	journal := newJournal(t)
	caddy := run(t, writeCaddyfile(t, block("", "debug", block("log", "output file "+filepath.Join(dir, "caddy.log"),
		"format json"))+"\n"+block(":8080", "bind 127.0.0.1", "log", "log_append attacked {http.mcp.tool}",
		gateway("separator __", "origins *", "hosts *", block(server.line("alpha"),
			`request_header X-Tool "{http.mcp.tool} {http.mcp.method} {http.mcp.request_id} {http.mcp.client} `+
				`{http.mcp.server}"`,
			`vars attack {http.mcp.tool}`, `@attacked vars_regexp attack attack (.+)`,
			`request_header @attacked X-Matched {re.attack.1}`,
			`rewrite * /mcp?tool={http.mcp.tool}&id={http.mcp.request_id}`,
			`header X-Echo "{http.mcp.tool} {http.mcp.request_id}"`),
			block(child("kid"), journal.env())),
		block("handle_path /pruner/*", pruner()),
		block("handle /v1/*", conversationMask("window_turns 1",
			`placeholder_template "gone {tool_call_id} {tool_name} {original_chars}"`), proxy(model.address)),
	)), "SECURITY_SECRET="+secret.value)
	base := "http://" + caddy.address
	seen := evidence{}

	for _, attack := range append(attacks, all) {
		q, header := quote(attack), "X-Attack: "+attack
		message := func(method, params string) string {
			return `{"jsonrpc":"2.0","id":` + q + `,"method":` + quote(method) + `,"params":` + params + `}`
		}
		bodies := []string{
			message("tools/call", `{"name":`+q+`,"arguments":{`+q+`:`+q+`},"_meta":{"progressToken":`+q+`,"traceparent":`+q+
				`}}`), message("resources/read", `{"uri":`+q+`}`), message("prompts/get", `{"name":`+q+`}`),
			message(attack, `{}`), message("initialize",
				`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":`+q+`,"version":`+q+`}}`),
			message("tools/list", `{"cursor":`+q+`}`),
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + q + `,"reason":` + q + `}}`,
		}
		for _, server := range []string{"alpha", "kid", url.PathEscape(attack)} {
			for _, way := range endpointsOf(base, server)[1:] {
				for _, body := range bodies {
					seen.response("a response at "+way.name, post(t, way.url+"?x="+url.QueryEscape(attack), body, acceptBoth, header,
						"Origin: "+attack, "Last-Event-ID: "+attack, "Mcp-Session-Id: "+attack, "User-Agent: "+attack))
				}
			}
		}
		hello := post(t, joinedAt(base), bodies[4], acceptBoth, header)
		session := "Mcp-Session-Id: " + hello.Header.Get("Mcp-Session-Id")
		seen.response("a response at /mcp", hello)
		modern := &testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, Headers: []string{header},
			HTTP: streamClient}}
		for _, body := range append(bodies, message("tools/call", `{"name":`+quote("alpha__"+attack)+`,"arguments":{}}`),
			message("tools/call", `{"name":`+quote("kid__"+attack)+`,"arguments":{}}`),
			message("resources/read", `{"uri":`+quote(proxiedURI("alpha", attack))+`}`),
			message("resources/read", `{"uri":`+quote("proxy://template/alpha/"+attack)+`}`), message("tools/list", `{}`),
			message("resources/templates/list", `{}`)) {
			seen.response("a response at /mcp", post(t, joinedAt(base), body, acceptBoth, header, session))
			var m mcpclient.Message
			if json.Unmarshal([]byte(body), &m) == nil && m.Params.Raw != nil {
				body, headers := modern.Message(q, m.Method, string(m.Params.Raw))
				seen.response("a response at /mcp", post(t, joinedAt(base), body,
					slices.DeleteFunc(headers, func(h string) bool { return strings.ContainsAny(h, "\n") })...))
			}
		}
		for _, path := range []string{"/pruner/rpc", "/pruner/mcp"} {
			text := strings.Repeat(attack+"\n", 200)
			seen.response("a response of the pruner", post(t, base+path, toolCall{"prune_text", `{"text":` + quote(text) +
				`,"goal_hint":` + q + `,"source_type":"logs"}`}.request(), acceptBoth, header))
			seen.response("a response of the pruner",
				post(t, base+path, toolCall{"recover_text", `{"prune_id":` + q + `,"ranges":[]}`}.request(), acceptBoth, header))
		}
		call := func(id string) string {
			return `{"role":"assistant","content":null,"tool_calls":[{"id":` + id + `,"type":"function","function":{"name":` +
				q + `,"arguments":"{}"}}]},{"role":"tool","tool_call_id":` + id + `,"content":` +
				quote(strings.Repeat(attack, 100)) + `}`
		}
		seen.response("a response of the model", post(t, base+"/v1/chat/completions", `{"model":`+q+`,"messages":[`+call(q)+
			`,`+call(quote(attack+"2"))+`]}`, header))
	}
	masked := 0
	for _, r := range model.Received() {
		if strings.Contains(r.Body, `"gone {env.SECURITY_SECRET} {env.SECURITY_SECRET} `) {
			masked++
		}
	}
	if masked == 0 {
		t.Error("no conversation was masked")
	}
	caddy.stop(t)
	seen.files(t, "the log", dir)
	seen.add("the output", caddy.output.String())
	read, err := os.ReadFile(string(journal))
	if err != nil {
		t.Fatal(err)
	}
	seen.add("the child", string(read))
	for name, w := range map[string]*remoteServer{"the server": server, "the model": model} {
		for _, r := range w.Received() {
			seen.add(name, fmt.Sprintln(r.Method, r.HTTP.URL.RequestURI(), r.HTTP.Header, r.Body))
		}
	}
	for i, found := range seen.search([]plantedSecret{secret, inAFile}) {
		if i < 20 {
			t.Error(found)
		}
	}
	t.Run("the attacks reached every place", func(t *testing.T) {
		for _, prefix := range []string{"a response at /rpc", "a response at /mcp", "the server", "the model", "the child",
			"the log"} {
			found := false
			for place, text := range seen {
				found = found || strings.HasPrefix(place, prefix) && strings.Contains(text, "{env.SECURITY_SECRET}")
			}
			if !found {
				t.Errorf("no attack is in %s", prefix)
			}
		}
		if !slices.ContainsFunc(server.Received(),
			func(r *mcptest.Received) bool { return r.HTTP.Header.Get("X-Matched") == attacks[0] }) {
			t.Error("no handler in the server's block matched an attack")
		}
	})
}

// A child gets only its configured environment: no other variable, open file or argument of Caddy.
// Messages cannot change it.
func TestSecurityChildEnvironment(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	secrets := map[string]string{}
	for _, name := range []string{"SECURITY_TOKEN", "SECURITY_SESSION_KEY", "SECURITY_OTHER_KEY", "AWS_SECRET_ACCESS_KEY",
		"DEEPINFRA_API_KEY", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "LD_LIBRARY_PATH", "NODE_OPTIONS"} {
		secrets[name] = "/planted/" + strings.ToLower(name) + "-0123456789-0123456789"
	}
	var environment []string
	for name, value := range secrets {
		environment = append(environment, name+"="+value)
	}
	config := writeCaddyfile(t, block("", "debug")+"\n"+block(":8080", "bind 127.0.0.1", "log",
		gateway("separator __", "auth token {env.SECURITY_TOKEN} me", "session_key {env.SECURITY_SESSION_KEY}",
			block(child("kid"), journal.env(), "env OWN {env.SECURITY_OTHER_KEY}"), block(child("own", "--modern"),
				journal.env(), "isolation session"),
			block("server pool", block("reverse_proxy pool:1-2", block("transport mcp_stdio "+strings.TrimPrefix(child("pool"),
				"server pool stdio "), journal.env()))))))
	running := run(t, config, environment...)
	base, me := "http://"+running.address, bearer(secrets["SECURITY_TOKEN"])
	for range 2 { // the second time after a restart
		for _, era := range clientEras {
			c := newTestClient(t, joinedAt(base), era.modern, fullCapabilities, me)
			for _, server := range []string{"kid", "own", "pool"} {
				got := c.ask(t, "tools/call", callOf(server, "env", `{"env":{"EVIL":"1"}}`, `"env":{"EVIL":"1"}`,
					`"_meta":{"env":{"EVIL":"1"}}`)).answer.Text()
				var env map[string]string
				if err := json.Unmarshal([]byte(got), &env); err != nil {
					t.Fatalf("%s: %s", server, got)
				}
				for name, value := range env {
					if !slices.Contains([]string{"PATH", "HOME", "DS_LOG"}, name) && (server != "kid" || name != "OWN" ||
						value != secrets["SECURITY_OTHER_KEY"]) {
						t.Errorf("A40 %s has %s=%s", server, name, value)
					}
				}
			}
		}
		for _, server := range []string{"kid", "pool"} {
			if got := send(t, client, "POST", "http://"+running.addresses[":2019"]+"/mcp_gateway/servers/"+server+"/restart",
				""); got.StatusCode != 200 {
				t.Errorf("got %d %s, want 200", got.StatusCode, got.body)
			}
		}
	}
	alive := 0
	for _, e := range journal.entries(t, "start") {
		if !processRuns(e.PID) {
			continue
		}
		alive++
		for _, file := range []string{"environ", "cmdline"} {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", e.PID, file))
			for name, value := range secrets {
				if strings.Contains(string(text), value) && (e.ID != "kid" || name != "SECURITY_OTHER_KEY" || file != "environ") {
					t.Errorf("A40 the %s of %s contains %s", file, e.ID, name)
				}
			}
		}
		for _, open := range openFiles(t, e.PID) {
			if strings.HasPrefix(open, "socket:") || strings.HasSuffix(open, "Caddyfile") || strings.Contains(open, "caddy") {
				t.Errorf("A40 %s has %s open", e.ID, open)
			}
		}
	}
	if alive == 0 {
		t.Error("no child is running")
	}
	t.Run("A40 with mcp-stdio", func(t *testing.T) {
		cmd := caddy(t, "mcp-stdio", "--config", config)
		cmd.Env = append(cmd.Env, environment...)
		cmd.Stdin = strings.NewReader(stdioHandshake + toolCall{"own__env", `{}`}.request() + "\n")
		printed, err := cmd.Output()
		if err != nil || !strings.Contains(string(printed), "PATH") {
			t.Fatalf("%v: %s", err, printed)
		}
		for name, value := range secrets {
			if strings.Contains(string(printed), value) {
				t.Errorf("the child has %s: %s", name, printed)
			}
		}
	})
}
