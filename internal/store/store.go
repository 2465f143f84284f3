// Package store keeps, for a while and in bounded memory, what was left out of an
// agent's context, so that the agent can ask for it.
package store

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strings"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// Limits bound what a [Store] keeps; all are positive. When a limit is met, the owner
// who holds the most loses its oldest.
type Limits struct {
	Entries int
	Bytes   int64
	TTL     time.Duration
}

// A Store keeps originals under handles, each bound to the client it was handed
// out to. It is safe for concurrent use and starts no goroutines.
type Store struct {
	mu      sync.Mutex
	entries *quota.Cache[key, *kept]
}

type key struct{ owner, handle string }

type kept struct {
	original []byte
	asked    bool // a client has got it
}

// New returns an empty Store, which counts as part of a kind until it is closed.
func New(kind *quota.Kind, limits Limits) *Store {
	bounds := quota.Limits{Entries: limits.Entries, Bytes: limits.Bytes}
	return &Store{entries: quota.NewCache[key, *kept](kind, bounds, limits.TTL, nil)}
}

// Put keeps a copy of original for owner under a handle, and renews its life if
// it is there already. It reports whether it could: what is larger than the whole
// store is not kept, and neither is another original under a handle that is in use,
// so that a handle never leads to anything but what it was handed out for.
func (s *Store) Put(owner, handle string, original []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{owner, handle}
	e, ok := s.entries.Get(k)
	if !ok {
		e = &kept{original: bytes.Clone(original)}
	} else if !bytes.Equal(e.original, original) {
		return false
	}
	return s.entries.Put(owner, k, e, int64(len(original)))
}

// Get returns what was kept for owner under a handle, which the caller must not
// change.
func (s *Store) Get(owner, handle string) (original []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries.Get(key{owner, handle})
	if !ok {
		return nil, false
	}
	return e.original, true
}

// GetFirst is Get, and reports whether this is the first time that it is called for the handle.
func (s *Store) GetFirst(owner, handle string) (original []byte, first, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries.Get(key{owner, handle})
	if !ok {
		return nil, false, false
	}
	first, e.asked = !e.asked, true
	return e.original, first, true
}

// Close says that the store is no longer used.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.Close()
}

// handleKey makes handles unguessable. It lives as long as the process, as stores do.
var handleKey = func() (key [sha256.Size]byte) {
	_, _ = rand.Read(key[:]) // never fails
	return key
}()

const (
	// HandleLen is how many characters a handle has after its prefix. It stands in every
	// marker and costs tokens there. 59 bits are enough: only what one owner has at a time
	// could collide, and only its owner can ask for it.
	HandleLen = 10

	handleDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// CutHandle returns what comes after a handle with this prefix, if text begins with
// one.
func CutHandle(text []byte, prefix string) (after []byte, ok bool) {
	n := len(prefix) + HandleLen
	if len(text) < n || string(text[:len(prefix)]) != prefix {
		return nil, false
	}
	for _, c := range text[len(prefix):n] {
		if strings.IndexByte(handleDigits, c) < 0 {
			return nil, false
		}
	}
	return text[n:], true
}

// Handle returns prefix and 10 letters and digits which cannot be guessed, and
// which are the same whenever the parts are: a handle that changed at every call
// would break the prompt caches it ends up in.
func Handle(prefix string, parts ...[]byte) string {
	return handle(hmac.New(sha256.New, handleKey[:]), prefix, parts)
}

// ContentHandle is Handle for handles that must be the same in every process.
// They are no secret to those who know the parts.
func ContentHandle(prefix string, parts ...[]byte) string {
	return handle(sha256.New(), prefix, parts)
}

func handle(h hash.Hash, prefix string, parts [][]byte) string {
	var size [8]byte
	for _, part := range parts {
		binary.LittleEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	n := binary.LittleEndian.Uint64(h.Sum(nil))
	var text [HandleLen]byte
	for i := range text {
		text[i] = handleDigits[n%uint64(len(handleDigits))]
		n /= uint64(len(handleDigits))
	}
	return prefix + string(text[:])
}
