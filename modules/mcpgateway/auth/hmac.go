package auth

import (
	"crypto/hmac"
	"crypto/rand"
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
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/internal/subdirective"
)

func init() {
	caddy.RegisterModule(HMAC{})
}

// HMAC knows clients by requests that they sign with a secret they share with the
// gateway. The secret is never sent, and who sees a request can neither change its body
// nor send it again. Other headers are not signed, so use it over TLS all the same. Each
// request has
//
//	Authorization: MCP-HMAC-SHA256 client=<name>, timestamp=<seconds>, nonce=<text>, signature=<hex>
//
// on one line. The parameters can be in any order and in double quotes. The timestamp is
// that of Unix. The nonce is 8 to 64 letters, digits, - and _ that the client does not
// use again. The signature is the HMAC-SHA256, with the secret as its key, of these six
// lines, with a newline between them and none at the end:
//
//	MCP-HMAC-SHA256
//	<timestamp>
//	<nonce>
//	<method of the request, such as POST>
//	<path and query of the request as they are sent, such as /mcp>
//	<SHA-256 of the body, in lower case hex>
//
// GET and DELETE have an empty body, the SHA-256 of which is e3b0c442…b855. A program
// for the shell:
//
//	body='{"jsonrpc":"2.0","id":1,"method":"ping"}'
//	timestamp=$(date +%s)
//	nonce=$(openssl rand -hex 16)
//	digest=$(printf %s "$body" | openssl dgst -sha256 -r | cut -d ' ' -f 1)
//	signature=$(printf 'MCP-HMAC-SHA256\n%s\n%s\nPOST\n/mcp\n%s' "$timestamp" "$nonce" "$digest" |
//		openssl dgst -sha256 -hmac "$ALICE_SECRET" -r | cut -d ' ' -f 1)
//	curl --silent --show-error http://localhost:8080/mcp \
//		-H "Authorization: MCP-HMAC-SHA256 client=alice, timestamp=$timestamp, nonce=$nonce, signature=$signature" \
//		-H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
//		--data-binary "$body"
//
// Nonces are remembered as long as their timestamps are good, across reloads of the
// configuration but not across restarts of Caddy. Nor do several Caddys tell each other,
// so give them different secrets.
//
// To change a secret, add a client with another name and the new secret, and have the
// gateway match both names.
type HMAC struct {
	// The clients, one at least. Required.
	Clients []ClientSecret `json:"clients,omitempty"`

	// How far a timestamp can be from our time, before or after it. From 1s to 24h.
	// Default: 5m
	Window caddy.Duration `json:"window,omitempty"`

	// How many nonces are remembered for each client, in about 200 bytes each. A client
	// that signs more requests than that within two windows is refused until the oldest
	// are forgotten. Default: 100000
	MaxNonces int `json:"max_nonces,omitempty"`

	known    map[string]hmacClient
	prints   map[string]string // of the secrets of each client, and of all
	stranger hmacClient
}

// ClientSecret is a client and the secret it signs with.
type ClientSecret struct {
	// The client: up to 256 letters, digits and any of -._~@:/+ Required.
	Client string `json:"client,omitempty"`

	// The secret: {env.NAME} or {file./path}. It has at least 16 bytes. Required.
	Secret string `json:"secret,omitempty"`
}

// An hmacClient is a client as requests are judged.
type hmacClient struct {
	secret []byte
	nonces *nonceSet
}

const (
	hmacScheme       = "MCP-HMAC-SHA256"
	hmacWindow       = 5 * time.Minute
	hmacMaxNonces    = 100_000
	minHMACSecret    = 16
	hmacWord         = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	hmacClientLetter = hmacWord + ".~@:/+"
)

// CaddyModule returns the Caddy module information.
func (HMAC) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.mcp_gateway.auth.hmac",
		New: func() caddy.Module { return new(HMAC) },
	}
}

// Provision reads the secrets.
func (h *HMAC) Provision(caddy.Context) error {
	if h.Window == 0 {
		h.Window = caddy.Duration(hmacWindow)
	}
	if h.MaxNonces == 0 {
		h.MaxNonces = hmacMaxNonces
	}
	h.stranger = hmacClient{secret: make([]byte, sha256.Size)}
	_, _ = rand.Read(h.stranger.secret) // never fails
	h.known = make(map[string]hmacClient, len(h.Clients))
	for i, client := range h.Clients {
		secret, err := readSecret(client.Secret)
		if err != nil {
			return fmt.Errorf("clients[%d].secret: %w", i, err)
		}
		if len(secret) < minHMACSecret {
			return fmt.Errorf("clients[%d].secret: %s has less than %d bytes", i, client.Secret, minHMACSecret)
		}
		if _, ok := h.known[client.Client]; ok {
			return fmt.Errorf("clients[%d].client: it is given twice", i)
		}
		nonces, err := openNonceSet(client.Client, secret)
		if err != nil {
			return err
		}
		h.known[client.Client] = hmacClient{[]byte(secret), nonces}
	}
	h.prints = fingerprints(func(add func(client string, secret []byte)) {
		for _, client := range h.Clients {
			add(client.Client, h.known[client.Client].secret)
		}
	})
	return nil
}

