package catalog

import (
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// EveryKind are all that are remembered. Of AnnouncedKinds servers say when they have changed.
var (
	EveryKind      = []mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources, mcp.Templates, mcp.Skills}
	AnnouncedKinds = []mcp.ListKind{mcp.Tools, mcp.Prompts, mcp.Resources, mcp.Templates}
)

// A Cache has the lists of a server as an audience knows them, or a client in its own session.
type Cache struct {
	mu        sync.Mutex
	kept      [mcp.ListKindCount]Cached
	listeners [mcp.ListKindCount]int           // streams by which the server can say that its lists have changed
	fetching  [mcp.ListKindCount]chan struct{} // each holds one token: its holder asks for the list
}

// Cached is a list that is remembered.
type Cached struct {
	Key     Key // on the shelf; zero if it has to be asked for
	Fresh   Freshness
	View    string           // with what was shown of it to the client
	Watched bool             // a stream of the server would tell of changes
	Changes uint64           // how often the server has said that it has changed
	failure *jsonrpc.Failure // it could not be had; not asked for again for failurePause
	At      time.Time        // when it was asked for
	history listHistory
}

// A listHistory is what is remembered of a list that has to be asked for again.
type listHistory struct {
	key     Key       // the last that there was
	changed time.Time // when it was seen to be another one than before
	teller  string    // prefix of the link, or replica, by which it was told; "" if it was asked for since
}

// outdated returns what stays of a list that has to be asked for again.
func (c Cached) outdated() Cached { return Cached{Changes: c.Changes + 1, history: c.history} }

// Good returns a list that need not be asked for again, by a question that began at some time. first says that the
// client has not got such a list yet: one that asks again wants to know of changes.
func (c *Cache) Good(k mcp.ListKind, view string, began time.Time, first bool) (key Key, _ Freshness, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	if kept.Key == (Key{}) || kept.View != view {
		return Key{}, Freshness{}, false
	}
	switch now := time.Now(); {
	case c.listeners[k] > 0 && kept.Watched: // we would know of a change, or of the end of the server
	case now.Before(kept.Fresh.Until):
	case !kept.At.Before(began): // another client has just asked
	case first && now.Sub(kept.At) < UnchangedTime:
	default:
		return Key{}, Freshness{}, false
	}
	return kept.Key, kept.Fresh, true
}

// Token returns the channel whose token allows to ask the server for a list.
func (c *Cache) Token(k mcp.ListKind) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetching[k] == nil {
		c.fetching[k] = make(chan struct{}, 1)
	}
	return c.fetching[k]
}

// Before returns how often a list has changed before it is asked for. It fails if it could not be had
// a short time ago, or since the question began.
func (c *Cache) Before(k mcp.ListKind, began time.Time) (changes uint64, _ *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := &c.kept[k]
	f := kept.failure
	if f != nil && (!kept.At.Before(began) || time.Since(kept.At) < failurePause && !f.IsLoginRequired()) {
		return 0, f
	}
	kept.history.teller = ""
	return kept.Changes, nil
}

// NoteFailure notes that a list could not be had.
func (c *Cache) NoteFailure(k mcp.ListKind, failure *jsonrpc.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept[k].failure, c.kept[k].At = failure, time.Now()
}

// Keep remembers a list, unless it has changed while it was asked for.
func (c *Cache) Keep(k mcp.ListKind, list Cached) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.kept[k].history
	list.history = before
	if list.history.key = list.Key; before.key != (Key{}) && before.key != list.Key {
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

// Seen returns the kinds of lists that there were, with the last of each.
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

// Known returns the current list; nil if it has to be asked for again, or is no longer on the shelf. No client
// has seen one that is newer.
func (c *Cache) Known(on *Shelf, k mcp.ListKind) *List {
	c.mu.Lock()
	defer c.mu.Unlock()
	return on.Get(c.kept[k].Key)
}

// Changed notes that the server has said that a list is no longer what it was: by a link of this prefix, or to another
// replica. It reports whether that is news: a server says it in all sessions.
func (c *Cache) Changed(notice, by string) (news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range mcp.ListKinds {
		if mcp.ListKinds[k].Notice == notice {
			teller := c.kept[k].history.teller
			news = news || teller == "" || teller == by
			c.kept[k] = c.kept[k].outdated()
			c.kept[k].history.changed, c.kept[k].history.teller = time.Now(), by
		}
	}
	return news
}

// Forget forgets lists.
func (c *Cache) Forget(lists ...mcp.ListKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.kept[k] = c.kept[k].outdated()
	}
}

// Listen notes that n more streams would tell of changes.
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

// HasListener reports whether a stream would tell of changes.
func (c *Cache) HasListener(k mcp.ListKind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listeners[k] > 0
}

// ChangedBefore notes that lists are others than clients have seen.
func (c *Cache) ChangedBefore(lists ...mcp.ListKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range lists {
		c.kept[k] = c.kept[k].outdated()
		c.kept[k].history.changed = time.Now()
	}
}

// failurePause is how long a list is not asked for again that could not be had.
const failurePause = 5 * time.Second

// UnchangedTime is how long a server is taken for the same without asking it, and a list that
// a server of the legacy era says never changes. It may be another server by then.
const UnchangedTime = 30 * time.Second

// NewCache returns a cache of lists. Streams would tell of changes already, so many for each kind.
func NewCache(listeners [mcp.ListKindCount]int) *Cache { return &Cache{listeners: listeners} }
