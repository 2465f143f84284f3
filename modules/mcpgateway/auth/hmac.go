package auth

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/setting"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

func init() {
	caddy.RegisterModule(HMAC{})
}

// HMAC identifies clients by requests that they sign with a shared secret. The secret is
// never sent, and an eavesdropper can neither change the body of a request nor replay it.
// Other headers are not signed, so use TLS as well. Each request has
//
//	Authorization: MCP-HMAC-SHA256 client=<name>, timestamp=<seconds>, nonce=<text>, signature=<hex>
//
// on one line. The parameters can be in any order and in double quotes. The timestamp is
// in Unix time. The nonce has 8 to 64 letters, digits, - and _, and the client uses it
// once. The signature is the HMAC-SHA256, keyed with the secret, of these six lines, with
// a newline between them and none at the end:
//
//	MCP-HMAC-SHA256
//	<timestamp>
//	<nonce>
//	<method of the request, such as POST>
//	<path and query of the request as sent, such as /mcp>
//	<SHA-256 of the body, in lower case hex>
//
// GET and DELETE have an empty body, the SHA-256 of which is e3b0c442…b855. docs/access.md
// has a program for the shell.
//
// Nonces are remembered as long as their timestamps are valid, across configuration
// reloads but not across restarts. With mcp_store, replicas share nonces, also across
// restarts, and requests are refused with status 503 while the store is unavailable. The
// clocks of replicas may then differ by up to the window. Without mcp_store, give each
// replica secrets of its own.
//
// To change a secret, add a client with another name and the new secret, and let the
// gateway match both names.
type HMAC struct {
	// Clients, at least one. Required.
	Clients []ClientSecret `json:"clients,omitempty"`

	// How far a timestamp can be before or after the current time. From 1s to 24h.
	// Default: 5m
	Window caddy.Duration `json:"window,omitempty"`

	// Maximum number of nonces to remember for each client, at about 200 bytes each. A
	// client that signs more requests within two windows is refused until the oldest
	// nonces expire. Each replica counts the requests that it has accepted. Default:
	// 100000
	MaxNonces int `json:"max_nonces,omitempty"`

	known        map[string]hmacClient
	fingerprints fingerprints
	store        *mcpstore.Store // nil without mcp_store
}

// ClientSecret is a client and the secret it signs with.
type ClientSecret struct {
	// Name of the client: up to 256 letters, digits and any of -._~@:/+ Required.
	Client string `json:"client,omitempty"`

	// Secret: {env.NAME} or {file./path}, at least 16 bytes. Required.
	Secret string `json:"secret,omitempty"`
}

// An hmacClient holds the state of a client.
type hmacClient struct {
	secret []byte
	nonces *nonceSet
}

const (
	hmacScheme     = "MCP-HMAC-SHA256"
	minHMACSecret  = 16
	wordCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
)

// CaddyModule returns the Caddy module information.
func (HMAC) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_gateway.auth.hmac",
		New: func() caddy.Module { return new(HMAC) },
	}
}

// Provision reads the secrets.
func (h *HMAC) Provision(ctx caddy.Context) (err error) {
	h.Window = cmp.Or(h.Window, caddy.Duration(5*time.Minute))
	h.MaxNonces = cmp.Or(h.MaxNonces, 100_000)
	h.known = make(map[string]hmacClient, len(h.Clients))
	h.fingerprints = fingerprints{}
	if h.store, err = mcpstore.Open(ctx); err != nil {
		return err
	}
	for _, client := range h.Clients {
		if err := client.checkName(); err != nil { // before errors repeat the name
			return err
		}
		secret, err := readSecret(client.Secret)
		if err != nil {
			return fmt.Errorf("client %s: secret: %w", client.Client, err)
		}
		if len(secret) < minHMACSecret {
			return fmt.Errorf("client %s: secret: %s has less than %d bytes", client.Client, client.Secret, minHMACSecret)
		}
		if _, ok := h.known[client.Client]; ok {
			return fmt.Errorf("client %s is given twice", client.Client)
		}
		h.known[client.Client] = hmacClient{[]byte(secret), openNonceSet(client.Client, secret)}
		h.fingerprints.add(client.Client, []byte(secret))
	}
	return nil
}

