package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Caddy and its certificate cache start these once per process.
		goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.(*Cache).maintainAssets"),
		goleak.IgnoreAnyFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		goleak.IgnoreAnyFunction("go.opencensus.io/stats/view.(*worker).start"))
}

// A keyServer publishes keys as an issuer does, and counts requests.
type keyServer struct {
	*httptest.Server
	answer  atomic.Pointer[[]byte]
	fetches atomic.Int64
	down    atomic.Bool
}

func serveKeys(t *testing.T, set []byte) *keyServer {
	t.Helper()
	s := new(keyServer)
	s.publish(set)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.fetches.Add(1)
		if s.down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Write(*s.answer.Load())
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *keyServer) publish(set []byte) { s.answer.Store(&set) }

func (s *keyServer) count() int { return int(s.fetches.Load()) }

// inBubble runs a test with its own provider and a fake clock.
func inBubble(t *testing.T, address string, test func(t *testing.T, provider *JWT, logs *observer.ObservedLogs)) {
	t.Helper()
	signingKeys()
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		provider := newJWT(t, address, "")
		provider.logger = zap.New(core)
		test(t, provider, logs)
	})
}

// tokenOf returns a valid token, signed with the RSA key under the key ID kid.
func tokenOf(t *testing.T, kid string) string {
	t.Helper()
	return "Bearer " + sign(t, jose.RS256, signingKeys().rsa, kid, nil, goodClaims(nil))
}

func setOf(t *testing.T, kids ...string) []byte {
	t.Helper()
	var keys []jose.JSONWebKey
	for _, kid := range kids {
		keys = append(keys, jose.JSONWebKey{Key: signingKeys().rsa.Public(), KeyID: kid})
	}
	return encodeSet(t, keys...)
}

func wantAdmitted(t *testing.T, provider *JWT, kid string) {
	t.Helper()
	if got, err := authenticate(t.Context(), provider, tokenOf(t, kid)); got != testSubject || err != nil {
		t.Errorf("%s: got %q, %v", kid, got, err)
	}
}

func wantRefused(t *testing.T, provider *JWT, kid string) {
	t.Helper()
	if got, err := authenticate(t.Context(), provider, tokenOf(t, kid)); got != "" || !errors.Is(err, faultKey) {
		t.Errorf("%s: got %q, %v", kid, got, err)
	}
}

func wantFetches(t *testing.T, server *keyServer, want int) {
	t.Helper()
	if got := server.count(); got != want {
		t.Errorf("%d fetches, want %d", got, want)
	}
}

func TestKeysAreFetchedWhenTheyAreNeeded(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		wantFetches(t, server, 0)
		for range 10 {
			wantAdmitted(t, provider, "one")
		}
		wantFetches(t, server, 1)
		time.Sleep(time.Hour - time.Second)
		wantAdmitted(t, provider, "one")
		wantFetches(t, server, 1)
		time.Sleep(time.Second)
		wantAdmitted(t, provider, "one")
		wantFetches(t, server, 2)
	})
}

func TestNewKeysAreFetchedOnce(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		wantAdmitted(t, provider, "one")
		server.publish(setOf(t, "one", "two"))
		time.Sleep(time.Second)
		wantAdmitted(t, provider, "two")
		wantFetches(t, server, 2)
		wantAdmitted(t, provider, "one")
		wantAdmitted(t, provider, "two")
		wantFetches(t, server, 2)
	})
}

func TestUnknownKeyWithoutID(t *testing.T) { // A76
	server := serveKeys(t, encodeSet(t, jose.JSONWebKey{Key: signingKeys().other.Public()}))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		wantRefused(t, provider, "")
		wantFetches(t, server, 1)
		server.publish(setOf(t, ""))
		time.Sleep(time.Second)
		wantAdmitted(t, provider, "")
		wantFetches(t, server, 2)
	})
}