// Validate ensures that clients can be told apart.
func (h *HMAC) Validate() error {
	if len(h.Clients) == 0 {
		return errors.New("clients: there are none, so nobody could get in")
	}
	if window := time.Duration(h.Window); window < time.Second || window > 24*time.Hour {
		return fmt.Errorf("window: %s is not from 1s to 24h", window)
	}
	if h.MaxNonces < 0 {
		return fmt.Errorf("max_nonces: %d is negative", h.MaxNonces)
	}
	secrets := make(map[string]bool, len(h.Clients))
	for i, client := range h.Clients {
		if err := checkHMACClient(client.Client); err != nil {
			return fmt.Errorf("clients[%d].client: %w", i, err)
		}
		known := h.known[client.Client]
		// What one of them has signed could be sent again as the other.
		if secrets[string(known.secret)] {
			return fmt.Errorf("clients[%d].secret: another client has the same", i)
		}
		secrets[string(known.secret)] = true
	}
	return nil
}

func checkHMACClient(name string) error {
	if strings.Trim(name, hmacClientLetter) != "" {
		return errors.New("it has other characters than letters, digits and -._~@:/+")
	}
	return checkClientName(name)
}

// Authenticate implements Provider.
func (h *HMAC) Authenticate(r *Request) (string, error) {
	signed, err := h.signature(r.Request)
	if err != nil || signed == nil {
		return "", err
	}
	// A stranger costs as much as a client, so that nobody learns who is one.
	client, known := h.known[signed.client]
	if !known {
		client = h.stranger
	}
	mac := hmac.New(sha256.New, client.secret)
	mac.Write(signed.text(r))
	if good := hmac.Equal(mac.Sum(nil), signed.signature); !good || !known {
		return "", errors.New("the signature is wrong, or the client is not known")
	}
	if err := client.nonces.add(signed.nonce, signed.time, time.Duration(h.Window), h.MaxNonces); err != nil {
		return "", err
	}
	return signed.client, nil
}

// signature reads the signature of a request, which is of our time. It returns nil if
// there is none.
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
		return nil, fmt.Errorf("the timestamp is more than %s from our time", window)
	}
	return &signed, nil
}

// A hmacSignature is what a request says of its signature.
type hmacSignature struct {
	client, timestamp, nonce string
	signature                []byte
	time                     time.Time
}

