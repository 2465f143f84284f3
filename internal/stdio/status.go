package stdio

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Status describes a child.
type Status struct {
	PID       int       `json:"pid,omitempty"` // 0 unless it is running
	State     State     `json:"state"`
	Restarts  int       `json:"restarts"`             // starts after the first one, also failed ones
	LastError string    `json:"last_error,omitempty"` // why it last ended or could not be started
	FailedAt  time.Time `json:"last_error_at,omitzero"`
	Stderr    []string  `json:"stderr,omitempty"`  // last lines on stderr before that
	Since     time.Time `json:"since,omitzero"`    // start time, if it is running
	Era       string    `json:"era,omitempty"`     // era of the clients that it serves
	Session   bool      `json:"session,omitempty"` // it serves a single session
	// Capabilities of the clients that it serves, as JSON, if they declare the same ones.
	Capabilities string `json:"capabilities,omitempty"`
}

// A State is the state of a child.
type State string

// States of a child.
const (
	Idle     State = "idle"     // not needed yet
	Starting State = "starting" // starting, or being initialized
	Running  State = "running"
	Silent   State = "silent"  // running, but several calls in a row have timed out
	Waiting  State = "waiting" // waiting for its restart
	Stopped  State = "stopped" // stopped until it is needed, or for good
)

// eras are the names of eras.
var eras = [...]string{mcp.Legacy: "legacy", mcp.Modern: "modern"}

// Status returns the status of the children at a host: shared ones first, then those of sessions,
// the oldest first. If no child was needed yet, it returns a single idle one.
func (p *Pool) Status(host string) (all []Status) {
	for _, s := range p.serversAt(host) {
		if status := s.status(); status.State != Idle {
			all = append(all, status)
		}
	}
	if len(all) == 0 {
		return []Status{{State: Idle}}
	}
	slices.SortStableFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Since.Compare(b.Since))
	})
	return all
}

// rank orders children by the clients that they serve.
func rank(s Status) int {
	switch {
	case s.Session:
		return 2
	case s.Era == eras[mcp.Modern]:
		return 1
	}
	return 0
}

// serversAt returns the servers at a host, including those of sessions.
func (p *Pool) serversAt(host string) (servers []*server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.servers {
		if a.host == host {
			servers = append(servers, s)
		}
	}
	for _, s := range p.sessions.byID {
		if s.hasServerAt(host) {
			servers = append(servers, s.server)
		}
	}
	return servers
}

func (s *server) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{
		State:    s.state(),
		Restarts: max(0, s.attempts-1),
		Era:      eras[s.address.era],
		Session:  s.owner != nil,
	}
	if s.address.group != nil {
		status.Capabilities = mcp.Shortened(s.address.group.capabilities)
	}
	if s.lastFault != nil {
		status.LastError, status.FailedAt = mcp.OneLine(s.lastFault.Error()), s.lastFaultAt
		if failed, ok := errors.AsType[*childError](s.lastFault); ok {
			status.Stderr = failed.stderr
		}
	}
	if status.State == Running || status.State == Silent {
		status.PID, status.Since = s.child.cmd.Process.Pid, s.child.startedAt
	}
	return status
}

// state returns the state of the child. The caller holds the lock.
func (s *server) state() State {
	switch {
	case s.isStopping():
		return Stopped
	case s.child != nil && s.child.calls.silent():
		return Silent
	case s.child != nil:
		return Running
	case s.starting != nil && time.Until(s.due) > 0:
		return Waiting
	case s.starting != nil:
		return Starting
	case s.err == nil, errors.Is(s.err, errLegacyOnly): // another server reports the state then
		return Idle
	}
	return Stopped
}

// Restart replaces the children at a host at once, even if a pause before their restart is not
// over. If none runs, it starts a shared one. Calls that the old children have not answered when
// they end fail; new calls wait for the new children. It returns when these are ready, or why they
// are not.
func (p *Pool) Restart(ctx context.Context, host string) error {
	var servers []*server
	for _, s := range p.healthServers(host) {
		if s.wantsRestart() {
			servers = append(servers, s)
		}
	}
	if len(servers) == 0 {
		s, err := p.sharedServer(host, nil, "")
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	return forEach(servers, func(s *server) error { return s.restart(ctx) })
}

// Start starts a child at a host, unless a shared one runs there. It finds out the era of the
// server. It returns when the child is ready, or why it is not.
func (p *Pool) Start(ctx context.Context, host string) error {
	for _, s := range p.serversAt(host) {
		if s.owner == nil && s.current() != nil {
			return nil
		}
	}
	s, err := p.server(address{host: host, era: mcp.Modern})
	if err != nil {
		return err
	}
	_, err = s.ready(ctx)
	if errors.Is(err, errLegacyOnly) || errors.Is(err, errAskLegacy) {
		if s, err = p.sharedServer(host, nil, ""); err == nil {
			_, err = s.ready(ctx)
		}
	}
	return err
}

// SkipBackoff skips the pauses before children at a host are restarted.
func (p *Pool) SkipBackoff(host string) {
	for _, s := range p.serversAt(host) {
		s.mu.Lock()
		s.startNow()
		s.mu.Unlock()
	}
}

// wantsRestart reports whether Restart restarts this server. A server that was found not to support
// the modern era is asked again when it is needed: it may be another program by now.
func (s *server) wantsRestart() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, errLegacyOnly) && s.starting == nil {
		s.err, s.eraFailures, s.due = nil, 0, time.Time{}
		return false
	}
	if s.owner != nil {
		return s.child != nil || s.starting != nil
	}
	return s.state() != Idle
}

// CheckStarted pings the children that have been started at a host, and restarts those that do not
// respond. It skips idle children and those that are starting; asked reports whether there were any
// others. Failures of children of a single session are not returned.
func (p *Pool) CheckStarted(ctx context.Context, host string) (asked bool, err error) {
	var servers []*server
	for _, s := range p.healthServers(host) {
		switch state := s.status().State; {
		case s.owner != nil && state != Running && state != Silent:
		case state != Idle && state != Starting:
			servers = append(servers, s)
		}
	}
	return len(servers) > 0, check(ctx, servers)
}

// healthServers returns the servers at a host that count for its health. A server that was never
// ready does not count while another one runs: it may refuse the capabilities of its clients.
func (p *Pool) healthServers(host string) []*server {
	servers := p.serversAt(host)
	if !slices.ContainsFunc(servers, func(s *server) bool { return s.isShared() && s.current() != nil }) {
		return servers
	}
	return slices.DeleteFunc(servers, func(s *server) bool { return s.isShared() && s.readiness() == 0 })
}
