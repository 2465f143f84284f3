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

// InputRequired is the type of a result with server requests, of the modern era. The client repeats
// its request with the responses.
const InputRequired = "input_required"

// MayRequireInput reports whether a method can get a result with server requests.
func MayRequireInput(method string) bool {
	return method == "tools/call" || method == "prompts/get" || method == "resources/read"
}

// An InputResult is a result of type [InputRequired].
type InputResult struct {
	Requests map[string]InputRequest `json:"inputRequests"`
	State    json.RawMessage         `json:"requestState"`
}

// An InputRequest is a server request in an [InputResult].
type InputRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// ReadInput parses a result of type [InputRequired]. ok is false for other results. It fails if two
// parsers could read the content differently.
func ReadInput(m *jsonrpc.Message) (input InputResult, ok bool, _ error) {
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
	input = InputResult{Requests: map[string]InputRequest{}, State: result["requestState"]}
	for member := range jsonspan.Members(result["inputRequests"]) {
		raw := result["inputRequests"][member.Value.Start:member.Value.End]
		if _, duplicate := input.Requests[member.Key]; duplicate || member.Value.Kind != jsonspan.BeginObject {
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
		input.Requests[member.Key] = InputRequest{method, parts["params"]}
	}
	return input, true, nil
}

var errNoRequests = errors.New("inputRequests is not an object")

// members returns members of an object by name. It fails if one is repeated, or occurs in another
// case.
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

// WithInput returns a request that is repeated with responses to server requests, and with the
// state from the server.
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

// Elicit returns an elicitation/create request.
func Elicit(elicitation any) InputRequest {
	return InputRequest{Method: "elicitation/create", Params: jsonrpc.Encode(elicitation)}
}

// NewInputResult returns a result with one server request.
func NewInputResult(key string, request InputRequest, state string) []byte {
	return jsonrpc.Encode(map[string]any{"inputRequests": map[string]InputRequest{key: request}, "requestState": state})
}

// IsAccepted reports whether an elicitation was accepted.
func IsAccepted(answer json.RawMessage) bool {
	var elicited struct {
		Action string `json:"action"`
	}
	return json.Unmarshal(answer, &elicited) == nil && elicited.Action == "accept"
}
