package integration

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
)

// Eager servers are started with the configuration, and not again by a reload that does not change
// them.
func TestEagerServers(t *testing.T) {
	isolate(t)
	eager, lazy, added := newJournal(t), newJournal(t), newJournal(t)
	http1 := newJournal(t)
	address, far := freeAddress(t), freeAddress(t)
	lines := []string{"name eager", "separator __", "start eager",
		block(child("eager"), eager.env()), block(child("lazy"), lazy.env(), "start lazy"),
		block("server far http://"+far+"/mcp/near", "timeout 1m")}
	behind := site(far, gateway("name behind", block(child("near"), http1.env())))
	file := filepath.Join(t.TempDir(), "log")
	load(t, logTo(file)+site(address, gateway(lines...))+behind)
	await.Until(t, "the child is initialized",
		func() bool { return len(eager.entries(t, "notifications/initialized")) == 1 })
	await.Until(t, "the state of the child", func() bool { return stateOf(t, "eager").State == "healthy" })
	// The log line comes after the start is recorded, so a reload does not send requests to the server
	// again.
	await.Until(t, "the server over HTTP is up", func() bool {
		return slices.ContainsFunc(linesOfLog(t, file, "mcp_gateway"), func(l logLine) bool {
			return l.Message == "MCP server is up" && l.MCPServer == "far"
		})
	})
	pid := stateOf(t, "eager").pid(t)

	lines = append(lines, block(child("added"), added.env()))
	load(t, logTo(file)+site(address, gateway(lines...))+behind)
	await.Until(t, "the added child", func() bool { return len(added.entries(t, "notifications/initialized")) == 1 })
	if got := stateOf(t, "eager").pid(t); got != pid || len(eager.entries(t, "start")) != 1 {
		t.Errorf("the process was %d, is %d", pid, got)
	}
	if n := len(http1.entries(t, "tools/list")); n != 1 {
		t.Errorf("the server over HTTP received %d tools/list, want 1", n)
	}
	if n := len(lazy.entries(t, "start")); n != 0 {
		t.Errorf("a lazy child was started %d times", n)
	}
}

// An eager server that fails to start is retried until it starts.
func TestEagerServersThatStartLate(t *testing.T) {
	isolate(t)
	journal, flag := newJournal(t), filepath.Join(t.TempDir(), "flag")
	command := strings.TrimPrefix(child("moody"), "server moody stdio ")
	serve(t, gateway("start eager", block("server moody stdio sh -c `test -e "+flag+" && exec "+command+"`",
		journal.env())))
	await.Until(t, "the failure", func() bool {
		return strings.Contains(stateOf(t, "moody").LastError, "exited with status 1")
	})
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await.Until(t, "the start", func() bool { return len(journal.entries(t, "notifications/initialized")) == 1 })
}

// A child that never completes the handshake delays clients at most once. Clients of each era share
// one process.
func TestChildrenWithoutHandshake(t *testing.T) {
	isolate(t)
	hung := newJournal(t)
	url := serve(t, gateway("separator __", "join_timeout 4s", block(child("hung", "--hang-init"), hung.env()),
		child("good")))
	for name, modern := range map[string]bool{"legacy": false, "modern": true} {
		c := newTestClient(t, joinedAt(url), modern, fullCapabilities)
		c.listenForChanges(t)
		for range 3 {
			if got := c.ask(t, "tools/list", ""); !strings.Contains(string(got.answer.Result), `"good__echo"`) {
				t.Errorf("the %s client got %s", name, got.answer.Raw)
			}
		}
	}
	if n := len(hung.entries(t, "start")); n > 2 { // one for each era: it is unknown whether the first supports the other
		t.Errorf("started %d processes, want at most 2", n)
	}
}

// A slow server is announced to clients when it is ready.
func TestSlowChildren(t *testing.T) {
	isolate(t)
	for name, modern := range map[string]bool{"legacy": false, "modern": true} {
		t.Run(name, func(t *testing.T) {
			slow, flag := newJournal(t), filepath.Join(t.TempDir(), "flag")
			command := strings.TrimPrefix(child("slow"), "server slow stdio ")
			url := serve(t, gateway("name "+name, "separator __", child("good"),
				block("server slow stdio sh -c `until test -e "+flag+"; do sleep 0.1; done; exec "+command+"`", slow.env())))
			c := newTestClient(t, joinedAt(url), modern, fullCapabilities)
			stream := c.listenForChanges(t)
			first := c.ask(t, "tools/list", "")
			if got := string(first.answer.Result); !strings.Contains(got, `"good__echo"`) {
				t.Errorf("got %s", got)
			}
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			stream.awaitMessage(t, "notifications/tools/list_changed")
			if got := c.ask(t, "tools/list", ""); !strings.Contains(string(got.answer.Result), `"slow__echo"`) {
				t.Errorf("got %s", got.answer.Raw)
			}
			if n := len(slow.entries(t, "start")); n != 1 {
				t.Errorf("started %d processes, want 1", n)
			}
		})
	}
}

