package integration

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

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