// Validate ensures that clients can be distinguished.
func (h *HMAC) Validate() error {
	if len(h.Clients) == 0 {
		return errors.New("clients: missing")
	}
	if window := time.Duration(h.Window); window < time.Second || window > 24*time.Hour {
		return fmt.Errorf("window: %s is not from 1s to 24h", window)
	}
	if h.MaxNonces < 0 {
		return fmt.Errorf("max_nonces: %d is negative", h.MaxNonces)
	}
	secrets := make(map[string]string, len(h.Clients))
	for _, client := range h.Clients {
		// With equal secrets, a request of one client could be replayed as the other's.
		secret := string(h.known[client.Client].secret)
		if other, ok := secrets[secret]; ok {
			return fmt.Errorf("clients %s and %s have the same secret", other, client.Client)
		}
		secrets[secret] = client.Client
	}
	return nil
}

// checkName validates the name of a client.
func (c ClientSecret) checkName() error {
	if strings.Trim(c.Client, wordCharacters+".~@:/+") != "" {
		return errors.New("the name of the client has characters other than letters, digits and -._~@:/+")
	}
	return CheckIdentity(c.Client)
}

// Authenticate implements Provider.
func (h *HMAC) Authenticate(r *Request) (string, error) {
	signed, err := h.signature(r.Request)
	if err != nil || signed == nil {
		return "", err
	}
	client, known := h.known[signed.client]
	if !known { // compute a signature anyway, so that timing does not reveal names
		client.secret = make([]byte, minHMACSecret)
	}
	mac := hmac.New(sha256.New, client.secret)
	mac.Write(signed.text(r))
	if equal := hmac.Equal(mac.Sum(nil), signed.signature); !equal || !known {
		return "", errors.New("the signature is wrong, or the client is unknown")
	}
	if err := client.nonces.add(signed.nonce, signed.time, time.Duration(h.Window), h.MaxNonces); err != nil {
		return "", err
	}
	if h.store != nil {
		if err := h.claim(r.Context(), client.nonces, signed); err != nil {
			return "", err
		}
	}
	return signed.client, nil
}

// claim records a nonce in the shared store. It returns an error if another replica has used it, or
// an [UnavailableError] if the store fails; the client may then send the request again. A
// disconnected client does not cancel it.
//
// By the clock of this replica, the request is valid until one window after its timestamp. A
// replica whose clock is behind accepts it longer, so the nonce is kept for another window. Clocks
// may differ by that much.
func (h *HMAC) claim(ctx context.Context, nonces *nonceSet, signed *hmacSignature) error {
	owner := nonces.key.client + "\x00" + string(nonces.key.secret[:])
	ttl := time.Until(signed.time) + 2*time.Duration(h.Window)
	fresh, err := h.store.Space("nonces").Swap(
		context.WithoutCancel(ctx), owner, signed.nonce, replicas.Version{}, []byte{1}, ttl)
	if err != nil {
		nonces.remove(signed.nonce)
		return &UnavailableError{fmt.Errorf("nonce: %w", err)}
	}
	if !fresh {
		return errNonceUsed
	}
	return nil
}

// signature returns the signature of a request if its timestamp is within the window, or
// nil if the request has none.
func (h *HMAC) signature(r *http.Request) (*hmacSignature, error) {
	credentials, ok, err := credentialsOf(r, hmacScheme)
	if err != nil || !ok {
		return nil, err
	}
	signed, err := parseSignature(credentials)
	if err != nil {
		return nil, err
	}
	window := time.Duration(h.Window)
	if off := time.Since(signed.time); off > window || off < -window {
		return nil, fmt.Errorf("the timestamp differs from the current time by more than %s", window)
	}
	return &signed, nil
}

// An hmacSignature contains the parameters of the Authorization header.
type hmacSignature struct {
	client, timestamp, nonce string
	signature                []byte
	time                     time.Time
}

