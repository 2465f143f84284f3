package integration

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// A plantedSecret is a secret, with the prefixes of the places where it may appear.
type plantedSecret struct {
	name, value string
	allowed     []string
}

// spellings returns the encodings in which a secret could appear.
func (p plantedSecret) spellings() []string {
	raw := []byte(p.value)
	all := []string{p.value, hex.EncodeToString(raw), url.QueryEscape(p.value)}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		all = append(all, encoding.EncodeToString(raw))
	}
	return all
}

// evidence has everything that a process has written or sent, by place.
type evidence map[string]string

func (e evidence) add(place, text string) { e[fmt.Sprintf("%s #%d", place, len(e))] = text }

func (e evidence) response(place string, got httpResponse) httpResponse {
	e.add(place, fmt.Sprintln(got.StatusCode, got.Header)+got.body)
	return got
}

// files adds all files below a directory.
func (e evidence) files(t *testing.T, place, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		e.add(place+" "+filepath.Base(path), string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// search returns a line for each place where a secret may not appear but does.
func (e evidence) search(secrets []plantedSecret) (found []string) {
	for _, secret := range secrets {
		for place, text := range e {
			if slices.ContainsFunc(secret.allowed, func(prefix string) bool { return strings.HasPrefix(place, prefix) }) {
				continue
			}
			for _, spelled := range secret.spellings() {
				if index := strings.Index(text, spelled); index >= 0 {
					found = append(found, fmt.Sprintf("the %s is in %s: …%s…", secret.name, place,
						text[max(0, index-200):min(len(text), index+len(spelled)+100)]))
					break
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// A leakTest is a Caddy process with secrets everywhere, and the evidence of what it disclosed.
type leakTest struct {
	evidence evidence

	bearer, written, file, proxy, hmac, writtenHMAC, upstream, child, session, password plantedSecret // valid
	wrongToken, wrongProxy, wrongPassword, wrongHMAC                                    plantedSecret
	goodJWT, expiredJWT                                                                 string
	issuer                                                                              *issuer

	dir, home            string   // of logs, and of all other files
	environment          []string // of the process
	tokenFile, hash      string
	adminAddress         string
	main, users          string // addresses of its sites
	server, secondServer *remoteServer
	kid, quiet           journal
	caddy                *caddyProcess
}

// newLeakTest generates the secrets.
func newLeakTest(t *testing.T) *leakTest {
	t.Helper()
	secret := func(name string, belongs ...string) plantedSecret {
		return plantedSecret{name, "planted-" + rand.Text(), belongs}
	}
	v := &leakTest{
		evidence:      evidence{},
		bearer:        secret("token in the environment"),
		written:       secret("token in the Caddyfile"),
		file:          secret("token in a file"),
		proxy:         secret("token for params.proxy"),
		hmac:          secret("secret of signatures"),
		writtenHMAC:   secret("literal secret of signatures"),
		upstream:      secret("credential of the upstream", "the upstream"),
		child:         secret("credential of the child", "the child kid"),
		session:       secret("key of sessions"),
		password:      secret("password"),
		wrongToken:    secret("wrong token"),
		wrongProxy:    secret("wrong token in params.proxy"),
		wrongPassword: secret("wrong password"),
		wrongHMAC:     secret("wrong secret of signatures"),
		issuer:        newIssuer(t),
		dir:           t.TempDir(),
		home:          t.TempDir(),
		tokenFile:     filepath.Join(t.TempDir(), "token"),
		adminAddress:  freeAddress(t),
		main:          freeAddress(t),
		users:         freeAddress(t),
		server:        newLenientServer(t, "echo", "slow"),
		secondServer:  newLenientServer(t, "echo"),
		kid:           newJournal(t),
		quiet:         newJournal(t),
	}
	v.goodJWT = v.issuer.token("ec", v.issuer.claims(nil))
	v.expiredJWT = v.issuer.token("ec", v.issuer.claims(map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}))
	v.environment = []string{
		"HOME=" + v.home, "XDG_CONFIG_HOME=" + v.home, "XDG_DATA_HOME=" + v.home,
		"PLANTED_BEARER=" + v.bearer.value, "PLANTED_PROXY=" + v.proxy.value, "PLANTED_HMAC=" + v.hmac.value,
		"PLANTED_UPSTREAM=" + v.upstream.value, "PLANTED_CHILD=" + v.child.value, "PLANTED_SESSION_KEY=" + v.session.value,
	}
	if err := os.WriteFile(v.tokenFile, []byte(v.file.value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hash, err := caddy(t, "hash-password", "--bcrypt-cost", "4", "--plaintext", v.password.value).Output()
	if err != nil {
		t.Fatal(err)
	}
	v.hash = strings.TrimSpace(string(hash))
	return v
}

// secrets returns everything that must not appear.
func (v *leakTest) secrets() []plantedSecret {
	signature := func(token string) string { return token[strings.LastIndexByte(token, '.')+1:] }
	return []plantedSecret{
		v.bearer, v.written, v.file, v.proxy, v.hmac, v.writtenHMAC, v.upstream, v.child, v.session, v.password,
		v.wrongToken, v.wrongProxy, v.wrongPassword, v.wrongHMAC,
		{"JWT", v.goodJWT, nil}, {"signature of a JWT", signature(v.goodJWT), nil}, {"expired JWT", v.expiredJWT, nil},
		{"signature of an expired JWT", signature(v.expiredJWT), nil},
		{"credentials of a user", basicAuthOf(v.password.value), nil}, {"wrong credentials of a user",
			basicAuthOf(v.wrongPassword.value), nil},
	}
}

func basicAuthOf(password string) string {
	return base64.StdEncoding.EncodeToString([]byte("alice:" + password))
}

// config returns a Caddyfile that uses the secrets in all possible ways and logs as much as it can.
func (v *leakTest) config(more ...string) string {
	logs := func(name string) string {
		return block("log", "output file "+filepath.Join(v.dir, name), "format json")
	}
	servers := []string{
		block(v.server.line("alpha"), `request_header Authorization "Bearer {env.PLANTED_UPSTREAM}"`,
			"request_header X-Key {env.PLANTED_UPSTREAM}"), v.secondServer.line("second"), "server down http://127.0.0.1:1",
		block(child("kid", "--modern"), v.kid.env(), "env API_KEY {env.PLANTED_CHILD}"), block(child("quiet"), v.quiet.env(),
			"isolation session"),
	}
	main := gateway(append([]string{
		"name main", "separator __", "session_key {env.PLANTED_SESSION_KEY}", block("mask", "recover on"),
		"auth token {env.PLANTED_BEARER} main", "auth token " + v.written.value + " written",
		block("auth hmac", "client signer {env.PLANTED_HMAC}"), v.issuer.provider("scopes mcp:tools"),
		block("client eve", "token {env.PLANTED_PROXY}", "deny alpha::slow down::*", `redact "hidden"`),
		block("client busy", "token {file."+v.tokenFile+"}", "rate 3/1h"),
	}, servers...)...)
	users := gateway(append([]string{"name users", "separator __", "auth token {env.PLANTED_BEARER} main",
		block("client team", "match alice")}, servers...)...)
	return withAdmin(block("", "debug", logs("all.log"), block("log second", "output stdout", "format console"))+"\n"+
		site(v.main, append([]string{logs("access.log"), main}, more...)...)+
		site(v.users, logs("users.log"), block("basic_auth", "alice "+v.hash), users), v.adminAddress)
}

func (v *leakTest) start(t *testing.T) {
	t.Helper()
	cmd := caddy(t, "run", "--config", writeCaddyfile(t, v.config()))
	cmd.Env = append(cmd.Env, v.environment...)
	for name, output := range map[string]*io.Writer{"stdout": &cmd.Stdout, "stderr": &cmd.Stderr} {
		file, err := os.Create(filepath.Join(v.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		*output = file
	}
	v.caddy = startCaddy(t, cmd)
	v.askAdmin(t, "GET", "/config/", "")
}

// stop stops the process like an operator.
func (v *leakTest) stop(t *testing.T) {
	t.Helper()
	v.caddy.stop(t)
}

// askAdmin calls the admin API, which moves to another server on each reload.
func (v *leakTest) askAdmin(t *testing.T, method, path, body string, headers ...string) (got httpResponse) {
	t.Helper()
	got = askAdmin(t, v.adminAddress, method, path, body, headers...)
	v.caddy.awaitReload(t)
	return v.evidence.response("the admin API at "+path, got)
}

const isCaddyfile = "Content-Type: text/caddyfile"

// A leakClient sends valid or invalid credentials.
type leakClient struct {
	name      string
	address   string // of a site
	good      bool
	authorize func(method, endpoint, body string) (newBody string, headers []string)
}

func (v *leakTest) clients(t *testing.T) []leakClient {
	header := func(value string) func(method, endpoint, body string) (string, []string) {
		return func(_, _, body string) (string, []string) { return body, []string{"Authorization: " + value} }
	}
	inProxy := func(token string) func(method, endpoint, body string) (string, []string) {
		return func(_, _, body string) (string, []string) {
			return strings.Replace(body, `"params":{`, `"params":{"proxy":{"authToken":"`+token+`","x":1},`, 1), nil
		}
	}
	signed := func(secret string) func(method, endpoint, body string) (string, []string) {
		return func(method, endpoint, body string) (string, []string) {
			return body, []string{signedHeader("signer", secret, method, pathOf(t, endpoint), body)}
		}
	}
	return []leakClient{
		{"a token", v.main, true, header("Bearer " + v.bearer.value)},
		{"a literal token", v.main, true, header("Bearer " + v.written.value)},
		{"a token with a low limit", v.main, true, header("Bearer " + v.file.value)},
		{"a token in params", v.main, true, inProxy(v.proxy.value)},
		{"a signature", v.main, true, signed(v.hmac.value)},
		{"a JWT", v.main, true, header("Bearer " + v.goodJWT)},
		{"a password", v.users, true, header("Basic " + basicAuthOf(v.password.value))},
		{"a wrong token", v.main, false, header("Bearer " + v.wrongToken.value)},
		{"a token with a suffix", v.main, false, header("Bearer " + v.bearer.value + "x")},
		{"a token with another scheme", v.main, false, header("Token " + v.bearer.value)},
		{"a wrong token in params", v.main, false, inProxy(v.wrongProxy.value)},
		{"a wrong signature", v.main, false, signed(v.wrongHMAC.value)},
		{"an expired JWT", v.main, false, header("Bearer " + v.expiredJWT)},
		{"a wrong password", v.users, false, header("Basic " + basicAuthOf(v.wrongPassword.value))},
	}
}

// sendRequests sends requests of all kinds to all endpoints.
func (v *leakTest) sendRequests(t *testing.T, sender leakClient) {
	t.Helper()
	base, session := "http://"+sender.address, ""
	do := func(method, endpoint, body string, headers ...string) httpResponse {
		t.Helper()
		sent, authorization := sender.authorize(method, endpoint, body)
		if endpoint == joinedAt(base) && session != "" && !strings.Contains(body, "2026-07-28") {
			authorization = append(authorization, session)
		}
		got := sendAllHeaders(t, client, method, endpoint, sent, slices.Concat(authorization, headers,
			[]string{connectionClose})...)
		broken := got.StatusCode >= 500 && !strings.Contains(endpoint+body, "down")
		if sender.good && (got.StatusCode == 401 || broken) || !sender.good && got.StatusCode != 401 {
			t.Errorf("%s: %s %s: %d %s", sender.name, endpoint, body, got.StatusCode, got.body)
		}
		return v.evidence.response("response to "+sender.name, got)
	}
	notification := `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1}}`
	if id := do("POST", joinedAt(base), rpc("initialize", `{`+initParams+`}`)).Header.Get("Mcp-Session-Id"); id != "" {
		session = "Mcp-Session-Id: " + id
	}
	for _, m := range []struct{ method, params string }{
		{"tools/list", `{"a":1}`}, {"tools/call", callOf("alpha", "echo", `{}`)},
		{"tools/call", callOf("alpha", "slow", `{}`)}, {"tools/call", callOf("second", "echo", `{}`)},
		{"tools/call", callOf("kid", "echo", `{}`)}, {"tools/call", callOf("quiet", "echo", `{}`)},
		{"tools/call", callOf("down", "x", `{}`)}, {"tools/call", callOf("absent", "x", `{}`)},
		{"resources/list", `{"a":1}`}, {"prompts/list", `{"a":1}`}, {"made/up", `{"a":1}`},
		{"tools/call", callOf("alpha", "echo", `{"text":"`+strings.Repeat("x", 10000)+`"}`)},
	} {
		do("POST", joinedAt(base), rpc(m.method, m.params))
	}
	do("POST", joinedAt(base), notification)
	if sender.name == "a token" {
		do("POST", joinedAt(base), rpc("tools/call", callOf("kid", "die", `{"why":"to go down"}`)))
	}
	modern, headers := (&testClient{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: streamClient}}).Message("1",
		"tools/call", callOf("alpha", "echo", `{}`))
	do("POST", joinedAt(base), modern, headers...)
	for _, server := range []string{"alpha", "second", "kid", "down", "absent"} {
		for _, endpoint := range endpointsOf(base, server)[1:] {
			do("POST", endpoint.url, rpc("initialize", `{`+initParams+`}`))
			do("POST", endpoint.url, rpc("tools/call", `{`+echoes+`}`))
			do("POST", endpoint.url, notification)
		}
	}
	if strings.Contains(sender.name, "in params") {
		return // these clients need params
	}
	do("POST", joinedAt(base), `{`)
	do("POST", rpcAt(base, "alpha"), `{`)
	do("PUT", joinedAt(base), "")
	do("DELETE", joinedAt(base), "")
}

// inspectChildren adds what /proc shows of running children.
func (v *leakTest) inspectChildren(t *testing.T) {
	t.Helper()
	for name, journal := range map[string]journal{"the child kid": v.kid, "the child quiet": v.quiet} {
		for _, e := range journal.entries(t, "start") {
			for _, file := range []string{"environ", "cmdline"} {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", e.PID, file)) // fails if the process has ended
				v.evidence.add(name+" in "+file, string(text))
			}
		}
	}
}

// loadBadConfigs loads configurations with an invalid secret. Caddy must refuse them.
func (v *leakTest) loadBadConfigs(t *testing.T) {
	t.Helper()
	for name, broken := range map[string]string{
		"a literal secret": strings.Replace(v.config(), "{env.PLANTED_HMAC}", v.writtenHMAC.value, 1),
		"a missing secret": strings.Replace(v.config(), "{env.PLANTED_HMAC}", "{env.PLANTED_NOTHING}", 1),
		"two clients, one token": strings.Replace(v.config(), "auth token {env.PLANTED_BEARER} main",
			"auth token {env.PLANTED_BEARER} main\nauth token "+v.bearer.value+" double", 1),
		"a short key": strings.Replace(v.config(), "session_key {env.PLANTED_SESSION_KEY}",
			"session_key short", 1),
		"a word after a client's token": strings.Replace(v.config(), "token {env.PLANTED_PROXY}", "token "+v.proxy.value+
			" more", 1),
		"a word after a token": strings.Replace(v.config(), "token "+v.written.value+" written",
			"token "+v.written.value+" written more", 1),
		"a word after a token in a block": strings.Replace(v.config(), "auth token "+v.written.value+" written",
			block("auth token", "written "+v.written.value+" more"), 1),
		"a word before a token": strings.Replace(v.config(), "auth token "+v.written.value+" written",
			block("auth token", "written more "+v.written.value), 1),
		"a name instead of a token": strings.Replace(v.config(), "auth token "+v.written.value+" written",
			block("auth token", v.written.value), 1),
		"a word after a secret": strings.Replace(v.config(), "{env.PLANTED_HMAC}", v.writtenHMAC.value+" more", 1),
		"a word after a key": strings.Replace(v.config(), "{env.PLANTED_SESSION_KEY}", v.session.value+" more",
			1),
		"a token for a client pattern": strings.Replace(v.config(), "client eve {\ntoken {env.PLANTED_PROXY}",
			"client eve* {\ntoken "+v.proxy.value, 1),
		"a token in an unknown option": strings.Replace(v.config(), "match alice", "match alice\nauthToken "+
			v.written.value, 1),
	} {
		if got := v.askAdmin(t, "POST", "/load", broken, isCaddyfile); got.StatusCode == 200 {
			t.Errorf("%s is accepted", name)
		}
		if v.command(t, "", "validate", "--config", writeCaddyfile(t, broken)) == nil {
			t.Errorf("%s is valid", name)
		}
	}
}

// command runs another command of the binary.
func (v *leakTest) command(t *testing.T, stdin string, args ...string) error {
	t.Helper()
	cmd := caddy(t, args...)
	cmd.Env = append(cmd.Env, v.environment...)
	cmd.Stdin = strings.NewReader(stdin)
	said, err := cmd.CombinedOutput()
	v.evidence.add("caddy "+args[0], string(said))
	return err
}

// queryAdmin calls everything that the admin API offers.
func (v *leakTest) queryAdmin(t *testing.T) {
	t.Helper()
	for _, path := range []string{
		"/config/", "/config/apps", "/metrics", "/reverse_proxy/upstreams", "/mcp_gateway/servers",
		"/mcp_gateway/servers/alpha?gateway=main", "/mcp_gateway/servers/kid?gateway=main",
		"/mcp_gateway/clients", "/mcp_gateway/metrics", "/mcp_gateway/tools", "/mcp_gateway/tools/changes",
		"/mcp_gateway/templates", "/mcp_gateway/servers/none", "/debug/vars", "/debug/pprof/cmdline",
	} {
		v.askAdmin(t, "GET", path, "")
	}
	for _, path := range []string{"/mcp_gateway/servers/kid/restart?gateway=main",
		"/mcp_gateway/servers/alpha/refresh?gateway=main", "/mcp_gateway/servers/none/restart"} {
		v.askAdmin(t, "POST", path, "")
	}
	if got := v.askAdmin(t, "POST", "/adapt", v.config(), isCaddyfile); got.StatusCode != 200 ||
		!strings.Contains(got.body, "sha256:") {
		t.Errorf("%d %.300s", got.StatusCode, got.body)
	}
}

// collectFiles adds the files that remain after the process has exited.
func (v *leakTest) collectFiles(t *testing.T) {
	t.Helper()
	v.evidence.files(t, "the log directory", v.dir)
	v.evidence.files(t, "the data directory", v.home)
	for name, journal := range map[string]journal{"the child kid": v.kid, "the child quiet": v.quiet} {
		text, err := os.ReadFile(string(journal))
		if err != nil {
			t.Fatal(err)
		}
		v.evidence.add("what "+name+" has read", string(text))
	}
	for name, w := range map[string]*remoteServer{"the upstream": v.server, "the other upstream": v.secondServer} {
		for _, r := range w.Received() {
			v.evidence.add(name, fmt.Sprintln(r.Method, r.HTTP.URL.RequestURI(), r.HTTP.Header, r.Body))
		}
	}
}

// Secrets are in environments and requests, and in nothing that the process writes or sends
// elsewhere (A31).
func TestAccessKeepsSecrets(t *testing.T) {
	isolate(t)
	v := newLeakTest(t)
	v.start(t)
	for _, sender := range v.clients(t) {
		v.sendRequests(t, sender)
	}
	v.inspectChildren(t)
	reloaded := strings.Replace(v.config("respond /x hello"), "separator __", "separator __\nhealth_interval 10m", 1)
	if got := v.askAdmin(t, "POST", "/load", reloaded, isCaddyfile); got.StatusCode != 200 {
		t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
	}
	for _, sender := range v.clients(t) {
		v.sendRequests(t, sender)
	}
	v.inspectChildren(t)
	v.loadBadConfigs(t)
	v.queryAdmin(t)
	config := writeCaddyfile(t, v.config())
	asked := stdioHandshake + toolCall{"alpha__echo", `{}`}.request() + "\n" + toolCall{"quiet__env", `{}`}.request() +
		"\n"
	if err := errors.Join(v.command(t, "", "adapt", "--config", config), v.command(t, asked, "mcp-stdio", "--config",
		config, "--gateway", "main")); err != nil {
		t.Error(err)
	}
	v.stop(t)
	v.collectFiles(t)

	for i, found := range v.evidence.search(v.secrets()) {
		if i < 20 {
			t.Errorf("A31 %s", found)
		}
	}
	t.Run("A31 the search works", func(t *testing.T) {
		upstream, child := v.upstream, v.child
		upstream.allowed, child.allowed = nil, nil
		for _, secret := range []plantedSecret{upstream, child} {
			if len(v.evidence.search([]plantedSecret{secret})) == 0 {
				t.Errorf("the %s is not in its allowed places", secret.name)
			}
		}
		var logged strings.Builder
		for place, text := range v.evidence {
			if strings.HasPrefix(place, "the log directory") {
				logged.WriteString(text)
			}
		}
		for _, text := range []string{`"logger":"http.log.access`, `"logger":"http.handlers.mcp_gateway.audit"`,
			`"level":"debug"`, "REDACTED", "upstream roundtrip"} {
			if !strings.Contains(logged.String(), text) {
				t.Errorf("the log does not contain %s", text)
			}
		}
		saved, err := os.ReadFile(filepath.Join(v.home, "caddy", "autosave.json"))
		if err != nil || !strings.Contains(string(saved), "{env.PLANTED_BEARER}") {
			t.Errorf("the saved configuration: %v, %.100s", err, saved)
		}
	})
}

// shippedCaddyfiles returns the paths of the Caddyfiles in the project.
func shippedCaddyfiles(t *testing.T) (files []string) {
	t.Helper()
	for _, pattern := range []string{"Caddyfile", "packaging/*/Caddyfile", "caddyfile_examples/*.Caddyfile"} {
		found, err := filepath.Glob("../../../" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// logFields matches the lines of a Caddyfile that hide credentials in all logs.
var logFields = regexp.MustCompile(`\n\t\t\trequest>headers delete\n\t\t\tresp_headers delete\n\t\t\theaders ` +
	`delete\n\t\t\trequest>uri regexp \[\?\]\.\* \?REDACTED\n\t\t\turi regexp \[\?\]\.\* \?REDACTED\n`)

// sendAndClose sends a request and disconnects after the first byte of the response.
func sendAndClose(t *testing.T, method, endpoint, body string, headers ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request(t, ctx, method, endpoint,
		body, headers...))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// endless sends the start of a stream that does not end.
func endless(headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.Contains(r.URL.Path, "breaks") {
			panic(http.ErrAbortHandler)
		}
		for _, header := range headers {
			name, value, _ := strings.Cut(header, ": ")
			w.Header().Set(name, value)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// searchLog checks that a log has no secrets. Lines that quote the configuration, which contains
// the secret in a server's URL, do not count.
func searchLog(t *testing.T, file string) {
	t.Helper()
	for _, line := range linesOf(t, file) {
		if strings.Contains(line, "SECRET") && !strings.Contains(line, "adjusted config") && !strings.Contains(line,
			"invoking subscribed handler") {
			t.Errorf("logged: %.1500s", line)
		}
	}
}

// With the log settings of the shipped Caddyfiles, keys and session IDs are in no log at any level,
// even when clients disconnect and upstreams fail.
func TestSecurityLogsOfShippedFiles(t *testing.T) {
	isolate(t)
	setenv(t, "LOGGED_KEY", "SECRET-of-gateway")
	for _, file := range shippedCaddyfiles(t) {
		text, err := os.ReadFile(file)
		if err != nil || !logFields.Match(text) {
			t.Errorf("%s does not hide credentials in logs: %v", file, err)
		}
	}
	text, err := os.ReadFile("../../../Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	filter := string(logFields.Find(text))
	for _, format := range []string{"json", "console"} {
		t.Run(format, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			model, server := upstream(t, endless("Mcp-Session-Id: SECRET-of-model")),
				upstream(t, endless("Mcp-Session-Id: SECRET-of-server"))
			address := freeAddress(t)
			load(t, block("", "debug", block("log", "output file "+log, block("format filter", "wrap "+format, filter)))+"\n"+
				site(address, "log", gateway(block("server s http://"+server+"/mcp?key=SECRET-in-url",
					"request_header X-Key {env.LOGGED_KEY}")),
					block("handle /v1/*", "uri replace /x /y", "tool_result_mask", proxy(model)),
					block("handle /breaks/*", "tool_result_mask", proxy(model))))
			base := "http://" + address
			keys := []string{acceptBoth, "X-Api-Key: SECRET-1", "Api-Key: SECRET-2", "X-Goog-Api-Key: SECRET-3",
				"Authorization: Bearer SECRET-4", "Mcp-Session-Id: SECRET-5", "Last-Event-Id: SECRET-6", "X-Some-Key: SECRET-7"}
			sendAndClose(t, "POST", base+"/v1/x?key=SECRET-8&access_token=SECRET-10", `{"messages":[]}`, keys...)
			sendAndClose(t, "POST", mcpAt(base, "s"), rpc("tools/call", `{`+echoes+`}`), keys...)
			sendAndClose(t, "GET", mcpAt(base, "s"), "", keys...)
			post(t, base+"/breaks/x", `{"messages":[]}`, keys...)
			post(t, mcpAt(base, "s")+"?endpoint=SECRET-9&token=SECRET-11", rpc("x", `{}`), keys...)
			await.Until(t, "all requests are logged", func() bool {
				all, _ := os.ReadFile(log)
				return strings.Count(string(all), "handled request") >= 5 && strings.Contains(string(all),
					"aborting with incomplete response") &&
					strings.Contains(string(all), "http.log.error") && strings.Contains(string(all), "upstream roundtrip") &&
					strings.Contains(string(all), "rewrote request")
			})
			searchLog(t, log)
		})
	}
}

// reverse_proxy does not log the credentials that a gateway adds for servers, or their session IDs,
// whatever the log settings are.
func TestSecurityLogsOfServers(t *testing.T) {
	isolate(t)
	setenv(t, "LOGGED_KEY", "SECRET-of-gateway")
	log := filepath.Join(t.TempDir(), "log")
	server := upstream(t, endless("Mcp-Session-Id: SECRET-session"))
	address := freeAddress(t)
	lines := []string{
		"separator __",
		block("server plain http://"+server+"/mcp?key=SECRET-in-url", "request_header X-Key {env.LOGGED_KEY}",
			`request_header X-Api-Key "{env.LOGGED_KEY}"`),
		block("server breaks http://"+server+"/breaks", "request_header X-Key {env.LOGGED_KEY}"),
		block("server nested", block("route", "request_header X-Key {env.LOGGED_KEY}", block("reverse_proxy "+server,
			"header_up X-Other {env.LOGGED_KEY}"))),
		block("server handles", block("handle", "request_header X-Key {env.LOGGED_KEY}", block("reverse_proxy "+server,
			block("transport http", "dial_timeout 1s")))),
		block("server checked", block("reverse_proxy "+server, "header_up X-Key {env.LOGGED_KEY}", "health_uri /breaks",
			"health_interval 10ms", "health_passes 1", "lb_try_duration 1s")),
	}
	load(t, block("", "debug", block("log", "output file "+log, "format json"))+"\n"+site(address, gateway(lines...)))
	base := "http://" + address
	names := []string{"plain", "nested", "handles"}
	for _, name := range names {
		sendAndClose(t, "POST", mcpAt(base, name), rpc("tools/call", `{`+echoes+`}`), acceptBoth,
			"Mcp-Session-Id: SECRET-of-client")
		sendAndClose(t, "GET", mcpAt(base, name), "", "Accept: text/event-stream", "Last-Event-Id: SECRET-of-client")
	}
	for _, way := range endpointsOf(base, "breaks")[1:] {
		post(t, way.url, rpc("x", `{}`), "Mcp-Session-Id: SECRET-of-client")
	}
	await.Until(t, "all requests are logged", func() bool {
		all, _ := os.ReadFile(log)
		return strings.Count(string(all), "upstream roundtrip") >= 2*len(names)+2
	})
	searchLog(t, log)
	if all := fmt.Sprint(linesOf(t, log)); !strings.Contains(all, `"X-Key":["REDACTED"]`) || !strings.Contains(all,
		`"Accept":["`) {
		t.Error("the log has no request headers")
	}
}
