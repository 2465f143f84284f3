// Package storepool has the stores that modules keep originals in, so that they outlive
// configuration reloads.
package storepool

import (
	"context"
	"crypto/sha256"
	"errors"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/modules/mcpstore"
)

// A Store is shared by all who keep the same within the same limits.
type Store struct {
	*store.Store
	key    key
	common *mcpstore.Store // what replicas share; nil if there are none
}

type key struct {
	kind   *quota.Kind
	limits store.Limits
	common [sha256.Size]byte // the ID of what replicas share
}

var stores = caddy.NewUsagePool()

// Open returns the store of a kind within limits. It must be released.
func Open(kind *quota.Kind, limits store.Limits) (*Store, error) {
	return open(key{kind: kind, limits: limits}, nil)
}

// OpenCommon is Open for a store that replicas share, if the configuration has them share anything.
func OpenCommon(ctx caddy.Context, kind *quota.Kind, limits store.Limits) (*Store, error) {
	common, err := mcpstore.Open(ctx)
	if err != nil {
		return nil, err
	}
	if common == nil {
		return Open(kind, limits)
	}
	return open(key{kind, limits, common.ID}, common)
}

// open opens a store, which has what replicas share until it is gone.
func open(k key, common *mcpstore.Store) (*Store, error) {
	value, loaded, err := stores.LoadOrNew(k, func() (caddy.Destructor, error) {
		var space *replicas.Space
		if common != nil {
			space = common.Space("originals " + k.kind.Name)
		}
		return &Store{store.New(k.kind, k.limits, space), k, common}, nil
	})
	if loaded {
		err = errors.Join(err, common.Release())
	}
	if err != nil {
		return nil, err
	}
	return value.(*Store), nil
}

// A Place is where an original may be kept.
type Place struct {
	Store *Store // nil if nothing is kept
	Owner string
}

// Fetch has Get find what another replica keeps under a handle in one of some places.
func Fetch(ctx context.Context, handle string, places ...Place) error {
	owners := map[*Store][]string{}
	for _, p := range places {
		if p.Store != nil && p.Store.common != nil {
			owners[p.Store] = append(owners[p.Store], p.Owner)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		found bool
		err   error
	}
	results := make(chan result, len(owners))
	for s, of := range owners {
		go func() {
			found, err := s.Fetch(ctx, handle, of...)
			results <- result{found, err}
		}()
	}
	var all result
	for range owners {
		r := <-results
		if r.found {
			all.found = true
			cancel() // the others
		}
		all.err = errors.Join(all.err, r.err)
	}
	if all.found {
		return nil
	}
	return all.err
}

// All returns the stores of a kind that are in use.
func All(kind *quota.Kind) (all []*Store) {
	stores.Range(func(_, value any) bool {
		if s := value.(*Store); s.key.kind == kind {
			all = append(all, s)
		}
		return true
	})
	return all
}

// Release gives the store back, if there is one. When nobody has it any more, what is
// in it is gone.
func (s *Store) Release() error {
	if s == nil {
		return nil
	}
	_, err := stores.Delete(s.key)
	return err
}

// Destruct implements caddy.Destructor.
func (s *Store) Destruct() error {
	s.Close()
	return s.common.Release()
}
