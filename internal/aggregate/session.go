package aggregate

import (
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"sync"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A ticket is what the session id of a client says to whoever can open it: all it
// takes to go on with the session.
type ticket struct {
	Identity string                `json:"i,omitempty"`
	Version  string                `json:"v"`
	Hello    json.RawMessage       `json:"h"` // params of its initialize
	Links    map[string]linkTicket `json:"l,omitempty"`
}

// A linkTicket is what it takes to go on with the session of one server.
type linkTicket struct {
	Server  string    `json:"i,omitempty"` // which one it was, in short
	Era     mcp.Era   `json:"e,omitempty"`
	Version string    `json:"v,omitempty"`
	Session string    `json:"s,omitempty"`
	Can     abilities `json:"c,omitempty"`
}

const (
	// longestSession is how long session ids may be. Clients have limits on the
	// headers they take, Node.js 16 KiB for all of them.
	longestSession = 6 << 10
	// longestHello is how large the params of initialize may be.
	longestHello = 16 << 10
	// largestTicket is how large a ticket may be. Who has no key cannot make one,
	// but a limit is cheap.
	largestTicket = 1 << 20
)

// newSeal returns what seals session ids with a key.
func newSeal(key []byte) cipher.AEAD {
	derived := sha256.Sum256(append([]byte("mcp session id\x00"), key...))
	block, err := aes.NewCipher(derived[:])
	if err != nil {
		panic(err) // keys of this length are right
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return seal
}

// sealed returns the session id that carries t. If it would be too long, what the
// servers call the client is left out: it is known here, and others can ask for it.
// There is none for a client that has too much to say of itself.
func (a *Aggregate) sealed(t ticket) (id string) {
	if id = a.sealBytes("session", packed(t)); len(id) > longestSession {
		t.Links = nil
		id = a.sealBytes("session", packed(t))
	}
	if len(id) > longestSession {
		t.Hello = helloOf(t.Hello).brief(t.Version)
		id = a.sealBytes("session", packed(t))
	}
	if len(id) > longestSession {
		return ""
	}
	return id
}

// sealBytes seals something for a purpose.
func (a *Aggregate) sealBytes(purpose string, plain []byte) string {
	return base64.RawURLEncoding.EncodeToString(a.seal.Seal(nil, nil, plain, []byte(purpose)))
}

// openBytes opens what sealBytes has sealed for the same purpose.
func (a *Aggregate) openBytes(purpose, sealed string) ([]byte, bool) {
	// A session is remembered by its id, and that it has ended, too. So there is one way only
	// to write it, where decoding would forgive line breaks and bits that are left over.
	raw, err := base64.RawURLEncoding.DecodeString(sealed)
	if err != nil || base64.RawURLEncoding.EncodeToString(raw) != sealed {
		return nil, false
	}
	plain, err := a.seal.Open(nil, nil, raw, []byte(purpose))
	return plain, err == nil
}

// opened returns what a session id carries.
func (a *Aggregate) opened(id string) (t ticket, ok bool) {
	plain, ok := a.openBytes("session", id)
	if !ok {
		return ticket{}, false
	}
	text, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(plain)), largestTicket))
	if err != nil || json.Unmarshal(text, &t) != nil {
		return ticket{}, false
	}
	return t, true
}

func packed(t ticket) []byte {
	text, _ := json.Marshal(t) // of strings, numbers and JSON that has been read: it cannot fail
	var b bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text)
	_ = w.Close()
	return b.Bytes()
}

// packers are kept between sessions: each takes most of a megabyte.
var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.DefaultCompression) // which is a level that there is
	return w
}}

// session finds the client that has this session. It has to be released.
func (a *Aggregate) session(id, identity string) (*client, *jsonrpc.Failure) {
	c := a.client(mcp.Legacy, id, func() *client {
		t, ok := a.opened(id)
		if !ok {
			return nil
		}
		return newClient(mcp.Legacy, t.Version, t.Identity, helloOf(t.Hello)).restore(t.Links, a.config.Servers)
	})
	switch {
	case c == nil:
		return nil, jsonrpc.UnknownSession()
	case c.identity != identity || c.ended.Load():
		a.release(c)
		return nil, jsonrpc.UnknownSession()
	}
	return c, nil
}

// NewKey returns a key for as long as a process lives.
func NewKey() []byte {
	key := make([]byte, sha256.Size)
	_, _ = rand.Read(key) // which never fails
	return key
}
