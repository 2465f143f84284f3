package gateway

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An Audit says which calls are for the audit log.
type Audit uint8

const (
	AuditDenied    Audit = iota // those that are refused, see [Observer.Denied]
	AuditAll                    // all
	AuditArguments              // all, with their arguments
)

// A Call is the use of a tool, a prompt or a resource by a client, after its end.
type Call struct {
	Client    string // its name, [Anonymous] or [OperatorLabel]
	Identity  string // whose originals the mask keeps; "" for an unknown client
	Owner     string // whom what is kept of the call is kept for; "" for all that were not let in
	Address   string // of its machine
	Method    string
	Target    mcp.Target // as the server knows it. The name is shortened
	RequestID string
	Outcome   string
	Refused   bool // [Observer.Denied] has reported it
	ErrorCode int  // of JSON-RPC; 0 for none
	Duration  time.Duration
	Rule      string // that decided; "" if the client has no rules
	Confirmed bool   // by the person at the client
	Arguments []byte // a JSON value, redacted; nil for none, or if Config.Audit does not want them

	Received int64       // bytes of what the server has answered, in all exchanges that the call took
	Sent     int64       // bytes that were left of it for the client
	Masked   mask.Report // what the mask has done
	Content  *Content    // nil unless Config.Record wants it
}

// callKind returns what the message calls, if it is one that is reported as a call.
func (q *Request) callKind() (_ mcp.TargetKind, ok bool) {
	switch q.methodName() {
	case "tools/call":
		return mcp.Tool, true
	case "prompts/get":
		return mcp.Prompt, true
	case "resources/read":
		return mcp.Resource, true
	}
	return mcp.Anything, false
}

// audit reports the end of a call, unless a person is still to confirm it.
func (q *Request) audit() {
	kind, ok := q.callKind()
	if !ok || q.refusal == nil && (!q.admitted || q.awaitsConfirmation()) {
		return
	}
	c := Call{
		Client: q.auditedClient(), Identity: q.caller.name, Owner: q.callOwner(), Address: q.peer.Address,
		Method: q.methodName(), Target: mcp.Target{Server: q.serverName(), Kind: kind}, RequestID: q.requestID(),
		Outcome: q.outcome, ErrorCode: q.errorCode, Duration: time.Since(q.began), Confirmed: q.confirmed,
		Received: q.traffic.received, Sent: q.traffic.sent, Masked: q.traffic.masked,
	}
	if q.isUnredacted() {
		c.Masked.Originals = nil
	}
	var arguments []byte
	if kind == mcp.Resource {
		c.Target.Name = q.auditedURI()
	} else {
		c.Target.Name, arguments = q.toolName(), q.auditedArguments()
	}
	switch {
	case q.refusal != nil:
		c.Refused, c.Outcome, c.Rule = true, q.refusal.Code, q.refusal.Rule
	case q.caller.policy() != nil && c.Target.Server != "":
		c.Rule = q.decision.Reason()
	}
	if arguments != nil && q.g.config.Audit == AuditArguments {
		if c.Arguments = arguments; len(arguments) > maxAudited {
			c.Arguments = beginning(arguments, len(arguments), maxAudited)
		}
	}
	if q.traffic.answer != nil {
		c.Content = new(Content)
		if result := q.traffic.answer.result(); result != nil {
			c.Content.Result = q.redacted(result) // the gateway itself may have answered, with what was asked
		}
		if arguments != nil {
			c.Content.Arguments = recorded(arguments, len(arguments), maxRecorded)
		}
	}
	q.g.config.Observer.CallDone(c)
}

// isUnredacted reports whether the answer has what is redacted for clients. It is for the operator who has asked, and
// nothing of it is kept for others.
func (q *Request) isUnredacted() bool {
	return q.operator.wantsRaw() || q.g.rules.redact && q.caller.identity == OperatorIdentity
}

// callOwner returns whom what is kept of a call is kept for.
func (q *Request) callOwner() string {
	if q.caller.identity == "" && q.g.config.Auth != nil {
		return "" // it was not let in
	}
	return q.caller.owner()
}

// auditedClient returns who has made a call. An operator may make it as a client.
func (q *Request) auditedClient() string {
	if q.operator != nil {
		return OperatorLabel
	}
	return q.caller.shownName()
}

// auditedURI returns the URI of a resource without what is redacted for the client.
func (q *Request) auditedURI() string {
	uri := q.message.Text(jsonrpc.URI)
	if redactor := q.caller.redactor(); redactor != nil {
		redacted, _ := redactor.Line([]byte(uri))
		uri = string(redacted)
	}
	return mcp.Shortened(uri)
}

// maxAudited is how many bytes of arguments are reported. Of longer ones it is the beginning, as a string.
const maxAudited = 16 << 10

// unreadable stands for what cannot be redacted.
var unreadable = []byte(`"not readable"`)

// auditedArguments returns the arguments of a call without what is redacted for the client, nil if they are not
// wanted.
func (q *Request) auditedArguments() []byte {
	arguments := q.message.Literal(jsonrpc.Arguments)
	if q.g.config.Audit < AuditArguments && q.traffic.answer == nil || arguments == nil {
		return nil
	}
	return q.redacted(q.override.withoutFixed(arguments))
}

// redacted returns a JSON value without what is redacted for the client.
func (q *Request) redacted(value []byte) []byte {
	redacted, err := q.caller.redactor().Value(value)
	if err != nil {
		return unreadable
	}
	return redacted
}
