package oauth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/oauth2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const redirectURL = "https://gateway.example/mcp/oauth/callback"

// A site is an HTTP server with pages by path. It records the requested paths.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	pages map[string]http.HandlerFunc
	seen  []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{pages: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r.URL.Path)
	page := s.pages[r.URL.Path]
	s.mu.Unlock()
	if page == nil {
		http.NotFound(w, r)
		return
	}
	page(w, r)
}

func (s *site) page(path string, page http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[path] = page
}

func (s *site) document(path string, document any) {
	s.page(path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, document) })
}

// paths returns the paths that were requested since its last call.
func (s *site) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.seen
	s.seen = nil
	return seen
}

func writeJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(document)
}

// An issuer is an authorization server with registration, PKCE and refresh tokens that are valid
// once.
type issuer struct {
	*site
	name string // issuer in its metadata

	mu         sync.Mutex
	metadata   map[string]any
	forms      []url.Values // of token requests, with client_id and secret of Basic as basic_id and basic_secret
	registered []map[string]any
	answer     map[string]any // replaces members of the registration response
	challenges map[string]string
	lifetime   int
	refreshes  bool // sends refresh tokens
	count      int
	access     string // valid token
	refresh    string // valid refresh token
	used       map[string]bool
	fail       func(form url.Values) (status int, code string) // of token requests
	extra      map[string]any                                  // members of token responses
	reused     []string                                        // refresh tokens that were used twice
}

func newIssuer(t *testing.T, path string) *issuer {
	t.Helper()
	i := &issuer{
		site:       newSite(t),
		challenges: map[string]string{},
		used:       map[string]bool{},
		lifetime:   3600,
		refreshes:  true,
	}
	i.name = i.URL + path
	i.metadata = map[string]any{
		"issuer": i.name, "authorization_endpoint": i.name + "/authorize", "token_endpoint": i.name + "/token",
		"registration_endpoint": i.name + "/register", "revocation_endpoint": i.name + "/revoke",
		"code_challenge_methods_supported":      []string{"plain", "S256"},
		"token_endpoint_auth_methods_supported": []string{methodBasic},
	}
	i.page("/.well-known/oauth-authorization-server"+path, func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		writeJSON(w, http.StatusOK, i.metadata)
	})
	i.page(path+"/register", i.serveRegister)
	i.page(path+"/token", i.serveToken)
	i.page(path+"/revoke", i.serveToken)
	return i
}

