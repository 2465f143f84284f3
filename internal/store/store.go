// Package store keeps, for a while and in bounded memory, what was left out of an
// agent's context, so that the agent can ask for it.
package store

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math/big"
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
	entries *quota.Cache[key, []byte]
}

type key struct{ owner, handle string }

// New returns an empty Store, which counts as part of a kind until it is closed.
func New(kind *quota.Kind, limits Limits) *Store {
	return &Store{entries: quota.NewCache[key, []byte](kind, quota.Limits{Entries: limits.Entries, Bytes: limits.Bytes}, limits.TTL, nil)}
}

// Put keeps a copy of original for owner under a handle, and renews its life if
// it is there already. It reports whether it could: what is larger than the whole
// store is not kept.
func (s *Store) Put(owner, handle string, original []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := key{owner, handle}
	copied, ok := s.entries.Remove(k)
	if !ok {
		copied = bytes.Clone(original)
	}
	return s.entries.Put(owner, k, copied, int64(len(copied)))
}

// Get returns what was kept for owner under a handle, which the caller must not
// change.
func (s *Store) Get(owner, handle string) (original []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries.Get(key{owner, handle})
}

// Close says that the store is no longer used.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries.Close()
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
