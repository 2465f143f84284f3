package inbound

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonrpc"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/jsonspan"
	"github.com/caddy-mcp-gateway/caddy-mcp-gateway/internal/mcp"
)

// The gateway itself asks the person at a client to log in to a server, and to confirm calls. A
// client of the legacy era is asked in the stream of its call. One of the modern era is asked by a
// result, and makes the request again with the answer. What the gateway has to know then is in
// the state that comes with the answer.

// The gateway's own questions, by their keys in such a result.
const (
	LoginQuestion   = "login"
	ConfirmQuestion = "confirm"
)

// A questionState is what a client of the modern era sends back with its answer.
type questionState struct {
	Asked                  string `json:",omitempty"` // which question; "" for one of the server
	Server, Account, About string

	// Of a call that a person has confirmed, or is asked to confirm.
	Confirmation string `json:",omitempty"` // good once
	Arguments    []byte `json:",omitempty"` // their hash

	// What the server has of its own question, or is still to get for it: the state, and what the
	// client has answered.
	State     json.RawMessage `json:",omitempty"`
	Responses json.RawMessage `json:",omitempty"`
}

// isModern reports whether the request is of the modern era.
func (q *Request) isModern() bool { return mcp.EraOf(q.Version, &q.Message) == mcp.Modern }

// About returns what the request calls, as the server knows it.
func (q *Request) About() string {
	return q.Message.Text(jsonrpc.Method) + "\x00" + q.Target().Name
}

// Target returns what the request is about, as the server knows it.
func (q *Request) Target() mcp.Target {
	target, _ := mcp.TargetOf(q.Server.Name, &q.Message)
	return target
}

// argumentsHash returns the hash of the arguments of a call.
func (q *Request) argumentsHash() []byte {
	sum := sha256.Sum256(q.Message.Literal(jsonrpc.Arguments))
	return sum[:]
}

// newQuestionState returns the state of the request, sealed, with a question of the gateway, or of
// the server if asked is empty.
func (q *Request) newQuestionState(asked string, state, responses []byte) string {
	s := questionState{
		Asked: asked, Server: q.Server.ID, Account: q.Caller.Account(), About: q.About(), State: state, Responses: responses,
	}
	if q.Confirmed || asked == ConfirmQuestion {
		s.Confirmation, s.Arguments = q.gate.kept.Confirmations.add(q.Caller.Owner()), q.argumentsHash()
	}
	return q.gate.Shared.Sealer.Seal("question", jsonrpc.Encode(s))
}

// Ask returns a result by which a client of the modern era is asked a question of the gateway.
func (q *Request) Ask(question string, elicitation any) []byte {
	m := &q.Message
	state := q.newQuestionState(question, m.Literal(jsonrpc.RequestState), m.Literal(jsonrpc.InputResponses))
	return mcp.NewInputResult(question, mcp.Elicit(elicitation), state)
}

// ConfirmedState returns the state of a question of the server as the client gets it: with a note that
// the call was confirmed, so that the person is not asked again when the client goes on.
func (q *Request) ConfirmedState(state []byte) string { return q.newQuestionState("", state, nil) }

// TakeAnswer takes what a client of the modern era has answered to a question of the gateway off
// its message, and restores what is for the server. It returns which question that was, "" for none,
// and the answer.
func (q *Request) TakeAnswer() (asked string, answer json.RawMessage, _ *jsonrpc.Failure) {
	if !q.isModern() || q.Message.Kind(jsonrpc.RequestState) != jsonspan.String {
		return "", nil, nil
	}
	plain, ok := q.gate.Shared.Sealer.Open("question", q.Message.Text(jsonrpc.RequestState))
	if !ok {
		return "", nil, nil // it is the server's
	}
	var state questionState
	if json.Unmarshal(plain, &state) != nil || !q.isOf(&state) {
		return "", nil, jsonrpc.InvalidParams("requestState: it belongs to another request").AsAnswer()
	}
	if state.Confirmation != "" {
		switch good, err := q.gate.kept.Confirmations.take(q.HTTP.Context(), state.Confirmation); {
		case err != nil:
			return "", nil, jsonrpc.StoreUnavailable("whether the call was confirmed already cannot be told")
		case !good:
			const why = "requestState: it has been used, or is not good anymore: call the tool again without it"
			return "", nil, jsonrpc.InvalidParams(why).AsAnswer()
		}
	}
	q.Confirmed = state.Confirmation != "" && state.Asked != ConfirmQuestion
	if state.Asked != "" {
		var responses map[string]json.RawMessage
		_ = json.Unmarshal(q.Message.Literal(jsonrpc.InputResponses), &responses) // without a response it is refused
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

// isOf reports whether the request is the one that a state belongs to.
func (q *Request) isOf(state *questionState) bool {
	return state.Server == q.Server.ID && state.Account == q.Caller.Account() && state.About == q.About() &&
		(state.Confirmation == "" || string(state.Arguments) == string(q.argumentsHash()))
}

// withParam returns a request with another value of one of its params, or without it if the value is nil.
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