func TestWithdrawnKeys(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		wantAdmitted(t, provider, "one")
		server.publish(setOf(t, "two"))
		time.Sleep(time.Hour)
		wantRefused(t, provider, "one")
		wantFetches(t, server, 2)
	})
}

func TestInventedKeysDoNotFloodTheIssuer(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		for i := range 1000 {
			// The key does not exist, so the signature does not matter.
			token := forge(fmt.Sprintf(`{"alg":"RS256","kid":"invented-%d"}`, i), goodClaims(nil),
				func([]byte) []byte { return nil })
			if got, err := authenticate(t.Context(), provider, "Bearer "+token); got != "" || !errors.Is(err, faultKey) {
				t.Fatalf("got %q, %v", got, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		wantFetches(t, server, 2)
		time.Sleep(time.Minute)
		wantRefused(t, provider, "another")
		wantRefused(t, provider, "yet another")
		wantFetches(t, server, 3)
		wantAdmitted(t, provider, "one")
	})
}

func TestBadSignaturesFetchNothing(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		token := "Bearer " + sign(t, jose.RS256, signingKeys().other, "one", nil, goodClaims(nil))
		for range 10 {
			if got, err := authenticate(t.Context(), provider, token); got != "" || !errors.Is(err, faultSignature) {
				t.Errorf("got %q, %v", got, err)
			}
		}
		wantFetches(t, server, 1)
	})
}

func TestKeysStayValidWhileTheIssuerIsDown(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, logs *observer.ObservedLogs) {
		wantAdmitted(t, provider, "one")
		server.down.Store(true)
		time.Sleep(2 * time.Hour)
		wantAdmitted(t, provider, "one")
		time.Sleep(time.Second)
		wantRefused(t, provider, "two")
		wantFetches(t, server, 3)
		if n := logs.FilterMessage("cannot fetch the keys of the issuer").Len(); n != 1 {
			t.Errorf("%d warnings, want 1", n)
		}
		for range 100 {
			wantAdmitted(t, provider, "one")
			wantRefused(t, provider, "two")
		}
		wantFetches(t, server, 3)
		server.down.Store(false)
		server.publish(setOf(t, "two"))
		time.Sleep(time.Minute)
		wantAdmitted(t, provider, "two")
		wantRefused(t, provider, "one")
	})
}

func TestRequestsDoNotWaitForAFailingIssuer(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		wantAdmitted(t, provider, "one")
		server.down.Store(true)
		time.Sleep(time.Hour)
		wantAdmitted(t, provider, "one")
		time.Sleep(time.Minute)
		hang, hung := make(chan struct{}), make(chan struct{})
		provider.keys.open = func(ctx context.Context) (io.ReadCloser, error) {
			close(hang)
			<-ctx.Done()
			close(hung)
			return nil, ctx.Err()
		}
		wantAdmitted(t, provider, "one") // starts a fetch that hangs until its timeout
		<-hang
		select {
		case <-hung:
			t.Error("the request waited")
		default:
		}
	})
}

func TestFetchesEndInTime(t *testing.T) { // A76
	inBubble(t, "http://127.0.0.1:1", func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		fetches := 0
		provider.keys.open = func(ctx context.Context) (io.ReadCloser, error) {
			fetches++
			<-ctx.Done()
			return nil, ctx.Err()
		}
		begin := time.Now()
		go func() {
			time.Sleep(jwksTimeout - time.Second)
			wantRefused(t, provider, "one") // waits for the same fetch
		}()
		wantRefused(t, provider, "one")
		if took := time.Since(begin); took != jwksTimeout {
			t.Errorf("took %s, want %s", took, jwksTimeout)
		}
		synctest.Wait()
		if fetches != 1 {
			t.Errorf("%d fetches at once, want 1", fetches)
		}
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, err := authenticate(ctx, provider, tokenOf(t, "one")); got != "" || !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("a canceled request: got %q, %v", got, err)
		}
	})
}

