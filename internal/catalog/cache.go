package catalog

import (
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// EveryKind are all cached kinds of lists. Servers announce changes of AnnouncedKinds.
var (
	EveryKind      = []mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources, mcp.Templates, mcp.Skills}
	AnnouncedKinds = []mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources, mcp.Templates}
)

// A Cache holds the lists of a server for one audience, or for one client in its own session.
type Cache struct {
	mu        sync.Mutex
	kept      [mcp.ListKindCount]Cached
	listeners [mcp.ListKindCount]int           // streams on which the server announces changes
	fetching  [mcp.ListKindCount]chan struct{} // each holds one token, for the request that fetches the list
}

// Cached is a cached list.
type Cached struct {
	Key     Key // on the shelf; zero if it must be fetched
	Fresh   Freshness
	View    string           // view of the client that it was made for
	Watched bool             // a stream of the server announces changes
	Changes uint64           // number of changes so far
	failure *jsonrpc.Failure // why it could not be fetched; not tried again for failurePause
	At      time.Time        // when it was fetched
	history listHistory
}

// A listHistory is what remains of a list that must be fetched again.
type listHistory struct {
	key       Key       // of the last list
	changed   time.Time // when a change was last seen
	announcer string    // prefix of the link, or replica, that announced the change; "" if it was fetched since
}

// outdated returns what remains of a list that must be fetched again.
func (c Cached) outdated() Cached { return Cached{Changes: c.Changes + 1, history: c.history} }

// Valid returns a cached list that need not be fetched again, for a request that began at some time.
// first says that the client has not got such a list yet: a client that asks again wants to know about
// changes.
func (c *Cache) Valid(k mcp.ListKind, view string, began time.Time, first bool) (key Key, _ Freshness, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	if kept.Key == (Key{}) || kept.View != view {
		return Key{}, Freshness{}, false
	}
	switch now := time.Now(); {
	case c.listeners[k] > 0 && kept.Watched: // the gateway would know of a change, or of the end of the server
	case now.Before(kept.Fresh.Until):
	case !kept.At.Before(began): // another client has just fetched it
	case first && now.Sub(kept.At) < UnchangedTime:
	default:
		return Key{}, Freshness{}, false
	}
	return kept.Key, kept.Fresh, true
}

// Token returns the channel whose token allows to fetch a list.
func (c *Cache) Token(k mcp.ListKind) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetching[k] == nil {
		c.fetching[k] = make(chan struct{}, 1)
	}
	return c.fetching[k]
}

// BeginFetch returns the number of changes of a list before it is fetched. It fails if the list could not
// be fetched within failurePause, or since began.
func (c *Cache) BeginFetch(k mcp.ListKind, began time.Time) (changes uint64, _ *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	f := kept.failure
	if f != nil && (!kept.At.Before(began) || time.Since(kept.At) < failurePause && !f.IsLoginRequired()) {
		return 0, f
	}
	kept.history.announcer = ""
	return kept.Changes, nil
}

// NoteFailure records that a list could not be fetched.
func (c *Cache) NoteFailure(k mcp.ListKind, failure *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[k].failure, c.kept[k].At = failure, time.Now()
}

// Keep caches a list, unless it changed while it was fetched.
func (c *Cache) Keep(k mcp.ListKind, list Cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.kept[k].history
	list.history = before
	list.history.key = list.Key
	if before.key != (Key{}) && before.key != list.Key {
		list.history.changed = time.Now()
	}
	if c.kept[k].Changes == list.Changes {
		c.kept[k] = list
	}
}

// ChangedAt returns when each list was last seen to change.
func (c *Cache) ChangedAt() (times [mcp.ListKindCount]time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.kept {
		times[k] = c.kept[k].history.changed
	}
	return times
}

// Seen returns the key of the last list of each kind, for kinds that were fetched.
func (c *Cache) Seen() (last map[mcp.ListKind]Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last = map[mcp.ListKind]Key{}
	for _, k := range AnnouncedKinds {
		if key := c.kept[k].history.key; key != (Key{}) {
			last[k] = key
		}
	}
	return last
}

// Current returns the current list; nil if it must be fetched again, or is no longer on the shelf. No
// client has seen a newer one.
func (c *Cache) Current(shelf *Shelf, k mcp.ListKind) *List {
	c.mu.Lock()
	defer c.mu.Unlock()
	return shelf.Get(c.kept[k].Key)
}

// Changed records that the server has announced a change of a list. teller is the prefix of the link,
// or the replica, that got the notification. It reports whether that is news: a server announces it in
// all sessions.
func (c *Cache) Changed(notice, teller string) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range mcp.ListKinds {
		if mcp.ListKinds[k].Notice == notice {
			known := c.kept[k].history.announcer
			news = news || known == "" || known == teller
			c.kept[k] = c.kept[k].outdated()
			c.kept[k].history.changed, c.kept[k].history.announcer = time.Now(), teller
		}
	}
	return news
}

// Forget makes lists outdated.
func (c *Cache) Forget(lists ...mcp.ListKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.kept[k] = c.kept[k].outdated()
	}
}

// Listen adds n to the number of streams on which the server announces changes.
func (c *Cache) Listen(lists []mcp.ListKind, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		if n > 0 && c.listeners[k] == 0 {
			c.kept[k] = c.kept[k].outdated() // it may have changed before
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
		c.kept[k] = c.kept[k].outdated()
		c.kept[k].history.changed = time.Now()
	}
}

// failurePause is how long a list that could not be fetched is not tried again.
const failurePause = 5 * time.Second

// UnchangedTime is how long a server is assumed to be unchanged, and so is a list that a legacy server
// says never changes. The server may have been replaced by then.
const UnchangedTime = 30 * time.Second

// NewCache returns an empty cache. listeners is the number of streams that announce changes already,
// by kind.
func NewCache(listeners [mcp.ListKindCount]int) *Cache { return &Cache{listeners: listeners} }