// parseSignature reads the parameters of the header. Each must be there, once, and
// nothing else.
func parseSignature(credentials string) (hmacSignature, error) {
	var s hmacSignature
	var signature string
	fields := map[string]*string{"client": &s.client, "timestamp": &s.timestamp, "nonce": &s.nonce, "signature": &signature}
	parameters := strings.SplitN(credentials, ",", len(fields)+1)
	for _, parameter := range parameters {
		name, value, _ := strings.Cut(strings.Trim(parameter, " \t"), "=")
		field := fields[name]
		if field == nil {
			return s, errors.New("the parameters are not client, timestamp, nonce and signature, each once")
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
	if len(s.nonce) < 8 || len(s.nonce) > 64 || strings.Trim(s.nonce, hmacWord) != "" {
		return s, errors.New("the nonce is not 8 to 64 letters, digits, - and _")
	}
	s.signature, err = hex.DecodeString(signature)
	if err != nil || len(s.signature) != sha256.Size {
		return s, errors.New("the signature is not a SHA-256 in hex")
	}
	return s, nil
}

// text returns what the client must have signed. None of its lines can have a newline
// in it, so it says only one thing.
func (s *hmacSignature) text(r *Request) []byte {
	method, uri := asSent(r.Request)
	sum := sha256.Sum256(r.Body)
	return []byte(strings.Join([]string{hmacScheme, s.timestamp, s.nonce, method, uri, hex.EncodeToString(sum[:])}, "\n"))
}

// asSent returns the method and the path and query of a request before other handlers
// have rewritten them.
func asSent(r *http.Request) (method, uri string) {
	sent := r
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok {
		sent = &original
	}
	if strings.HasPrefix(sent.RequestURI, "/") {
		return sent.Method, sent.RequestURI
	}
	return sent.Method, sent.URL.RequestURI() // a proxy's form, with the host
}

// BodyNeeded implements Provider: the signature covers the whole body. Without one that
// could be good, nothing is read.
func (h *HMAC) BodyNeeded(r *http.Request) int64 {
	if signed, err := h.signature(r); err != nil || signed == nil {
		return 0
	}
	return math.MaxInt64
}

// FingerprintOf implements SecretHolder.
func (h *HMAC) FingerprintOf(client string) string { return h.prints[client] }

// CredentialHeaders implements Provider.
func (*HMAC) CredentialHeaders() []string { return []string{"Authorization"} }

// Challenge implements Challenger.
func (*HMAC) Challenge(*http.Request, error) string { return hmacScheme + ` realm="mcp"` }

// Cleanup gives the nonces back. If the next configuration has the same clients, it has
// them already.
func (h *HMAC) Cleanup() error {
	var errs []error
	for _, known := range h.known {
		_, err := nonceSets.Delete(known.nonces.key)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// A nonceSet has the nonces that a client has used. A request can be signed for a window
// ahead of our time and is good for another one after that, so nonces are remembered
// for two windows from when they came. That is measured by the clock that is not set,
// and in that order they are forgotten.
type nonceSet struct {
	key nonceSetKey

	mu     sync.Mutex
	came   *simplelru.LRU[string, time.Time]
	window time.Duration // the widest there was
	floor  time.Time     // what was signed before may have been forgotten
	counts *quota.Meter
}

// keptNonces has no limit: each client has its own, max_nonces.
var keptNonces = quota.NewKind("nonces")

type nonceSetKey struct {
	client string
	secret digest
}

// nonceSets outlive configurations. Otherwise a reload would let old requests in again.
var nonceSets = caddy.NewUsagePool()

func openNonceSet(client, secret string) (*nonceSet, error) {
	key := nonceSetKey{client, sha256.Sum256([]byte(secret))}
	value, _, err := nonceSets.LoadOrNew(key, func() (caddy.Destructor, error) {
		// It is add that bounds it, for it must not forget the oldest to take in more.
		came, err := simplelru.NewLRU[string, time.Time](math.MaxInt, nil)
		return &nonceSet{key: key, came: came, counts: quota.NewMeter(keptNonces, quota.Limits{})}, err
	})
	if err != nil {
		return nil, err
	}
	return value.(*nonceSet), nil
}

// add remembers a nonce. It returns an error if it is there already, or cannot be
// remembered.
func (s *nonceSet) add(nonce string, signed time.Time, window time.Duration, limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.widen(now, window)
	s.forget(now)
	switch {
	case s.came.Contains(nonce):
		return errors.New("the nonce has been used before")
	case signed.Before(s.floor):
		return errors.New("the timestamp is from before the window was widened")
	case s.came.Len() >= limit:
		return fmt.Errorf("the client has used %d nonces within two windows: max_nonces", limit)
	}
	s.came.Add(strings.Clone(nonce), now) // the other would keep all headers
	s.counts.Take("", int64(len(nonce)))
	return nil
}

// widen has nonces remembered for a window. If a reload has made it wider, timestamps
// that were too old already stay too old: their nonces may be gone.
func (s *nonceSet) widen(now time.Time, window time.Duration) {
	if window <= s.window {
		return
	}
	if floor := now.Add(-s.window); s.window > 0 && floor.After(s.floor) {
		s.floor = floor
	}
	s.window = window
}

func (s *nonceSet) forget(now time.Time) {
	for {
		nonce, came, ok := s.came.GetOldest()
		if !ok || now.Sub(came) <= 2*s.window {
			return
		}
		s.came.RemoveOldest()
		s.counts.Give("", int64(len(nonce)))
	}
}

// Destruct implements caddy.Destructor.
func (s *nonceSet) Destruct() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.came.Purge()
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
// Its errors repeat nothing that may be a secret.
func (h *HMAC) UnmarshalCaddyfile(d *caddyfile.Dispenser) (err error) {
	d.Next() // consume provider name
	if d.NextArg() {
		return d.Errf("auth hmac: it takes a block and no arguments")
	}
	seen := map[string]bool{}
	for d.NextBlock(0) {
		name := d.Val()
		if name != "client" {
			if err := subdirective.Once(d, seen); err != nil {
				return err
			}
		}
		switch name {
		case "client":
			err = h.parseClient(d)
		case "window":
			h.Window, err = subdirective.Duration(d)
		case "max_nonces":
			h.MaxNonces, err = subdirective.Number(d)
			if err == nil && h.MaxNonces <= 0 {
				err = d.Errf("max_nonces: %d is not positive", h.MaxNonces)
			}
		default:
			err = d.Errf("unknown subdirective %s", name)
		}
		if err != nil {
			return err
		}
	}
	if len(h.Clients) == 0 {
		return d.Errf("auth hmac: there is no client")
	}
	return nil
}

func (h *HMAC) parseClient(d *caddyfile.Dispenser) error {
	args := d.RemainingArgs()
	if len(args) != 2 {
		return d.Errf("client: it takes the name of a client and its secret")
	}
	if err := checkHMACClient(args[0]); err != nil {
		return d.Errf("client: the name: %w", err)
	}
	if !namesSecret(args[1]) {
		return d.Errf("client: %w", errWrittenOut)
	}
	h.Clients = append(h.Clients, ClientSecret{Client: args[0], Secret: args[1]})
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