// A client that disconnects from a stream causes no warning. A server that aborts a response does.
func TestClientDisconnectsAreNotWarnings(t *testing.T) {
	isolate(t)
	file := filepath.Join(t.TempDir(), "log")
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte("data: {\n\n"))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer broken.Close()
	address, other := freeAddress(t), freeAddress(t)
	load(t, block("", block("log", "output file "+file))+"\n"+site(address, gateway("separator __", child("a"),
		child("b")))+
		site(other, gateway("name other", "server broken "+broken.URL+"/")))
	logged := func(text string) bool {
		all, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(all), text)
	}
	c := newTestClient(t, joinedAt("http://"+address), false, fullCapabilities)
	await.Until(t, "the streams of a client and the children end", func() bool {
		stream := c.listenForChanges(t)
		c.use(t, "a", "echo", `{}`)
		c.use(t, "b", "echo", `{}`)
		stream.Cancel() // the gateway may not have subscribed to the children yet
		left := map[string]bool{}
		for name, value := range metrics(t) {
			if strings.HasPrefix(name, "requests_total") && strings.Contains(name, `outcome="canceled"`) && value > 0 {
				_, server, _ := strings.Cut(name, `server="`)
				server, _, _ = strings.Cut(server, `"`)
				left[server] = true
			}
		}
		return left[""] && left["a"] && left["b"]
	})
	if logged("aborting with incomplete response") {
		text, _ := os.ReadFile(file)
		t.Errorf("a disconnect of a client is logged as a warning: %s", text)
	}
	// The aggregate returns the failure in a response.
	newTestClient(t, joinedAt("http://"+other), false, fullCapabilities).ask(t, "tools/list", "")
	await.Until(t, "the warning", func() bool { return logged("aborting with incomplete response") })
}

// openWarning is logged for a gateway without auth that other machines can reach.
const openWarning = "other machines can use this gateway without credentials"

