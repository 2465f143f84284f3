// Package store keeps, for a while and in bounded memory, what was left out of an
// agent's context, so that the agent can ask for it.
package store

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Limits bound what a [Store] keeps; all are positive. When a limit is met, the
// oldest go first.
type Limits struct {
	Entries int
	Bytes   int64
	TTL     time.Duration
}

// A Store keeps originals under handles, each bound to the client it was handed
// out to. It is safe for concurrent use and starts no goroutines.
type Store struct {
	limits Limits

	mu      sync.Mutex
	entries *simplelru.LRU[key, entry] // the one that expires first is the oldest
	bytes   int64
}

type key struct{ owner, handle string }

type entry struct {
	original []byte
	expires  time.Time // on the monotonic clock
}

// New returns an empty Store.
func New(limits Limits) *Store {
	s := &Store{limits: limits}
	s.entries, _ = simplelru.NewLRU(limits.Entries, func(_ key, e entry) {
		s.bytes -= int64(len(e.original))
	})
	return s
}

// Put keeps a copy of original for owner under a handle, and renews its life if
// it is there already. It reports whether it could: what is larger than the whole
// store is not kept.
func (s *Store) Put(owner, handle string, original []byte) bool {
	size := int64(len(original))
	if size > s.limits.Bytes {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{owner, handle}
	e, ok := s.entries.Peek(k)
	if !ok {
		e.original = append([]byte(nil), original...)
		s.bytes += size
	}
	e.expires = time.Now().Add(s.limits.TTL)
	s.entries.Add(k, e)
	for s.bytes > s.limits.Bytes || s.expired() {
		s.entries.RemoveOldest()
	}
	return true
}

// Get returns what was kept for owner under a handle, which the caller must not
// change.
func (s *Store) Get(owner, handle string) (original []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.expired() {
		s.entries.RemoveOldest()
	}
	e, ok := s.entries.Peek(key{owner, handle})
	return e.original, ok
}

// expired reports whether the oldest entry has outlived its time.
func (s *Store) expired() bool {
	_, e, ok := s.entries.GetOldest()
	return ok && !time.Now().Before(e.expires)
}

// handleKey makes handles unguessable. It lives as long as the process, as what
// they lead to does.
var handleKey = func() (key [sha256.Size]byte) {
	_, _ = rand.Read(key[:]) // never fails
	return key
}()

// handleLen is enough for 128 bits in base 62.
const handleLen = 22

// Handle returns prefix and 22 letters and digits which nobody can guess, and
// which are the same whenever the parts are: a handle that changed at every call
// would break the prompt caches it ends up in.
func Handle(prefix string, parts ...[]byte) string {
	mac := hmac.New(sha256.New, handleKey[:])
	var size [8]byte
	for _, part := range parts {
		binary.LittleEndian.PutUint64(size[:], uint64(len(part)))
		mac.Write(size[:])
		mac.Write(part)
	}
	text := new(big.Int).SetBytes(mac.Sum(nil)[:16]).Text(62)
	return prefix + strings.Repeat("0", handleLen-len(text)) + text
}
