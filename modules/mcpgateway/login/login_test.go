package login

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/await"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/oauth"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas/replicastest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is a gateway with one server and a login. It serves the pages, and forwards requests at
// /call to the server.
type site struct {
	*httptest.Server
	pages *Pages
	login *Login

	replicas []*Pages     // serve the requests in turn; empty without replicas
	requests atomic.Int32 // number of requests to replicas

	registered atomic.Int32 // number of registrations

	mu      sync.Mutex
	tokens  []string // received by the server
	accepts string   // token that the server accepts
	user    string   // authenticated by Caddy
	changed []string
}

const testKey = "0123456789abcdef0123456789abcdef"

func newSite(t *testing.T, o Config) *site {
	t.Helper()
	s := &site{accepts: "token"}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	s.pages = NewPages(Pages{
		Path:   "/mcp/oauth",
		Logger: zap.NewNop(),
		Base:   func(*http.Request) string { return s.URL },
		User:   func(*http.Request) string { s.mu.Lock(); defer s.mu.Unlock(); return s.user },
		Changed: func(_, account string, _ bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed = append(s.changed, account)
		},
		Count:      func(string, error) {},
		CountToken: func(string, string, error) {},
		Probe:      func(context.Context, string) {},
	}, []byte(testKey))
	o.Resource, o.TrustedHosts = s.URL+"/server", []string{"127.0.0.1"}
	var err error
	if s.login, err = s.pages.Add("files", &o, &memory{values: map[string][]byte{}}, "files"); err != nil {
		t.Fatal(err)
	}
	return s
}

// ServeHTTP acts as gateway, server and authorization server.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasPrefix(r.URL.Path, "/mcp/oauth/"):
		pages := s.pages
		if n := len(s.replicas); n > 0 {
			pages = s.replicas[int(s.requests.Add(1))%n]
		}
		pages.ServeHTTP(w, r)
	case r.URL.Path == "/.well-known/oauth-protected-resource/server":
		answer(map[string]any{"resource": s.URL + "/server", "authorization_servers": []string{s.URL}})
	case r.URL.Path == "/.well-known/oauth-authorization-server":
		answer(map[string]any{
			"issuer": s.URL, "authorization_endpoint": s.URL + "/authorize", "token_endpoint": s.URL + "/token",
			"registration_endpoint": s.URL + "/register", "code_challenge_methods_supported": []string{"S256"},
		})
	case r.URL.Path == "/register":
		s.registered.Add(1)
		w.WriteHeader(http.StatusCreated)
		answer(map[string]any{"client_id": "me", "client_secret": "secret"})
	case r.URL.Path == "/authorize":
		http.Redirect(w, r, r.FormValue("redirect_uri")+"?code=c&state="+url.QueryEscape(r.FormValue("state")),
			http.StatusFound)
	case r.URL.Path == "/token":
		answer(map[string]any{"access_token": "token", "token_type": "Bearer", "expires_in": 3600})
	default:
		http.NotFound(w, r)
	}
}

// call sends a request of a client to the server.
func (s *site) call(client string) (*httptest.ResponseRecorder, error) {
	return s.send(http.MethodPost, client)
}

func (s *site) send(method, client string) (*httptest.ResponseRecorder, error) {
	r := httptest.NewRequest(method, s.URL+"/server", strings.NewReader("hello"))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("hello")), nil }
	r.Header.Set("Authorization", "Bearer of the client")
	r.RemoteAddr = "127.0.0.1:5000"
	w := httptest.NewRecorder()
	err := s.login.Serve(w, r, client, func(w http.ResponseWriter, r *http.Request) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.tokens = append(s.tokens, token)
		if token != s.accepts {
			w.Header().Set("WWW-Authenticate", "Bearer")
			w.Header().Set("X-Refused", "yes")
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, "no")
			return nil
		}
		_, _ = io.Copy(w, r.Body)
		return nil
	})
	if got := r.Header.Get("Authorization"); got != "Bearer of the client" {
		panic("the client's request was changed: " + got)
	}
	return w, err
}

