package integration

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A hostileServer is an MCP server whose metadata point the gateway to other servers. Empty
// fields get honest values.
type hostileServer struct {
	url      string
	metadata string // URL of its metadata
	issuer   string // URL of its authorization server
	endpoint string // token and registration endpoint
	redirect string // redirect of the authorization server's metadata
}

func (s *hostileServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	choose := func(hostile, honest string) string {
		if hostile == "" {
			return s.url + honest
		}
		return hostile
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(r.URL.Path, "/.well-known/oauth-protected-resource"):
		fmt.Fprintf(w, `{"resource":%q,"authorization_servers":[%q]}`, s.url+"/mcp", choose(s.issuer, ""))
	case strings.HasPrefix(r.URL.Path, "/.well-known/") && s.redirect != "":
		http.Redirect(w, r, s.redirect, http.StatusFound)
	case strings.HasPrefix(r.URL.Path, "/.well-known/"):
		fmt.Fprintf(w, `{"issuer":%q,"authorization_endpoint":%q,"token_endpoint":%q,"registration_endpoint":%q,`+
			`"response_types_supported":["code"],"code_challenge_methods_supported":["S256"]}`,
			s.url, s.url+"/auth", choose(s.endpoint, "/token"), choose(s.endpoint, "/register"))
	default:
		w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+choose(s.metadata,
			"/.well-known/oauth-protected-resource/mcp")+`"`)
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// startHostileServer starts a server and returns its URL. place sets one of its URLs to to.
func startHostileServer(t *testing.T, place func(s *hostileServer, to string), to string) string {
	t.Helper()
	s := &hostileServer{}
	place(s, to)
	listener := httptest.NewUnstartedServer(s)
	s.url = "http://" + listener.Listener.Addr().String()
	listener.Start()
	t.Cleanup(listener.Close)
	return s.url + "/mcp"
}

// A watchedServer counts connections.
type watchedServer struct {
	*httptest.Server
	connections atomic.Int32
}

func startWatchedServer(t *testing.T, start func(*httptest.Server)) *watchedServer {
	t.Helper()
	w := &watchedServer{Server: httptest.NewUnstartedServer(http.NotFoundHandler())}
	w.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			w.connections.Add(1)
		}
	}
	start(w.Server)
	t.Cleanup(w.Close)
	return w
}

// A hostile server cannot make the gateway connect to other servers on this machine or to
// Caddy's admin API, or read files.
func TestOAuthHostileMetadata(t *testing.T) {
	isolate(t)
	const file = "file:///etc/passwd"
	type target struct{ url, name string } // name: text that the error must contain
	g := newGateway(t, t.TempDir())
	plain, secure := startWatchedServer(t, (*httptest.Server).Start), startWatchedServer(t, (*httptest.Server).StartTLS)
	byName := func(address string) string { return strings.Replace(address, "127.0.0.1", "localhost", 1) }
	places := map[string]func(s *hostileServer, to string){
		"metadata of the resource":             func(s *hostileServer, to string) { s.metadata = to },
		"an authorization server":              func(s *hostileServer, to string) { s.issuer = to },
		"endpoints":                            func(s *hostileServer, to string) { s.endpoint = to },
		"metadata of the authorization server": func(s *hostileServer, to string) { s.redirect = to },
	}
	targets := map[string]target{
		"at a loopback address":                {secure.URL, "127.0.0.1"},
		"at a host name of a loopback address": {byName(secure.URL), "localhost"},
		"at a loopback address without TLS":    {plain.URL, "127.0.0.1"},
		"at the admin API":                     {"http://" + g.admin + "/config/stolen", "127.0.0.1"},
		"in a file":                            {file, file},
	}
	type attack struct {
		name, server string
		target
	}
	var attacks []attack
	var lines []string
	for what, place := range places {
		for where, to := range targets {
			a := attack{what + " " + where, fmt.Sprintf("s%d", len(attacks)), to}
			attacks = append(attacks, a)
			lines = append(lines, block("server "+a.server+" "+startHostileServer(t, place, to.url), "oauth"))
		}
	}
	// The gateway does connect to trusted hosts.
	friend := startWatchedServer(t, (*httptest.Server).Start)
	for name, place := range places {
		lines = append(lines, block("server trusts_"+strings.ReplaceAll(name, " ", "_")+" "+startHostileServer(t, place,
			byName(friend.URL)), block("oauth", "trusted_hosts localhost")))
	}
	g.start(t, lines...)
	c := g.join(t)
	// logIn returns the error text of a login.
	logIn := func(t *testing.T, server string) string {
		t.Helper()
		answer := c.ask(t, "tools/call", callOf(server, "whoami", `{}`)).answer.Raw
		address := loginAddress.FindString(answer)
		if address == "" {
			return answer
		}
		page := newFormBrowser(t).logIn(t, address, "alice")
		if page.status < 400 {
			t.Errorf("the login went on to %s: %d %s", page.url, page.status, page.text)
		}
		return page.text
	}
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			got := logIn(t, a.server)
			if !strings.Contains(got, a.target.name) || a.url != file && !strings.Contains(got, "trusted_hosts") {
				t.Errorf("got %s, want %s to be refused", got, a.url)
			}
			if n := plain.connections.Load() + secure.connections.Load(); n != 0 {
				t.Errorf("there were %d connections", n)
			}
		})
	}
	for name := range places {
		t.Run(name+" on a trusted host", func(t *testing.T) {
			before := friend.connections.Load()
			got := logIn(t, "trusts_"+strings.ReplaceAll(name, " ", "_"))
			if friend.connections.Load() == before {
				t.Errorf("got %s, and no connection to the trusted server", got)
			}
		})
	}
	askAdmin(t, g.admin, "GET", "/config/asked", "")
	var asked []string
	for line := range strings.Lines(g.stop(t)) {
		if strings.Contains(line, `"logger":"admin.api"`) && (strings.Contains(line, "stolen") || strings.Contains(line,
			"/config/asked")) {
			asked = append(asked, line)
		}
	}
	if len(asked) != 1 {
		t.Errorf("the admin API logged %q, want only the test's request", asked)
	}
}
