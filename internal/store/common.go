package store

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// common is what a [Store] has in common with those of other replicas.
//
// What is put is written for the others behind the answer. A client may be faster, and what was written may be lost:
// a replica that does not find an original asks the others. One that has it writes it at once, and says so.
type common struct {
	space *replicas.Space
	ttl   time.Duration

	ctx    context.Context // of answers
	cancel context.CancelFunc
	stop   func()       // listening
	todo   chan message // questions that can be answered
	done   sync.WaitGroup

	mu     sync.Mutex
	asked  map[string]chan outcome // by the question
	askers *simplelru.LRU[string, *rate.Limiter]
}

// A message is a question for an original, or says what becomes of it.
type message struct {
	Question string `json:"question"`

	Handle string   `json:"handle,omitempty"`
	Owners [][]byte `json:"owners,omitempty"` // of whom one has it; not all are UTF-8

	Outcome outcome `json:"outcome,omitempty"` // of an answer
}

type outcome string

const (
	asked   outcome = "asked"  // this replica has heard the question itself
	coming  outcome = "coming" // it is being written
	written outcome = "written"
	failed  outcome = "failed"
)

const (
	topic       = "originals"
	attempts    = 3 // of a question, in the time that an operation may take
	answerers   = 4
	maxTodo     = 1000
	writingTime = 5 * time.Second // in which what is coming has to be there

	// Of questions without an answer, an owner may have so many in a second, and at once.
	questionRate, questionBurst = 10, 50

	maxAskers = 10_000 // owners of whom that is known
)

// share has a store share what is in it.
func (s *Store) share(space *replicas.Space, ttl time.Duration) {
	c := &common{
		space: space, ttl: ttl, todo: make(chan message, maxTodo), asked: map[string]chan outcome{},
	}
	c.askers, _ = simplelru.NewLRU[string, *rate.Limiter](maxAskers, nil) // never fails
	s.common = c
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for range answerers {
		c.done.Go(func() {
			for {
				select {
				case <-c.ctx.Done():
					return
				case m := <-c.todo:
					s.answer(m)
				}
			}
		})
	}
	c.stop = space.Listen(topic, s.heard)
}

// close ends what goes on.
func (c *common) close() {
	c.stop()
	c.cancel()
	c.done.Wait()
}

var began = time.Now()

// uptime returns for how many nanoseconds the process has been running, by a clock that is never set.
func uptime() int64 { return int64(time.Since(began)) + 1 }

// give writes an original for other replicas, unless that was done not long ago. It outlives the time in which it is not
// done again.
func (s *Store) give(k key, e *kept) {
	c := s.common
	now := uptime()
	if given := e.given.Load(); given != 0 && time.Duration(now-given) < c.ttl/4 {
		return
	}
	e.given.Store(now)
	write := func(ctx context.Context) error {
		if s.dropped(k, e) {
			return nil
		}
		return c.keep(ctx, k, e)
	}
	c.space.Behind(k.owner, k.handle, len(e.original), write, func() { e.given.Store(0) })
}

func (c *common) keep(ctx context.Context, k key, e *kept) error {
	return c.space.Keep(ctx, k.owner, k.handle, e.original, c.ttl+c.ttl/4)
}

// dropped reports whether an original is no longer kept. One that was kept when the store was closed is not
// dropped: other replicas may want it.
func (s *Store) dropped(k key, e *kept) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, _ := s.entries.Get(k)
	return is != e && !s.closed
}

// at returns what is kept here, nil for nothing.
func (s *Store) at(k key) *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, _ := s.entries.Get(k)
	return e
}

// errAskedTooOften says that other replicas were not asked. They may be soon.
var errAskedTooOften = fmt.Errorf("%w: other replicas were asked too often", replicas.ErrUnavailable)