// parseSignature parses the parameters of the header. Each must occur once, and no
// others.
func parseSignature(credentials string) (hmacSignature, error) {
	var s hmacSignature
	var signature string
	fields := map[string]*string{
		"client": &s.client, "timestamp": &s.timestamp, "nonce": &s.nonce, "signature": &signature,
	}
	parameters := strings.SplitN(credentials, ",", len(fields)+1)
	for _, parameter := range parameters {
		name, value, _ := strings.Cut(strings.Trim(parameter, " \t"), "=")
		field := fields[name]
		if field == nil {
			return s, errors.New("the parameters must be client, timestamp, nonce and signature, each once")
		}
		delete(fields, name)
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		*field = value
	}
	if len(fields) > 0 {
		return s, errors.New("one of client, timestamp, nonce and signature is missing")
	}
	seconds, err := strconv.ParseUint(s.timestamp, 10, 40)
	if err != nil {
		return s, errors.New("the timestamp is not a number of seconds")
	}
	s.time = time.Unix(int64(seconds), 0)
	if len(s.nonce) < 8 || len(s.nonce) > 64 || strings.Trim(s.nonce, wordCharacters) != "" {
		return s, errors.New("the nonce is not 8 to 64 letters, digits, - and _")
	}
	s.signature, err = hex.DecodeString(signature)
	if err != nil || len(s.signature) != sha256.Size {
		return s, errors.New("the signature is not a SHA-256 in hex")
	}
	return s, nil
}

// text returns the text that the client must have signed. No line can contain a newline,
// so the text is unambiguous.
func (s *hmacSignature) text(r *Request) []byte {
	sent := originalRequest(r.Request)
	uri := sent.RequestURI
	if !strings.HasPrefix(uri, "/") { // absolute form, with the host
		uri = sent.URL.RequestURI()
	}
	sum := sha256.Sum256(r.Body)
	lines := []string{hmacScheme, s.timestamp, s.nonce, sent.Method, uri, hex.EncodeToString(sum[:])}
	return []byte(strings.Join(lines, "\n"))
}

// BodyNeeded implements Provider: the signature covers the whole body. Without a plausible
// signature, nothing is read.
func (h *HMAC) BodyNeeded(r *http.Request) int64 {
	if signed, err := h.signature(r); err != nil || signed == nil {
		return 0
	}
	return math.MaxInt64
}

// FingerprintOf implements SecretHolder.
func (h *HMAC) FingerprintOf(client string) string { return h.fingerprints[client] }

// CredentialHeaders implements Provider.
func (*HMAC) CredentialHeaders() []string { return []string{"Authorization"} }

// Challenge implements Challenger.
func (*HMAC) Challenge(*http.Request, error) string { return hmacScheme + ` realm="mcp"` }

// Cleanup releases the nonces. A new configuration with the same clients already holds
// them.
func (h *HMAC) Cleanup() error {
	var errs []error
	for _, known := range h.known {
		_, err := nonceSets.Delete(known.nonces.key)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, h.store.Release())...)
}

// A nonceSet contains the nonces that a client has used. A request can be signed one window
// ahead of the current time and is valid for one window after that, so nonces are kept for
// two windows after their arrival, by the monotonic clock.
type nonceSet struct {
	key nonceSetKey

	mu       sync.Mutex
	arrivals *simplelru.LRU[string, time.Time]
	window   time.Duration // the longest so far
	floor    time.Time     // nonces signed before may have been dropped
	counts   *quota.Meter
}

// keptNonces has no limit of its own: max_nonces limits each client.
var keptNonces = quota.NewKind("nonces")

type nonceSetKey struct {
	client string
	secret digest
}

// nonceSets survive reloads. Otherwise a reload would allow replays.
var nonceSets = caddy.NewUsagePool()

func openNonceSet(client, secret string) *nonceSet {
	key := nonceSetKey{client, sha256.Sum256([]byte(secret))}
	value, _, _ := nonceSets.LoadOrNew(key, func() (caddy.Destructor, error) { return newNonceSet(key), nil })
	return value.(*nonceSet)
}

