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

// Shared returns a Store in the shared store of replicas, which encrypts values itself.
func Shared(space *replicas.Space) Store {
	return &shared{space: space, unlocks: map[string]func(){}}
}

type shared struct {
	space *replicas.Space

	mu      sync.Mutex
	unlocks map[string]func() // functions that unlock held locks, by name
}

func (s *shared) Load(ctx context.Context, key string) ([]byte, error) {
	value, _, err := s.space.Get(ctx, key, "")
	if err == nil && value == nil {
		err = fmt.Errorf("%s: %w", key, fs.ErrNotExist)
	}
	return value, err
}

const (
	// storeTime is how long Store retries while the shared store is unavailable. The lock is held
	// for longer. If a token is not stored, other replicas use the old one again.
	storeTime = 10 * time.Second
	// storePause is the pause between two attempts.
	storePause = 250 * time.Millisecond
)

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
	s.unlocks[name] = unlock
	return nil
}

func (s *shared) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	unlock := s.unlocks[name]
	delete(s.unlocks, name)
	s.mu.Unlock()
	if unlock != nil {
		unlock()
	}
	return nil
}
