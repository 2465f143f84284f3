package stdio

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// A Status is how a child is.
type Status struct {
	PID       int       `json:"pid,omitempty"` // 0 unless it runs
	State     State     `json:"state"`
	Restarts  int       `json:"restarts"`             // since there is a pool
	LastError string    `json:"last_error,omitempty"` // why it ended or could not be started the last time, if ever
	FailedAt  time.Time `json:"last_error_at,omitzero"`
	Stderr    []string  `json:"stderr,omitempty"`  // the last lines that it wrote there before that
	Since     time.Time `json:"since,omitzero"`    // when it was started, if it runs
	Era       string    `json:"era,omitempty"`     // of the clients that it serves
	Session   bool      `json:"session,omitempty"` // it serves one session
	// What the clients can do that it serves, as JSON, if it serves those that declare the same.
	Capabilities string `json:"capabilities,omitempty"`
}

// A State is what a child is doing.
type State string

const (
	Idle     State = "idle"     // nobody has needed it yet
	Starting State = "starting" // and being initialized
	Running  State = "running"
	Silent   State = "silent"  // it runs, but has not answered several calls in a row
	Waiting  State = "waiting" // for its restart
	Stopped  State = "stopped" // until it is needed, if it is not for good
)

// eras are the names of eras.
var eras = [...]string{mcp.Legacy: "legacy", mcp.Modern: "modern"}

// Status tells of the children at a host: those that all share, then those of
// sessions, the oldest first. Where nobody has needed one yet, that is what it tells.
func (p *Pool) Status(host string) (all []Status) {
	for _, s := range p.at(host) {
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

// rank orders children by whom they are for.
func rank(s Status) int {
	switch {
	case s.Session:
		return 2
	case s.Era == eras[mcp.Modern]:
		return 1
	}
	return 0
}

// at returns the servers at a host, those of sessions included.
func (p *Pool) at(host string) (servers []*server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.servers {
		if a.host == host {
			servers = append(servers, s)
		}
	}
	for _, s := range p.sessions {
		if s.server != nil && s.server.at.host == host {
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
		Restarts: max(0, s.started-1),
		Era:      eras[s.at.era],
		Session:  s.owner != nil,
	}
	if s.at.group != nil {
		status.Capabilities = mcp.Shortened(s.at.group.can)
	}
	if s.fault != nil {
		status.LastError, status.FailedAt = mcp.OneLine(s.fault.Error()), s.faultAt
		if failed, ok := errors.AsType[*childError](s.fault); ok {
			status.Stderr = failed.stderr
		}
	}
	if status.State == Running || status.State == Silent {
		status.PID, status.Since = s.child.cmd.Process.Pid, s.child.born
	}
	return status
}

// state is for callers that hold the lock.
func (s *server) state() State {
	switch {
	case s.ending():
		return Stopped
	case s.child != nil && s.child.silent():
		return Silent
	case s.child != nil:
		return Running
	case s.starting != nil && time.Until(s.due) > 0:
		return Waiting
	case s.starting != nil:
		return Starting
	case s.err == nil, errors.Is(s.err, errLegacyOnly): // then another speaks for it
		return Idle
	}
	return Stopped
}

// Restart ends the children at a host and starts others in their place, at once however
// long they would have to wait. Of those that do not run, one that all share is started.
// Calls that the old ones have not answered when they end fail; those that come in the
// meantime wait for the new ones. It returns when these are ready, or why they are not.
func (p *Pool) Restart(ctx context.Context, host string) error {
	var servers []*server
	for _, s := range p.counting(host) {
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
	errs := make([]error, len(servers))
	var restarts sync.WaitGroup
	for i, s := range servers {
		restarts.Go(func() { errs[i] = s.restart(ctx) })
	}
	restarts.Wait()
	return errors.Join(errs...)
}

// Start starts a child at a host, unless one that clients share runs there. Which era it speaks is found out. It returns
// when the child is ready, or why it is not.
func (p *Pool) Start(ctx context.Context, host string) error {
	for _, s := range p.at(host) {
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

// Hurry ends the pauses before children at a host are started again.
func (p *Pool) Hurry(host string) {
	for _, s := range p.at(host) {
		s.mu.Lock()
		s.beDue()
		s.mu.Unlock()
	}
}

// wantsRestart reports whether a restart of everything at its host is one of this
// server. One that was found not to know the modern era is asked again when it is
// needed: it may be another by now.
func (s *server) wantsRestart() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, errLegacyOnly) && s.starting == nil {
		s.err, s.unsaid = nil, 0
		return false
	}
	if s.owner != nil {
		return s.child != nil || s.starting != nil
	}
	return s.state() != Idle
}

// Alive finds out whether what has been started at a host is alive, and starts another
// in the place of one that is not. What nobody has needed yet, and what is still starting,
// is left alone; asked says whether there was anything else. That a session's own child does not answer is no
// fault of the others.
func (p *Pool) Alive(ctx context.Context, host string) (asked bool, err error) {
	var servers []*server
	for _, s := range p.counting(host) {
		switch state := s.status().State; {
		case s.owner != nil && state != Running && state != Silent:
		case state != Idle && state != Starting:
			servers = append(servers, s)
		}
	}
	return len(servers) > 0, check(ctx, servers)
}

// counting returns the servers at a host that tell how it is. One that was never ready does
// not as long as another one runs: it may be that its clients declare what the server refuses.
func (p *Pool) counting(host string) []*server {
	servers := p.at(host)
	if !slices.ContainsFunc(servers, func(s *server) bool { return s.at.group != nil && s.current() != nil }) {
		return servers
	}
	return slices.DeleteFunc(servers, func(s *server) bool { return s.at.group != nil && s.readiness() == 0 })
}
