package main

import (
	"fmt"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An account is what a provider bills for the requests of a policy.
type account struct {
	bill.Tokens
	breaks int // how often something was sent otherwise than before
}

func (a *account) add(other account) {
	a.Tokens.Add(other.Tokens)
	a.breaks += other.breaks
}

// simulate returns the account of each policy for all runs of so many turns.
func simulate(s settings, turns int, policies []chat.Policy) ([]account, error) {
	var c chat.Conversation
	accounts := make([]account, len(policies))
	for i := range s.runs {
		sessions := openSessions(policies, s.minimum)
		if err := play(&c, newRun(s.seed, uint64(i), turns), sessions); err != nil {
			return nil, fmt.Errorf("run %d: %w", i, err)
		}
		for i := range sessions {
			accounts[i].add(sessions[i].account)
		}
	}
	return accounts, nil
}

// A session is the requests of a run as a policy lets them through.
type session struct {
	policy  *chat.Policy
	cache   bill.Cache
	before  int // bytes of the last request
	account account
}

func openSessions(policies []chat.Policy, minimum int) []session {
	sessions := make([]session, len(policies))
	for i := range sessions {
		sessions[i] = session{policy: &policies[i], cache: bill.Cache{Minimum: minimum}}
	}
	return sessions
}

// play sends every request of a run in all sessions.
func play(c *chat.Conversation, r run, sessions []session) error {
	for body, reply := range r.requests() {
		if err := c.Parse(body); err != nil {
			return err
		}
		for i := range sessions {
			s := &sessions[i]
			if _, err := s.send(c, body); err != nil {
				return err
			}
			s.account.Output += len(reply) / chat.CharsPerToken
		}
	}
	return nil
}

// send masks a request that has been read, sends it, and reports whether it
// breaks with what was sent before.
func (s *session) send(c *chat.Conversation, body []byte) (broken bool, err error) {
	plan := c.Mask(s.policy)
	billed, shared := s.cache.Send(body, plan.Edits, time.Time{})
	broken = shared < s.before-len(closing)
	if broken != plan.Broken { // then one of the two is no good
		return false, fmt.Errorf("turn %d: prefix broken: %t, but the plan says %t", plan.Turns, broken, plan.Broken)
	}
	if broken {
		s.account.breaks++
	}
	s.account.Tokens.Add(billed)
	s.before = jsonspan.NewReader(body, plan.Edits).Len()
	return broken, nil
}
