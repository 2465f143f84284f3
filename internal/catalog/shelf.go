package catalog

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Shelf stores lists, each distinct one once: ten thousand clients may see the same tools. When
// it is full, lists of the server with the most bytes are dropped. Dropped lists are fetched again.
type Shelf struct {
	mu     sync.Mutex
	lists  *quota.Cache[Key, *List]
	closed bool
}

// A Key is a hash of a list and its server.
type Key [sha256.Size]byte

const (
	// listTime is how long a list is kept after it was last sent.
	listTime = 10 * time.Minute
	// Limits of all lists, and of the lists of one server, in bytes.
	maxLists, maxServerLists = 256 << 20, 64 << 20
)

var listsQuota = quota.NewKind("lists")

// NewShelf returns an empty shelf.
func NewShelf() *Shelf {
	limits := quota.Limits{Bytes: maxLists, OwnerBytes: maxServerLists}
	return &Shelf{lists: quota.NewCache[Key, *List](listsQuota, limits, listTime, nil)}
}

// Put stores a list of a server. It returns the stored list, which may be an equal one.
func (s *Shelf) Put(server string, l *List) (Key, *List) {
	sum := sha256.New()
	_, _ = sum.Write([]byte(server + "\x00"))
	_, _ = sum.Write(l.Joined)
	for _, name := range l.Names {
		_, _ = sum.Write([]byte(l.Short[name]))
		end := byte(0)
		if l.Focused[name] != "" {
			end = 1
		}
		_, _ = sum.Write([]byte{end})
	}
	if l.Params != nil {
		_, _ = fmt.Fprint(sum, l.Params) // may include arguments that clients do not see
	}
	key := Key(sum.Sum(nil))
	l.Key = key
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.lists.Get(key); ok {
		l = known
	}
	if !s.closed {
		s.lists.Put(server, key, l, l.size())
	}
	return key, l
}

// Get returns the list with a key; nil if it was dropped.
func (s *Shelf) Get(key Key) *List {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, _ := s.lists.Get(key)
	return l
}

// Expire drops lists that were not sent for listTime. It returns how many are left.
func (s *Shelf) Expire() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists.Expire()
	return s.lists.Len()
}

// Close drops all lists.
func (s *Shelf) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.lists.Close()
}
