package oauth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/backoff"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// Shared returns a Store that replicas have in common, which encrypts values itself.
func Shared(space *replicas.Space) Store {
	return &shared{space: space, held: map[string]func(){}}
}

type shared struct {
	space *replicas.Space

	mu   sync.Mutex
	held map[string]func() // how locks are unlocked, by their names
}

func (s *shared) Load(ctx context.Context, key string) ([]byte, error) {
	value, _, err := s.space.Get(ctx, key, "")
	if err == nil && value == nil {
		err = fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return value, err
}

// How long Store waits for the replicas' store while that is unavailable, and how often it tries: the lock is
// held for longer, and a token that is not stored is used by others once more.
const storeTime, storePause = 10 * time.Second, 250 * time.Millisecond

func (s *shared) Store(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	for {
		_, err := s.space.Change(ctx, key, "", func([]byte) ([]byte, error) { return value, nil })
		if !errors.Is(err, replicas.ErrUnavailable) || !backoff.Sleep(ctx, storePause) {
			return err
		}
	}
}

func (s *shared) Delete(ctx context.Context, key string) error {
	_, err := s.space.Delete(ctx, key, "")
	return err
}

func (s *shared) Lock(ctx context.Context, name string) error {
	unlock, err := s.space.Lock(ctx, name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[name] = unlock
	return nil
}

func (s *shared) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	unlock := s.held[name]
	delete(s.held, name)
	s.mu.Unlock()
	if unlock != nil {
		unlock()
	}
	return nil
}