func newNonceSet(key nonceSetKey) *nonceSet {
	// The LRU has no limit, because it must not evict the oldest nonce to make room. add
	// checks the limit.
	arrivals, _ := simplelru.NewLRU[string, time.Time](math.MaxInt, nil) // the size is positive
	return &nonceSet{key: key, arrivals: arrivals, counts: quota.NewMeter(keptNonces, quota.Limits{})}
}

// add remembers a nonce. It returns an error if the nonce was used before, or if it cannot
// be remembered.
func (s *nonceSet) add(nonce string, signed time.Time, window time.Duration, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.widen(now, window)
	s.removeExpired(now)
	switch {
	case s.arrivals.Contains(nonce):
		return errNonceUsed
	case signed.Before(s.floor):
		return errors.New("the timestamp is from before the window was widened")
	case s.arrivals.Len() >= limit:
		return fmt.Errorf("the client has used %d nonces within two windows, the limit of max_nonces", limit)
	}
	s.arrivals.Add(strings.Clone(nonce), now) // the original would retain all headers
	s.counts.Take("", int64(len(nonce)))
	return nil
}

var errNonceUsed = errors.New("the nonce has been used before")

// remove removes a nonce that was not used.
func (s *nonceSet) remove(nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arrivals.Remove(nonce) {
		s.counts.Give("", int64(len(nonce)))
	}
}

// widen extends how long nonces are kept, if a reload widened the window. Timestamps that
// were too old before stay too old, because their nonces may have been dropped.
func (s *nonceSet) widen(now time.Time, window time.Duration) {
	if window <= s.window {
		return
	}
	if floor := now.Add(-s.window); s.window > 0 && floor.After(s.floor) {
		s.floor = floor
	}
	s.window = window
}

// removeExpired removes nonces that arrived more than two windows ago.
func (s *nonceSet) removeExpired(now time.Time) {
	for {
		nonce, arrived, ok := s.arrivals.GetOldest()
		if !ok || now.Sub(arrived) <= 2*s.window {
			return
		}
		s.arrivals.RemoveOldest()
		s.counts.Give("", int64(len(nonce)))
	}
}

// Destruct implements caddy.Destructor.
func (s *nonceSet) Destruct() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrivals.Purge()
	s.counts.Close()
	return nil
}

// UnmarshalCaddyfile sets up the provider from Caddyfile tokens. Syntax:
//
//	auth hmac {
//		client     <name> <secret>
//		window     <duration>
//		max_nonces <number>
//	}
//
// Errors do not repeat arguments that may be secrets.
func (h *HMAC) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume provider name
	if d.NextArg() {
		return d.Errf("auth hmac takes a block and no arguments")
	}
	err := setting.Block(d, setting.Lines{
		"client":     h.parseClient,
		"window":     setting.Duration(&h.Window),
		"max_nonces": setting.Positive(&h.MaxNonces),
	}, "client")
	if err != nil {
		return err
	}
	if len(h.Clients) == 0 {
		return d.Errf("auth hmac: needs at least one client")
	}
	return nil
}

func (h *HMAC) parseClient(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 2 {
		return d.Errf("client: expected \"client <name> <secret>\"")
	}
	if !isPlaceholder(args[1]) {
		return d.Errf("client: %w", errLiteralSecret)
	}
	client := ClientSecret{Client: args[0], Secret: args[1]}
	h.Clients = append(h.Clients, client)
	if err := client.checkName(); err != nil {
		return d.WrapErr(err)
	}
	return nil
}

// Interface guards
var (
	_ Provider              = (*HMAC)(nil)
	_ SecretHolder          = (*HMAC)(nil)
	_ Challenger            = (*HMAC)(nil)
	_ caddy.Provisioner     = (*HMAC)(nil)
	_ caddy.Validator       = (*HMAC)(nil)
	_ caddy.CleanerUpper    = (*HMAC)(nil)
	_ caddyfile.Unmarshaler = (*HMAC)(nil)
)
