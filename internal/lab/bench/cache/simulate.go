package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/bill"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// An outcome sums up the costs of all runs of a kind with a policy.
type outcome struct {
	bill, tokens     float64
	breaks           int     // how often a request changed what was sent before
	worst            float64 // highest bill of a run, relative to no masking
	raised2, raised5 int     // runs whose bill is more than 2 or 5 percent higher
}

func (o *outcome) add(a account, prices bill.Prices, unmasked float64) {
	cost := a.Cost(prices)
	ratio := cost / unmasked
	o.bill += cost
	o.tokens += float64(a.Prompt())
	o.breaks += a.breaks
	o.worst = max(o.worst, ratio)
	if ratio > 1.02 {
		o.raised2++
	}
	if ratio > 1.05 {
		o.raised5++
	}
}

// simulate returns the outcomes of each policy: without pauses, and with them.
func simulate(s settings, k kind, rows []row) ([][2]outcome, error) {
	var c chat.Conversation
	outcomes := make([][2]outcome, len(rows))
	for i := range k.runs {
		r := newRun(s.seed, uint64(i), k)
		for pauses, percent := range []int{0, s.pauses} {
			sessions := openSessions(rows, s.minimum)
			if err := play(&c, r, sessions, percent); err != nil {
				return nil, fmt.Errorf("run %d: %w", i, err)
			}
			unmasked := sessions[0].account.Cost(s.prices)
			for i := range sessions {
				outcomes[i][pauses].add(sessions[i].account, s.prices, unmasked)
			}
		}
	}
	return outcomes, nil
}

// An account is the usage that a provider bills for the requests of a policy.
type account struct {
	bill.Tokens
	breaks int
}

// A session is the state of a run with one policy.
type session struct {
	policy   *chat.Policy
	progress chat.Progress
	cache    bill.Cache
	before   int // length of the last request in bytes
	account  account
}

func openSessions(rows []row, minimum int) []session {
	sessions := make([]session, len(rows))
	for i := range sessions {
		sessions[i] = session{policy: &rows[i].policy, cache: bill.Cache{Minimum: minimum, TTL: bill.TTL}}
	}
	return sessions
}

// play sends every request of a run in all sessions. Some requests follow a pause.
func play(c *chat.Conversation, r run, sessions []session, pauses int) error {
	now := time.Unix(0, 0)
	chance := rand.New(rand.NewPCG(uint64(len(r.opening)), uint64(len(r.turns))))
	for body, reply := range r.requests() {
		now = now.Add(10 * time.Second)
		if chance.IntN(100) < pauses {
			now = now.Add(2 * bill.TTL)
		}
		if err := c.Parse(body); err != nil {
			return err
		}
		for i := range sessions {
			s := &sessions[i]
			if _, err := s.send(c, body, now); err != nil {
				return err
			}
			s.account.Output += len(reply) / chat.CharsPerToken
		}
	}
	return nil
}

// send masks a parsed request and sends it. It reports whether the request changes what was
// sent before.
func (s *session) send(c *chat.Conversation, body []byte, now time.Time) (broken bool, err error) {
	plan, progress := c.MaskAfter(s.policy, &s.progress, s.cache.Expired(now))
	s.progress = progress
	billed, shared := s.cache.Send(body, plan.Edits, now)
	broken = shared < s.before-len(closing)
	if broken != plan.Broken { // one of the two is wrong
		return false, fmt.Errorf("turn %d: prefix broken: %t, but the plan says %t", plan.Turns, broken, plan.Broken)
	}
	if broken {
		s.account.breaks++
	}
	s.account.Tokens.Add(billed)
	s.before = jsonspan.NewReader(body, plan.Edits).Len()
	return broken, nil
}
