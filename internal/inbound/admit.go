package inbound

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// Admit decides whether the client may do this, now. It is asked once for each message.
func (q *Request) Admit(target mcp.Target) *jsonrpc.Failure {
	q.AdmitAsked, q.spent = true, false
	q.tally().Requests.Add(1)
	if failure := q.Permit(target); failure != nil {
		return failure
	}
	return q.spend(target)
}

// spend takes what the message needs from the budgets of its client, once for each time that it is admitted.
func (q *Request) spend(target mcp.Target) *jsonrpc.Failure {
	if q.spent {
		return nil
	}
	wait, ok, err := q.take(target, q.IsRequest())
	switch {
	case err != nil:
		return q.rateUnknown(target, err)
	case !ok:
		q.Writer.Header().Set("Retry-After", retryAfter(wait))
		return q.denied(jsonrpc.Refused(target.Server, http.StatusTooManyRequests), target, nil)
	}
	q.spent = true
	return nil
}

// rateUnknown refuses a message because the rates of its client cannot be looked up.
func (q *Request) rateUnknown(target mcp.Target, err error) *jsonrpc.Failure {
	failure := jsonrpc.StoreUnavailable("rate limits cannot be checked")
	failure.Data.ServerName = target.Server
	return q.denied(failure, target, err)
}

// Permit decides whether the client may do this at all. It is for messages that were admitted
// before it was known what they are about.
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
		return q.denied(jsonrpc.ToolChanged(target.Server), target, nil)
	}
	return nil
}

// Withheld reports whether a tool may not be used because its definition has changed.
func (g *Gate) Withheld(target mcp.Target) bool {
	s := g.Servers[target.Server]
	return g.config.PinTools && s != nil && target.Kind == mcp.Tool && s.Pins.Changed(target.Name)
}

// denied reports that the client was refused something.
func (q *Request) denied(failure *jsonrpc.Failure, target mcp.Target, reason error) *jsonrpc.Failure {
	return q.reportDenial(failure, &Denial{Target: target, Reason: reason})
}

// DeniedBy reports that a rule refused the client something.
func (q *Request) DeniedBy(d acl.Decision, failure *jsonrpc.Failure, target mcp.Target) *jsonrpc.Failure {
	return q.reportDenial(failure, &Denial{Target: target, Rule: d.Reason()})
}

// reportDenial completes a denial, and reports it.
func (q *Request) reportDenial(failure *jsonrpc.Failure, d *Denial) *jsonrpc.Failure {
	q.refusal = d
	q.tally().Denied.Add(1)
	d.Client, d.Label, d.Address = q.Caller.ShownName(), q.Caller.Label, q.Peer.Address
	d.Method, d.Code = q.MethodName(), failure.Data.Symbol
	q.gate.observer.Denied(d)
	return failure
}

// tally returns what counts for the client, and notes that it is there.
func (q *Request) tally() *Tally {
	t := q.gate.kept.Usage.Tally(q.Caller.Label)
	t.Last.Store(q.Began.UnixMilli())
	return t
}

// take takes what a message needs from the budgets of its client. If there is not enough, it
// returns when there will be. An error says that the budgets are not known now.
func (q *Request) take(target mcp.Target, request bool) (wait time.Duration, ok bool, err error) {
	var room [8]ratelimit.Limit
	limits := q.gate.Rules.Limits(room[:0], &q.Caller, target, request)
	if len(limits) == 0 {
		return 0, true, nil
	}
	return q.gate.kept.Usage.buckets.Take(q.HTTP.Context(), q.Caller.Budget(), limits)
}

// retryAfter returns a time as the header has it, in whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}

// LearnAnnotations has the caller know the annotations of the tool that it calls, if the decision on
// it depends on them. If they cannot be had, the tool cannot be called. A server of which the caller may
// use nothing is not asked.
func (q *Request) LearnAnnotations(target mcp.Target) *jsonrpc.Failure {
	c, s := &q.Caller, q.gate.Servers[target.Server]
	if target.Kind != mcp.Tool || s == nil || !c.Policy().NeedsAnnotations(s.Name, target.Name) ||
		!c.Policy().Server(s.Name) {
		return nil
	}
	notes := q.gate.Shared.ToolNotes(s, c, q.HTTP.Header)
	var known bool
	if c.Annotations, known = notes.Annotations(target.Name); known {
		return nil
	}
	if failure := q.spend(target); failure != nil {
		return failure
	}
	failure := notes.Learn(q.HTTP.Context(), func() *jsonrpc.Failure { return q.askForTools(s) })
	if failure == nil {
		if c.Annotations, known = notes.Annotations(target.Name); !known {
			failure = jsonrpc.TooManyTools(s.Name)
		}
	}
	if failure != nil && q.Endpoint.Kind == upstream.Aggregate {
		failure = failure.AsAnswer()
	}
	return failure
}

// askForTools asks a server for its tools on behalf of the client: at Aggregate in its session.
func (q *Request) askForTools(s *upstream.Server) *jsonrpc.Failure {
	if q.ListTools != nil {
		return q.ListTools(s)
	}
	r := q.HTTP.WithContext(&Context{q.HTTP.Context(), q.Caller, q.Peer.Inherited})
	_, failure := q.gate.aggregate.ListTools(r, q.Caller.Identity, s)
	return failure
}
