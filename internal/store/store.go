// Package store keeps originals of shortened texts for a while and in bounded memory, so that an
// agent can recover them.
package store

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
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

// sharing makes the originals of a [Store] available to other replicas, and theirs to it.
//
// Originals are written to the shared store after the response has been sent. A client may ask
// before that, and a write may be lost, so a replica that does not find an original asks the
// others. A replica that has it writes it at once, and reports that.
type sharing struct {
	space *replicas.Space
	ttl   time.Duration

	ctx         context.Context // canceled by close
	cancel      context.CancelFunc
	unsubscribe func()
	queue       chan message // requests for originals that this replica has
	workers     sync.WaitGroup

	mu       sync.Mutex
	outcomes map[string]chan outcome // outcomes of open requests by ID
	limiters *simplelru.LRU[string, *rate.Limiter]
}

// A message is a request for an original, or its outcome.
type message struct {
	ID string `json:"question"`

	Handle string   `json:"handle,omitempty"`
	Owners [][]byte `json:"owners,omitempty"` // possible owners; not all are UTF-8

	Outcome outcome `json:"outcome,omitempty"` // "" in a request
}

type outcome string

const (
	received outcome = "asked"  // this replica has received its own request
	writing  outcome = "coming" // another replica is writing the original
	written  outcome = "written"
	failed   outcome = "failed"
)

const (
	topic        = "originals"
	attempts     = 3 // number of requests, within the timeout of an operation
	maxWorkers   = 4
	maxQueue     = 1000
	writeTimeout = 5 * time.Second // after the outcome "coming"

	// Limits of lookups at other replicas that find nothing, for each owner: per second and at
	// once.
	lookupRate, lookupBurst = 10, 50

	maxLimiters = 10_000 // owners whose lookups are limited
)

// startSharing shares originals with other replicas.
func (s *Store) startSharing(space *replicas.Space, ttl time.Duration) {
	c := &sharing{
		space: space, ttl: ttl, queue: make(chan message, maxQueue), outcomes: map[string]chan outcome{},
	}
	c.limiters, _ = simplelru.NewLRU[string, *rate.Limiter](maxLimiters, nil) // never fails
	s.sharing = c
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for range maxWorkers {
		c.workers.Go(func() {
			for {
				select {
				case <-c.ctx.Done():
					return
				case m := <-c.queue:
					s.answerRequest(m)
				}
			}
		})
	}
	c.unsubscribe = space.Listen(topic, s.onMessage)
}

// close stops the workers.
func (c *sharing) close() {
	c.unsubscribe()
	c.cancel()
	c.workers.Wait()
}

var processStart = time.Now()

// uptime returns how long the process has been running, in nanoseconds of a monotonic clock.
func uptime() int64 { return int64(time.Since(processStart)) + 1 }

// replicate queues a write of an original for other replicas, unless it was written less than a
// quarter of the TTL ago. The written copy lives that much longer, so it does not expire too early.
func (s *Store) replicate(k key, e *entry) {
	c := s.sharing
	now := uptime()
	if last := e.replicatedAt.Load(); last != 0 && time.Duration(now-last) < c.ttl/4 {
		return
	}
	e.replicatedAt.Store(now)
	write := func(ctx context.Context) error {
		if s.isDropped(k, e) {
			return nil
		}
		return c.write(ctx, k, e)
	}
	c.space.WriteLater(k.owner, k.handle, len(e.original), write, func() { e.replicatedAt.Store(0) })
}

func (c *sharing) write(ctx context.Context, k key, e *entry) error {
	return c.space.Keep(ctx, k.owner, k.handle, e.original, c.ttl+c.ttl/4)
}

// isDropped reports whether an original is no longer in the store. After Close it reports false,
// because other replicas may still need the original.
func (s *Store) isDropped(k key, e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	current, _ := s.entries.Get(k)
	return current != e && !s.closed
}

// localEntry returns the entry on this replica, or nil.
func (s *Store) localEntry(k key) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _ := s.entries.Get(k)
	return e
}

// errTooManyLookups reports that the rate limit for lookups at other replicas is exceeded.
var errTooManyLookups = fmt.Errorf("%w: too many lookups at other replicas", replicas.ErrUnavailable)

