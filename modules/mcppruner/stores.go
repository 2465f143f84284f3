package mcppruner

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/store"
)

// stores holds the stores in use, by what they keep and their limits, so that they
// outlive configuration reloads.
var stores = caddy.NewUsagePool()

type storeKey struct {
	kept   string
	limits store.Limits
}

type pooledStore struct {
	*store.Store
	key storeKey
}

func open(kept string, limits store.Limits) (*pooledStore, error) {
	key := storeKey{kept, limits}
	value, _, err := stores.LoadOrNew(key, func() (caddy.Destructor, error) {
		return &pooledStore{store.New(limits), key}, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*pooledStore), nil
}

// release gives a store back, if there is one.
func (s *pooledStore) release() error {
	if s == nil {
		return nil
	}
	_, err := stores.Delete(s.key)
	return err
}

// Destruct is all there is to do: a store is memory.
func (*pooledStore) Destruct() error { return nil }
