package aggregate

import (
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// A State is what is remembered of clients. It outlives configurations: an Aggregate
// that takes the place of another goes on with its clients, their connections to
// servers that are the same, their streams and the calls that wait for them.
type State struct {
	shelf   shelf
	index   index
	running sync.WaitGroup // held calls

	mu      sync.Mutex
	clients *simplelru.LRU[string, *client]
	held    map[string]*heldCall
	streams map[*stream]bool
	members []*Aggregate // in the order in which they have joined
}

// NewState returns a State in which nobody is known.
func NewState() *State {
	s := &State{held: map[string]*heldCall{}, streams: map[*stream]bool{}}
	s.clients, _ = simplelru.NewLRU[string, *client](1, nil)
	return s
}

func (s *State) join(a *Aggregate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members = append(s.members, a)
	s.clients.Resize(a.config.MaxClients)
}

// leave says that a serves no more requests. Who listens to its servers listens to
// those of the newest one from now on.
func (s *State) leave(a *Aggregate) {
	s.mu.Lock()
	s.members = slices.DeleteFunc(s.members, func(member *Aggregate) bool { return member == a })
	var moving []*stream
	var to *Aggregate
	if len(s.members) > 0 {
		to = s.members[len(s.members)-1]
		for stream := range s.streams {
			if stream.a.Load() == a {
				moving = append(moving, stream)
			}
		}
	}
	s.mu.Unlock()
	for _, stream := range moving {
		stream.move(a, to)
	}
}

// Destruct ends all calls that are held open, and waits for them.
func (s *State) Destruct() error {
	s.mu.Lock()
	for _, held := range s.held {
		held.expires.Stop()
		held.cancel()
	}
	clear(s.held)
	s.mu.Unlock()
	s.running.Wait()
	return nil
}