// Fetch copies the original that another replica has under a handle for one of the owners, so
// that Get finds it. It reports whether there is one. An error means that this is unknown.
func (s *Store) Fetch(ctx context.Context, handle string, owners ...string) (found bool, err error) {
	prefix := max(len(handle)-HandleLen, 0)
	if _, ok := CutHandle([]byte(handle), handle[:prefix]); s.sharing == nil || !ok {
		return false, nil
	}
	found, err = s.load(ctx, handle, owners)
	if found || err != nil {
		return found, err
	}
	lookups := s.sharing.limiter(owners[len(owners)-1]) // the last owner is the narrowest
	if !lookups.Allow() {
		return false, errTooManyLookups
	}
	if available, err := s.sharing.requestOriginal(ctx, handle, owners); !available {
		return false, err
	}
	lookups.AllowN(time.Now(), -1) // successful lookups do not count
	return s.load(ctx, handle, owners)
}

// limiter returns the limiter for the lookups of an owner.
func (c *sharing) limiter(owner string) *rate.Limiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.limiters.Get(owner)
	if !ok {
		l = rate.NewLimiter(lookupRate, lookupBurst)
		c.limiters.Add(owner, l)
	}
	return l
}

// load copies an original from the shared store to this replica.
func (s *Store) load(ctx context.Context, handle string, owners []string) (found bool, err error) {
	owner, original, err := s.sharing.space.FindAny(ctx, owners, handle)
	if original == nil {
		return false, err
	}
	k := key{owner, handle}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.entries.Get(k); ok {
		return true, nil // added in the meantime
	}
	return s.entries.Put(owner, k, &entry{original: original}, int64(len(original))), nil
}

// requestOriginal asks other replicas for an original, and reports whether one has written it.
func (c *sharing) requestOriginal(ctx context.Context, handle string, owners []string) (available bool, err error) {
	m := message{ID: rand.Text(), Handle: handle}
	for _, owner := range owners {
		m.Owners = append(m.Owners, []byte(owner))
	}
	outcomes := make(chan outcome, 8)
	c.mu.Lock()
	c.outcomes[m.ID] = outcomes
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.outcomes, m.ID)
	}()
	// A replica that loses its connection misses messages, so the request is repeated. If this
	// replica does not receive its own request, it cannot receive responses either.
	err = replicas.ErrUnavailable
	for range attempts {
		if _, err := c.space.Publish(ctx, topic, jsonrpc.Encode(m)); err != nil {
			return false, err
		}
		o, failure := outcome(""), error(nil)
		for wait := c.space.Timeout() / attempts; ; {
			o, failure = nextOutcome(ctx, outcomes, wait)
			if o == writing {
				wait = writeTimeout
			} else if o != received {
				break
			}
			err = nil
		}
		switch {
		case failure != nil:
			return false, failure
		case o == written:
			return true, nil
		case o == failed:
			return false, replicas.ErrUnavailable
		}
	}
	return false, err
}

// nextOutcome returns the next outcome, or "" after wait.
func nextOutcome(ctx context.Context, outcomes <-chan outcome, wait time.Duration) (outcome, error) {
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-late.C:
		return "", nil
	case o := <-outcomes:
		return o, nil
	}
}

// onMessage handles a message of any replica, including this one.
func (s *Store) onMessage(text []byte) {
	var m message
	if json.Unmarshal(text, &m) != nil {
		return
	}
	c := s.sharing
	if m.Outcome == "" {
		if _, e := s.findRequested(m); e != nil {
			select {
			case c.queue <- m:
			default: // the workers are too busy
			}
		}
		m.Outcome = received
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.outcomes[m.ID] <- m.Outcome:
	default: // requestOriginal has returned
	}
}

// findRequested returns the requested entry, or nil if this replica does not have it.
func (s *Store) findRequested(m message) (key, *entry) {
	for _, owner := range m.Owners {
		k := key{string(owner), m.Handle}
		if e := s.localEntry(k); e != nil {
			return k, e
		}
	}
	return key{}, nil
}

// answerRequest writes the requested original and reports that.
func (s *Store) answerRequest(m message) {
	k, e := s.findRequested(m)
	if e == nil {
		return
	}
	c := s.sharing
	report := func(o outcome) bool {
		_, err := c.space.Publish(c.ctx, topic, jsonrpc.Encode(message{ID: m.ID, Outcome: o}))
		return err == nil
	}
	if !report(writing) {
		return
	}
	if c.write(c.ctx, k, e) != nil {
		report(failed)
		return
	}
	e.replicatedAt.Store(uptime())
	report(written)
}
