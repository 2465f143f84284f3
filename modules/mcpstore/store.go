package mcpstore

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// A Store is one that is in use. It outlives reloads that leave it as it is.
type Store struct {
	*replicas.Store

	// AllowWhenDown says that limits are those of the replica while the store is unavailable.
	AllowWhenDown bool

	// ID is the same for stores with the same settings.
	ID [sha256.Size]byte

	engine, address string // for operators
}

// stores are those in use, by their IDs.
var stores = caddy.NewUsagePool()

// Open returns the store of a configuration, nil if nothing is shared. It has to be released.
func Open(ctx caddy.Context) (*Store, error) {
	a, err := appOf(ctx)
	if a == nil || a.store == nil {
		return nil, err
	}
	value, _, err := stores.LoadOrNew(a.store.ID, func() (caddy.Destructor, error) { return a.store, nil })
	if err != nil {
		return nil, err
	}
	return value.(*Store), nil
}

// Active returns the store of the configuration that is running, nil if nothing is shared. It must not be
// released.
func Active() (*Store, error) {
	a, err := appOf(caddy.ActiveContext())
	if a == nil {
		return nil, err
	}
	return a.store, nil
}

// Claim reports whether no one but the owner has claimed a name in the store of a configuration, and claims
// it for the owner.
func Claim(ctx caddy.Context, name, owner string) (is bool, err error) {
	a, err := appOf(ctx)
	if a == nil {
		return true, err
	}
	claimed, _ := a.claims.LoadOrStore(name, owner)
	return claimed == owner, nil
}

// Release gives the store back, if there is one.
func (s *Store) Release() error {
	if s == nil {
		return nil
	}
	_, err := stores.Delete(s.ID)
	return err
}

// Destruct implements caddy.Destructor.
func (s *Store) Destruct() error {
	s.Close()
	return nil
}

// open opens the store of the app, or finds it open.
func (a *App) open(opener Opener, logger *zap.Logger) (*Store, error) {
	files, err := readFiles(opener)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(struct {
		*App
		Engine Opener
		Module string
		Key    []byte
		Files  [][]byte
	}{a, opener, fmt.Sprintf("%T", opener), a.key, files})
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(config)
	value, _, err := stores.LoadOrNew(id, func() (caddy.Destructor, error) {
		engine, err := opener.Open(logger)
		if err != nil {
			return nil, err
		}
		return &Store{
			Store: replicas.Open(engine, replicas.Config{
				Key: a.key, Prefix: a.Prefix, Timeout: time.Duration(a.Timeout), Retry: time.Duration(a.Retry),
				OwnerBytes: a.MaxClientBytes, QueueBytes: a.MaxQueueBytes, Logger: logger, Observer: observer{},
			}),
			AllowWhenDown: a.LimitsWhenDown == allowWhenDown,
			ID:            id,
			engine:        opener.(caddy.Module).CaddyModule().ID.Name(),
			address:       addressOf(opener),
		}, nil
	})
	if err != nil {
		return nil, err
	}
	return value.(*Store), nil
}

// readFiles returns the contents of the files that an engine is opened with.
func readFiles(opener Opener) (contents [][]byte, err error) {
	reader, ok := opener.(FileReader)
	if !ok {
		return nil, nil
	}
	for _, name := range reader.Files() {
		content, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("engine: %w", err)
		}
		contents = append(contents, content)
	}
	return contents, nil
}

// addressOf returns where an engine is, "" if that is not known.
func addressOf(opener Opener) string {
	if a, ok := opener.(Addressed); ok {
		return a.Address()
	}
	return ""
}
