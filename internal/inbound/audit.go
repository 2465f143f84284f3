package inbound

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
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
	Client    string // its name, [access.Anonymous] or [access.OperatorLabel]
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
	switch q.MethodName() {
	case "tools/call":
		return mcp.Tool, true
	case "prompts/get":
		return mcp.Prompt, true
	case "resources/read":
		return mcp.Resource, true
	}
	return mcp.Anything, false
}

// isUnredacted reports whether the answer has what is redacted for clients. It is for the operator who has asked, and
// nothing of it is kept for others.
func (q *Request) isUnredacted() bool {
	return q.operator != nil && q.operator.Inspection.Raw ||
		q.gate.Rules.Redacts() && q.Caller.Identity == access.OperatorIdentity
}

// maxAudited is how many bytes of arguments are reported. Of longer ones it is the beginning, as a string.
const maxAudited = 16 << 10

// unreadable stands for what cannot be redacted.
var unreadable = []byte(`"not readable"`)

// Content is what a call has asked and was answered, without what is redacted for the client. Both are JSON values: of
// one of more than 64 KiB the beginning, as a string.
type Content struct {
	Arguments []byte // nil for none
	Result    []byte // or error, as the client has got it; nil if it has got none
}

// An audited is a request that may be reported as a call.
type audited struct{ *Request }

// report reports the end of a call, unless a person is still to confirm it.
func (q audited) report() {
	kind, ok := q.callKind()
	if !ok || q.refusal == nil && (!q.AdmitAsked || q.AwaitsConfirmation()) {
		return
	}
	c := Call{
		Client: q.client(), Identity: q.Caller.Name, Owner: q.owner(), Address: q.Peer.Address,
		Method: q.MethodName(), Target: mcp.Target{Server: q.serverName(), Kind: kind}, RequestID: q.RequestID(),
		Outcome: q.Outcome, ErrorCode: q.ErrorCode, Duration: time.Since(q.Began), Confirmed: q.Confirmed,
		Received: q.Traffic.Received, Sent: q.Traffic.Sent, Masked: q.Traffic.Masked,
	}
	if q.isUnredacted() {
		c.Masked.Originals = nil
	}
	var arguments []byte
	if kind == mcp.Resource {
		c.Target.Name = q.uri()
	} else {
		c.Target.Name, arguments = q.ToolName(), q.arguments()
	}
	switch {
	case q.refusal != nil:
		c.Refused, c.Outcome, c.Rule = true, q.refusal.Code, q.refusal.Rule
	case q.Caller.Policy() != nil && c.Target.Server != "":
		c.Rule = q.Decision.Reason()
	}
	if arguments != nil && q.gate.config.Audit == AuditArguments {
		if c.Arguments = arguments; len(arguments) > maxAudited {
			c.Arguments = upstream.Beginning(arguments, len(arguments), maxAudited)
		}
	}
	if q.Traffic.Answer != nil {
		c.Content = new(Content)
		if result := q.Traffic.Answer.Result(); result != nil {
			c.Content.Result = q.redacted(result) // the gateway itself may have answered, with what was asked
		}
		if arguments != nil {
			c.Content.Arguments = upstream.Recorded(arguments, len(arguments), upstream.MaxRecorded)
		}
	}
	q.gate.observer.CallDone(c)
}

// owner returns whom what is kept of a call is kept for.
func (q audited) owner() string {
	if q.Caller.Identity == "" && q.gate.config.Auth != nil {
		return "" // it was not let in
	}
	return q.Caller.Owner()
}

// client returns who has made a call. An operator may make it as a client.
func (q audited) client() string {
	if q.operator != nil {
		return access.OperatorLabel
	}
	return q.Caller.ShownName()
}

// uri returns the URI of a resource without what is redacted for the client.
func (q audited) uri() string {
	uri := q.Message.Text(jsonrpc.URI)
	if redactor := q.Caller.Redactor(); redactor != nil {
		redacted, _ := redactor.Line([]byte(uri))
		uri = string(redacted)
	}
	return mcp.Shortened(uri)
}

// arguments returns the arguments of a call without what is redacted for the client, nil if they are not
// wanted.
func (q audited) arguments() []byte {
	arguments := q.Message.Literal(jsonrpc.Arguments)
	if q.gate.config.Audit < AuditArguments && q.Traffic.Answer == nil || arguments == nil {
		return nil
	}
	return q.redacted(q.Override.WithoutFixed(arguments))
}

// redacted returns a JSON value without what is redacted for the client.
func (q audited) redacted(value []byte) []byte {
	redacted, err := q.Caller.Redactor().Value(value)
	if err != nil {
		return unreadable
	}
	return redacted
}
