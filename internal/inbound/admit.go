package inbound

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/catalog"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/replicas"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Admit decides whether the client may send the message now. It is called once for each message.
func (q *Request) Admit(target mcp.Target) *jsonrpc.Failure {
	q.AdmitAsked, q.charged = true, false
	q.gate.retained.Usage.note(q.Caller.Label, q.Began).Requests.Add(1)
	if failure := q.Permit(target); failure != nil {
		return failure
	}
	return q.chargeRateLimits(target)
}

// chargeRateLimits charges the message to the rate limits of its client. It does so once per Admit.
func (q *Request) chargeRateLimits(target mcp.Target) *jsonrpc.Failure {
	if q.charged {
		return nil
	}
	wait, ok, err := q.gate.takeTokens(q.HTTP.Context(), &q.Caller, target, q.IsRequest())
	switch {
	case err != nil:
		return q.deny(rateUnchecked(target.Server), Denial{Target: target, Reason: err})
	case !ok:
		q.Writer.Header().Set("Retry-After", retryAfter(wait))
		return q.deny(jsonrpc.Refused(target.Server, http.StatusTooManyRequests), Denial{Target: target})
	}
	q.charged = true
	return nil
}

// rateUnchecked returns the failure of a message to a server whose rate limits cannot be checked.
func rateUnchecked(server string) *jsonrpc.Failure {
	failure := jsonrpc.StoreUnavailable("rate limits cannot be checked")
	failure.Data.ServerName = server
	return failure
}

// Permit decides whether rules allow the message. It is Admit without rate limits, for messages
// whose target becomes known only after Admit.
func (q *Request) Permit(target mcp.Target) *jsonrpc.Failure {
	if failure := q.LearnAnnotations(target); failure != nil {
		return failure
	}
	q.Decision = q.Caller.DecideCall(target, q.Message.Literal(jsonrpc.Arguments))
	switch {
	case q.Decision.Action == acl.Deny:
		return q.DeniedBy(q.Decision, jsonrpc.Refused(target.Server, http.StatusForbidden), target)
	case q.Decision.Action == acl.Confirm && !q.Caller.Askable:
		failure := jsonrpc.ConfirmationRequired(target.Server, q.Endpoint.Kind == upstream.Aggregate)
		return q.DeniedBy(q.Decision, failure, target)
	case q.gate.Withheld(target):
		return q.deny(jsonrpc.ToolChanged(target.Server), Denial{Target: target})
	}
	return nil
}

// Withheld reports whether a tool is withheld because its definition has changed.
func (g *Gate) Withheld(target mcp.Target) bool {
	s := g.Servers[target.Server]
	return g.config.PinTools && s != nil && target.Kind == mcp.Tool && s.Pins.Changed(target.Name)
}

// DeniedBy reports a denial by a rule.
func (q *Request) DeniedBy(d acl.Decision, failure *jsonrpc.Failure, target mcp.Target) *jsonrpc.Failure {
	return q.deny(failure, Denial{Target: target, Rule: d.Reason()})
}

// deny completes a denial, and reports it.
func (q *Request) deny(failure *jsonrpc.Failure, d Denial) *jsonrpc.Failure {
	q.denial = &d
	q.gate.retained.Usage.note(q.Caller.Label, q.Began).Denied.Add(1)
	d.Client, d.ClientLabel, d.Address = q.Caller.ShownName(), q.Caller.Label, q.Peer.Address
	d.Method, d.Code = q.MethodName(), failure.Data.Symbol
	q.gate.observer.Denied(&d)
	return failure
}

// takeTokens charges a message to the rate limits of its client. If a limit is reached, it returns
// the time to wait. It fails if the limits cannot be checked.
func (g *Gate) takeTokens(
	ctx context.Context, c *access.Caller, target mcp.Target, request bool,
) (wait time.Duration, ok bool, err error) {
	var buf [8]ratelimit.Limit
	limits := g.Rules.Limits(buf[:0], c, target, request)
	if len(limits) == 0 {
		return 0, true, nil
	}
	return g.retained.Usage.buckets.Take(ctx, c.Budget(), limits)
}

// retryAfter returns a duration for the Retry-After header, in whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}