// change changes the issuer while no request is served.
func (i *issuer) change(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

func (i *issuer) serveRegister(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	i.registered = append(i.registered, body)
	answer := map[string]any{
		"client_id":     fmt.Sprintf("client-%d", len(i.registered)),
		"client_secret": "registered-secret",
	}
	maps.Copy(answer, i.answer)
	if answer["error"] != nil {
		writeJSON(w, http.StatusBadRequest, answer)
		return
	}
	writeJSON(w, http.StatusCreated, answer)
}

func (i *issuer) serveToken(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = r.ParseForm()
	form := r.PostForm
	if id, secret, ok := r.BasicAuth(); ok {
		form.Set("basic_id", id)
		form.Set("basic_secret", secret)
	}
	form.Set("path", r.URL.Path)
	i.forms = append(i.forms, form)
	if i.fail != nil {
		if status, code := i.fail(form); status != 0 {
			writeJSON(w, status, map[string]any{"error": code, "error_description": "because of " + form.Encode()})
			return
		}
	}
	switch form.Get("grant_type") {
	case "authorization_code":
		code := form.Get("code")
		if i.challenges[code] == "" || i.challenges[code] != oauth2.S256ChallengeFromVerifier(form.Get("code_verifier")) {
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
			return
		}
		delete(i.challenges, code)
	case "refresh_token":
		if token := form.Get("refresh_token"); token != i.refresh {
			if i.used[token] {
				i.reused = append(i.reused, token)
			}
			writeJSON(w, http.StatusBadRequest, map[string]any{"error": "invalid_grant"})
			return
		}
		i.used[i.refresh] = true
	case "":
		writeJSON(w, http.StatusOK, map[string]any{}) // a revocation
		return
	}
	i.count++
	i.access = fmt.Sprintf("access-%d-of-%s", i.count, i.URL[len("http://127.0.0.1:"):])
	answer := map[string]any{"access_token": i.access, "token_type": "bearer"}
	if i.lifetime > 0 {
		answer["expires_in"] = i.lifetime
	}
	if i.refreshes {
		i.refresh = fmt.Sprintf("refresh-%d", i.count)
		answer["refresh_token"] = i.refresh
	}
	maps.Copy(answer, i.extra)
	writeJSON(w, http.StatusOK, answer)
}

// requests returns the token requests of a grant since its last call.
func (i *issuer) requests() []url.Values {
	i.mu.Lock()
	defer i.mu.Unlock()
	forms := i.forms
	i.forms = nil
	return forms
}

// authorize acts as the browser of a user who consents. It returns the query of the callback.
func (i *issuer) authorize(t *testing.T, address string) url.Values {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	if got := u.Scheme + "://" + u.Host + u.Path; got != i.name+"/authorize" {
		t.Fatalf("login at %s, want %s/authorize", got, i.name)
	}
	if query.Get("response_type") != "code" || query.Get("code_challenge_method") != "S256" {
		t.Fatalf("authorization request %s", u.RawQuery)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count++
	code := fmt.Sprintf("code-%d", i.count)
	i.challenges[code] = query.Get("code_challenge")
	return url.Values{"code": {code}, "state": {query.Get("state")}}
}

// A world is a protected resource and its issuer.
type world struct {
	t        *testing.T
	resource *site
	issuer   *issuer
	prm      map[string]any
	config   Config
	store    *memory
	pending  *Pending
	finished url.Values // token request of the last login

	mu    sync.Mutex
	later time.Duration
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, resource: newSite(t), issuer: newIssuer(t, ""), store: newMemory()}
	w.prm = map[string]any{"resource": w.resource.URL + "/mcp", "authorization_servers": []string{w.issuer.name}}
	w.resource.document("/.well-known/oauth-protected-resource/mcp", w.prm)
	w.config = Config{
		Resource: mustParse(
			w.resource.URL + "/mcp",
		), TrustedHosts: []string{"127.0.0.1"}, ClientName: "gateway",
		Store: w.store, Folder: "oauth",
	}
	return w
}

func mustParse(address string) *url.URL {
	u, err := url.Parse(address)
	if err != nil {
		panic(err)
	}
	return u
}

// server returns a Server whose clock the world can set.
func (w *world) server() *Server {
	s := New(w.config)
	s.now = w.now
	return s
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Add(w.later)
}

// wait advances the clock.
func (w *world) wait(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later += d
}

// begin starts a login and returns its URL.
func (w *world) begin(a *Account) (string, error) {
	return a.Begin(w.t.Context(), redirectURL, "", func(p *Pending) string {
		w.pending = p
		return "state"
	})
}

// login logs in with the consent of a person, and returns the authorization request.
func (w *world) login(a *Account) url.Values {
	w.t.Helper()
	address, err := w.begin(a)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := a.Finish(w.t.Context(), w.pending, w.issuer.authorize(w.t, address)); err != nil {
		w.t.Fatal(err)
	}
	w.finished = w.issuer.requests()[0]
	return mustParse(address).Query()
}

// loggedIn returns an account whose token the server has accepted.
func (w *world) loggedIn() *Account {
	w.t.Helper()
	a := w.server().Account("")
	w.login(a)
	a.Accepted(w.t.Context(), w.token(a))
	return a
}

// token returns the token of an account.
func (w *world) token(a *Account) string {
	w.t.Helper()
	token, err := a.Token(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// refuse reports that the server refused a token with status 401.
func (w *world) refuse(a *Account, token string, challenges ...string) (string, error) {
	return a.Rejected(w.t.Context(), token, http.StatusUnauthorized, challenges)
}

// current returns the access token that the issuer sent last.
func (w *world) current() string {
	w.issuer.mu.Lock()
	defer w.issuer.mu.Unlock()
	return w.issuer.access
}

// wantError checks that an error contains texts.
func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("error %v, want %q in it", err, text)
		}
	}
}

// memory is a Store in memory with real locks.
type memory struct {
	mu     sync.Mutex
	values map[string][]byte
	locks  map[string]chan struct{}
	fail   error // of Store
}

func newMemory() *memory {
	return &memory{values: map[string][]byte{}, locks: map[string]chan struct{}{}}
}

func (m *memory) Load(_ context.Context, key string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, ok := m.values[key]
	if !ok {
		return nil, fmt.Errorf("load %s: %w", key, fs.ErrNotExist)
	}
	return slices.Clone(value), nil
}

func (m *memory) Store(ctx context.Context, key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := cmp.Or(m.fail, ctx.Err()); err != nil {
		return err
	}
	m.values[key] = slices.Clone(value)
	return nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, key)
	return nil
}

func (m *memory) lock(name string) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] == nil {
		m.locks[name] = make(chan struct{}, 1)
	}
	return m.locks[name]
}

func (m *memory) Lock(ctx context.Context, name string) error {
	select {
	case m.lock(name) <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *memory) Unlock(_ context.Context, name string) error {
	select {
	case <-m.lock(name):
		return nil
	default:
		return errors.New("not locked")
	}
}

// keys returns the keys of a kind.
func (m *memory) keys(kind string) (keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.values {
		if strings.HasPrefix(key, "oauth/"+kind+"/") {
			keys = append(keys, key)
		}
	}
	return keys
}