func TestNoTokenIsValidWithoutKeys(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	server.down.Store(true)
	inBubble(t, server.URL, func(t *testing.T, provider *JWT, _ *observer.ObservedLogs) {
		for range 100 {
			wantRefused(t, provider, "one")
		}
		wantFetches(t, server, 1)
		server.down.Store(false)
		time.Sleep(jwksFirstPause)
		wantAdmitted(t, provider, "one")
		wantFetches(t, server, 2)
	})
}

func TestConcurrentRequestsFetchOnce(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	provider, token := newJWT(t, server.URL, ""), tokenOf(t, "one")
	begin := make(chan struct{})
	var clients sync.WaitGroup
	for range 50 {
		clients.Go(func() {
			<-begin
			if got, err := authenticate(t.Context(), provider, token); got != testSubject || err != nil {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	close(begin)
	clients.Wait()
	wantFetches(t, server, 1)
}

func TestKeysOutliveReloads(t *testing.T) { // A76
	server := serveKeys(t, setOf(t, "one"))
	before := newJWT(t, server.URL, "")
	wantAdmitted(t, before, "one")
	after := newJWT(t, server.URL, `,"refresh":7200000000000`)
	if err := before.Cleanup(); err != nil {
		t.Fatal(err)
	}
	before.keys = nil // Caddy cleans up only once
	server.down.Store(true)
	wantAdmitted(t, after, "one")
	wantFetches(t, server, 2) // a reload fetches the keys: the operator may have withdrawn one
	server.down.Store(false)
	server.publish(setOf(t, "two"))
	wantRefused(t, newJWT(t, server.URL, ""), "one")
}

func TestFetchEndsWithItsOwner(t *testing.T) { // A76
	synctest.Test(t, func(t *testing.T) {
		keys, err := newJWKS("http://127.0.0.1:1")
		if err != nil {
			t.Fatal(err)
		}
		fetches := 0
		keys.open = func(ctx context.Context) (io.ReadCloser, error) {
			fetches++
			<-ctx.Done()
			return nil, ctx.Err()
		}
		get := func() {
			if got, err := keys.get(t.Context(), time.Hour, true, zap.NewNop()); got != nil || err != nil {
				t.Error(got, err)
			}
		}
		begin := time.Now()
		go get()
		synctest.Wait()
		if err := keys.Destruct(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %s, want 0", took)
		}
		time.Sleep(time.Hour)
		get()
		if fetches != 1 {
			t.Errorf("%d fetches, want 1", fetches)
		}
	})
}

func TestInvalidKeySets(t *testing.T) { // A76
	plain := serveKeys(t, setOf(t, "one"))
	secure := httptest.NewTLSServer(plain.Config.Handler)
	defer secure.Close()
	tests := []struct {
		name    string
		handler http.HandlerFunc
		want    string
	}{
		{"an error status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
			"status 404"},
		{"HTML", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "not a JSON Web Key Set"},
		{"another JSON object", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":7}`) },
			"not a JSON Web Key Set"},
		{"no keys", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[]}`) }, "no key in the set"},
		{"only keys of unknown types",
			func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[{"kty":"AKP"},{},7,null]}`) },
			"no key in the set"},
		{"a set that is too long", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, strings.Repeat(" ", jwksMaxBytes+1))
		}, "longer than"},
		{"a redirect to another scheme", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, secure.URL, http.StatusFound)
		}, "redirect to another scheme"},
		{"a redirect to a file", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		}, "redirect to another scheme"},
		{"a redirect to another host without TLS", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://id.example.com/", http.StatusFound)
		}, "keys must be fetched with https"},
		{"a redirect loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) },
			"more than 5 redirects"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(tt.handler)
			defer server.Close()
			keys, err := newJWKS(server.URL + "/?key=hunter2")
			if err != nil {
				t.Fatal(err)
			}
			defer keys.Destruct()
			got, err := keys.read(t.Context())
			if got != nil || err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, %v, want %s", got, err, tt.want)
			}
		})
	}
	t.Run("a redirect to the same scheme is followed", func(t *testing.T) {
		server := httptest.NewServer(http.RedirectHandler(plain.URL, http.StatusFound))
		defer server.Close()
		wantAdmitted(t, newJWT(t, server.URL, ""), "one")
	})
	t.Run("keys of unknown types are skipped", func(t *testing.T) {
		set := `{"keys":[{"kty":"AKP"},{"kty":"RSA","kid":"broken"},` +
			strings.TrimPrefix(string(setOf(t, "one")), `{"keys":[`)
		if keys, err := parseKeySet([]byte(set)); err != nil || len(keys) != 1 {
			t.Errorf("got %d, %v", len(keys), err)
		}
	})
	t.Run("keys for other operations are skipped", func(t *testing.T) {
		for ops, want := range map[string]int{`["verify"]`: 1, `["encrypt"]`: 0, `[]`: 0, `7`: 0} {
			set := strings.Replace(string(setOf(t, "one")), `{"kty"`, `{"key_ops":`+ops+`,"kty"`, 1)
			if strings.Contains(set, `"use"`) {
				t.Fatal(set)
			}
			if keys, _ := parseKeySet([]byte(set)); len(keys) != want {
				t.Errorf("%s: %d keys, want %d", ops, len(keys), want)
			}
		}
	})
}