// LearnAnnotations finds the annotations of the called tool, if the decision on it depends on them.
// It fails if they cannot be found. It sends no request to a server of which the caller may use
// nothing.
func (q *Request) LearnAnnotations(target mcp.Target) *jsonrpc.Failure {
	c, s := &q.Caller, q.gate.Servers[target.Server]
	if target.Kind != mcp.Tool || s == nil || !c.Policy().NeedsAnnotations(s.Name, target.Name) ||
		!c.Policy().MayAllow(s.Name) {
		return nil
	}
	notes := q.gate.Shared.ToolNotes(s, c, q.HTTP.Header)
	var known bool
	if c.Annotations, known = notes.Annotations(target.Name); known {
		return nil
	}
	if failure := q.chargeRateLimits(target); failure != nil {
		return failure
	}
	failure := notes.Learn(q.HTTP.Context(), func() *jsonrpc.Failure { return q.requestTools(s) })
	if failure == nil {
		if c.Annotations, known = notes.Annotations(target.Name); !known {
			failure = jsonrpc.TooManyTools(s.Name)
		}
	}
	if failure != nil && q.Endpoint.Kind == upstream.Aggregate {
		failure = failure.WithStatusOK()
	}
	return failure
}

// CheckParams checks that the headers of a call repeat its arguments, if a rule depends on these. A
// program in front of the server may read the headers instead. list returns the tools of the server.
func (q *Request) CheckParams(list func() (*catalog.List, *jsonrpc.Failure)) *jsonrpc.Failure {
	target := q.Target()
	if target.Kind != mcp.Tool || !mcp.HasParams(q.HTTP.Header) ||
		!q.Caller.Policy().ReadsArguments(target.Server, target.Name) {
		return nil
	}
	tools, failure := list()
	if failure != nil {
		return failure
	}
	header := q.HTTP.Header.Clone()
	tools.Params.SetOnly(header, &q.Message, q.Override.HidesArgument) // clients do not send these
	return tools.Params.Check(header, &q.Message)
}

// requestTools lists the tools of a server for the client. At Aggregate, it does so in the session
// of the client.
func (q *Request) requestTools(s *upstream.Server) *jsonrpc.Failure {
	if q.ListTools != nil {
		return q.ListTools(s)
	}
	r := q.HTTP.WithContext(&Context{q.HTTP.Context(), q.Caller, q.Peer.Inherited})
	_, failure := q.gate.aggregate.ListTools(r, q.Caller.Identity, s)
	return failure
}

// Usage is the rate limit state and the request counts of clients. It is retained over
// configuration reloads.
type Usage struct {
	buckets *ratelimit.Buckets
	tallies sync.Map // *Tally by the label of the client in metrics
}

// maxLimited limits the clients that have rate limit state.
const maxLimited = 100_000

// NewUsage returns an empty Usage. space is the state that replicas share; nil for none. With
// allowWhenDown, this replica counts alone while the space is unavailable.
func NewUsage(space *replicas.Space, allowWhenDown bool) *Usage {
	return &Usage{buckets: ratelimit.NewShared(maxLimited, space.Space("rates"), allowWhenDown)}
}

// Close drops all state.
func (u *Usage) Close() { u.buckets.Close() }

// A Tally counts the requests of a client.
type Tally struct {
	Requests, Denied atomic.Int64
	Last             atomic.Int64 // time of the last request, in milliseconds since 1970
}

// Tally returns the Tally of a client, by its label in metrics.
func (u *Usage) Tally(label string) *Tally {
	t, ok := u.tallies.Load(label)
	if !ok {
		t, _ = u.tallies.LoadOrStore(label, new(Tally))
	}
	return t.(*Tally)
}

// note returns the Tally of a client, and records the time of a request.
func (u *Usage) note(label string, at time.Time) *Tally {
	t := u.Tally(label)
	t.Last.Store(at.UnixMilli())
	return t
}

// Tallies calls f for each client that sent requests.
func (u *Usage) Tallies(f func(label string, t *Tally)) {
	u.tallies.Range(func(label, t any) bool {
		f(label.(string), t.(*Tally))
		return true
	})
}
