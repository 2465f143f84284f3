package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
)

// InputRequired is the type of a result by which a server of the modern era asks
// something before it goes on.
const InputRequired = "input_required"

// MayRequireInput reports whether a method can be answered by such a result.
func MayRequireInput(method string) bool {
	return method == "tools/call" || method == "prompts/get" || method == "resources/read"
}

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

// ReadInput reads a result that asks for input, if it is one. It is an error if two
// readers of it could disagree about what it asks.
func ReadInput(m *jsonrpc.Message) (asks InputResult, is bool, _ error) {
	if !m.Is(jsonrpc.ResultType, InputRequired) {
		return InputResult{}, false, nil
	}
	result, err := members(m.Literal(jsonrpc.Result), "inputRequests", "requestState")
	if err != nil {
		return InputResult{}, true, err
	}
	if requests := bytes.TrimSpace(result["inputRequests"]); len(requests) > 0 && requests[0] != '{' {
		return InputResult{}, true, errNoRequests
	}
	asks = InputResult{Requests: map[string]InputRequest{}, State: result["requestState"]}
	for member := range jsonspan.Members(result["inputRequests"]) {
		raw := result["inputRequests"][member.Value.Start:member.Value.End]
		if _, there := asks.Requests[member.Key]; there || member.Value.Kind != jsonspan.BeginObject {
			return InputResult{}, true, jsonspan.ErrDuplicate
		}
		parts, err := members(raw, "method", "params")
		if err != nil {
			return InputResult{}, true, err
		}
		var method string
		if err := json.Unmarshal(parts["method"], &method); err != nil {
			return InputResult{}, true, err
		}
		asks.Requests[member.Key] = InputRequest{method, parts["params"]}
	}
	return asks, true, nil
}

var errNoRequests = errors.New("inputRequests is no object")

// members returns members of an object. It is an error if one of them is there twice, or
// under a name that some take for it.
func members(object []byte, names ...string) (map[string]json.RawMessage, error) {
	found := map[string]json.RawMessage{}
	for member := range jsonspan.Members(object) {
		for _, name := range names {
			switch {
			case member.Key == name && found[name] == nil:
				found[name] = object[member.Value.Start:member.Value.End]
			case strings.EqualFold(member.Key, name):
				return nil, jsonspan.ErrDuplicate
			}
		}
	}
	return found, nil
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

// Elicit returns a question as the protocol has it.
func Elicit(elicitation any) InputRequest {
	return InputRequest{Method: "elicitation/create", Params: jsonrpc.Encode(elicitation)}
}

// NewInputResult returns a result that asks for input.
func NewInputResult(key string, wants InputRequest, state string) []byte {
	return jsonrpc.Encode(map[string]any{"inputRequests": map[string]InputRequest{key: wants}, "requestState": state})
}

// IsAccepted reports whether the person has agreed.
func IsAccepted(answer json.RawMessage) bool {
	var elicited struct {
		Action string `json:"action"`
	}
	return json.Unmarshal(answer, &elicited) == nil && elicited.Action == "accept"
}
