package login

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// failures are why requests on behalf of accounts failed a moment ago. The server is not asked
// again in the meantime.
type failures struct {
	mu    sync.Mutex
	known *simplelru.LRU[string, failure]
}

// A failure is why the server has refused a token.
type failure struct {
	token [sha256.Size]byte
	err   error
	at    time.Time
}

const (
	// failurePause is how long a failure is good.
	failurePause = 5 * time.Second
	// maxFailures is how many accounts can have one.
	maxFailures = 10_000
)

// note notes the failure of an account with a token.
func (f *failures) note(account, token string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.Add(account, failure{sha256.Sum256([]byte(token)), err, time.Now()})
}

// recent returns the failure of an account with a token, nil if there is none that is good.
func (f *failures) recent(account, token string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	known, ok := f.known.Get(account)
	if ok && time.Since(known.at) < failurePause && known.token == sha256.Sum256([]byte(token)) {
		return known.err
	}
	return nil
}

// forget forgets the failure of an account.
func (f *failures) forget(account string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known.Remove(account)
}

// usedStates are the states of logins that have been finished, in this process.
var usedStates states

// states are the ids of states that have been used.
type states struct {
	mu   sync.Mutex
	used *simplelru.LRU[string, struct{}]
}

// maxStates is how many are known. The authorization server also accepts a code only once.
const maxStates = 100_000

// add adds an id. It reports whether it is new.
func (s *states) add(id string) bool {
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

// loginChanges wakes calls that wait for a login, when one in this process has changed.
var loginChanges = &signal{pending: make(chan struct{})}

// A signal can be waited for, any number of times.
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

// announce announces a change.
func (s *signal) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.pending)
	s.pending = make(chan struct{})
}
