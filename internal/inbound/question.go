package inbound

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// The gateway itself sends requests to the user of a client: to log in to a server, and to confirm
// calls. A legacy client gets them in the stream of its call. A modern client gets an
// input_required result, and repeats the request with the response. A sealed state in the repeated
// request contains what the gateway needs then.

// Keys of the gateway's own requests in such a result.
const (
	LoginRequest   = "login"
	ConfirmRequest = "confirm"
)

// A questionState is the state that a modern client sends back with its response.
type questionState struct {
	Asked                  string `json:",omitempty"` // key of the gateway's request; "" for one of the server
	Server, Account, About string

	// Of a call that a person has confirmed, or is asked to confirm.
	Confirmation string `json:",omitempty"` // key; valid once
	Arguments    []byte `json:",omitempty"` // hash of the arguments

	// State and responses for the server: those of the client's original request.
	State     json.RawMessage `json:",omitempty"`
	Responses json.RawMessage `json:",omitempty"`
}

// isModern reports whether the request is of the modern era.
func (q *Request) isModern() bool { return mcp.EraOf(q.Version, &q.Message) == mcp.Modern }

// About returns the method and the target of the request, as the server knows them.
func (q *Request) About() string {
	return q.Message.Text(jsonrpc.Method) + "\x00" + q.Target().Name
}

// Target returns the target of the request, as the server knows it.
func (q *Request) Target() mcp.Target {
	target, _ := mcp.TargetOf(q.Server.Name, &q.Message)
	return target
}

// argumentsHash returns the hash of the arguments of a call.
func (q *Request) argumentsHash() []byte {
	sum := sha256.Sum256(q.Message.Literal(jsonrpc.Arguments))
	return sum[:]
}

// newQuestionState returns the sealed state of the request, with the key of a request of the
// gateway; "" for a request of the server.
func (q *Request) newQuestionState(key string, state, responses []byte) string {
	s := questionState{
		Asked: key, Server: q.Server.ID, Account: q.Caller.Account(), About: q.About(), State: state, Responses: responses,
	}
	if q.Confirmed || key == ConfirmRequest {
		s.Confirmation, s.Arguments = q.gate.retained.Confirmations.add(q.Caller.Owner()), q.argumentsHash()
	}
	return q.gate.Shared.Sealer.Seal("question", jsonrpc.Encode(s))
}

// Ask returns the result that sends a request of the gateway to a modern client.
func (q *Request) Ask(key string, elicitation any) []byte {
	m := &q.Message
	state := q.newQuestionState(key, m.Literal(jsonrpc.RequestState), m.Literal(jsonrpc.InputResponses))
	return mcp.NewInputResult(key, mcp.Elicit(elicitation), state)
}

// ConfirmedState returns the state of a server request as the client gets it. It contains that the
// call was confirmed, so the person is not asked again when the client goes on.
func (q *Request) ConfirmedState(state []byte) string { return q.newQuestionState("", state, nil) }

// TakeResponse removes the response to a request of the gateway from a modern client's message, and
// restores the state and responses for the server. It returns the key of the request, "" for none,
// and the response.
func (q *Request) TakeResponse() (key string, answer json.RawMessage, _ *jsonrpc.Failure) {
	if !q.isModern() || q.Message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return "", nil, nil
	}
	plain, ok := q.gate.Shared.Sealer.Open("question", q.Message.Text(jsonrpc.RequestState))
	if !ok {
		return "", nil, nil // the server's own state
	}
	var state questionState
	if json.Unmarshal(plain, &state) != nil || !q.ownsState(&state) {
		return "", nil, jsonrpc.InvalidParams("requestState: belongs to another request").WithStatusOK()
	}
	if state.Confirmation != "" {
		switch valid, err := q.gate.retained.Confirmations.take(q.HTTP.Context(), state.Confirmation); {
		case err != nil:
			return "", nil, jsonrpc.StoreUnavailable("the confirmation cannot be checked")
		case !valid:
			const why = "requestState: already used or expired; call the tool again without it"
			return "", nil, jsonrpc.InvalidParams(why).WithStatusOK()
		}
	}
	q.Confirmed = state.Confirmation != "" && state.Asked != ConfirmRequest
	if state.Asked != "" {
		var responses map[string]json.RawMessage
		_ = json.Unmarshal(q.Message.Literal(jsonrpc.InputResponses), &responses) // a missing response counts as declined
		answer = responses[state.Asked]
	}
	message, failure := withParam(q.Message, jsonrpc.RequestState, "requestState", state.State)
	if failure == nil && state.Asked != "" {
		message, failure = withParam(message, jsonrpc.InputResponses, "inputResponses", state.Responses)
	}
	if failure != nil {
		return "", nil, failure
	}
	q.Message = message
	return state.Asked, answer, nil
}

// ownsState reports whether a state belongs to the request.
func (q *Request) ownsState(state *questionState) bool {
	return state.Server == q.Server.ID && state.Account == q.Caller.Account() && state.About == q.About() &&
		(state.Confirmation == "" || string(state.Arguments) == string(q.argumentsHash()))
}

// withParam returns a request with a new value of one of its params, or without it if value is nil.
func withParam(m jsonrpc.Message, f jsonrpc.Field, name string, value []byte) (jsonrpc.Message, *jsonrpc.Failure) {
	switch {
	case !m.Has(f):
		return m, nil
	case value != nil:
		return m.Edited(m.Replace(f, value))
	}
	edit, _ := jsonspan.Remove(m.Literal(jsonrpc.Params), name)
	return m.Edited(m.Within(jsonrpc.Params, edit))
}
