package mcp

import (
	"encoding/json"
	"slices"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// InputRequired is the type of a result by which a server of the modern era asks
// something before it goes on.
const InputRequired = "input_required"

// An InputResult is such a result.
type InputResult struct {
	Requests map[string]InputRequest `json:"inputRequests"`
	State    json.RawMessage         `json:"requestState"`
}

// An InputRequest is a question in it.
type InputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// WithInput returns a request that is made again with what was asked for, and with the
// state that the server has given the asking.
func WithInput(m *jsonrpc.Message, responses map[string]json.RawMessage, state json.RawMessage) []byte {
	var edits []jsonspan.Edit
	var members []byte
	set := func(f jsonrpc.Field, name string, value []byte) {
		if m.Has(f) {
			edits = append(edits, m.Replace(f, value))
			return
		}
		if members != nil {
			members = append(members, ',')
		}
		members = slices.Concat(members, jsonrpc.Quote(name), []byte(":"), value)
	}
	set(jsonrpc.InputResponses, "inputResponses", jsonrpc.Encode(responses))
	if state != nil {
		set(jsonrpc.RequestState, "requestState", state)
	}
	if members != nil {
		edits = append(edits, m.Insert(members))
	}
	return jsonspan.Spliced(m.Raw, edits...)
}
