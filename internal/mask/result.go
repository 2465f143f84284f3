package mask

// A resultMember says what a member of a result holds.
type resultMember uint8

const (
	observed    resultMember = iota
	clientInput              // for the client, which needs it whole and returns parts of it
	descriptor               // describes the server or what it offers
	metadata                 // of any result
)

var resultMembers = map[string]resultMember{
	"inputRequests": clientInput,
	"requestState":  clientInput,

	"tools":             descriptor,
	"prompts":           descriptor,
	"resources":         descriptor,
	"resourceTemplates": descriptor,
	"tasks":             descriptor,
	"skills":            descriptor,
	"nextCursor":        descriptor,

	"protocolVersion":   descriptor,
	"supportedVersions": descriptor,
	"capabilities":      descriptor,
	"serverInfo":        descriptor,
	"instructions":      descriptor,

	"_meta": metadata,
}

// classifyMember records whether the next member of a result is an observation. If the method is
// unknown, a result with a descriptor is a list or a handshake, so nothing after it is an
// observation. Metadata is none either then, because it often precedes the descriptor.
func (m *Masker) classifyMember(name []byte) {
	kind := resultMembers[string(name)]
	if m.policy.AnyMethod && kind == descriptor {
		m.msg.describe = true
	}
	m.msg.maskable = !m.msg.describe && kind != clientInput && !(m.policy.AnyMethod && kind == metadata)
}