func TestChangedFileIsReadAgain(t *testing.T) { // A76
	path := filepath.Join(t.TempDir(), "keys.json")
	write := func(t *testing.T, set []byte, modified time.Time) {
		t.Helper()
		synctest.Wait() // no fetch may read a half-written file
		if err := os.WriteFile(path, set, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	inBubble(t, path, func(t *testing.T, provider *JWT, logs *observer.ObservedLogs) {
		wantRefused(t, provider, "one")
		write(t, setOf(t, "one"), day)
		wantRefused(t, provider, "one") // the file is read at most once a second
		time.Sleep(time.Second)
		wantAdmitted(t, provider, "one")

		write(t, setOf(t, "two"), day.Add(time.Second)) // same size
		wantAdmitted(t, provider, "one")
		time.Sleep(time.Second)
		wantRefused(t, provider, "one")
		wantAdmitted(t, provider, "two")

		write(t, setOf(t, "two", "three"), day.Add(time.Second)) // same time
		time.Sleep(time.Second)
		wantAdmitted(t, provider, "three")

		warned := logs.Len()
		write(t, []byte("half a fi"), day.Add(2*time.Second))
		for range 10 {
			time.Sleep(time.Second)
			wantAdmitted(t, provider, "three")
		}
		synctest.Wait()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			time.Sleep(time.Second)
			wantAdmitted(t, provider, "three")
		}
		synctest.Wait()
		if n := logs.Len() - warned; n != 2 {
			t.Errorf("%d warnings, want one for each fault", n)
		}
		write(t, setOf(t, "four"), day.Add(3*time.Second))
		time.Sleep(time.Second)
		wantAdmitted(t, provider, "four")
	})
	t.Run("a directory", func(t *testing.T) {
		keys, err := newJWKS(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := keys.read(t.Context()); got != nil || err == nil {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestJWKSAddresses(t *testing.T) { // A76
	for _, address := range []string{"https://id.example.com/keys?p=1", "http://127.0.0.1:8080/", "http://[::1]/",
		"http://localhost/keys", "http://LOCALHOST/keys", "/etc/keys.json", "./keys.json", "../keys.json"} {
		if _, err := newJWKS(address); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"", "id.example.com/keys", "keys.json", "ftp://id.example.com/keys",
		"http://id.example.com/keys"} {
		if _, err := newJWKS(address); err == nil {
			t.Errorf("%q is accepted", address)
		}
	}
}
