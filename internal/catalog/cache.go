package catalog

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
)

// EveryKind are all cached kinds of lists. Servers announce changes of AnnouncedKinds.
var (
	EveryKind      = []mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources, mcp.Templates, mcp.Skills}
	AnnouncedKinds = []mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources, mcp.Templates}
)

// A Cache holds the lists of a server for one audience, or for one client in its own session.
type Cache struct {
	mu        sync.Mutex
	lists     [mcp.ListKindCount]Cached
	listeners [mcp.ListKindCount]int           // streams on which the server announces changes
	fetching  [mcp.ListKindCount]chan struct{} // each holds one token, for the request that fetches the list
}

// Cached is a cached list.
type Cached struct {
	Key     Key // on the shelf; zero if it must be fetched
	Fresh   Freshness
	View    string    // view of the client that it was made for
	Watched bool      // the server announces changes to streams that listen
	Changes uint64    // number of changes so far
	At      time.Time // when it was fetched
	history listHistory

	failure  *jsonrpc.Failure // why it could not be fetched; not tried again for failurePause
	failedAt time.Time
}

// A listHistory is what remains of a list that must be fetched again.
type listHistory struct {
	key       Key       // of the last list
	changed   time.Time // when a change was last seen
	announcer string    // prefix of the link, or replica, that announced the change; "" if it was fetched since
}

// outdated returns what remains of a list that must be fetched again.
func (c Cached) outdated() Cached { return Cached{Changes: c.Changes + 1, history: c.history} }

// Valid returns a cached list that need not be fetched again. began is when the request for it
// began. first is true for the client's first request for this kind of list: a client that repeats
// it wants to know about changes.
func (c *Cache) Valid(k mcp.ListKind, view string, began time.Time, first bool) (key Key, _ Freshness, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached := &c.lists[k]
	if cached.Key == (Key{}) || cached.View != view {
		return Key{}, Freshness{}, false
	}
	switch now := time.Now(); {
	case c.listeners[k] > 0 && cached.Watched: // the stream would have announced a change, or ended with the server
	case now.Before(cached.Fresh.Until):
	case !cached.At.Before(began): // another client has just fetched it
	case first && now.Sub(cached.At) < UnchangedTime:
	default:
		return Key{}, Freshness{}, false
	}
	return cached.Key, cached.Fresh, true
}

// Token returns a channel with room for one token. A caller sends a token before it fetches the
// list, and receives it afterwards. Others wait.
func (c *Cache) Token(k mcp.ListKind) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetching[k] == nil {
		c.fetching[k] = make(chan struct{}, 1)
	}
	return c.fetching[k]
}

// BeginFetch returns the number of changes of a list before it is fetched. It fails if the last
// attempt to fetch it failed within failurePause, or since began.
func (c *Cache) BeginFetch(k mcp.ListKind, began time.Time) (changes uint64, _ *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	cached := &c.lists[k]
	f := cached.failure
	if f != nil && (!cached.failedAt.Before(began) || time.Since(cached.failedAt) < failurePause && !f.IsLoginRequired()) {
		return 0, f
	}
	cached.history.announcer = ""
	return cached.Changes, nil
}

// NoteFailure records that a list could not be fetched.
func (c *Cache) NoteFailure(k mcp.ListKind, failure *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists[k].failure, c.lists[k].failedAt = failure, time.Now()
}

// Keep caches a list, unless it changed while it was fetched.
func (c *Cache) Keep(k mcp.ListKind, list Cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.lists[k].history
	list.history = before
	list.history.key = list.Key
	if before.key != (Key{}) && before.key != list.Key {
		list.history.changed = time.Now()
	}
	if c.lists[k].Changes == list.Changes {
		c.lists[k] = list
	}
}

// ChangedAt returns when each list was last seen to change.
func (c *Cache) ChangedAt() (times [mcp.ListKindCount]time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.lists {
		times[k] = c.lists[k].history.changed
	}
	return times
}

// Seen returns the keys of the last fetched lists, by kind.
func (c *Cache) Seen() (last map[mcp.ListKind]Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last = map[mcp.ListKind]Key{}
	for _, k := range AnnouncedKinds {
		if key := c.lists[k].history.key; key != (Key{}) {
			last[k] = key
		}
	}
	return last
}

// Current returns the current list; nil if it must be fetched again, or is no longer on the shelf.
// No client has seen a newer one.
func (c *Cache) Current(shelf *Shelf, k mcp.ListKind) *List {
	c.mu.Lock()
	defer c.mu.Unlock()
	return shelf.Get(c.lists[k].Key)
}

// Changed records that the server has announced a change of a list. source is the prefix of the
// link, or the replica, that got the notification. Changed reports whether the change is new: a
// server announces it in all sessions.
func (c *Cache) Changed(notice, source string) (isNew bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range mcp.ListKinds {
		if mcp.ListKinds[k].Notice == notice {
			known := c.lists[k].history.announcer
			isNew = isNew || known == "" || known == source
			c.lists[k] = c.lists[k].outdated()
			c.lists[k].history.changed, c.lists[k].history.announcer = time.Now(), source
		}
	}
	return isNew
}

// Forget makes lists outdated.
func (c *Cache) Forget(lists ...mcp.ListKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.lists[k] = c.lists[k].outdated()
	}
}

// Listen adds n to the number of streams on which the server announces changes.
func (c *Cache) Listen(lists []mcp.ListKind, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		if n > 0 && c.listeners[k] == 0 {
			c.lists[k] = c.lists[k].outdated() // it may have changed before
		}
		c.listeners[k] += n
	}
}

// HasListener reports whether a stream announces changes.
func (c *Cache) HasListener(k mcp.ListKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners[k] > 0
}

// ChangedBefore records that lists differ from those that clients have seen.
func (c *Cache) ChangedBefore(lists ...mcp.ListKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.lists[k] = c.lists[k].outdated()
		c.lists[k].history.changed = time.Now()
	}
}

// failurePause is the pause after a failed attempt to fetch a list.
const failurePause = 5 * time.Second

// UnchangedTime is how long a server is assumed to be unchanged. A legacy server that does not
// announce changes is trusted for as long: after that, another program may have taken its place.
const UnchangedTime = 30 * time.Second

// NewCache returns an empty cache. listeners is the number of streams that announce changes
// already, by kind.
func NewCache(listeners [mcp.ListKindCount]int) *Cache { return &Cache{listeners: listeners} }

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