// loginAddress returns the login URL that a client gets.
func (s *site) loginAddress(t *testing.T, client string) string {
	t.Helper()
	_, err := s.call(client)
	failure, ok := errors.AsType[*jsonrpc.Failure](err)
	if !ok || failure.Data.Symbol != "login_required" || len(failure.Data.Elicitations) != 1 {
		t.Fatalf("want login_required, got %v", err)
	}
	return failure.Data.Elicitations[0].URL
}

// A browser is an HTTP client with cookies.
type browser struct{ http.Client }

func newBrowser() *browser {
	jar, _ := cookiejar.New(nil)
	return &browser{http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}}
}

var ticketField = regexp.MustCompile(`name="ticket" value="([^"]*)"`)

// open opens a page and returns its status and text.
func (b *browser) open(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	res, err := b.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func get(address string) *http.Request {
	r, _ := http.NewRequest(http.MethodGet, address, nil)
	return r
}

// submit returns the request of the form on a page.
func submit(address, page string) *http.Request {
	found := ticketField.FindStringSubmatch(page)
	if found == nil {
		found = []string{"", ""}
	}
	r, _ := http.NewRequest(http.MethodPost, address, strings.NewReader(url.Values{"ticket": {found[1]}}.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r
}

func TestLogin(t *testing.T) {
	s := newSite(t, Config{})
	address := s.loginAddress(t, "")
	b := newBrowser()
	status, page := b.open(t, get(address))
	if status != http.StatusOK || !strings.Contains(page, "Log in to files") {
		t.Fatalf("login page: %d %s", status, page)
	}
	if status, page = b.open(t, submit(address, page)); status != http.StatusOK ||
		!strings.Contains(page, "Logged in to files") {
		t.Fatalf("after the login: %d %s", status, page)
	}
	w, err := s.call("")
	if err != nil || w.Body.String() != "hello" || w.Header().Get("X-Refused") != "" {
		t.Errorf("after the login: %v, %q, %v", err, w.Body, w.Header())
	}
	if len(s.changed) != 1 {
		t.Errorf("announced changes %q, want 1", s.changed)
	}
	if got := s.login.Status(t.Context()); got.State != "logged_in" || got.URL != "" || got.Issuer != s.URL {
		t.Errorf("status: %+v", got)
	}
	if err := s.login.Logout(t.Context(), "ann"); err == nil || s.login.Status(t.Context()).State != "logged_in" {
		t.Errorf("a client ended the login of all clients: %v", err)
	}
	if err := s.login.Logout(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if got := s.login.Status(t.Context()); got.State != "required" || got.URL == "" {
		t.Errorf("status after the logout: %+v", got)
	}
	s.loginAddress(t, "")
}

// While a login is required, the server gets no further requests.
func TestNoRequestsBeforeTheLogin(t *testing.T) {
	s := newSite(t, Config{})
	for range 10 {
		s.loginAddress(t, "")
	}
	if len(s.tokens) != 1 {
		t.Errorf("the server got %d requests, want 1", len(s.tokens))
	}
}

// A refused stream does not end the login: some servers refuse all streams.
func TestRefusedStreamKeepsTheLogin(t *testing.T) {
	s := newSite(t, Config{})
	s.accepts = ""
	if _, err := s.call(""); err != nil {
		t.Fatal(err)
	}
	s.accepts = "another"
	_, err := s.send(http.MethodGet, "")
	if failure, ok := errors.AsType[*jsonrpc.Failure](err); !ok || failure.Status != http.StatusForbidden {
		t.Errorf("the stream: %v", err)
	}
	s.accepts = ""
	if _, err := s.call(""); err != nil {
		t.Error(err)
	}
}

func TestLoginIsRefused(t *testing.T) {
	start := func(s *site, t *testing.T) (b *browser, address, page string) {
		b, address = newBrowser(), s.loginAddress(t, "ann")
		_, page = b.open(t, get(address))
		return b, address, page
	}
	// callback starts a login, and returns the URL to which the authorization server redirects.
	callback := func(s *site, t *testing.T, b *browser, address, page string) string {
		var last string
		b.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
			if last = r.URL.String(); strings.Contains(last, callbackPath) {
				return http.ErrUseLastResponse
			}
			return nil
		}
		b.open(t, submit(address, page))
		b.CheckRedirect = nil
		return last
	}
	tests := map[string]struct {
		wants int
		open  func(s *site, t *testing.T) (int, string)
	}{
		"no ticket": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			return newBrowser().open(t, get(s.URL+"/mcp/oauth/login"))
		}},
		"a changed ticket": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			return newBrowser().open(t, get(s.pages.loginAddress(s.URL, "files", "")+"x"))
		}},
		"a state instead of a ticket": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			return newBrowser().open(t, get(s.URL+"/mcp/oauth/login?ticket="+s.pages.seal("state", ticket{})))
		}},
		"a ticket of another gateway": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			other := NewPages(Pages{Gateway: "other", Path: s.pages.Path}, []byte(testKey))
			return newBrowser().open(t, get(other.loginAddress(s.URL, "files", "ann")))
		}},
		"a browser without the cookie": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			_, address, page := start(s, t)
			return newBrowser().open(t, submit(address, page))
		}},
		"a form of another site": {http.StatusForbidden, func(s *site, t *testing.T) (int, string) {
			b, address, page := start(s, t)
			r := submit(address, page)
			r.Header.Set("Origin", "https://evil.example.com")
			return b.open(t, r)
		}},
		"another user": {http.StatusForbidden, func(s *site, t *testing.T) (int, string) {
			s.user = "bob"
			return newBrowser().open(t, get(s.loginAddress(t, "ann")))
		}},
		"another user finishes": {http.StatusForbidden, func(s *site, t *testing.T) (int, string) {
			b, address, page := start(s, t)
			last := callback(s, t, b, address, page)
			s.user = "bob"
			return b.open(t, get(last))
		}},
		"another browser finishes": {http.StatusForbidden, func(s *site, t *testing.T) (int, string) {
			b, address, page := start(s, t)
			last := callback(s, t, b, address, page)
			other := newBrowser()
			other.open(t, get(address))
			return other.open(t, get(last))
		}},
		"a second callback": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			b, address, page := start(s, t)
			last := callback(s, t, b, address, page)
			if status, text := b.open(t, get(last)); status != http.StatusOK {
				t.Fatalf("the first time: %d %s", status, text)
			}
			s.login.Logout(t.Context(), "ann") //nolint:errcheck // the second time must not log in again
			return b.open(t, get(last))
		}},
		"an invented state": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			return newBrowser().open(t, get(s.URL+"/mcp/oauth/callback?code=c&state=abc"))
		}},
		"a login that the user declined": {http.StatusBadRequest, func(s *site, t *testing.T) (int, string) {
			b, address, page := start(s, t)
			last := callback(s, t, b, address, page)
			return b.open(t, get(strings.Replace(last, "code=c", "error=access_denied", 1)))
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, Config{Account: perClient})
			status, text := tt.open(s, t)
			if status != tt.wants {
				t.Errorf("status %d, want %d: %s", status, tt.wants, text)
			}
			if !s.login.oauth.Account("ann").LoginRequired(t.Context()) {
				t.Error("the client is logged in")
			}
		})
	}
}

