package redact

import "github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"

// A place is where in a message a pass is, as far as it decides what a member may be.
type place struct {
	messages bool // the text is a message or a batch, not just any JSON
	around   int  // how many containers are around each message
	member   member
	tools    bool // in a list of tools
	schema   int  // how many containers are around the member that is a schema; 0 for none
}

// A member is one of a message.
type member uint8

const (
	otherMember member = iota
	nameMember         // jsonrpc, id, method: what the message is called
	dataMember         // result, params
	errorMember
)

// begin returns the place before a text that begins with this token.
func begin(k jsonspan.Kind, messages bool) place {
	in := place{messages: messages}
	if k == jsonspan.BeginArray {
		in.around = 1
	}
	return in
}

// enter moves to the member with this name inside so many containers. It reports
// whether it may be a field, and whether it is to be kept if it is a string.
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

// isEnvelope reports whether the member that was entered last, inside so many containers,
// makes a message one.
func (in *place) isEnvelope(depth int) bool {
	return in.messages && depth-in.around == 1 && in.member != otherMember
}

// sentBack are the members that a client has to send back as they are.
var sentBack = map[string]bool{"nextCursor": true, "requestState": true, "taskId": true, "requestId": true, "progressToken": true}

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
