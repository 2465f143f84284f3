package redact

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// A place is the position of a pass in a message.
type place struct {
	messages bool // the text is a message or a batch, not other JSON
	around   int  // containers around each message: 1 in a batch
	member   member
	tools    bool // in a list of tools
	schema   int  // depth of the schema that the pass is in, or 0
}

// A member is a kind of member of a message.
type member uint8

const (
	otherMember member = iota
	nameMember         // jsonrpc, id, method
	dataMember         // result, params
	errorMember
)

// begin returns the first place in a text that begins with this token.
func begin(k jsonspan.Kind, messages bool) place {
	in := place{messages: messages}
	if k == jsonspan.BeginArray {
		in.around = 1
	}
	return in
}

// enter moves to the member with this name at this depth. It reports whether the member may be a
// field, and whether a string value must stay unchanged.
func (in *place) enter(name []byte, depth int) (mayHide, keep bool) {
	if !in.messages {
		return true, false
	}
	if depth <= in.schema {
		in.schema = 0
	}
	switch depth - in.around {
	case 1:
		in.member, in.tools = memberOf(name), false
		return in.member == otherMember, in.member == nameMember
	case 2:
		in.tools = in.member == dataMember && string(name) == "tools"
		if in.member == errorMember && (string(name) == "code" || string(name) == "message") {
			return false, false
		}
		if in.member == dataMember && sentBack[string(name)] {
			return false, true
		}
		if in.member == dataMember && string(name) == "requestedSchema" {
			in.schema = depth
			return true, false
		}
	case 4:
		if in.tools && in.schema == 0 && (string(name) == "inputSchema" || string(name) == "outputSchema") {
			in.schema = depth
			return true, false
		}
	}
	return in.schema == 0, false
}

// isEnvelope reports whether the current member, at this depth, is part of the JSON-RPC envelope.
func (in *place) isEnvelope(depth int) bool {
	return in.messages && depth-in.around == 1 && in.member != otherMember
}

// sentBack are the members that a client must send back unchanged.
var sentBack = map[string]bool{
	"nextCursor": true, "requestState": true, "taskId": true, "requestId": true, "progressToken": true,
}

func memberOf(name []byte) member {
	switch string(name) {
	case "jsonrpc", "id", "method":
		return nameMember
	case "result", "params":
		return dataMember
	case "error":
		return errorMember
	}
	return otherMember
}