// Another host of the domain can set cookies, but not with the prefix __Host-.
func TestCookie(t *testing.T) {
	for base, wants := range map[string]string{
		"http://localhost:8080":   "mcp_login= Path=/mcp/oauth/ Max-Age=3600 HttpOnly SameSite=Lax",
		"https://mcp.example.com": "__Host-mcp_login= Path=/ Max-Age=3600 HttpOnly Secure SameSite=Lax",
	} {
		s := newSite(t, Config{})
		s.pages.Base = func(*http.Request) string { return base }
		w := httptest.NewRecorder()
		s.pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, s.pages.loginAddress("", "files", ""), nil))
		got := regexp.MustCompile("=[A-Z2-7]{26};").ReplaceAllString(w.Header().Get("Set-Cookie"), "=;")
		if got = strings.ReplaceAll(got, ";", ""); got != wants {
			t.Errorf("%s: %q, want %q", base, got, wants)
		}
	}
}

func TestClientsHaveTheirOwnLogins(t *testing.T) {
	s := newSite(t, Config{Account: perClient})
	b := newBrowser()
	address := s.loginAddress(t, "ann")
	_, page := b.open(t, get(address))
	if status, text := b.open(t, submit(address, page)); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	if w, err := s.call("ann"); err != nil || w.Body.String() != "hello" {
		t.Errorf("ann: %v %s", err, w.Body)
	}
	s.loginAddress(t, "bob")
	_, err := s.call("")
	if failure, ok := errors.AsType[*jsonrpc.Failure](err); !ok || failure.Data.Symbol != "login_failed" {
		t.Errorf("an anonymous client: %v", err)
	}
}

