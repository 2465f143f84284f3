package auth

import (
	"context"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/clientrequest"
)

const (
	jwksMaxBytes  = 1 << 20
	jwksTimeout   = 10 * time.Second
	jwksRedirects = 5

	// jwksPause is the minimum time between two fetches for unknown keys, and between
	// two attempts to refresh. Tokens with invented key ids must not flood the issuer.
	jwksPause = time.Minute

	// jwksFirstPause is the pause while no keys are known. It is shorter, because an
	// issuer that starts together with the gateway is not up at once.
	jwksFirstPause = 5 * time.Second

	// jwksFilePause is the pause for files.
	jwksFilePause = time.Second

	// jwksFresh is the time after a fetch, even a failed one, in which unknown keys do
	// not cause another fetch.
	jwksFresh = time.Second
)

// A jwks caches the public keys of an issuer, from a URL or a file. Nothing is fetched
// before the first token arrives. Providers with the same address share it, and it
// survives configuration reloads.
type jwks struct {
	address string
	isFile  bool
	open    func(context.Context) (io.ReadCloser, error)

	ctx     context.Context
	stop    context.CancelFunc
	fetches sync.WaitGroup

	mu         sync.Mutex
	keys       []jose.JSONWebKey // replaced, never changed
	fetchedAt  time.Time         // end of the last successful fetch
	triedAt    time.Time         // end of the last fetch
	searchedAt time.Time         // start of the last fetch for an unknown key
	lastError  string            // error of the last fetch
	fetching   chan struct{}     // closed when the current fetch ends
}

var jwksPool = caddy.NewUsagePool()

// openJWKS returns the keys at an address. The caller must release them. Keys of an
// earlier configuration are fetched again before use, because the reload may be due to a
// withdrawn key.
func openJWKS(address string) (*jwks, error) {
	value, known, err := jwksPool.LoadOrNew(address, func() (caddy.Destructor, error) { return newJWKS(address) })
	if err != nil {
		return nil, err
	}
	k := value.(*jwks)
	if known {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.fetchedAt, k.triedAt, k.lastError = time.Time{}, time.Time{}, ""
	}
	return k, nil
}

// newJWKS accepts https URLs, http URLs of this machine, and paths.
func newJWKS(address string) (*jwks, error) {
	k := &jwks{address: address, isFile: address != "" && !strings.Contains(address, "://")}
	k.ctx, k.stop = context.WithCancel(context.Background())
	if k.isFile {
		if !filepath.IsAbs(address) && !strings.HasPrefix(address, "./") && !strings.HasPrefix(address, "../") {
			return nil, errors.New("must be a URL (https://…) or the path of a file (/… or ./…)")
		}
		k.open = k.openFile
		return k, nil
	}
	u, err := parseWebURL(address)
	if err != nil {
		return nil, err
	}
	k.open = k.openURL
	return k, requireTLS(u)
}

// release returns the keys to the pool.
func (k *jwks) release() error {
	if k == nil {
		return nil
	}
	_, err := jwksPool.Delete(k.address)
	return err
}

// Destruct ends the current fetch.
func (k *jwks) Destruct() error {
	k.mu.Lock()
	k.stop()
	k.mu.Unlock()
	k.fetches.Wait()
	return nil
}