// The gateway warns if other machines can reach it without auth. The host name of a site does not
// matter: it listens on all addresses.
func TestOpenGatewayWarns(t *testing.T) { // A30
	isolate(t)
	sample := block("server sample", "mcp_sample")
	tokens := []string{block("client c", "token 0123456789abcdef0123456789abcdef")}
	basic := block("basic_auth", "bob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG")
	forward := block("forward_auth 127.0.0.1:1", "uri /check")
	for _, tt := range []struct {
		name, address string
		front         []string // directives of the site
		lines         []string // subdirectives of the gateway
		warns         bool
	}{
		{"all addresses", ":28080", nil, nil, true},
		{"localhost by name", "localhost:28080", nil, nil, true},
		{"a loopback address by name", "http://127.0.0.1:28080", nil, nil, true},
		{"a public address", ":28080", []string{"bind 192.0.2.1"}, nil, true},
		{"one address of two", ":28080", []string{"bind 127.0.0.1 0.0.0.0"}, nil, true},
		{"a loopback address", ":28080", []string{"bind 127.0.0.1"}, nil, false},
		{"an IPv6 loopback address", ":28080", []string{"bind ::1"}, nil, false},
		{"a socket", ":28080", []string{"bind unix//tmp/caddy-mcp-gateway-test.sock"}, nil, false},
		{"tokens", ":28080", nil, tokens, false},
		{"no auth on purpose", ":28080", nil, []string{"auth none"}, false},
		{"basic_auth", ":28080", []string{basic}, nil, false},
		{"basic_auth in a site with a name", "mcp.example.com", []string{basic}, nil, false},
		{"forward_auth", "mcp.example.com", []string{forward}, nil, false},
		{"basic_auth at a server of the gateway", "mcp.example.com", nil, []string{block("server b", basic, "mcp_sample")},
			true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lines := append([]string{"separator __", sample}, tt.lines...)
			file := writeCaddyfile(t, block(tt.address, append(tt.front, gateway(lines...))...))
			out, err := caddy(t, "validate", "--config", file, "--adapter", "caddyfile").CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if warns := strings.Contains(string(out), openWarning); warns != tt.warns {
				t.Errorf("%t\n%s", warns, out)
			}
		})
	}
	t.Run("another site has basic_auth", func(t *testing.T) {
		file := writeCaddyfile(t, block("a.example.com", basic, "respond a")+"\n"+block("b.example.com",
			gateway("separator __", sample)))
		out, err := caddy(t, "validate", "--config", file, "--adapter", "caddyfile").CombinedOutput()
		if err != nil || !strings.Contains(string(out), openWarning) {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// The log shows URLs and clients at start, and after a reload only if they changed.
func TestGatewayAnnounces(t *testing.T) {
	isolate(t)
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	admin := freeAddress(t)
	sample := block("server sample", "mcp_sample")
	config := func(lines ...string) string {
		inner := gateway(append([]string{"name local", "separator __", sample}, lines...)...)
		return withAdmin(site(address, block("handle_path /tools/*", inner)), admin)
	}
	tokens := block("client a", "token 0123456789abcdef0123456789abcdef") + "\n" + block("client b",
		"token abcdef0123456789abcdef0123456789")
	file := writeCaddyfile(t, config())
	running := startCaddy(t, caddy(t, "run", "--config", file, "--adapter", "caddyfile"))
	reload := func(caddyfile string) {
		t.Helper()
		cmd := caddy(t, "reload", "--config", writeCaddyfile(t, caddyfile), "--adapter", "caddyfile")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	reload(config("response_timeout 20s"))
	reload(config(tokens))
	logged := running.stop(t)
	url := `"urls":["http://127.0.0.1:` + port + `/tools/mcp"]`
	for _, want := range []string{
		`"msg":"serving MCP","gateway":"local","servers":["sample"],` + url + `,"clients":"anyone on this machine"`,
		`"msg":"serving MCP","gateway":"local","servers":["sample"],` + url + `,"clients":"token, 2 clients"`,
	} {
		if strings.Count(logged, want) != 1 {
			t.Errorf("%s is in the log %d times:\n%s", want, strings.Count(logged, want), logged)
		}
	}
}

// The URLs have the host names and the scheme of the site.
func TestGatewayAnnouncesNames(t *testing.T) {
	isolate(t)
	port := func() string {
		_, port, _ := net.SplitHostPort(freeAddress(t))
		return port
	}
	secure, socket, public := port(), t.TempDir()+"/s", port()
	sample := block("server sample", "mcp_sample")
	file := writeCaddyfile(t, withAdmin(strings.Join([]string{
		block("", "skip_install_trust", "auto_https disable_redirects"),
		block("localhost:"+secure, "tls internal", gateway("name secure", "separator __", sample)),
		block(":"+port(), "bind unix/"+socket, gateway("name socket", "separator __", sample)),
		block(":"+public, "bind 127.0.0.1", gateway("name public", "separator __", "public_url https://mcp.example.com",
			sample)),
	}, "\n"), freeAddress(t)))
	logged := startCaddy(t, caddy(t, "run", "--config", file, "--adapter", "caddyfile")).stop(t)
	for _, want := range []string{
		`"gateway":"secure","servers":["sample"],"urls":["https://localhost:` + secure +
			`/mcp"],"clients":"anyone who can reach it"`,
		`"gateway":"socket","servers":["sample"],"urls":["unix/` + socket + ` /mcp"],"clients":"anyone on this machine"`,
		`"gateway":"public","servers":["sample"],"urls":["https://mcp.example.com/mcp"]`,
	} {
		if !strings.Contains(logged, want) {
			t.Errorf("%s is not in the log:\n%s", want, logged)
		}
	}
}

// Clients that support OAuth look for a login if their token is refused. The error tells users to
// send a token instead.
func TestRefusedTokenIsExplained(t *testing.T) { // A30
	isolate(t)
	const token = "0123456789abcdef0123456789abcdef"
	url := serve(t, gateway("separator __", block("client c", "token "+token), block("server sample", "mcp_sample")))
	for _, sdk := range []string{"v1", "v2"} {
		for sent, want := range map[string]string{token: "connected",
			"wrong": "send the header Authorization: Bearer <token>"} {
			out, err := peer(t, "refused.mjs", url+"/mcp", sdk, sent).Output()
			if err != nil {
				t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
			}
			if got := string(out); !strings.Contains(got, want) || strings.Contains(got, "SyntaxError") {
				t.Errorf("%s with %s: %s", sdk, sent, got)
			}
		}
	}
	for sent, want := range map[string][2]string{
		"": {`"hint":"send the header Authorization: Bearer <token>"`, `Bearer realm="mcp"`},
		"Bearer wrong": {`"hint":"the credentials are not valid; send the header Authorization: Bearer <token>`,
			`Bearer realm="mcp", error="invalid_token"`},
		"Basic YTpi": {`"hint":"send the header Authorization: Bearer <token>"`, `Bearer realm="mcp"`},
	} {
		got := post(t, url+"/mcp", rpc("tools/list", `{}`), acceptBoth, "Authorization: "+sent)
		if got.StatusCode != 401 || !strings.Contains(got.body, want[0]) || got.Header.Get("WWW-Authenticate") != want[1] {
			t.Errorf("%q: %d %v %s", sent, got.StatusCode, got.Header, got.body)
		}
	}
}

// The mcp-stdio command opens no port and needs no credentials, and its log says neither.
func TestCommandStdioLogsNoListener(t *testing.T) { // A42
	isolate(t)
	file := writeCaddyfile(t,
		block(":28080", gateway("separator __", block("client c", "token 0123456789abcdef0123456789abcdef",
			"deny sample::echo"), block("server sample", "mcp_sample"))))
	p := startStdio(t, file)
	p.send(t, rpc("ping", `{}`))
	p.receive(t, "")
	p.close(t)
	for _, text := range []string{"admin endpoint", "no auth and no token", openWarning, "serving MCP"} {
		if strings.Contains(p.logged.String(), text) {
			t.Errorf("%s:\n%s", text, &p.logged)
		}
	}
}