// A client cannot make the gateway register any number of clients, under any number of host names.
func TestLoginsOfAClientAreLimited(t *testing.T) {
	s := newSite(t, Config{Account: perClient})
	s.pages.Base = func(r *http.Request) string { return "http://" + r.Host }
	begin := func(client, host string) int {
		form := url.Values{"ticket": {s.pages.seal("ticket", ticket{"files", client, time.Now().Add(time.Hour)})}}
		r := httptest.NewRequest(http.MethodPost, "http://"+host+s.pages.Path+loginPath, strings.NewReader(form.Encode()))
		r.AddCookie(&http.Cookie{Name: "mcp_login", Value: "x"})
		w := httptest.NewRecorder()
		s.pages.ServeHTTP(w, r)
		return w.Code
	}
	for i := range 3 * maxBegins {
		want := http.StatusSeeOther
		if i >= maxBegins {
			want = http.StatusTooManyRequests
		}
		if got := begin("mallory", fmt.Sprintf("127.0.0.1:%d", i+1)); got != want {
			t.Errorf("login %d: status %d, want %d", i+1, got, want)
		}
	}
	if got := s.registered.Load(); got != maxBegins {
		t.Errorf("%d clients are registered, want %d", got, maxBegins)
	}
	if got := begin("ann", "127.0.0.1"); got != http.StatusSeeOther {
		t.Errorf("the login of another client: status %d", got)
	}
}

func TestAwait(t *testing.T) {
	s := newSite(t, Config{Account: perClient})
	address := s.loginAddress(t, "ann")
	waiting := make(chan bool, 1)
	go func() { waiting <- s.login.Await(t.Context(), "ann") }()
	b := newBrowser()
	_, page := b.open(t, get(address))
	b.open(t, submit(address, page))
	if !<-waiting {
		t.Error("Await did not report the login")
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if s.login.Await(canceled, "bob") {
		t.Error("Await reports a login of bob")
	}
}

// Some authorization servers fetch the client's metadata document.
func TestClientDocument(t *testing.T) {
	s := newSite(t, Config{})
	_, text := newBrowser().open(t, get(s.URL+"/mcp/oauth/client.json"))
	var document struct {
		ID        string   `json:"client_id"`
		Redirects []string `json:"redirect_uris"`
	}
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	if document.ID != s.URL+"/mcp/oauth/client.json" || len(document.Redirects) != 1 ||
		document.Redirects[0] != s.URL+"/mcp/oauth/callback" {
		t.Errorf("got %s", text)
	}
}

func TestAttemptHoldsBackRefusalsOnly(t *testing.T) {
	tests := map[string]struct {
		status    int
		challenge string
		held      bool
	}{
		"success":                     {http.StatusOK, "", false},
		"no token":                    {http.StatusUnauthorized, "Bearer", true},
		"a missing scope":             {http.StatusForbidden, `Bearer error="insufficient_scope", scope="write"`, true},
		"forbidden for other reasons": {http.StatusForbidden, "", false},
		"an unknown session":          {http.StatusNotFound, "", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			w.Header().Set("X-Before", "1")
			a := &attempt{w: w}
			if tt.challenge != "" {
				a.Header().Set("WWW-Authenticate", tt.challenge)
			}
			a.WriteHeader(tt.status)
			if _, err := io.WriteString(a, "body"); err != nil {
				t.Fatal(err)
			}
			if err := a.FlushError(); err != nil {
				t.Fatal(err)
			}
			if a.refused() != tt.held || (w.Body.Len() == 0) != tt.held || w.Flushed == tt.held {
				t.Errorf("refused %v, body %q, flushed %v", a.refused(), w.Body, w.Flushed)
			}
			if !tt.held && (w.Code != tt.status || w.Header().Get("X-Before") != "1") {
				t.Errorf("got %d %v", w.Code, w.Header())
			}
		})
	}
}

