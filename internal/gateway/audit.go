package gateway

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// An Audit says which calls are reported to [Observer.CallDone].
type Audit uint8

const (
	AuditDenied    Audit = iota // none; [Observer.Denied] reports what is refused
	AuditAll                    // all that were let through
	AuditArguments              // the same, with their arguments
)

// A Call is the use of a tool, a prompt or a resource by a client that was let through, after its end.
type Call struct {
	Client    string // its name, [Anonymous] or [OperatorLabel]
	Address   string // of its machine
	Method    string
	Target    mcp.Target // as the server knows it. The name is shortened
	RequestID string
	Outcome   string
	ErrorCode int // of JSON-RPC; 0 for none
	Duration  time.Duration
	Rule      string // that let it through; "" if the client has no rules
	Confirmed bool   // by the person at the client
	Arguments []byte // a JSON value, redacted; nil for none
}

// audit reports the end of a call, unless it was refused, which was reported before, or a person is still to confirm
// it.
func (q *Request) audit() {
	if q.g.config.Audit == AuditDenied || !q.admitted || q.refused || q.awaitsConfirmation() {
		return
	}
	target := mcp.Target{Server: q.serverName()}
	var arguments []byte
	switch q.methodName() {
	case "tools/call":
		target.Kind, target.Name, arguments = mcp.Tool, q.toolName(), q.auditedArguments()
	case "prompts/get":
		target.Kind, target.Name, arguments = mcp.Prompt, q.toolName(), q.auditedArguments()
	case "resources/read":
		target.Kind, target.Name = mcp.Resource, q.auditedURI()
	default:
		return
	}
	rule := ""
	if q.caller.policy() != nil && target.Server != "" {
		rule = q.decision.Reason()
	}
	q.g.config.Observer.CallDone(Call{
		Rule: rule, Confirmed: q.confirmed,
		Client: q.auditedClient(), Address: q.peer.Address, Method: q.methodName(), Target: target,
		RequestID: q.requestID(), Outcome: q.outcome, ErrorCode: q.errorCode, Duration: time.Since(q.began),
		Arguments: arguments,
	})
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

// unreadable stands for arguments that cannot be redacted.
var unreadable = []byte(`"not readable"`)

// auditedArguments returns the arguments of a call without what is redacted for the client, nil if they are not
// wanted.
func (q *Request) auditedArguments() []byte {
	arguments := q.message.Literal(jsonrpc.Arguments)
	if q.g.config.Audit < AuditArguments || arguments == nil {
		return nil
	}
	arguments = q.override.withoutFixed(arguments)
	redacted, err := q.caller.redactor().Value(arguments)
	if err != nil {
		return unreadable
	}
	if len(redacted) <= maxAudited {
		return redacted
	}
	end := maxAudited
	for !utf8.RuneStart(redacted[end]) { // messages are UTF-8
		end--
	}
	return jsonrpc.Quote(fmt.Sprintf("%s… (%d bytes)", redacted[:end], len(redacted)))
}
