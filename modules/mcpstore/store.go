package mcpstore

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

// A Store is an open store. It survives reloads that do not change its settings.
type Store struct {
	*replicas.Store

	// AllowWhenDown reports whether the replica applies limits on its own while the store is
	// unavailable.
	AllowWhenDown bool

	// ID is a hash of the settings.
	ID [sha256.Size]byte

	engine, address string // for the status
}

// stores holds the open stores by ID.
var stores = caddy.NewUsagePool()

// Open returns the store of a configuration, nil if nothing is shared. The caller must release it.
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

// Active returns the store of the running configuration, nil if nothing is shared. The caller must
// not release it.
func Active() (*Store, error) {
	a, err := appOf(caddy.ActiveContext())
	if a == nil {
		return nil, err
	}
	return a.store, nil
}

// Claim claims a name for an owner in a configuration with mcp_store. It reports whether no other
// owner has claimed the name.
func Claim(ctx caddy.Context, name, owner string) (claimed bool, err error) {
	a, err := appOf(ctx)
	if a == nil {
		return true, err
	}
	current, _ := a.claims.LoadOrStore(name, owner)
	return current == owner, nil
}

// Release releases the store. A nil Store is fine.
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

// open opens the store of the app, or returns it if a configuration with the same settings has
// opened it.
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

// readFiles returns the contents of the files that an engine uses.
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

// addressOf returns the address of an engine, "" if unknown.
func addressOf(opener Opener) string {
	if a, ok := opener.(Addressed); ok {
		return a.Address()
	}
	return ""
}

// A Status is the state of a store, as known without a request to the engine.
type Status struct {
	Engine    string `json:"engine"`               // such as redis
	Address   string `json:"address,omitempty"`    // without credentials
	Up        bool   `json:"up"`                   // if false, operations fail at once
	Error     string `json:"error,omitempty"`      // why it is not up
	Full      bool   `json:"full"`                 // large entries are kept only in each replica's memory
	Outages   uint64 `json:"outages"`              // number of outages
	LastError string `json:"last_error,omitempty"` // reason of the last outage
	Waiting   int    `json:"writes_waiting"`       // writes that wait in the background
}

// A Check is the result of a request to the engine of a store.
type Check struct {
	Name    string  `json:"name"` // always mcp_store
	Engine  string  `json:"engine"`
	Address string  `json:"address,omitempty"`
	Up      bool    `json:"up"`
	Full    bool    `json:"full"`
	Seconds float64 `json:"seconds"` // duration of the request
	Error   string  `json:"error,omitempty"`
}

// Status returns the state of the store, nil if nothing is shared.
func (s *Store) Status() *Status {
	if s == nil {
		return nil
	}
	status := &Status{
		Engine: s.engine, Address: s.address, Up: true, Full: s.Full(), Outages: s.Outages(), Waiting: s.Waiting(),
	}
	if err := s.Cause(); err != nil {
		status.Up, status.Error = false, err.Error()
	}
	if err := s.LastCause(); err != nil {
		status.LastError = err.Error()
	}
	return status
}

// Check sends a request to the engine.
func (s *Store) Check(ctx context.Context) Check {
	began := time.Now()
	err := s.Ping(ctx)
	check := Check{Name: "mcp_store", Engine: s.engine, Address: s.address, Seconds: time.Since(began).Seconds()}
	switch {
	case err == nil:
		check.Up = true
	case errors.Is(err, replicas.ErrFull):
		check.Up, check.Full = true, true
	default:
		check.Error = err.Error()
	}
	return check
}
