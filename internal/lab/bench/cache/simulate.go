package main

import (
	"bytes"
	"fmt"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/chat"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// bytesPerToken is the usual estimate.
const bytesPerToken = 4

// prices are those of a token.
type prices struct{ read, write, output float64 }

// A bill is what a provider has counted.
type bill struct {
	read, written, output int // tokens
	breaks                int // how often something was sent otherwise than before
}

func (b bill) cost(p prices) float64 {
	return float64(b.read)*p.read + float64(b.written)*p.write + float64(b.output)*p.output
}

// sent returns how many tokens all prompts had together.
func (b bill) sent() int { return b.read + b.written }

func (b *bill) add(other bill) {
	b.read += other.read
	b.written += other.written
	b.output += other.output
	b.breaks += other.breaks
}

// simulate returns the bill of each policy for all runs of so many turns.
func simulate(s settings, turns int, policies []chat.Policy) ([]bill, error) {
	var c chat.Conversation
	bills := make([]bill, len(policies))
	for i := range s.runs {
		sessions := openSessions(policies, s.minimum)
		if err := play(&c, newRun(s.seed, uint64(i), turns), sessions); err != nil {
			return nil, fmt.Errorf("run %d: %w", i, err)
		}
		for i := range sessions {
			bills[i].add(sessions[i].bill)
		}
	}
	return bills, nil
}

// A session is the requests of a run as a policy lets them through.
type session struct {
	policy  *chat.Policy
	minimum int // tokens that a cached beginning must have
	sent    bytes.Buffer
	before  bytes.Buffer // what was sent before that
	bill    bill
}

func openSessions(policies []chat.Policy, minimum int) []session {
	sessions := make([]session, len(policies))
	for i := range sessions {
		sessions[i] = session{policy: &policies[i], minimum: minimum}
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
			s.bill.output += len(reply) / bytesPerToken
		}
	}
	return nil
}

// send masks a request that has been read, sends it, and reports whether it
// breaks with what was sent before.
func (s *session) send(c *chat.Conversation, body []byte) (broken bool, err error) {
	s.before, s.sent = s.sent, s.before
	s.sent.Reset()
	plan := c.Mask(s.policy)
	if err := jsonspan.Splice(&s.sent, body, plan.Edits); err != nil {
		return false, err
	}
	common := commonPrefix(s.before.Bytes(), s.sent.Bytes())
	broken = s.before.Len() > 0 && common < s.before.Len()-len(closing)
	if broken != plan.Broken { // then one of the two is no good
		return false, fmt.Errorf("turn %d: prefix broken: %t, but the plan says %t", plan.Turns, broken, plan.Broken)
	}
	if broken {
		s.bill.breaks++
	}
	read := common / bytesPerToken
	if read < s.minimum {
		read = 0
	}
	s.bill.read += read
	s.bill.written += s.sent.Len()/bytesPerToken - read
	return broken, nil
}

// commonPrefix returns how many bytes a and b begin with alike.
func commonPrefix(a, b []byte) int {
	const piece = 4096 // which bytes.Equal compares faster than a loop
	n := 0
	for n+piece <= min(len(a), len(b)) && bytes.Equal(a[n:n+piece], b[n:n+piece]) {
		n += piece
	}
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
