package catalog

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// A Shelf keeps lists, and each but once: ten thousand clients see the same tools. When
// it is full, the server that has most on it makes room. Lists that are gone are asked
// for again.
type Shelf struct {
	mu     sync.Mutex
	lists  *quota.Cache[Key, *List]
	closed bool
}

// A Key stands for what is in a list, and whose it is.
type Key [sha256.Size]byte

const (
	// listTime is how long a list is kept after it was last sent.
	listTime = 10 * time.Minute
	// How many bytes of lists are kept in all, and for each server.
	maxLists, maxListsOfOne = 256 << 20, 64 << 20
)

var keptLists = quota.NewKind("lists")

func NewShelf() *Shelf {
	limits := quota.Limits{Bytes: maxLists, OwnerBytes: maxListsOfOne}
	return &Shelf{lists: quota.NewCache[Key, *List](keptLists, limits, listTime, nil)}
}

// Put keeps a list of a server. It returns the one that is kept, which is the same.
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
		_, _ = fmt.Fprint(sum, l.Params) // some may be of arguments that clients do not see
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

// Get returns the list with a key, nil if it is no longer kept.
func (s *Shelf) Get(key Key) *List {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, _ := s.lists.Get(key)
	return l
}

// Expire drops lists that were not sent for a while. It returns how many are left.
func (s *Shelf) Expire() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists.Expire()
	return s.lists.Len()
}

// Close says that nothing more is kept.
func (s *Shelf) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.lists.Close()
}
