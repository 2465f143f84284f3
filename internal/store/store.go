// Package store keeps originals of shortened texts for a while and in bounded memory, so that an
// agent can recover them.
package store

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/seal"
)

// Limits bound the content of a [Store]; all are positive. At a limit, the owner that holds the
// most loses its oldest entries.
type Limits struct {
	Entries int
	Bytes   int64
	TTL     time.Duration
}

// A Store keeps originals under handles, each bound to its owner. It is safe for concurrent use.
type Store struct {
	// Handles makes the handles of originals.
	Handles Handles

	mu      sync.Mutex
	entries *quota.Cache[key, *entry]
	closed  bool
	sharing *sharing // nil without other replicas
}

type key struct{ owner, handle string }

type entry struct {
	original  []byte
	recovered bool // a client has read it

	// Time of the last write for other replicas, by uptime; 0 if one is due.
	replicatedAt atomic.Int64
}

// New returns an empty Store, which counts toward a quota kind until it is closed. It shares its
// content with other replicas through space, unless that is nil.
func New(kind *quota.Kind, limits Limits, space *replicas.Space) *Store {
	bounds := quota.Limits{Entries: limits.Entries, Bytes: limits.Bytes}
	s := &Store{entries: quota.NewCache[key, *entry](kind, bounds, limits.TTL, nil)}
	if space != nil {
		s.Handles = space.Key("handles")
		s.startSharing(space, limits.TTL)
	}
	return s
}

// Put keeps a copy of original for owner under a handle, or renews its TTL. It reports false if
// the original is larger than the whole store, or if the handle has another original: a handle
// never leads to a text other than the one it was made for.
func (s *Store) Put(owner, handle string, original []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{owner, handle}
	e, ok := s.entries.Get(k)
	if !ok {
		e = &entry{original: bytes.Clone(original)}
	} else if !bytes.Equal(e.original, original) {
		return false
	}
	return s.put(k, e)
}

// put keeps an original on this replica, and shares it with others. The caller holds the lock.
func (s *Store) put(k key, e *entry) bool {
	if !s.entries.Put(k.owner, k, e, int64(len(e.original))) {
		return false
	}
	if s.sharing != nil {
		s.replicate(k, e)
	}
	return true
}

// Get returns the original of owner under a handle. The caller must not change it.
func (s *Store) Get(owner, handle string) (original []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries.Get(key{owner, handle})
	if !ok {
		return nil, false
	}
	return e.original, true
}

// GetFirst is Get, and also reports whether it is called for the handle for the first time.
func (s *Store) GetFirst(owner, handle string) (original []byte, first, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries.Get(key{owner, handle})
	if !ok {
		return nil, false, false
	}
	first, e.recovered = !e.recovered, true
	return e.original, first, true
}

// Close releases the store.
func (s *Store) Close() {
	if s.sharing != nil {
		s.sharing.close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.entries.Close()
}

const (
	// HandleLen is the number of characters of a handle after its prefix. Every marker contains
	// one, and it costs tokens. 59 bits are enough: only handles of one owner can collide, and
	// only their owner can use them.
	HandleLen = 10

	handleDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// CutHandle returns the text after a handle with this prefix, if text begins with one.
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

// Handles makes handles that cannot be guessed. It is a key; nil is a random key that lives as
// long as the process.
type Handles []byte

var processKey = seal.NewKey()

// New returns prefix and 10 letters and digits. They are the same for the same parts, because a
// handle that changes with every call would invalidate prompt caches.
func (h Handles) New(prefix string, parts ...[]byte) string {
	if h == nil {
		h = processKey
	}
	return handle(hmac.New(sha256.New, h), prefix, parts)
}

// ContentHandle returns a handle that is the same in every process. Programs that know the parts
// can compute it.
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
