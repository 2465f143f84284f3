package integration

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/lab/mcpclient"
)

// A planted secret, and the places where it belongs, by what their names begin with.
type planted struct {
	name, value string
	belongs     []string
}

// spellings are the ways in which a secret could be written.
func (p planted) spellings() []string {
	raw := []byte(p.value)
	all := []string{p.value, hex.EncodeToString(raw), url.QueryEscape(p.value)}
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		all = append(all, encoding.EncodeToString(raw))
	}
	return all
}

// evidence is everything that a process has let out, by where.
type evidence map[string]string

func (e evidence) add(place, text string) { e[fmt.Sprintf("%s #%d", place, len(e))] = text }

func (e evidence) answer(place string, got answer) answer {
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

// search returns a line for each secret where it does not belong.
func (e evidence) search(secrets []planted) (found []string) {
	for _, secret := range secrets {
		for place, text := range e {
			if slices.ContainsFunc(secret.belongs, func(prefix string) bool { return strings.HasPrefix(place, prefix) }) {
				continue
			}
			for _, spelled := range secret.spellings() {
				if at := strings.Index(text, spelled); at >= 0 {
					found = append(found, fmt.Sprintf("the %s is in %s: …%s…", secret.name, place, text[max(0, at-200):min(len(text), at+len(spelled)+100)]))
					break
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

// A vault is a Caddy process full of secrets, and the evidence of what it has let out.
type vault struct {
	all evidence

	bearer, written, file, proxy, hmac, writtenHMAC, upstream, child, session, password planted // good ones
	wrongToken, wrongProxy, wrongPassword, wrongHMAC                                    planted
	goodJWT, expiredJWT                                                                 string
	issuer                                                                              *issuer

	dir, home       string   // where it writes logs, and all else
	environment     []string // of the process
	tokenFile, hash string
	adminAt         string
	main, users     string // the addresses of its sites
	server, beside  *remoteServer
	kid, quiet      journal
	caddy           *running
}

// plant makes up the secrets.
func plant(t *testing.T) *vault {
	t.Helper()
	secret := func(name string, belongs ...string) planted {
		return planted{name, "planted-" + rand.Text(), belongs}
	}
	v := &vault{
		all:           evidence{},
		bearer:        secret("token in the environment"),
		written:       secret("token in the Caddyfile"),
		file:          secret("token in a file"),
		proxy:         secret("token for params.proxy"),
		hmac:          secret("secret of signatures"),
		writtenHMAC:   secret("secret of signatures that is written out"),
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
		adminAt:       freeAddress(t),
		main:          freeAddress(t),
		users:         freeAddress(t),
		server:        newLenientServer(t, "echo", "slow"),
		beside:        newLenientServer(t, "echo"),
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

// secrets are all that must not be found.
func (v *vault) secrets() []planted {
	signature := func(token string) string { return token[strings.LastIndexByte(token, '.')+1:] }
	return []planted{
		v.bearer, v.written, v.file, v.proxy, v.hmac, v.writtenHMAC, v.upstream, v.child, v.session, v.password, v.wrongToken, v.wrongProxy, v.wrongPassword, v.wrongHMAC,
		{"JWT", v.goodJWT, nil}, {"signature of a JWT", signature(v.goodJWT), nil}, {"expired JWT", v.expiredJWT, nil}, {"signature of an expired JWT", signature(v.expiredJWT), nil},
		{"credentials of a user", inBasic(v.password.value), nil}, {"wrong credentials of a user", inBasic(v.wrongPassword.value), nil},
	}
}

func inBasic(password string) string {
	return base64.StdEncoding.EncodeToString([]byte("alice:" + password))
}

// config is a Caddyfile that uses the secrets in all ways there are, and logs as much as
// it can.
func (v *vault) config(more ...string) string {
	logs := func(name string) string {
		return block("log", "output file "+filepath.Join(v.dir, name), "format json")
	}
	servers := []string{
		block(v.server.line("alpha"), `request_header Authorization "Bearer {env.PLANTED_UPSTREAM}"`, "request_header X-Key {env.PLANTED_UPSTREAM}"), v.beside.line("beside"), "server down http://127.0.0.1:1",
		block(child("kid", "--modern"), v.kid.env(), "env API_KEY {env.PLANTED_CHILD}"), block(child("quiet"), v.quiet.env(), "isolation session"),
	}
	main := gateway(append([]string{
		"name main", "separator __", "session_key {env.PLANTED_SESSION_KEY}", block("mask", "recover on"),
		"auth token {env.PLANTED_BEARER} main", "auth token " + v.written.value + " written",
		block("auth hmac", "client signer {env.PLANTED_HMAC}"), v.issuer.lines("scopes mcp:tools"),
		block("client eve", "token {env.PLANTED_PROXY}", "deny alpha::slow down::*", `redact "hidden"`),
		block("client busy", "token {file."+v.tokenFile+"}", "rate 3/1h"),
	}, servers...)...)
	users := gateway(append([]string{"name users", "separator __", "auth token {env.PLANTED_BEARER} main", block("client team", "match alice")}, servers...)...)
	return withAdmin(block("", "debug", logs("all.log"), block("log second", "output stdout", "format console"))+"\n"+
		site(v.main, append([]string{logs("access.log"), main}, more...)...)+
		site(v.users, logs("users.log"), block("basic_auth", "alice "+v.hash), users), v.adminAt)
}

// start starts the process.
func (v *vault) start(t *testing.T) {
	t.Helper()
	cmd := caddy(t, "run", "--config", inFile(t, v.config()))
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
	v.operate(t, "GET", "/config/", "")
}

// stop ends it as an operator would.
func (v *vault) stop(t *testing.T) {
	t.Helper()
	v.caddy.stop(t)
}

// operate asks its admin API, of which a reload makes another.
func (v *vault) operate(t *testing.T, method, path, body string, headers ...string) (got answer) {
	t.Helper()
	got = askAdmin(t, v.adminAt, method, path, body, headers...)
	v.caddy.settle(t)
	return v.all.answer("the admin API at "+path, got)
}

const isCaddyfile = "Content-Type: text/caddyfile"

// A visitor comes with credentials, good or bad.
type visitor struct {
	name string
	at   string // the address of a site
	good bool
	with func(method, at, body string) (newBody string, headers []string)
}

func (v *vault) visitors(t *testing.T) []visitor {
	header := func(value string) func(method, at, body string) (string, []string) {
		return func(_, _, body string) (string, []string) { return body, []string{"Authorization: " + value} }
	}
	inProxy := func(token string) func(method, at, body string) (string, []string) {
		return func(_, _, body string) (string, []string) {
			return strings.Replace(body, `"params":{`, `"params":{"proxy":{"authToken":"`+token+`","x":1},`, 1), nil
		}
	}
	signed := func(secret string) func(method, at, body string) (string, []string) {
		return func(method, at, body string) (string, []string) {
			return body, []string{signedBy("signer", secret, method, pathOf(t, at), body)}
		}
	}
	return []visitor{
		{"a token", v.main, true, header("Bearer " + v.bearer.value)},
		{"a token that is written out", v.main, true, header("Bearer " + v.written.value)},
		{"a token of few requests", v.main, true, header("Bearer " + v.file.value)},
		{"a token in params", v.main, true, inProxy(v.proxy.value)},
		{"a signature", v.main, true, signed(v.hmac.value)},
		{"a JWT", v.main, true, header("Bearer " + v.goodJWT)},
		{"a password", v.users, true, header("Basic " + inBasic(v.password.value))},
		{"a wrong token", v.main, false, header("Bearer " + v.wrongToken.value)},
		{"a token and more", v.main, false, header("Bearer " + v.bearer.value + "x")},
		{"a token of another scheme", v.main, false, header("Token " + v.bearer.value)},
		{"a wrong token in params", v.main, false, inProxy(v.wrongProxy.value)},
		{"a wrong signature", v.main, false, signed(v.wrongHMAC.value)},
		{"an expired JWT", v.main, false, header("Bearer " + v.expiredJWT)},
		{"a wrong password", v.users, false, header("Basic " + inBasic(v.wrongPassword.value))},
	}
}

// visit makes requests of all kinds, by all ways in.
func (v *vault) visit(t *testing.T, who visitor) {
	t.Helper()
	base, session := "http://"+who.at, ""
	do := func(method, at, body string, headers ...string) answer {
		t.Helper()
		sent, with := who.with(method, at, body)
		if at == joinedAt(base) && session != "" && !strings.Contains(body, "2026-07-28") {
			with = append(with, session)
		}
		got := present(t, client, method, at, sent, slices.Concat(with, headers, []string{closes})...)
		broken := got.StatusCode >= 500 && !strings.Contains(at+body, "down")
		if who.good && (got.StatusCode == 401 || broken) || !who.good && got.StatusCode != 401 {
			t.Errorf("%s: %s %s: %d %s", who.name, at, body, got.StatusCode, got.body)
		}
		return v.all.answer("the answer to "+who.name, got)
	}
	notification := `{"jsonrpc":"2.0","method":"notifications/foo","params":{"a":1}}`
	if id := do("POST", joinedAt(base), rpc("initialize", `{`+initParams+`}`)).Header.Get("Mcp-Session-Id"); id != "" {
		session = "Mcp-Session-Id: " + id
	}
	for _, m := range []struct{ method, params string }{
		{"tools/list", `{"a":1}`}, {"tools/call", callOf("alpha", "echo", `{}`)}, {"tools/call", callOf("alpha", "slow", `{}`)}, {"tools/call", callOf("beside", "echo", `{}`)},
		{"tools/call", callOf("kid", "echo", `{}`)}, {"tools/call", callOf("quiet", "echo", `{}`)}, {"tools/call", callOf("down", "x", `{}`)}, {"tools/call", callOf("nobody", "x", `{}`)},
		{"resources/list", `{"a":1}`}, {"prompts/list", `{"a":1}`}, {"made/up", `{"a":1}`}, {"tools/call", callOf("alpha", "echo", `{"text":"`+strings.Repeat("x", 10000)+`"}`)},
	} {
		do("POST", joinedAt(base), rpc(m.method, m.params))
	}
	do("POST", joinedAt(base), notification)
	if who.name == "a token" {
		do("POST", joinedAt(base), rpc("tools/call", callOf("kid", "die", `{"why":"to go down"}`)))
	}
	modern, headers := (&speaker{&mcpclient.Client{Modern: true, Capabilities: `{}`, HTTP: lasting}}).Message("1", "tools/call", callOf("alpha", "echo", `{}`))
	do("POST", joinedAt(base), modern, headers...)
	for _, server := range []string{"alpha", "beside", "kid", "down", "nobody"} {
		for _, way := range waysIn(base, server)[1:] {
			do("POST", way.at, rpc("initialize", `{`+initParams+`}`))
			do("POST", way.at, rpc("tools/call", `{`+echoes+`}`))
			do("POST", way.at, notification)
		}
	}
	if strings.Contains(who.name, "in params") {
		return // there must be some
	}
	do("POST", joinedAt(base), `{`)
	do("POST", rpcAt(base, "alpha"), `{`)
	do("PUT", joinedAt(base), "")
	do("DELETE", joinedAt(base), "")
}

// children adds what can be seen of processes that run.
func (v *vault) children(t *testing.T) {
	t.Helper()
	for name, journal := range map[string]journal{"the child kid": v.kid, "the child quiet": v.quiet} {
		for _, e := range journal.entries(t, "start") {
			for _, file := range []string{"environ", "cmdline"} {
				text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", e.PID, file)) // those that have ended have none
				v.all.add(name+" in "+file, string(text))
			}
		}
	}
}

// mistakes has it refuse configurations in which something is wrong with a secret.
func (v *vault) mistakes(t *testing.T) {
	t.Helper()
	for name, broken := range map[string]string{
		"a secret that is written out":    strings.Replace(v.config(), "{env.PLANTED_HMAC}", v.writtenHMAC.value, 1),
		"a secret that is missing":        strings.Replace(v.config(), "{env.PLANTED_HMAC}", "{env.PLANTED_NOTHING}", 1),
		"two clients of one token":        strings.Replace(v.config(), "auth token {env.PLANTED_BEARER} main", "auth token {env.PLANTED_BEARER} main\nauth token "+v.bearer.value+" double", 1),
		"a short key":                     strings.Replace(v.config(), "session_key {env.PLANTED_SESSION_KEY}", "session_key short", 1),
		"a word after a client's token":   strings.Replace(v.config(), "token {env.PLANTED_PROXY}", "token "+v.proxy.value+" more", 1),
		"a word after a token":            strings.Replace(v.config(), "token "+v.written.value+" written", "token "+v.written.value+" written more", 1),
		"a word after a token in a block": strings.Replace(v.config(), "auth token "+v.written.value+" written", block("auth token", "written "+v.written.value+" more"), 1),
		"a word before a token":           strings.Replace(v.config(), "auth token "+v.written.value+" written", block("auth token", "written more "+v.written.value), 1),
		"a name in the place of a token":  strings.Replace(v.config(), "auth token "+v.written.value+" written", block("auth token", v.written.value), 1),
		"a word after a secret":           strings.Replace(v.config(), "{env.PLANTED_HMAC}", v.writtenHMAC.value+" more", 1),
		"a word after a key":              strings.Replace(v.config(), "{env.PLANTED_SESSION_KEY}", v.session.value+" more", 1),
		"a token of many":                 strings.Replace(v.config(), "client eve {\ntoken {env.PLANTED_PROXY}", "client eve* {\ntoken "+v.proxy.value, 1),
		"a token where none belongs":      strings.Replace(v.config(), "match alice", "match alice\nauthToken "+v.written.value, 1),
	} {
		if got := v.operate(t, "POST", "/load", broken, isCaddyfile); got.StatusCode == 200 {
			t.Errorf("%s is accepted", name)
		}
		if v.command(t, "", "validate", "--config", inFile(t, broken)) == nil {
			t.Errorf("%s is valid", name)
		}
	}
}

// command runs another command of the binary.
func (v *vault) command(t *testing.T, stdin string, args ...string) error {
	t.Helper()
	cmd := caddy(t, args...)
	cmd.Env = append(cmd.Env, v.environment...)
	cmd.Stdin = strings.NewReader(stdin)
	said, err := cmd.CombinedOutput()
	v.all.add("caddy "+args[0], string(said))
	return err
}

// administer asks everything that an operator can ask.
func (v *vault) administer(t *testing.T) {
	t.Helper()
	for _, path := range []string{
		"/config/", "/config/apps", "/metrics", "/reverse_proxy/upstreams", "/mcp_gateway/servers", "/mcp_gateway/servers/alpha?gateway=main", "/mcp_gateway/servers/kid?gateway=main",
		"/mcp_gateway/clients", "/mcp_gateway/metrics", "/mcp_gateway/tools", "/mcp_gateway/tools/changes", "/mcp_gateway/templates", "/mcp_gateway/servers/none", "/debug/vars", "/debug/pprof/cmdline",
	} {
		v.operate(t, "GET", path, "")
	}
	for _, path := range []string{"/mcp_gateway/servers/kid/restart?gateway=main", "/mcp_gateway/servers/alpha/refresh?gateway=main", "/mcp_gateway/servers/none/restart"} {
		v.operate(t, "POST", path, "")
	}
	if got := v.operate(t, "POST", "/adapt", v.config(), isCaddyfile); got.StatusCode != 200 || !strings.Contains(got.body, "sha256:") {
		t.Errorf("%d %.300s", got.StatusCode, got.body)
	}
}

// gather adds what is left when the process has ended.
func (v *vault) gather(t *testing.T) {
	t.Helper()
	v.all.files(t, "what it wrote", v.dir)
	v.all.files(t, "what it keeps", v.home)
	for name, journal := range map[string]journal{"the child kid": v.kid, "the child quiet": v.quiet} {
		text, err := os.ReadFile(string(journal))
		if err != nil {
			t.Fatal(err)
		}
		v.all.add("what "+name+" has read", string(text))
	}
	for name, w := range map[string]*remoteServer{"the upstream": v.server, "the other upstream": v.beside} {
		for _, r := range w.Received() {
			v.all.add(name, fmt.Sprintln(r.Method, r.HTTP.URL.RequestURI(), r.HTTP.Header, r.Body))
		}
	}
}

// Secrets are in environments and requests, and in nothing that the process lets out
// (A31).
func TestAccessKeepsSecrets(t *testing.T) {
	isolate(t)
	v := plant(t)
	v.start(t)
	for _, who := range v.visitors(t) {
		v.visit(t, who)
	}
	v.children(t)
	reloaded := strings.Replace(v.config("respond /x hello"), "separator __", "separator __\nhealth_interval 10m", 1)
	if got := v.operate(t, "POST", "/load", reloaded, isCaddyfile); got.StatusCode != 200 {
		t.Fatalf("got %d %s, want 200", got.StatusCode, got.body)
	}
	for _, who := range v.visitors(t) {
		v.visit(t, who)
	}
	v.children(t)
	v.mistakes(t)
	v.administer(t)
	config := inFile(t, v.config())
	asked := stdioGreeting + toolCall{"alpha__echo", `{}`}.request() + "\n" + toolCall{"quiet__env", `{}`}.request() + "\n"
	if err := errors.Join(v.command(t, "", "adapt", "--config", config), v.command(t, asked, "mcp-stdio", "--config", config, "--gateway", "main")); err != nil {
		t.Error(err)
	}
	v.stop(t)
	v.gather(t)

	for i, found := range v.all.search(v.secrets()) {
		if i < 20 {
			t.Errorf("A31 %s", found)
		}
	}
	t.Run("A31 they were there to be found", func(t *testing.T) {
		upstream, child := v.upstream, v.child
		upstream.belongs, child.belongs = nil, nil
		for _, secret := range []planted{upstream, child} {
			if len(v.all.search([]planted{secret})) == 0 {
				t.Errorf("the %s is not where it belongs", secret.name)
			}
		}
		var logged strings.Builder
		for place, text := range v.all {
			if strings.HasPrefix(place, "what it wrote") {
				logged.WriteString(text)
			}
		}
		for _, text := range []string{`"logger":"http.log.access`, `"logger":"http.handlers.mcp_gateway.audit"`, `"level":"debug"`, "REDACTED", "upstream roundtrip"} {
			if !strings.Contains(logged.String(), text) {
				t.Errorf("nothing was logged of %s", text)
			}
		}
		saved, err := os.ReadFile(filepath.Join(v.home, "caddy", "autosave.json"))
		if err != nil || !strings.Contains(string(saved), "{env.PLANTED_BEARER}") {
			t.Errorf("the saved configuration: %v, %.100s", err, saved)
		}
	})
}
