// Package store keeps, for a while and in bounded memory, what was left out of an
// agent's context, so that the agent can ask for it.
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

// Limits bound what a [Store] keeps; all are positive. When a limit is met, the owner
// who holds the most loses its oldest.
type Limits struct {
	Entries int
	Bytes   int64
	TTL     time.Duration
}

// A Store keeps originals under handles, each bound to the client it was handed
// out to. It is safe for concurrent use.
type Store struct {
	// Handles makes those of originals.
	Handles Handles

	mu      sync.Mutex
	entries *quota.Cache[key, *kept]
	closed  bool
	common  *common // nil if there are no other replicas
}

type key struct{ owner, handle string }

type kept struct {
	original []byte
	asked    bool // a client has got it

	// When other replicas were given it, by uptime; 0 if they have to be.
	given atomic.Int64
}

// New returns an empty Store, which counts as part of a kind until it is closed. What is in it is shared with other
// replicas by a space, if that is not nil.
func New(kind *quota.Kind, limits Limits, space *replicas.Space) *Store {
	bounds := quota.Limits{Entries: limits.Entries, Bytes: limits.Bytes}
	s := &Store{entries: quota.NewCache[key, *kept](kind, bounds, limits.TTL, nil)}
	if space != nil {
		s.Handles = space.Key("handles")
		s.share(space, limits.TTL)
	}
	return s
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
	return s.put(k, e)
}

// put keeps an original, here and for other replicas. The caller holds the lock.
func (s *Store) put(k key, e *kept) bool {
	if !s.entries.Put(k.owner, k, e, int64(len(e.original))) {
		return false
	}
	if s.common != nil {
		s.give(k, e)
	}
	return true
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
	if s.common != nil {
		s.common.close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.entries.Close()
}

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

// Handles makes handles that cannot be guessed. It is the key by which it does, nil for one that lives as long as the
// process, as stores do.
type Handles []byte

var ofProcess = seal.NewKey()

// New returns prefix and 10 letters and digits which are the same whenever the parts are: a handle that changed at
// every call would break the prompt caches it ends up in.
func (h Handles) New(prefix string, parts ...[]byte) string {
	if h == nil {
		h = ofProcess
	}
	return handle(hmac.New(sha256.New, h), prefix, parts)
}

// ContentHandle returns a handle that is the same in every process.
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
