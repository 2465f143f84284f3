package login

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// failures holds recent failures by account. While a failure is recent, the gateway does not send
// the same token to the server again.
type failures struct {
	mu    sync.Mutex
	known *simplelru.LRU[string, failure]
}

// A failure says why the server refused a token.
type failure struct {
	token [sha256.Size]byte
	err   error
	time  time.Time
}

const (
	// failurePause is how long a failure counts as recent.
	failurePause = 5 * time.Second
	// maxFailures is the maximum number of accounts with a failure.
	maxFailures = 10_000
)

// add records the failure of an account with a token.
func (f *failures) add(account, token string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.Add(account, failure{sha256.Sum256([]byte(token)), err, time.Now()})
}

// recent returns the recent failure of an account with a token, or nil.
func (f *failures) recent(account, token string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	known, ok := f.known.Get(account)
	if ok && time.Since(known.time) < failurePause && known.token == sha256.Sum256([]byte(token)) {
		return known.err
	}
	return nil
}

// forget removes the failure of an account.
func (f *failures) forget(account string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.Remove(account)
}

// usedStates holds the states of finished logins in this process.
var usedStates stateSet

// A stateSet is a set of IDs of states.
type stateSet struct {
	mu   sync.Mutex
	used *simplelru.LRU[string, struct{}]
}

// maxStates limits the number of IDs. If an ID is dropped, the authorization server still accepts
// the code only once.
const maxStates = 100_000

// add adds an ID and reports whether it is new.
func (s *stateSet) add(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil {
		s.used, _ = simplelru.NewLRU[string, struct{}](maxStates, nil) // the size is positive
	}
	if s.used.Contains(id) {
		return false
	}
	s.used.Add(id, struct{}{})
	return true
}

// loginChanges wakes requests that wait for a login, when a login in this process changes.
var loginChanges = &signal{pending: make(chan struct{})}

// A signal wakes any number of waiting goroutines.
type signal struct {
	mu      sync.Mutex
	pending chan struct{}
}

// next returns a channel that is closed at the next change.
func (s *signal) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pending
}

// notify closes the channel of next.
func (s *signal) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.pending)
	s.pending = make(chan struct{})
}