// Fetch has Get find what another replica keeps under a handle for one of some owners, and reports whether there is
// such a thing. An error says that this is not known.
func (s *Store) Fetch(ctx context.Context, handle string, owners ...string) (found bool, err error) {
	prefix := max(len(handle)-HandleLen, 0)
	if _, ok := CutHandle([]byte(handle), handle[:prefix]); s.common == nil || !ok {
		return false, nil
	}
	if found, err = s.find(ctx, handle, owners); found || err != nil {
		return found, err
	}
	questions := s.common.questions(owners[len(owners)-1]) // of several, the narrowest
	if !questions.Allow() {
		return false, errAskedTooOften
	}
	if there, err := s.common.ask(ctx, handle, owners); !there {
		return false, err
	}
	questions.AllowN(time.Now(), -1) // this one does not count
	return s.find(ctx, handle, owners)
}

// questions returns what limits those of an owner.
func (c *common) questions(owner string) *rate.Limiter {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, ok := c.askers.Get(owner)
	if !ok {
		l = rate.NewLimiter(questionRate, questionBurst)
		c.askers.Add(owner, l)
	}
	return l
}

// find keeps here what is kept for all replicas.
func (s *Store) find(ctx context.Context, handle string, owners []string) (found bool, err error) {
	owner, original, err := s.common.space.FindAny(ctx, owners, handle)
	if original == nil {
		return false, err
	}
	k := key{owner, handle}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.entries.Get(k); ok {
		return true, nil // meanwhile
	}
	return s.entries.Put(owner, k, &kept{original: original}, int64(len(original))), nil
}

// ask asks other replicas for an original, and reports whether one of them has written it.
func (c *common) ask(ctx context.Context, handle string, owners []string) (there bool, err error) {
	m := message{Question: rand.Text(), Handle: handle}
	for _, owner := range owners {
		m.Owners = append(m.Owners, []byte(owner))
	}
	outcomes := make(chan outcome, 8)
	c.mu.Lock()
	c.asked[m.Question] = outcomes
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked, m.Question)
	}()
	// More than once, as a replica whose connection was lost does not hear everything. Nor does this one: if it does not
	// hear itself, it would not hear others.
	err = replicas.ErrUnavailable
	for range attempts {
		if _, err := c.space.Publish(ctx, topic, jsonrpc.Encode(m)); err != nil {
			return false, err
		}
		o, failure := outcome(""), error(nil)
		for wait := c.space.Timeout() / attempts; ; {
			if o, failure = next(ctx, outcomes, wait); o == coming {
				wait = writingTime
			} else if o != asked {
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

// next returns the next outcome, "" if there is none in time.
func next(ctx context.Context, outcomes <-chan outcome, wait time.Duration) (outcome, error) {
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

// heard is called with each message.
func (s *Store) heard(text []byte) {
	var m message
	if json.Unmarshal(text, &m) != nil {
		return
	}
	c := s.common
	if m.Outcome == "" {
		if _, e := s.wanted(m); e != nil {
			select {
			case c.todo <- m:
			default: // there is more to do than time for it
			}
		}
		m.Outcome = asked
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.asked[m.Question] <- m.Outcome:
	default: // the caller has left
	}
}

// wanted returns what a question is for, nil if it is not kept here.
func (s *Store) wanted(m message) (key, *kept) {
	for _, owner := range m.Owners {
		k := key{string(owner), m.Handle}
		if e := s.at(k); e != nil {
			return k, e
		}
	}
	return key{}, nil
}

// answer writes what a question is for.
func (s *Store) answer(m message) {
	k, e := s.wanted(m)
	if e == nil {
		return
	}
	c := s.common
	tell := func(o outcome) bool {
		_, err := c.space.Publish(c.ctx, topic, jsonrpc.Encode(message{Question: m.Question, Outcome: o}))
		return err == nil
	}
	if !tell(coming) {
		return
	}
	if c.keep(c.ctx, k, e) != nil {
		tell(failed)
		return
	}
	e.given.Store(uptime())
	tell(written)
}
