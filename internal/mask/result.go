package mask

// A resultMember is what a member of a result holds.
type resultMember uint8

const (
	observed   resultMember = iota
	question                // for the client, which must have it whole, and return some of it
	descriptor              // of the server or of what it offers
	metadata                // of any result
)

var resultMembers = map[string]resultMember{
	"inputRequests": question,
	"requestState":  question,

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

// judge notes whether the member of a result that follows is an observation. Where the
// method is not known, a result with a descriptor is a list or a handshake, from there on.
// Metadata come first, and could be those of one.
func (m *Masker) judge(name []byte) {
	is := resultMembers[string(name)]
	if m.policy.AnyMethod && is == descriptor {
		m.msg.describe = true
	}
	m.msg.maskable = !m.msg.describe && is != question && !(m.policy.AnyMethod && is == metadata)
}
