package gateway

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/acl"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/ratelimit"
)

// admit decides whether the client may do this, now. It is asked once for each message.
func (q *Request) admit(target mcp.Target) *jsonrpc.Failure {
	q.admitted, q.spent = true, false
	q.tally().Requests.Add(1)
	if failure := q.permit(target); failure != nil {
		return failure
	}
	return q.spend(target)
}

// spend takes what the message needs from the budgets of its client, once for each time that it is admitted.
func (q *Request) spend(target mcp.Target) *jsonrpc.Failure {
	if q.spent {
		return nil
	}
	wait, ok, err := q.take(target, q.isRequest())
	switch {
	case err != nil:
		return q.unlimited(target, err)
	case !ok:
		q.w.Header().Set("Retry-After", retryAfter(wait))
		return q.denied(jsonrpc.Refused(target.Server, http.StatusTooManyRequests), target, nil)
	}
	q.spent = true
	return nil
}

// unlimited refuses a message because the rates of its client cannot be looked up.
func (q *Request) unlimited(target mcp.Target, err error) *jsonrpc.Failure {
	failure := jsonrpc.StoreUnavailable("rate limits cannot be checked")
	failure.Data.ServerName = target.Server
	return q.denied(failure, target, err)
}

// permit decides whether the client may do this at all. It is for messages that were admitted
// before it was known what they are about.
func (q *Request) permit(target mcp.Target) *jsonrpc.Failure {
	if failure := q.learnAnnotations(target); failure != nil {
		return failure
	}
	q.decision = q.caller.decideCall(target, q.message.Literal(jsonrpc.Arguments))
	switch {
	case q.decision.Action == acl.Deny:
		return q.deniedBy(q.decision, jsonrpc.Refused(target.Server, http.StatusForbidden), target)
	case q.decision.Action == acl.Confirm && !q.caller.askable:
		return q.deniedBy(q.decision, jsonrpc.ConfirmationRequired(target.Server, q.to.Kind == Aggregate), target)
	case q.g.withheld(target):
		return q.denied(jsonrpc.ToolChanged(target.Server), target, nil)
	}
	return nil
}

// withheld reports whether a tool may not be used because its definition has changed.
func (g *Gateway) withheld(target mcp.Target) bool {
	s := g.servers[target.Server]
	return g.config.PinTools && s != nil && target.Kind == mcp.Tool && s.Pins.Changed(target.Name)
}

// admitAt decides whether the client may make the request at one server.
func (q *Request) admitAt(s *Server) *jsonrpc.Failure {
	target, known := mcp.Target{Server: s.Name}, true
	if q.guarded() {
		target, known = mcp.TargetOf(s.Name, &q.message)
	}
	if failure := q.admit(target); failure != nil {
		return failure
	}
	if !known {
		return jsonrpc.InvalidParams("params: ambiguous target")
	}
	return q.admitListening(s)
}

// admitListening decides whether the client may hear of changes of all the resources that it
// wants to listen to at one server. At the aggregate those that it may not are left out.
func (q *Request) admitListening(s *Server) *jsonrpc.Failure {
	if q.caller.policy() == nil || !q.message.Is(jsonrpc.Method, mcp.MethodListen) {
		return nil
	}
	if q.message.Kind(jsonrpc.Notifications) != jsonspan.BeginObject {
		return jsonrpc.InvalidParams("notifications: missing, or not an object")
	}
	if !q.message.Has(jsonrpc.Subscriptions) {
		return nil
	}
	var uris []string
	if json.Unmarshal(q.message.Literal(jsonrpc.Subscriptions), &uris) != nil {
		return jsonrpc.InvalidParams("resourceSubscriptions: not a list of URIs")
	}
	for _, uri := range uris {
		target := mcp.Target{Server: s.Name, Kind: mcp.Resource, Name: uri}
		if decision := q.caller.decide(target); decision.Action == acl.Deny {
			return q.deniedBy(decision, jsonrpc.Refused(target.Server, http.StatusForbidden), target)
		}
	}
	return nil
}

// denied reports that the client was refused something.
func (q *Request) denied(failure *jsonrpc.Failure, target mcp.Target, reason error) *jsonrpc.Failure {
	return q.reportDenial(failure, &Denial{Target: target, Reason: reason})
}

// deniedBy reports that a rule refused the client something.
func (q *Request) deniedBy(d acl.Decision, failure *jsonrpc.Failure, target mcp.Target) *jsonrpc.Failure {
	return q.reportDenial(failure, &Denial{Target: target, Rule: d.Reason()})
}

// reportDenial completes a denial, and reports it.
func (q *Request) reportDenial(failure *jsonrpc.Failure, d *Denial) *jsonrpc.Failure {
	q.refusal = d
	q.tally().Denied.Add(1)
	d.Client, d.Label, d.Address = q.caller.shownName(), q.caller.label, q.peer.Address
	d.Method, d.Code = q.methodName(), failure.Data.Symbol
	q.g.config.Observer.Denied(d)
	return failure
}

// tally returns what counts for the client, and notes that it is there.
func (q *Request) tally() *Tally {
	t := q.g.Tally(q.caller.label)
	t.Last.Store(q.began.UnixMilli())
	return t
}

// take takes what a message needs from the budgets of its client. If there is not enough, it
// returns when there will be. An error says that the budgets are not known now.
func (q *Request) take(target mcp.Target, request bool) (wait time.Duration, ok bool, err error) {
	var room [8]ratelimit.Limit
	limits := q.g.rules.limits(room[:0], &q.caller, target, request)
	if len(limits) == 0 {
		return 0, true, nil
	}
	return q.g.buckets.Take(q.r.Context(), q.caller.budget(), limits)
}

// retryAfter returns a time as the header has it, in whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(max(1, int(math.Ceil(wait.Seconds()))))
}
