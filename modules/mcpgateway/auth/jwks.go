package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/go-jose/go-jose/v4"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/origin"
)

const (
	jwksMaxBytes  = 1 << 20
	jwksTimeout   = 10 * time.Second
	jwksRedirects = 5

	// jwksPause is how long an issuer is left alone after it was asked for a key
	// that is not known, or has not answered. Tokens with invented keys must not
	// make us flood it.
	jwksPause = time.Minute

	// jwksFirstPause is the same for as long as there are no keys at all: an issuer
	// that starts together with us is not there at once.
	jwksFirstPause = 5 * time.Second

	// jwksFilePause is how often a file is looked at.
	jwksFilePause = time.Second
)

// A jwks has the public keys of an issuer, from a URL or a file. They are fetched
// when the first token comes and kept in memory. It is shared by all who name the same
// address and outlives configuration reloads.
type jwks struct {
	address string
	source  jwksSource

	ctx     context.Context
	stop    context.CancelFunc
	fetches sync.WaitGroup

	mu       sync.Mutex
	keys     []jose.JSONWebKey // never written to, only replaced
	fetched  time.Time         // when the keys came
	tried    time.Time         // when the last fetch began
	sought   time.Time         // when the last fetch for an unknown key began
	fault    string            // of the last fetch
	fetching chan struct{}     // closed when the fetch under way is over
}

// A jwksSource is where key sets come from.
type jwksSource interface {
	// read returns the key set, or nothing if it is the same as before.
	read(context.Context) ([]byte, error)

	// name is what logs call it.
	name() string
}

var jwksPool = caddy.NewUsagePool()

// openJWKS returns the keys at an address. They must be released. Nothing is fetched. Keys
// that are known from an earlier configuration are renewed before they are used: an operator
// may have reloaded because one was taken away.
func openJWKS(address string) (*jwks, error) {
	value, known, err := jwksPool.LoadOrNew(address, func() (caddy.Destructor, error) { return newJWKS(address) })
	if err != nil {
		return nil, err
	}
	k := value.(*jwks)
	if known {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.fetched = (time.Time{}); k.isFile() {
			k.tried = time.Time{}
		}
	}
	return k, nil
}

func newJWKS(address string) (*jwks, error) {
	source, err := parseJWKSAddress(address)
	if err != nil {
		return nil, err
	}
	k := &jwks{address: address, source: source}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k, nil
}

// release gives the keys back, if there are any. When nobody has them any more, they
// are forgotten.
func (k *jwks) release() error {
	if k == nil {
		return nil
	}
	_, err := jwksPool.Delete(k.address)
	return err
}

// Destruct ends the fetch that is under way.
func (k *jwks) Destruct() error {
	k.mu.Lock()
	k.stop()
	k.mu.Unlock()
	k.fetches.Wait()
	return nil
}

// seek calls find with the keys that are known. If it does not find what it looks for,
// or they are older than refresh, it is called again once they are renewed, which is
// then what counts. If the issuer does not answer, the keys that are known stay good.
// It returns an error only if ctx ends before.
func (k *jwks) seek(ctx context.Context, refresh time.Duration, logger *zap.Logger, find func([]jose.JSONWebKey) bool) error {
	renewed := k.renew(find(k.known()), refresh, logger)
	if renewed == nil {
		return nil
	}
	select {
	case <-renewed:
	case <-ctx.Done():
		return ctx.Err()
	}
	find(k.known())
	return nil
}

func (k *jwks) known() []jose.JSONWebKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys
}

// renew fetches the keys if it is time to. It returns nil if there is nothing to wait
// for.
func (k *jwks) renew(found bool, refresh time.Duration, logger *zap.Logger) (renewed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.isFile() {
		refresh = jwksFilePause
	}
	stale := now.Sub(k.fetched) >= refresh
	if k.fetching == nil && k.ctx.Err() == nil && k.due(now, found, stale) {
		if !found && k.keys != nil {
			k.sought = now
		}
		k.fetch(now, logger)
	}
	// Once a renewal has failed nobody waits for the next ones but those who need a
	// key that is not known.
	if found && (!stale || k.fault != "") {
		return nil
	}
	return k.fetching
}

// due reports whether a fetch may begin.
func (k *jwks) due(now time.Time, found, stale bool) bool {
	since := now.Sub(k.tried)
	switch {
	case k.isFile():
		return since >= jwksFilePause
	case k.keys == nil:
		return since >= jwksFirstPause
	default:
		return stale && since >= jwksPause || !found && now.Sub(k.sought) >= jwksPause
	}
}

func (k *jwks) isFile() bool {
	_, ok := k.source.(*jwksFile)
	return ok
}

// fetch begins to fetch the keys. It does so on nobody's behalf: the request that it
// is needed for may end before.
func (k *jwks) fetch(now time.Time, logger *zap.Logger) {
	k.tried = now
	done := make(chan struct{})
	k.fetching = done
	k.fetches.Go(func() {
		keys, err := k.read()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.settle(keys, err, logger)
		k.fetching = nil
		close(done)
	})
}

// settle takes over what a fetch has brought.
func (k *jwks) settle(keys []jose.JSONWebKey, err error, logger *zap.Logger) {
	if err == nil {
		if keys != nil {
			k.keys = keys
		}
		k.fetched, k.fault = time.Now(), ""
		return
	}
	// A file is looked at every second. It is enough to say once what is wrong.
	if repeated := k.isFile() && k.fault == err.Error(); !repeated && k.ctx.Err() == nil {
		logger.Warn("keys of the issuer cannot be fetched", zap.String("jwks", k.source.name()), zap.Int("known_keys", len(k.keys)), zap.Error(err))
	}
	k.fault = err.Error()
}