// get returns the keys. It first fetches them if they are older than refresh, or if a
// token needs an unknown key, as often as the pauses allow. If the fetch fails, the old
// keys remain. get fails only if ctx is done.
func (k *jwks) get(
	ctx context.Context, refresh time.Duration, unknown bool, logger *zap.Logger,
) ([]jose.JSONWebKey, error) {
	if fetching := k.renew(refresh, unknown, logger); fetching != nil {
		select {
		case <-fetching:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys, nil
}

// renew starts a fetch if one is due. It returns a channel that is closed when the current
// fetch ends, or nil if the caller need not wait for it.
func (k *jwks) renew(refresh time.Duration, unknown bool, logger *zap.Logger) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, pause := time.Now(), jwksPause
	if k.isFile {
		refresh, pause = jwksFilePause, jwksFilePause
	}
	fresh, last := now.Sub(k.fetchedAt) < refresh, k.triedAt
	if unknown {
		fresh, last = now.Sub(k.triedAt) < jwksFresh, k.searchedAt
	}
	if k.keys == nil {
		last, pause = k.triedAt, min(pause, jwksFirstPause)
	}
	if fresh {
		return nil
	}
	if k.fetching == nil && now.Sub(last) >= pause && k.ctx.Err() == nil {
		if unknown {
			k.searchedAt = now
		}
		k.fetching = make(chan struct{})
		// The fetch does not belong to this request, which may end first.
		k.fetches.Go(func() { k.fetch(logger) })
	}
	if !unknown && k.lastError != "" {
		return nil // the last fetch failed: use the old keys
	}
	return k.fetching
}

func (k *jwks) fetch(logger *zap.Logger) {
	ctx, cancel := context.WithTimeout(k.ctx, jwksTimeout)
	defer cancel()
	keys, err := k.read(ctx)

	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.fetching)
	k.fetching, k.triedAt = nil, time.Now()
	if err == nil {
		k.keys, k.fetchedAt, k.lastError = keys, k.triedAt, ""
		return
	}
	if k.lastError != err.Error() && k.ctx.Err() == nil { // do not repeat it at each attempt
		name, _, _ := strings.Cut(k.address, "?") // the query may contain a secret
		logger.Warn("cannot fetch the keys of the issuer",
			zap.String("jwks", name), zap.Int("known_keys", len(k.keys)), zap.Error(err))
	}
	k.lastError = err.Error()
}

func (k *jwks) read(ctx context.Context) ([]jose.JSONWebKey, error) {
	body, err := k.open(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, jwksMaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > jwksMaxBytes {
		return nil, fmt.Errorf("longer than %d bytes", jwksMaxBytes)
	}
	return parseKeySet(text)
}

func (k *jwks) openFile(context.Context) (io.ReadCloser, error) {
	info, err := os.Stat(k.address)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe can block forever
		return nil, errors.New("not a regular file")
	}
	return os.Open(k.address)
}

// jwksClient keeps no connections open, because it is used about once an hour.
var jwksClient = &http.Client{
	Transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		ForceAttemptHTTP2:      true,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	},
	CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) > jwksRedirects {
			return fmt.Errorf("more than %d redirects", jwksRedirects)
		}
		if next.URL.Scheme != via[0].URL.Scheme {
			return errors.New("redirect to another scheme")
		}
		return requireTLS(next.URL)
	},
}

func (k *jwks) openURL(ctx context.Context) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := jwksClient.Do(request)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return nil, wrapped.Err // without the URL, whose query may contain a secret
	}
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("status %d", response.StatusCode)
	}
	return response.Body, nil
}

// requireTLS refuses URLs whose content could be changed in transit.
func requireTLS(u *url.URL) error {
	if u.Scheme != "https" && !clientrequest.IsLocal(u.Hostname()) {
		return errors.New("keys must be fetched with https; http is allowed on this machine only")
	}
	return nil
}

// parseKeySet returns the keys of a set that can verify signatures. It skips the others,
// as RFC 7517 recommends.
func parseKeySet(text []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(text, &set) != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		if key, ok := parseKey(raw); ok {
			keys = append(keys, key)
		}
	}
	if keys == nil {
		return nil, errors.New("no key in the set can verify signatures")
	}
	return keys, nil
}

// parseKey parses a key. ok is false for keys for other purposes, weak keys, private keys
// and shared secrets.
func parseKey(raw json.RawMessage) (key jose.JSONWebKey, ok bool) {
	var purpose struct {
		Ops []string `json:"key_ops"`
	}
	if json.Unmarshal(raw, &purpose) != nil || json.Unmarshal(raw, &key) != nil {
		return key, false
	}
	if purpose.Ops != nil && !slices.Contains(purpose.Ops, "verify") || key.Use != "" && key.Use != "sig" {
		return key, false
	}
	public, isRSA := key.Key.(*rsa.PublicKey)
	return key, key.Valid() && key.IsPublic() && !(isRSA && public.N.BitLen() < 2048)
}
