// Package storepool has the stores that modules keep originals in, so that they outlive
// configuration reloads.
package storepool

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/quota"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
)

// A Store is shared by all who keep the same within the same limits.
type Store struct {
	*store.Store
	key key
}

type key struct {
	kind   *quota.Kind
	limits store.Limits
}

var stores = caddy.NewUsagePool()

// Open returns the store of a kind within limits. It must be released.
func Open(kind *quota.Kind, limits store.Limits) (*Store, error) {
	k := key{kind, limits}
	value, _, err := stores.LoadOrNew(k, func() (caddy.Destructor, error) {
		return &Store{store.New(kind, limits), k}, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*Store), nil
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
	return nil
}
