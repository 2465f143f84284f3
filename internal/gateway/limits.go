package gateway

import (
	"math"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// A Limit limits how often a client may make requests.
type Limit struct {
	tools *mcp.Pattern // nil for all requests
	own   ratelimit.Limit
	aside ratelimit.Limit // for messages that surround requests
}

// asideFactor is how many other messages come with each request: handshakes, notifications,
// answers to questions, streams. They have a budget of their own, so that a client which
// comes back after a cut has as many requests as others.
const asideFactor = 10

// NewLimit returns a Limit on calls of the tools that a pattern selects, or on all requests if
// it is nil.
func NewLimit(l ratelimit.Limit, tools *mcp.Pattern) Limit {
	aside := l
	aside.Key, aside.N, aside.Burst = l.Key+" aside", asideFactor*l.N, asideFactor*l.Burst
	return Limit{tools, l, aside}
}

// appendLimits appends those limits that apply to something.
func appendLimits(to []ratelimit.Limit, limits []Limit, target mcp.Target, request bool) []ratelimit.Limit {
	for i := range limits {
		switch l := &limits[i]; {
		case l.tools != nil:
			if request && target.Kind == mcp.Tool && l.tools.Match(target.Server, target.Name) {
				to = append(to, l.own)
			}
		case request:
			to = append(to, l.own)
		default:
			to = append(to, l.aside)
		}
	}
	return to
}

// limits appends the limits that apply to a message of a client, which is a request or comes
// besides.
func (r *rules) limits(to []ratelimit.Limit, c *caller, target mcp.Target, request bool) []ratelimit.Limit {
	var own []Limit
	if c.rules != nil {
		own = c.rules.Limits
	}
	if len(own)+len(r.config.Limits) == 0 || c.identity == OperatorIdentity {
		return to
	}
	return appendLimits(appendLimits(to, r.config.Limits, target, request), own, target, request)
}

// take takes what a message needs from the budgets of its client. If there is not enough, it
// returns when there will be.
func (q *Request) take(target mcp.Target, request bool) (wait time.Duration, ok bool) {
	var room [8]ratelimit.Limit
	limits := q.g.rules.limits(room[:0], &q.caller, target, request)
	if len(limits) == 0 {
		return 0, true
	}
	return q.g.buckets.Take(q.caller.budget(), limits)
}

// retryAfter returns a time as the header has it, in whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