func TestInvalidConfigurations(t *testing.T) {
	for wants, o := range map[string]Config{
		"must be per_client or exchange":     {Account: "each"},
		"jwt_bearer needs assertion":         {Grant: jwtBearer, ClientID: "me"},
		"other grants do not allow it":       {Assertion: "file"},
		"jwt_bearer needs client_id":         {Grant: jwtBearer, Assertion: "file"},
		"must be authorization_code":         {Grant: "password"},
		"needs client_id, and client_secret": {Grant: clientCredentials, ClientID: "me"},
		"is for the gateway itself":          {Grant: clientCredentials, Account: perClient},
		"exchange needs client_id":           {Account: exchange},
		"client_secret needs client_id":      {ClientSecret: "s"},
		"private_key needs client_id":        {PrivateKey: "k"},
		"exclude each other":                 {ClientID: "me", ClientSecret: "s", PrivateKey: "k"},
		`issuer: "here" is not a URL`:        {Issuer: "here"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), wants) {
			t.Errorf("%+v: %v, want %q", o, err, wants)
		}
	}
	for wants, o := range map[string]Config{
		"resource: missing":              {},
		"is not an http or https URL":    {Resource: "file:///x"},
		"private_key: open /nowhere.pem": {Resource: "https://a/", PrivateKey: "/nowhere.pem"},
		"client_secret":                  {Resource: "https://a/", ClientSecret: "{env.NOT_SET_IN_THIS_TEST}"},
	} {
		if _, err := o.config(); err == nil || !strings.Contains(err.Error(), wants) {
			t.Errorf("%+v: %v, want %q", o, err, wants)
		}
	}
}

// memory is a Store in memory.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	locks  sync.Map
}

func (m *memory) Load(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, ok := m.values[key]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return value, nil
}

func (m *memory) Store(_ context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[key] = value
	return nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, key)
	return nil
}

func (m *memory) Lock(_ context.Context, name string) error {
	lock, _ := m.locks.LoadOrStore(name, new(sync.Mutex))
	lock.(*sync.Mutex).Lock()
	return nil
}

func (m *memory) Unlock(_ context.Context, name string) error {
	lock, _ := m.locks.Load(name)
	lock.(*sync.Mutex).Unlock()
	return nil
}

// replicate makes three replicas serve the pages of a site in turn.
func (s *site) replicate(t *testing.T, engine replicas.Engine) (logins []*Login) {
	t.Helper()
	for range 3 {
		store := replicastest.Replica(t, engine)
		space := store.Space("logins")
		pages := *s.pages
		pages.ClaimState = func(ctx context.Context, state string, ttl time.Duration) (bool, error) {
			return space.Swap(ctx, state, "used", replicas.Version{}, []byte{}, ttl)
		}
		replica := NewPages(pages, []byte(testKey))
		l, err := replica.Add("files", &Config{Resource: s.URL + "/server", TrustedHosts: []string{"127.0.0.1"}},
			oauth.Shared(space), "files")
		if err != nil {
			t.Fatal(err)
		}
		s.replicas, logins = append(s.replicas, replica), append(logins, l)
	}
	s.login = logins[0]
	return logins
}

