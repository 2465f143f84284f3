package inbound

import (
	"time"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/access"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mask"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/upstream"
)

// An Audit says which calls are reported to the audit log.
type Audit uint8

// Calls that the audit log reports.
const (
	AuditDenied    Audit = iota // denied calls, see [Observer.Denied]
	AuditAll                    // all calls
	AuditArguments              // all calls, with their arguments
)

// A Call is the use of a tool, a prompt or a resource by a client, after its end.
type Call struct {
	Client    string // its name, [access.Anonymous] or [access.OperatorLabel]
	Identity  string // owner of the originals of the mask; "" for an unidentified client
	Owner     string // owner of the recorded call; "" for all clients that were not authenticated
	Address   string // IP address of the client
	Method    string
	Target    mcp.Target // as the server knows it; the name is shortened
	RequestID string
	Outcome   string
	Refused   bool // [Observer.Denied] has reported it
	ErrorCode int  // JSON-RPC error code; 0 for none
	Duration  time.Duration
	Rule      string // rule that decided; "" if the client has no rules
	Confirmed bool   // the user of the client confirmed it
	Arguments []byte // JSON value, redacted; nil for none, or without AuditArguments

	Received int64       // bytes of the server's responses, in all exchanges of the call
	Sent     int64       // bytes left of them for the client
	Masked   mask.Report // what was masked
	Content  *Content    // nil without Config.Record
}

// callKind returns the kind of the calls of a method. ok is false for messages that are not reported
// as calls.
func callKind(method string) (_ mcp.TargetKind, ok bool) {
	switch method {
	case "tools/call":
		return mcp.Tool, true
	case "prompts/get":
		return mcp.Prompt, true
	case "resources/read":
		return mcp.Resource, true
	}
	return mcp.Anything, false
}

// maxAudited is how many bytes of arguments are reported. Longer ones are reported as a string with
// their beginning.
const maxAudited = 16 << 10

// unreadable replaces a value that cannot be redacted.
var unreadable = []byte(`"not readable"`)

// Content is the arguments and the result of a call, redacted. Both are JSON values. One of more
// than 64 KiB is a string with its beginning.
type Content struct {
	Arguments []byte // nil for none
	Result    []byte // or the error, as the client got it; nil for none
}

// beginRecording begins to record the response of a call, if calls are recorded.
func beginRecording(q *Request) {
	if _, isCall := callKind(q.MethodName()); isCall && q.gate.config.Record && !isUnredacted(q) {
		q.Traffic.Answer = new(upstream.Recording)
	}
}

// isUnredacted reports whether the response may contain secrets that are redacted for clients. Such
// a response is only for the operator who requested it, and is not recorded.
func isUnredacted(q *Request) bool {
	return q.operator != nil && q.operator.Inspection.Raw ||
		q.gate.Rules.Redacts() && q.Caller.Identity == access.OperatorIdentity
}

// reportCall reports the end of a call, unless the call still awaits a confirmation.
func reportCall(q *Request) {
	kind, ok := callKind(q.MethodName())
	if !ok || q.denial == nil && (!q.AdmitAsked || q.Elicitation.AwaitsConfirmation()) {
		return
	}
	c := Call{
		Client: clientOfCall(q), Identity: q.Caller.Name, Owner: ownerOfCall(q), Address: q.Peer.Address,
		Method: q.MethodName(), Target: mcp.Target{Server: q.serverName(), Kind: kind}, RequestID: q.RequestID(),
		Outcome: q.Outcome, ErrorCode: q.ErrorCode, Duration: time.Since(q.Began), Confirmed: q.Elicitation.Confirmed,
		Received: q.Traffic.Received, Sent: q.Traffic.Sent, Masked: q.Traffic.Masked,
	}
	if isUnredacted(q) {
		c.Masked.Originals = nil
	}
	var arguments []byte
	if kind == mcp.Resource {
		c.Target.Name = redactedURI(q)
	} else {
		c.Target.Name, arguments = q.ToolName(), redactedArguments(q)
	}
	switch {
	case q.denial != nil:
		c.Refused, c.Outcome, c.Rule = true, q.denial.Code, q.denial.Rule
	case q.Caller.Policy() != nil && c.Target.Server != "":
		c.Rule = q.Decision.Reason()
	}
	if arguments != nil && q.gate.config.Audit == AuditArguments {
		c.Arguments = arguments
		if len(arguments) > maxAudited {
			c.Arguments = upstream.Beginning(arguments, len(arguments), maxAudited)
		}
	}
	if q.Traffic.Answer != nil {
		c.Content = new(Content)
		if result := q.Traffic.Answer.Result(); result != nil {
			c.Content.Result = redacted(q, result) // the gateway itself may have responded, with parts of the request
		}
		if arguments != nil {
			c.Content.Arguments = upstream.Recorded(arguments, len(arguments), upstream.MaxRecorded)
		}
	}
	q.gate.observer.CallDone(c)
}

// ownerOfCall returns the owner of the recorded call.
func ownerOfCall(q *Request) string {
	if q.Caller.Identity == "" && q.gate.config.Auth != nil {
		return "" // not authenticated
	}
	return q.Caller.Owner()
}

// clientOfCall returns the name of the client. An operator may act as a client.
func clientOfCall(q *Request) string {
	if q.operator != nil {
		return access.OperatorLabel
	}
	return q.Caller.ShownName()
}

// redactedURI returns the redacted URI of a resource.
func redactedURI(q *Request) string {
	uri := q.Message.Text(jsonrpc.URI)
	if redactor := q.Caller.Redactor(); redactor != nil {
		redacted, _ := redactor.Line([]byte(uri))
		uri = string(redacted)
	}
	return mcp.Shortened(uri)
}

// redactedArguments returns the redacted arguments of a call; nil if they are not needed.
func redactedArguments(q *Request) []byte {
	arguments := q.Message.Literal(jsonrpc.Arguments)
	if q.gate.config.Audit < AuditArguments && q.Traffic.Answer == nil || arguments == nil {
		return nil
	}
	return redacted(q, q.Override.WithoutFixed(arguments))
}

// redacted returns a JSON value with everything redacted that the client must not see.
func redacted(q *Request, value []byte) []byte {
	redacted, err := q.Caller.Redactor().Value(value)
	if err != nil {
		return unreadable
	}
	return redacted
}
