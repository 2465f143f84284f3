package redact

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// A position tells which part of a message a pass has reached.
type position struct {
	messages bool // the text is a message or a batch, not other JSON
	around   int  // containers around each message: 1 in a batch
	member   member
	tools    bool // in a list of tools
	schema   int  // depth of the schema around the position, or 0
}

// A member is a kind of member of a message.
type member uint8

const (
	otherMember member = iota
	nameMember         // jsonrpc, id, method
	dataMember         // result, params
	errorMember
)

// newPosition returns the position at the beginning of a text that begins with this token.
func newPosition(k jsonspan.Kind, messages bool) position {
	pos := position{messages: messages}
	if k == jsonspan.BeginArray {
		pos.around = 1
	}
	return pos
}

// enter moves to the member with this name at this depth. It reports whether the member may be a
// field, and whether a string value must stay unchanged.
func (pos *position) enter(name []byte, depth int) (mayHide, keep bool) {
	if !pos.messages {
		return true, false
	}
	if depth <= pos.schema {
		pos.schema = 0
	}
	switch depth - pos.around {
	case 1:
		pos.member, pos.tools = memberOf(name), false
		return pos.member == otherMember, pos.member == nameMember
	case 2:
		pos.tools = pos.member == dataMember && string(name) == "tools"
		if pos.member == errorMember && (string(name) == "code" || string(name) == "message") {
			return false, false
		}
		if pos.member == dataMember && sentBack[string(name)] {
			return false, true
		}
		if pos.member == dataMember && string(name) == "requestedSchema" {
			pos.schema = depth
			return true, false
		}
	case 4:
		if pos.tools && pos.schema == 0 && (string(name) == "inputSchema" || string(name) == "outputSchema") {
			pos.schema = depth
			return true, false
		}
	}
	return pos.schema == 0, false
}

// isEnvelope reports whether the current member, at this depth, is part of the JSON-RPC envelope.
func (pos *position) isEnvelope(depth int) bool {
	return pos.messages && depth-pos.around == 1 && pos.member != otherMember
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
