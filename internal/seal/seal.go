// Package seal makes what others hold for us: sealed texts, which they cannot read, and bound
// ids, which are good in one scope only. Neither can be made or changed without the key.
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

// New returns a Sealer for a key of any length. Sealers with other labels cannot open what it
// has sealed.
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

// SealBytes seals bytes for a purpose, where a text is not needed.
func (s Sealer) SealBytes(purpose string, plain []byte) []byte {
	return s.aead.Seal(nil, nil, plain, []byte(purpose))
}

// OpenBytes opens what SealBytes has sealed for the same purpose.
func (s Sealer) OpenBytes(purpose string, sealed []byte) ([]byte, bool) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	return plain, err == nil
}

// Open opens what Seal has sealed for the same purpose.
func (s Sealer) Open(purpose, sealed string) ([]byte, bool) {
	// Sessions are remembered by their sealed text, also that they have ended. So only one
	// spelling is good, where decoding would accept line breaks and spare bits.
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || base64.RawURLEncoding.EncodeToString(raw) != sealed {
		return nil, false
	}
	return s.OpenBytes(purpose, raw)
}

// Bind returns an id that is good in a scope only, such as that of a server and a client.
func (s Sealer) Bind(id string, scope ...string) string {
	mac := hmac.New(sha256.New, s.key)
	for _, part := range scope {
		_, _ = mac.Write([]byte(part + "\x00"))
	}
	_, _ = mac.Write([]byte(id))
	return id + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// Claim returns the id that Bind was given for a scope, and whether it was.
func (s Sealer) Claim(bound string, scope ...string) (id string, ok bool) {
	id = bound[:max(strings.LastIndexByte(bound, '.'), 0)]
	return id, hmac.Equal([]byte(bound), []byte(s.Bind(id, scope...)))
}