func (k *jwks) read() ([]jose.JSONWebKey, error) {
	ctx, cancel := context.WithTimeout(k.ctx, jwksTimeout)
	defer cancel()
	set, err := k.source.read(ctx)
	if err != nil || set == nil {
		return nil, err
	}
	return parseKeySet(set)
}

// parseKeySet returns the keys of a set that signatures can be verified with. Others
// are passed over, as RFC 7517 wants it.
func parseKeySet(text []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		if key, ok := parseKey(raw); ok {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		return nil, errors.New("no key in it is one to verify signatures with")
	}
	return keys, nil
}

// parseKey refuses keys that are not for signatures, that are too weak, and those that
// should not be where we read them: private ones and secrets.
func parseKey(raw json.RawMessage) (key jose.JSONWebKey, ok bool) {
	var purpose struct {
		Ops []string `json:"key_ops"`
	}
	if json.Unmarshal(raw, &purpose) != nil || json.Unmarshal(raw, &key) != nil {
		return key, false
	}
	if purpose.Ops != nil && !slices.Contains(purpose.Ops, "verify") {
		return key, false
	}
	if !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig" {
		return key, false
	}
	if public, ok := key.Key.(*rsa.PublicKey); ok && (public.N.BitLen() < 2048 || public.N.BitLen() > 8192) {
		return key, false
	}
	return key, true
}

// keyFits reports whether a key is one for an algorithm.
func keyFits(key jose.JSONWebKey, alg jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(alg) {
		return false
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(alg), "RS") || strings.HasPrefix(string(alg), "PS")
	case *ecdsa.PublicKey:
		return public.Curve == curveOf(alg)
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

func curveOf(alg jose.SignatureAlgorithm) elliptic.Curve {
	switch alg {
	case jose.ES256:
		return elliptic.P256()
	case jose.ES384:
		return elliptic.P384()
	case jose.ES512:
		return elliptic.P521()
	}
	return nil
}

// parseJWKSAddress tells URLs from files. What stands in for keys must not be changed
// on its way, so a URL is one of https, or of this machine.
func parseJWKSAddress(address string) (jwksSource, error) {
	if address == "" {
		return nil, errors.New("missing")
	}
	if !strings.Contains(address, "://") {
		if !filepath.IsAbs(address) && !strings.HasPrefix(address, "./") && !strings.HasPrefix(address, "../") {
			return nil, errors.New("neither a URL (https://…) nor the path of a file (/… or ./…)")
		}
		return &jwksFile{path: filepath.Clean(address)}, nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	if err := checkJWKSURL(u); err != nil {
		return nil, err
	}
	return &jwksURL{url: u}, nil
}

func checkJWKSURL(u *url.URL) error {
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return errors.New("not a URL of https, nor the path of a file")
	case u.Hostname() == "":
		return errors.New("it has no host")
	case u.User != nil:
		return errors.New("it has a user or a password")
	case u.Scheme == "http" && !origin.IsLocal(u.Hostname()):
		return errors.New("keys are fetched by https, by http from this machine only")
	}
	return nil
}

// A jwksURL is a key set on a web server.
type jwksURL struct{ url *url.URL }

func (s *jwksURL) name() string { return s.url.Scheme + "://" + s.url.Host + s.url.EscapedPath() }

func (s *jwksURL) read(ctx context.Context) ([]byte, error) {
	// One that is asked once an hour has no use for a connection that stays open.
	transport := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		ForceAttemptHTTP2:      true,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: checkJWKSRedirect}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String(), nil)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := client.Do(request)
	if err != nil {
		return nil, withoutURL(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return readKeySet(response.Body)
}

func checkJWKSRedirect(next *http.Request, via []*http.Request) error {
	if len(via) > jwksRedirects {
		return fmt.Errorf("more than %d redirects", jwksRedirects)
	}
	if next.URL.Scheme != via[0].URL.Scheme {
		return errors.New("a redirect to another scheme")
	}
	if err := checkJWKSURL(next.URL); err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	return nil
}

// withoutURL takes the URL off an error: the log has it, without its query.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// A jwksFile is a key set in a file. It is read again when it has another size or
// time.
type jwksFile struct {
	path string

	// What was read last. Only the one fetch that is under way uses them.
	size     int64
	modified time.Time
}

func (s *jwksFile) name() string { return s.path }

func (s *jwksFile) read(context.Context) ([]byte, error) {
	info, err := os.Stat(s.path)
	if err != nil {
		return nil, withoutPath(err)
	}
	if !info.Mode().IsRegular() { // to open a pipe may take forever
		return nil, errors.New("not a file")
	}
	if info.Size() == s.size && info.ModTime().Equal(s.modified) {
		return nil, nil
	}
	file, err := os.Open(s.path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer file.Close()
	text, err := readKeySet(file)
	if err != nil {
		return nil, err
	}
	s.size, s.modified = info.Size(), info.ModTime()
	return text, nil
}

func withoutPath(err error) error {
	if wrapped, ok := errors.AsType[*fs.PathError](err); ok {
		return wrapped.Err
	}
	return err
}

func readKeySet(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, jwksMaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > jwksMaxBytes {
		return nil, fmt.Errorf("longer than %d bytes", jwksMaxBytes)
	}
	return text, nil
}
