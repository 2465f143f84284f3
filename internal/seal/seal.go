// Package seal makes tokens that clients hold for the gateway: sealed texts, which they cannot
// read, and bound ids, which are valid in only one scope. Without the key, neither can be forged.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// A Sealer seals texts and binds ids with a key.
type Sealer struct {
	aead cipher.AEAD
	key  []byte
}

// New returns a Sealer for a key of any length. A Sealer with another label cannot open its texts.
func New(label string, key []byte) Sealer {
	derived := sha256.Sum256(append([]byte(label+"\x00"), key...))
	block, err := aes.NewCipher(derived[:])
	if err != nil {
		panic(err) // the length is right
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return Sealer{aead, key}
}

// NewKey returns a random key.
func NewKey() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // never fails
	return key
}

// Seal seals a text for a purpose.
func (s Sealer) Seal(purpose string, plain []byte) string {
	return base64.RawURLEncoding.EncodeToString(s.SealBytes(purpose, plain))
}

// SealBytes is like Seal, but returns bytes.
func (s Sealer) SealBytes(purpose string, plain []byte) []byte {
	return s.aead.Seal(nil, nil, plain, []byte(purpose))
}

// OpenBytes opens bytes that SealBytes sealed for the same purpose.
func (s Sealer) OpenBytes(purpose string, sealed []byte) ([]byte, bool) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	return plain, err == nil
}

// Open opens a text that Seal sealed for the same purpose.
func (s Sealer) Open(purpose, sealed string) ([]byte, bool) {
	// Ended sessions are recorded by their sealed text, so only one spelling of it may be valid.
	// The decoder alone would also accept line breaks and other trailing bits.
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || base64.RawURLEncoding.EncodeToString(raw) != sealed {
		return nil, false
	}
	return s.OpenBytes(purpose, raw)
}

// Bind returns an id that is valid only in a scope, such as a server and a client.
func (s Sealer) Bind(id string, scope ...string) string {
	mac := hmac.New(sha256.New, s.key)
	for _, part := range scope {
		_, _ = mac.Write([]byte(part + "\x00"))
	}
	_, _ = mac.Write([]byte(id))
	return id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// Claim returns the id in a bound id. It is not ok if Bind did not make it for this scope.
func (s Sealer) Claim(bound string, scope ...string) (id string, ok bool) {
	id = bound[:max(strings.LastIndexByte(bound, '.'), 0)]
	return id, hmac.Equal([]byte(bound), []byte(s.Bind(id, scope...)))
}
