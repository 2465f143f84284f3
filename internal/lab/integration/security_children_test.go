package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcptest"
)

// The roots of one client never apply to a server that others share, before, during or after its
// session. The server is the official one: roots replace the directories that it was started
// with.
func TestSecurityRootsOfASharedChild(t *testing.T) {
	isolate(t)
	ours, theirs := t.TempDir(), t.TempDir()
	for dir, text := range map[string]string{ours: "ours", theirs: "theirs"} {
		if err := os.WriteFile(filepath.Join(dir, "file.txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files := "server files stdio node " + nodeModules + "@modelcontextprotocol/server-filesystem/dist/index.js "
	for _, test := range []struct {
		name    string
		options string // further lines of the server
		answer  string // answer directive of the gateway
		started string // the directory that the server is started with
		asks    bool   // the client receives roots/list
		says    bool   // the log has a warning
	}{
		{"shared", "isolation shared", "", ours, false, true},
		{"shared, with roots", "roots file://" + ours, "", theirs, false, false},
		{"shared, with an answer", "isolation shared", block("answer files roots/list", "roots file://"+ours), theirs, false,
			false},
		{"per session", "isolation session", "", ours, true, false},
	} {
		for _, early := range []bool{true, false} {
			name := test.name + ", after another client"
			if early {
				name = test.name + ", as the first client"
			}
			t.Run(name, func(t *testing.T) {
				log := filepath.Join(t.TempDir(), "log")
				address := freeAddress(t)
				load(t, block("", block("log", "output file "+log))+"\n"+site(address, patientGateway(
					// RUN makes each child different
					block(files+test.started, test.options, "start_timeout 2m", "env RUN "+quote(name)), child("other"), test.answer)))
				url := "http://" + address
				read := func(c *legacyClient, dir string) string {
					return c.use("files::read_text_file", `{"path":`+quote(filepath.Join(dir, "file.txt"))+`}`)
				}
				direct := func(dir string) string {
					return use(t, rpcAt(url, "files"), "read_text_file", `{"path":`+quote(filepath.Join(dir, "file.txt"))+`}`)
				}
				others := func(when string, c *legacyClient) {
					t.Helper()
					if got := read(c, ours); got != "ours" {
						t.Errorf("%s, the client reads %q", when, got)
					}
					if got := read(c, theirs); !strings.Contains(got, "Access denied") {
						t.Errorf("%s, the client reads %q", when, got)
					}
					if got := direct(ours); got != "ours" {
						t.Errorf("%s, /rpc reads %q", when, got)
					}
					if got := direct(theirs); !strings.Contains(got, "Access denied") {
						t.Errorf("%s, /rpc reads %q", when, got)
					}
				}

				var bob *legacyClient
				if !early {
					await.Until(t, "the directories of the configuration", func() bool { return direct(ours) == "ours" })
					bob = newListeningClient(t, url, `{}`)
					others("before", bob)
				}
				alice := newListeningClient(t, url, `{"roots":{"listChanged":true}}`)
				alice.setAnswers(func(mcpclient.Message) string { return `"result":{"roots":[{"uri":"file://` + theirs + `"}]}` })
				alice.notify("notifications/roots/list_changed", "")
				await.Until(t, "the directories of the configuration", func() bool { return direct(ours) == "ours" })
				if test.asks {
					await.Until(t, "its roots to be used", func() bool { return read(alice, theirs) == "theirs" })
				} else {
					others("the client with roots", alice)
				}
				if bob == nil {
					bob = newListeningClient(t, url, `{}`)
				}
				others("during its session", bob)
				send(t, client, "DELETE", joinedAt(url), "", alice.Session)
				others("after its session", bob)
				others("after its session", newListeningClient(t, url, `{}`))

				if asked := alice.receivedMessages("roots/list"); !test.asks && len(asked) > 0 {
					t.Errorf("the client received %v", asked)
				}
				const warning = "client roots are not forwarded to a shared server"
				text, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				want := 0
				if test.says {
					want = 1
				}
				if n := strings.Count(string(text), `"`+warning+`","mcp_server":"files"`); n != want {
					t.Errorf("the log has the warning %d times, want %d", n, want)
				}
			})
		}
	}
}

// Clients of a shared server do not affect each other's log levels, subscriptions and
// notifications.
func TestSecurityStateOfASharedChild(t *testing.T) {
	isolate(t)
	journal := newJournal(t)
	url := serve(t, gateway(block(child("alpha"), journal.env())))
	alice, bob := newListeningClient(t, url, fullCapabilities), newListeningClient(t, url, fullCapabilities)

	t.Run("subscriptions", func(t *testing.T) {
		bob := bob.withTest(t)
		uri := bob.list("resources/list", "uri")[0]
		bob.result("resources/subscribe", `{"uri":`+quote(uri)+`}`)
		own := ""
		await.Until(t, "the subscription", func() bool {
			if all := journal.messages(t, "resources/subscribe"); len(all) == 1 {
				own = strings.Trim(all[0].Param("uri"), `"`)
			}
			return own != ""
		})
		post(t, rpcAt(url, "alpha"), rpc("resources/unsubscribe", `{"uri":`+quote(own)+`}`))
		use(t, rpcAt(url, "alpha"), "touch", `{"uri":`+quote(own)+`}`)
		bob.awaitMessages("notifications/resources/updated", 1)
	})
	t.Run("log levels", func(t *testing.T) {
		alice, bob := alice.withTest(t), bob.withTest(t)
		alice.result("logging/setLevel", `{"level":"debug"}`)
		bob.result("logging/setLevel", `{"level":"error"}`)
		post(t, rpcAt(url, "alpha"), rpc("logging/setLevel", `{"level":"emergency"}`))
		var levels []string
		for _, m := range journal.messages(t, "logging/setLevel") {
			levels = append(levels, m.Param("level"))
		}
		if strings.Join(levels, " ") != `"debug"` {
			t.Errorf("the server received the levels %v", levels)
		}
		alice.use("alpha::emit", `{"method":"notifications/message","params":{"level":"info","data":"for alice"}}`)
		bob.use("alpha::emit", `{"method":"notifications/message","params":{"level":"info","data":"not for bob"}}`)
		bob.use("alpha::emit", `{"method":"notifications/message","params":{"level":"error","data":"for bob"}}`)
		if got := alice.awaitMessages("notifications/message", 1); !strings.Contains(got[0].Raw, "for alice") {
			t.Errorf("alice received %s", got[0].Raw)
		}
		if got := bob.awaitMessages("notifications/message", 1); !strings.Contains(got[0].Raw, "for bob") {
			t.Errorf("bob received %s", got[0].Raw)
		}
	})
	t.Run("changed roots", func(t *testing.T) {
		alice.withTest(t).notify("notifications/roots/list_changed", "")
		alice.withTest(t).notify("notifications/their/own", "")
		await.Until(t, "the other notification",
			func() bool { return len(journal.entries(t, "notifications/their/own")) == 1 })
		if n := len(journal.entries(t, "notifications/roots/list_changed")); n != 0 {
			t.Errorf("the server received it %d times, want 0", n)
		}
	})
}

// Output that a child prints, also on behalf of a client, uses a limited part of the log and
// hides none of its responses.
func TestSecurityOutputOfAChild(t *testing.T) {
	isolate(t)
	log, address := filepath.Join(t.TempDir(), "log"), freeAddress(t)
	load(t, block("", block("log", "output file "+log))+"\n"+site(address, gateway(child("alpha"))))
	endpoint := rpcAt("http://"+address, "alpha")
	for _, line := range []string{"Content-Length: 99999999999", "Content-Length: 99999999999\\r\\n\\r",
		"Content-Length: 1000\\r\\n\\r"} {
		if got := use(t, endpoint, "noise", `{"lines":2,"text":"`+line+`"}`); got != "written" {
			t.Errorf("%s: %s", line, got)
		}
		if got := use(t, endpoint, "slow", `{"ms":0}`); got != "slept" {
			t.Errorf("after %s: %s", line, got)
		}
	}
	if got := use(t, endpoint, "stderr", `{"lines":1000000,"text":"x"}`); got != "written" {
		t.Errorf("got %q, want %q", got, "written")
	}
	await.Until(t, "the log message about omitted lines", func() bool {
		text, _ := os.ReadFile(log)
		return strings.Contains(string(text), "some lines are not logged")
	})
	load(t, site(address, gateway("server other http://127.0.0.1:1")))
	size := func() int64 {
		info, err := os.Stat(log)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if n := size(); n > 1<<20 {
		t.Errorf("the log has %d bytes, want at most 1 MiB", n)
	}
}

func TestSecurityByteOrderMark(t *testing.T) {
	isolate(t)
	script := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nprintf '\\357\\273\\277'\nexec "+childProgram()+" alpha\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	url := serve(t, gateway(block("server alpha stdio "+script, "start_timeout 5s")))
	if got := use(t, rpcAt(url, "alpha"), "slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
}

// A child does not inherit Caddy's file descriptors, but Caddy itself can use them.
func TestSecurityFilesOfCaddy(t *testing.T) {
	isolate(t)
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("no /proc here")
	}
	address := freeAddress(t)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	secret, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	dir := t.TempDir()
	config, found := filepath.Join(dir, "Caddyfile"), filepath.Join(dir, "found")
	script := "ls /proc/self/fd/ >" + found + "; exec " + childProgram() + " alpha"
	text := withAdmin("http://"+address+" {\nbind fd/3\n"+gateway("server alpha stdio sh -c `"+script+"`")+"\n}\n",
		freeAddress(t))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := caddy(t, "run", "--config", config)
	cmd.ExtraFiles = []*os.File{socket, secret}
	r := startCaddy(t, cmd)
	defer r.stop(t)
	if got := use(t, rpcAt("http://"+address, "alpha"), "slow", `{"ms":0}`); got != "slept" {
		t.Errorf("got %q, want %q", got, "slept")
	}
	files, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	// 3 is the directory that ls reads.
	if got := strings.Join(strings.Fields(string(files)), " "); got != "0 1 2 3" {
		t.Errorf("a child has the file descriptors %s", got)
	}
}

// One client cannot end the children of another's sessions, or start an unlimited number of
// processes.
func TestSecurityChildrenOfOthers(t *testing.T) {
	isolate(t)
	const alice, bob = "alice-AbCdEf0123456789", "bob-AbCdEf0123456789"
	journal, begin := newJournal(t), time.Now()
	url := serve(t, gateway(block("auth token", "alice "+alice, "bob "+bob), block(child("own"), "isolation session",
		"max_sessions 3"),
		block(child("many"), "isolation session", "max_sessions 200", "start_timeout 2s", journal.env())))
	for name, endpoint := range map[string]string{"one server": mcpAt(url, "own"), "aggregate": joinedAt(url)} {
		t.Run(name, func(t *testing.T) {
			hello := rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test",`+
				`"version":"1"}}`)
			pid := func(session string) string {
				tool := "pid"
				if endpoint == joinedAt(url) {
					tool = "own::pid"
				}
				return use(t, endpoint, tool, `{}`, session, bearer(bob))
			}
			got := post(t, endpoint, hello, bearer(bob), acceptBoth)
			session := "Mcp-Session-Id: " + got.Header.Get("Mcp-Session-Id")
			before := pid(session)
			for range 6 {
				post(t, endpoint, hello, bearer(alice), acceptBoth)
			}
			if after := pid(session); after != before {
				t.Errorf("the other client's child was %s, is %s", before, after)
			}
		})
	}
	var refused atomic.Int32
	var asked sync.WaitGroup
	for range 150 { // 50 may start at once, then 5 per second; 10 wait
		asked.Go(func() {
			got := post(t, mcpAt(url, "many"), rpc("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},`+
				`"clientInfo":{"name":"test","version":"1"}}`), bearer(alice), acceptBoth)
			if got.StatusCode != 503 {
				return
			}
			refused.Add(1)
			if got.Header.Get("Retry-After") == "" {
				t.Error("503 without Retry-After")
			}
		})
	}
	asked.Wait()
	started := len(journal.entries(t, "start"))
	if most := 51 + 5*int(time.Since(begin).Seconds()+1); refused.Load() == 0 || started > most || started < 10 {
		t.Errorf("%d children were started for one client, want at most %d; %d were refused", started, most, refused.Load())
	}
	t.Logf("%d started, %d refused", started, refused.Load())
}

// Memory of requests in flight to a child is limited to a factor of their size.
func TestSecurityMemoryOfRequests(t *testing.T) {
	isolate(t)
	const calls, size = 16, 4 << 20
	// do not time out while the child is stopped
	url := serve(t, gateway("in_flight_limit 1GiB", "response_timeout 10m", child("alpha")))
	for name, test := range map[string]struct {
		at, tool string
		factor   float64
	}{
		"one server": {mcpAt(url, "alpha"), "slow", 1.5},
		"aggregate":  {joinedAt(url), "alpha::slow", 1.5},
	} {
		t.Run(name, func(t *testing.T) {
			session := newSession(t, test.at)
			pid := pidAt(t, rpcAt(url, "alpha"))
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
			heap := func() float64 {
				_, after, _ := strings.Cut(admin(t, "GET", "/debug/pprof/heap?gc=1&debug=1", "").body, "# HeapAlloc = ")
				line, _, _ := strings.Cut(after, "\n")
				n, err := strconv.ParseFloat(line, 64)
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			before := heap()
			padding := strings.Repeat("x", size)
			var waiting []<-chan httpResponse
			for range calls {
				waiting = append(waiting, beginCall(t, test.at, test.tool, `{"ms":0,"padding":"`+padding+`"}`, session))
			}
			await.Until(t, "all calls to wait for the child", func() bool {
				stacks := admin(t, "GET", "/debug/pprof/goroutine?debug=2", "").body
				return strings.Count(stacks, "stdio.(*inputQueue).sendEdited(")+
					strings.Count(stacks, "stdio.(*call).first(") == calls
			})
			if got := (heap() - before) / (calls * size); got > test.factor {
				t.Errorf("%.2f times the bytes in flight are in memory, want at most %.1f", got, test.factor)
			} else {
				t.Logf("%.2f times the bytes in flight are in memory", got)
			}
			_ = syscall.Kill(pid, syscall.SIGCONT)
			for _, call := range waiting {
				if got := <-call; toolText(t, answerIn(got.body)) != "slept" {
					t.Errorf("%s %.200s", got.Status, got.body)
				}
			}
		})
	}
}

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