// Each request of a login may reach another replica.
func TestLoginAtThreeReplicas(t *testing.T) {
	s, engine := newSite(t, Config{}), replicastest.New()
	logins := s.replicate(t, engine)
	address, b := s.loginAddress(t, ""), newBrowser()
	var callback string
	b.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if strings.HasSuffix(r.URL.Path, callbackPath) {
			callback = r.URL.String()
			return http.ErrUseLastResponse
		}
		return nil
	}
	status, page := b.open(t, get(address))
	if status != http.StatusOK {
		t.Fatalf("login page: %d %s", status, page)
	}
	if b.open(t, submit(address, page)); callback == "" {
		t.Fatal("the authorization server did not redirect the browser")
	}
	if status, page = b.open(t, get(callback)); status != http.StatusOK || !strings.Contains(page, "Logged in to files") {
		t.Fatalf("after the login: %d %s", status, page)
	}
	if n := s.requests.Load(); n != 3 {
		t.Errorf("%d requests to replicas, want 3", n)
	}
	for i, l := range logins {
		s.replicas[i].Reload("files", "")
		s.login = l
		if w, err := s.call(""); err != nil || w.Body.String() != "hello" {
			t.Errorf("replica %d: %v, %q", i, err, w.Body)
		}
	}
	usedStates.Purge() // as in another process
	if status, page = b.open(t, get(callback)); status != http.StatusBadRequest ||
		!strings.Contains(page, "already finished") {
		t.Errorf("a second callback at another replica: %d %s", status, page)
	}
	usedStates.Purge()
	engine.Down.Store(true)
	if status, page = b.open(t, get(callback)); status != http.StatusServiceUnavailable ||
		!strings.Contains(page, "shared store is unavailable") {
		t.Errorf("while the store is unavailable: %d %s", status, page)
	}
}

// A call that waits at one replica continues after a login at another replica.
func TestAwaitALoginAtAnotherReplica(t *testing.T) {
	s := newSite(t, Config{})
	logins := s.replicate(t, replicastest.New())
	address, b := s.loginAddress(t, ""), newBrowser()
	done := make(chan bool, 1)
	go func() { done <- logins[1].Await(t.Context(), "") }()
	_, page := b.open(t, get(address))
	if _, page = b.open(t, submit(address, page)); !strings.Contains(page, "Logged in to files") {
		t.Fatal(page)
	}
	var ok bool
	await.Until(t, "the call continues", func() bool {
		select {
		case ok = <-done:
			return true
		default:
			return false
		}
	})
	if !ok {
		t.Error("Await did not report the login")
	}
}

// The cookie of the browser lives as long as the latest ticket that it has opened.
func TestCookieIsRenewed(t *testing.T) {
	s := newSite(t, Config{Account: perClient})
	open := func(known []*http.Cookie) []*http.Cookie {
		r := httptest.NewRequest(http.MethodGet, s.pages.loginAddress(s.URL, "files", "alice"), nil)
		for _, c := range known {
			r.AddCookie(c)
		}
		w := httptest.NewRecorder()
		s.pages.ServeHTTP(w, r)
		return w.Result().Cookies()
	}
	first := open(nil)
	second := open(first)
	if len(first) != 1 || len(second) != 1 || second[0].Value != first[0].Value || second[0].MaxAge != first[0].MaxAge {
		t.Errorf("got %v, then %v", first, second)
	}
}

// Any stranger can send a body to the login page. Only that of a form is read, and it is short.
func TestBodiesOfStrangers(t *testing.T) {
	s := newSite(t, Config{Account: perClient})
	for method, most := range map[string]int{http.MethodGet: 0, http.MethodPost: 2 * maxForm} {
		const size = 1 << 20
		body := strings.NewReader("--x\r\nContent-Disposition: form-data; name=a; filename=a\r\n\r\n" +
			strings.Repeat("x", size))
		r := httptest.NewRequest(method, s.URL+s.pages.Path+loginPath, io.NopCloser(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		w := httptest.NewRecorder()
		s.pages.ServeHTTP(w, r)
		if read := size - body.Len(); w.Code != http.StatusBadRequest || read > most {
			t.Errorf("%s: status %d, %d bytes read, want %d at most", method, w.Code, read, most)
		}
	}
}
