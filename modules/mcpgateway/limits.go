package mcpgateway

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// Rate limits how often something may be asked for: so many times within a time. What
// is not used is saved up, to be used at once.
type Rate struct {
	// Which tools are meant, as server::tool, in which * stands for any characters. Each
	// rate has one budget for all of them. Default: all requests
	Tools string `json:"tools,omitempty"`

	// How many requests. Required.
	Requests int `json:"requests,omitempty"`

	// Within which time. Required.
	Per caddy.Duration `json:"per,omitempty"`

	// How many at once. Default: as many as requests
	Burst int `json:"burst,omitempty"`
}

func (r *Rate) validate() error {
	switch {
	case r.Requests <= 0:
		return fmt.Errorf("rate: %d requests are none", r.Requests)
	case r.Per <= 0:
		return fmt.Errorf("rate: %s is no time", time.Duration(r.Per))
	case r.Burst < 0:
		return fmt.Errorf("rate: a burst of %d is negative", r.Burst)
	}
	return nil
}

// A limit is a Rate that is ready for use.
type limit struct {
	tools *mcp.Pattern // nil for all requests
	own   ratelimit.Limit
	aside ratelimit.Limit // for what surrounds requests
}

// asideFactor is how many messages that are no requests come with each that is one:
// handshakes, notifications, answers to questions, streams. They have a budget of their
// own, so that a client which comes back after a cut has as many requests as others.
const asideFactor = 10

// limitsOf makes limits of rates. Their keys stay the same when the numbers change, so
// that what has been used counts for the new ones.
func (h *Handler) limitsOf(scope string, rates []*Rate, client string) ([]limit, error) {
	var limits []limit
	count := map[string]int{}
	for _, r := range rates {
		if r == nil {
			return nil, errors.New("rate: one is null")
		}
		if err := r.validate(); err != nil {
			return nil, err
		}
		key := fmt.Sprintf("%s %s %d", scope, r.Tools, count[r.Tools])
		count[r.Tools]++
		l := limit{own: ratelimit.Limit{Key: key, N: r.Requests, Per: time.Duration(r.Per), Burst: r.Burst}}
		l.aside = l.own
		l.aside.Key, l.aside.N, l.aside.Burst = key+" aside", asideFactor*l.own.N, asideFactor*l.own.Burst
		if r.Tools != "" {
			pattern, err := mcp.ParsePattern(h.qualified(r.Tools, client))
			if err != nil {
				return nil, fmt.Errorf("rate: %w", err)
			}
			l.tools = &pattern
		}
		limits = append(limits, l)
	}
	return limits, nil
}

// apply appends those limits that apply to something.
func apply(to []ratelimit.Limit, limits []limit, target mcp.Target, request bool) []ratelimit.Limit {
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

// take takes what a request needs from the budgets of its client. It returns after what
// time there will be enough, if there is not.
func (x *exchange) take(target mcp.Target) (wait time.Duration, ok bool) {
	return x.takeAs(target, x.counts())
}

// takeAs is take for what is, or is not, a request.
func (x *exchange) takeAs(target mcp.Target, request bool) (wait time.Duration, ok bool) {
	var room [8]ratelimit.Limit
	limits := x.limitsFor(room[:0], target, request)
	if len(limits) == 0 {
		return 0, true
	}
	return x.handler.buckets.Take(x.budget(), limits)
}

// limitsFor appends the limits that apply to what is, or is not, a request of the client.
func (x *exchange) limitsFor(to []ratelimit.Limit, target mcp.Target, request bool) []ratelimit.Limit {
	who := &x.caller
	var own []limit
	if who.rules != nil {
		own = who.rules.limits
	}
	if len(own)+len(x.handler.limits) == 0 || who.identity == operator {
		return to
	}
	return apply(apply(to, x.handler.limits, target, request), own, target, request)
}

// budget names whose budget a request is on: the client's or, if nobody knows it, that
// of the machine it comes from (R14).
func (x *exchange) budget() string {
	if x.caller.name != "" {
		return "client " + x.caller.name
	}
	return "address " + ratelimit.Address(x.address)
}

// counts reports whether a rate is about this message: a request that is no handshake.
// There are servers that do what they are told without an id, too.
func (x *exchange) counts() bool {
	switch method := x.methodName(); method {
	case "", "initialize", "server/discover":
		return false
	default:
		return !strings.HasPrefix(method, "notifications/") || x.message.Has(jsonrpc.ID)
	}
}

// clientAddress is where a request comes from, as Caddy's trusted_proxies say.
func clientAddress(r *http.Request) string {
	address, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	if address == "" {
		return r.RemoteAddr
	}
	return address
}

// retryAfter returns a time as the header has it, in whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
