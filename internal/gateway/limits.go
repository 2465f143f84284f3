package gateway

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
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

// take takes what the message needs from the budgets of its client. If there is not enough,
// it returns when there will be.
func (q *Request) take(target mcp.Target) (wait time.Duration, ok bool) {
	return q.takeAs(target, q.counts())
}

// takeAs is take for a message that is, or is not, a request.
func (q *Request) takeAs(target mcp.Target, request bool) (wait time.Duration, ok bool) {
	var room [8]ratelimit.Limit
	limits := q.limitsFor(room[:0], target, request)
	if len(limits) == 0 {
		return 0, true
	}
	return q.g.buckets.Take(q.budget(), limits)
}

// limitsFor appends the limits that apply to a message of the client.
func (q *Request) limitsFor(to []ratelimit.Limit, target mcp.Target, request bool) []ratelimit.Limit {
	var own []Limit
	if q.caller.rules != nil {
		own = q.caller.rules.Limits
	}
	if len(own)+len(q.g.config.Limits) == 0 || q.caller.identity == OperatorIdentity {
		return to
	}
	return appendLimits(appendLimits(to, q.g.config.Limits, target, request), own, target, request)
}

// budget returns whose budget the request is on: the client's or, if it is unknown, that of
// its address (R14).
func (q *Request) budget() string {
	if q.caller.name != "" {
		return "client " + q.caller.name
	}
	return "address " + ratelimit.Address(q.peer.Address)
}

// counts reports whether the message is a request and not part of a handshake. Some servers
// run requests without an id, too.
func (q *Request) counts() bool {
	switch method := q.methodName(); method {
	case "", "initialize", "server/discover":
		return false
	default:
		return !strings.HasPrefix(method, "notifications/") || q.message.Has(jsonrpc.ID)
	}
}

// retryAfter returns a time as the header has it, in whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
