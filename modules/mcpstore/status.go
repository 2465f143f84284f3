package mcpstore

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
)

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
